"""Calibration of the mixture of the experts: recalibrated distributions and adaptive intervals, with their state."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration.classes import ClassState, init_classes, predict_classes, remember_labels, update_classes
from gp_ensembles.calibration.labels import LabelState, init_labels, predict_labels, update_labels
from gp_ensembles.calibration.levels import IntervalLevels, LevelsState, check_coverages
from gp_ensembles.calibration.recalibration import (
    RecalibrationState,
    init_recalibration,
    map_components,
    map_log_weights,
    recalibrate_block,
)
from gp_ensembles.distributions import Distribution, LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.latent_mixture import certain_classes, log_prob_of_classes
from gp_ensembles.distributions.quadrature import cdf_by_pieces
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions
from gp_ensembles.ensembles.targets import LevelTarget
from gp_ensembles.streaming.columns import Standardizer
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.predictions import Intervals, StreamDistribution, coverage_place

_ROWS = 256


class CalibrationState(NamedTuple):
    """State of the calibration of the mixture; on the CPU, as its recursions are sequential and small.

    Attributes:
        recalibration: State of the recalibration; ``None`` where there is none.
        levels: State of the adaptive intervals; ``None`` where there are none.
        labels: State of the label recursion; ``None`` unless targets are unordered classes, or two.
        classes: State of the recalibration of such classes, likewise.
    """

    recalibration: RecalibrationState | None
    levels: LevelsState | None
    labels: LabelState | None = None
    classes: ClassState | None = None


def init_calibration(
    config: StreamConfig,
    y: Tensor | None = None,
    warm_up: EnsemblePredictions | None = None,
    *,
    has_point: bool = False,
) -> CalibrationState:
    """The state before any prediction, after targets (N,) of the warm-up, if they are given: their labels are known.

    Where there are predictions of these labels, each made before its label, they are learned, too. Of targets with
    a point mass, the levels of intervals are not adapted: a share of them lies at one quantile.
    """
    target = config.ensemble.target
    like = torch.zeros((), dtype=torch.float64, device="cpu")
    if target.num_labels is not None and not isinstance(target, LevelTarget) and config.recalibrate:
        num_classes = target.num_labels
        labels, classes = init_labels(num_classes, like), init_classes(num_classes, 1, like)
        if y is not None and warm_up is not None:
            return calibrate_block(CalibrationState(None, None, labels, classes), config, warm_up.mixture, y)[0]
        if y is not None:
            labels, classes = update_labels(labels, y.cpu())[0], remember_labels(classes, y.cpu())
        return CalibrationState(None, None, labels, classes)
    if not target.is_real or target.num_outputs is not None:
        return CalibrationState(None, None)
    return CalibrationState(
        init_recalibration(like) if config.recalibrate else None,
        IntervalLevels(config.coverages).init(like) if config.coverages and not has_point else None,
    )


def in_units(mixture: AnyMixture, scales: Standardizer) -> AnyMixture:
    """Mixtures of standardized targets in the units of the target, in float64; of latent values as they are."""
    if isinstance(mixture, LatentMixture):
        return mixture
    doubles = {name: value.double() for name, value in mixture._asdict().items()}
    if mixture.log_weights.dtype != torch.float64:  # they sum to one in single precision only
        doubles["log_weights"] = doubles["log_weights"].log_softmax(0)
    return mixture._replace(**doubles).rescale(scales.y_mean, scales.y_scale)


def calibrate_next(state: CalibrationState, mixture: AnyMixture) -> StreamDistribution:
    """The distributions of rows that all come next, from the mixtures of the experts."""
    if isinstance(mixture, LatentMixture) and state.labels is not None and state.classes is not None:
        predicted = log_prob_of_classes(mixture, _ROWS)
        others = predict_labels(state.labels).expand(1, *predicted.shape)
        return certain_classes(predict_classes(state.classes, predicted, others), like=mixture.latent_mean)
    if state.recalibration is None or isinstance(mixture, LatentMixture):
        return mixture
    like = mixture.component_mean
    components = (part.to(like.device) for part in map_components(state.recalibration.shares))
    return Recalibrated(mixture, map_log_weights(state.recalibration).to(like.device), *components)


def next_levels(state: CalibrationState, config: StreamConfig, coverage: float) -> tuple[float, float]:
    """Probabilities at the lower and upper end of the next interval, but for what its fifth of the widths adds."""
    if state.levels is None:
        check_coverages((coverage,))
        return (1 - coverage) / 2, (1 + coverage) / 2
    place = coverage_place(coverage, config.coverages)
    lower, upper = IntervalLevels(config.coverages).probabilities(state.levels)[:, place].tolist()
    return lower, upper


def next_interval(
    state: CalibrationState, config: StreamConfig, predicted: Distribution, coverage: float
) -> tuple[Tensor, Tensor]:
    """Lower and upper ends, (N,) each, of intervals of rows that all come next, from their distributions."""
    if state.levels is None:
        lower, upper = next_levels(state, config, coverage)
        return predicted.quantile(lower), predicted.quantile(upper)
    assert isinstance(predicted, Mixture | StudentTMixture | Recalibrated)
    width, place = predicted.typical_width(), coverage_place(coverage, config.coverages)
    ends = IntervalLevels(config.coverages).probabilities(state.levels, width)[:, place]
    lower, upper = predicted.quantile(ends.to(width))
    return lower, upper


@torch.no_grad()
def calibrate_block(
    state: CalibrationState, config: StreamConfig, mixture: AnyMixture, y: Tensor, block_size: int = _ROWS
) -> tuple[CalibrationState, StreamDistribution, Tensor, Intervals | None]:
    """Learn a block of targets (B,).

    Returns: the state after it; predictions as they were before each target; what recalibration adds to the log density
    of each, (B,); and adaptive intervals, ``None`` where there are none.
    """
    nothing = torch.zeros_like(y[..., 0] if y.ndim > 1 else y)
    if isinstance(mixture, LatentMixture) and state.labels is not None and state.classes is not None:
        predicted, seen = log_prob_of_classes(mixture, block_size), y.double().cpu()
        labels, classes, parts = state.labels, state.classes, []
        # Blocks are cut alike in calls of any length, so the last bits of a row do not know the length of its call.
        for rows, targets in zip(predicted.split(block_size), seen.split(block_size), strict=True):
            labels, others = update_labels(labels, targets)
            classes, part = update_classes(classes, rows, others.unsqueeze(0), targets)
            parts.append(part)
        log_prob = torch.cat(parts)
        place = seen.nan_to_num(0.0).long().unsqueeze(-1)
        gained = torch.where(seen.isnan(), 0.0, (log_prob - predicted).gather(-1, place).squeeze(-1)).to(y)
        known = certain_classes(log_prob, like=mixture.latent_mean)
        return CalibrationState(None, None, labels, classes), known, gained, None
    if isinstance(mixture, LatentMixture) or (state.recalibration is None and state.levels is None):
        return state, mixture, nothing, None
    pit = cdf_by_pieces(mixture, y)
    distribution: Mixture | StudentTMixture | Recalibrated = mixture
    recalibration, levels, intervals, gain = state.recalibration, state.levels, None, nothing
    if recalibration is not None:
        recalibration, (log_weights, gain, pit) = recalibrate_block(recalibration, pit)
        distribution = Recalibrated(mixture, log_weights, *map_components(pit))
    if levels is not None:
        levels, output = IntervalLevels(config.coverages).update_block(levels, pit.cpu(), distribution.typical_width())
        intervals = Intervals(config.coverages, *(part.to(y.device) for part in output))
    return CalibrationState(recalibration, levels), distribution, gain, intervals
