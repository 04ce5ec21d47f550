"""Calibration of the mixture of the experts, the last stage of the pipeline: one of numbers, one of classes."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    recalibrate,
    recalibrate_block,
)
from gp_ensembles.distributions import Distribution, LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.latent_mixture import certain_classes, log_prob_of_classes
from gp_ensembles.distributions.quadrature import cdf_by_pieces
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions
from gp_ensembles.ensembles.targets import LevelTarget
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.predictions import Intervals, StreamDistribution, coverage_place

_ROWS = 256
_LIKE = torch.zeros((), dtype=torch.float64, device="cpu")


class CalibrationState(NamedTuple):
    """State of the calibration of the mixture; on the CPU, as its recursions are sequential and small."""

    recalibration: RecalibrationState | None = None  # of numbers; ``None`` where there is none
    levels: LevelsState | None = None  # of their adaptive intervals, likewise
    labels: LabelState | None = None  # the label chain; ``None`` unless classes are calibrated
    classes: ClassState | None = None  # of recalibrated classes, likewise


class Calibrated(NamedTuple):
    """A block of B targets that was predicted, then learned."""

    state: CalibrationState  # the state after it
    distribution: StreamDistribution  # predictions as they were before each target
    gain: Tensor  # what calibration adds to the log density of each, (B,)
    intervals: Intervals | None = None  # adaptive intervals; ``None`` where there are none


class NumberCalibration(NamedTuple):
    """Recalibration and adaptive intervals of single real numbers; without both mixtures of any kind stay."""

    recalibrates: bool
    levels: IntervalLevels  # of no coverages for no intervals

    def init(self, y: Tensor | None = None, warm_up: EnsemblePredictions | None = None) -> CalibrationState:
        """The state before any prediction; nothing is learned from the warm-up."""
        recalibration = init_recalibration(_LIKE) if self.recalibrates else None
        return CalibrationState(recalibration, self.levels.init(_LIKE) if self.levels.coverages else None)

    def predict(self, state: CalibrationState, mixture: AnyMixture) -> StreamDistribution:
        """The distributions of rows that all come next, from the mixtures of the experts."""
        if state.recalibration is None:
            return mixture
        assert not isinstance(mixture, LatentMixture)
        log_weights = map_log_weights(state.recalibration).to(mixture.component_mean.device)
        return Recalibrated(mixture, log_weights, *map_components(log_weights))

    def update(self, state: CalibrationState, mixture: AnyMixture, y: Tensor, size: int = _ROWS) -> Calibrated:
        """Learn targets (B,) of one stream; ``size`` is for classes."""
        if state.recalibration is None and state.levels is None:
            return Calibrated(state, mixture, torch.zeros_like(y[..., 0] if y.ndim > 1 else y))
        assert not isinstance(mixture, LatentMixture)
        return self.learn(state, mixture, cdf_by_pieces(mixture, y), recalibrate_block, self.levels.update_block)

    @torch.no_grad()
    def learn(
        self, state: CalibrationState, mixture: Mixture | StudentTMixture, pit: Tensor, *steps: Callable[..., Any]
    ) -> Calibrated:
        """Learn targets by their transforms (B,), one of each of many series unless there are steps of other rows."""
        (recalibration, levels, *_), gain, intervals, device = state, torch.zeros_like(pit), None, pit.device
        distribution: Mixture | StudentTMixture | Recalibrated = mixture
        of_maps, of_levels = steps or (recalibrate, self.levels.update)
        if recalibration is not None:
            recalibration, (log_weights, gain, pit) = of_maps(recalibration, pit)
            distribution = Recalibrated(mixture, log_weights, *map_components(pit))
        if levels is not None:
            levels, output = of_levels(levels, pit, distribution.typical_width())
            intervals = Intervals(self.levels.coverages, *(part.to(device) for part in output))
        return Calibrated(CalibrationState(recalibration, levels), distribution, gain, intervals)


class ClassCalibration(NamedTuple):
    """Recalibrated probabilities of unordered classes, or of two, with the help of the last labels."""

    num_classes: int

    def init(self, y: Tensor | None = None, warm_up: EnsemblePredictions | None = None) -> CalibrationState:
        """The state after labels (N,) of the warm-up, learned if there are predictions made before each of them."""
        labels, classes = init_labels(self.num_classes, _LIKE), init_classes(self.num_classes, 1, _LIKE)
        if y is not None and warm_up is not None:
            return self.update(CalibrationState(None, None, labels, classes), warm_up.mixture, y).state
        if y is not None:
            labels, classes = update_labels(labels, y.cpu())[0], remember_labels(classes, y.cpu())
        return CalibrationState(None, None, labels, classes)

    def predict(self, state: CalibrationState, mixture: AnyMixture) -> StreamDistribution:
        """As for numbers."""
        assert isinstance(mixture, LatentMixture)
        _, _, labels, classes = state
        assert labels is not None
        assert classes is not None
        predicted = log_prob_of_classes(mixture, _ROWS)
        others = predict_labels(labels).expand(1, *predicted.shape)
        return certain_classes(predict_classes(classes, predicted, others), like=mixture.latent_mean)

    @torch.no_grad()
    def update(self, state: CalibrationState, mixture: AnyMixture, y: Tensor, size: int = _ROWS) -> Calibrated:
        """Learn labels (B,), ``size`` at a time."""
        assert isinstance(mixture, LatentMixture)
        _, _, labels, classes = state
        assert labels is not None
        assert classes is not None
        predicted, seen, parts = log_prob_of_classes(mixture, size), y.double().cpu(), []
        # Blocks are cut alike in calls of any length, so the last bits of a row do not know the length of its call.
        for rows, targets in zip(predicted.split(size), seen.split(size), strict=True):
            labels, others = update_labels(labels, targets)
            classes, part = update_classes(classes, rows, others.unsqueeze(0), targets)
            parts.append(part)
        log_prob = torch.cat(parts)
        place = seen.nan_to_num(0.0).long().unsqueeze(-1)
        gain = torch.where(seen.isnan(), 0.0, (log_prob - predicted).gather(-1, place).squeeze(-1)).to(y)
        known = certain_classes(log_prob, like=mixture.latent_mean)
        return Calibrated(CalibrationState(None, None, labels, classes), known, gain)


Calibration = NumberCalibration | ClassCalibration


def calibration_of(config: StreamConfig, *, has_point: bool = False) -> Calibration:
    """The stage for the targets of a stream; no levels where a share of them lies at one quantile, the point."""
    target = config.ensemble.target
    if target.num_labels is not None and not isinstance(target, LevelTarget) and config.recalibrate:
        return ClassCalibration(target.num_labels)
    is_number = target.is_real and target.num_outputs is None
    coverages = config.coverages if is_number and not has_point else ()
    return NumberCalibration(is_number and config.recalibrate, IntervalLevels(coverages))


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
