"""What becomes of the mixture of the experts: recalibrated distributions and adaptive intervals, with their state."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels, LevelsState
from gp_ensembles.calibration.recalibration import (
    RecalibrationState,
    init_recalibration,
    map_components,
    map_log_weights,
    update_recalibration,
)
from gp_ensembles.distributions import LatentMixture, Recalibrated
from gp_ensembles.ensembles.predictions import AnyMixture
from gp_ensembles.numerics.normal_scores import log_density, transform
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.predictions import Intervals, StreamDistribution, central_interval, coverage_place


class CalibrationState(NamedTuple):
    """What is known of past errors of the mixture; on the CPU, as its recursions are sequential and small.

    Attributes:
        recalibration: State of the recalibration; ``None`` where there is none.
        levels: State of the adaptive intervals; ``None`` where there are none.
    """

    recalibration: RecalibrationState | None
    levels: LevelsState | None


class CalibratedBlock(NamedTuple):
    """Predictions of a block as they were before each target.

    Attributes:
        distribution: The distributions.
        gain: What recalibration adds to the log density of each target, shape (B,).
        intervals: Adaptive intervals; ``None`` where there are none.
    """

    distribution: StreamDistribution
    gain: Tensor
    intervals: Intervals | None


def init_calibration(config: StreamConfig) -> CalibrationState:
    """The state before any target.

    Example:
        >>> init_calibration(StreamConfig(coverages=())).levels is None
        True
    """
    target = config.ensemble.target
    if not target.is_real or target.num_outputs is not None:
        return CalibrationState(None, None)
    like = torch.zeros((), dtype=torch.float64, device="cpu")
    return CalibrationState(
        init_recalibration(like) if config.recalibrate else None,
        IntervalLevels(config.coverages).init(like) if config.coverages else None,
    )


def calibrate_next(state: CalibrationState, mixture: AnyMixture) -> StreamDistribution:
    """The distributions of rows that all come next, from the mixtures of the experts."""
    if state.recalibration is None or isinstance(mixture, LatentMixture):
        return mixture
    like = mixture.component_mean
    components = (part.to(like.device) for part in map_components(state.recalibration.shares))
    return Recalibrated(mixture, map_log_weights(state.recalibration).to(like.device), *components)


def next_interval(
    state: CalibrationState, config: StreamConfig, distribution: StreamDistribution, coverage: float
) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the intervals of rows that all come next.

    Raises:
        ValueError: If there are adaptive intervals and not of this coverage.
    """
    if state.levels is None:
        return central_interval(distribution, coverage)
    place = coverage_place(coverage, config.coverages)
    lower, upper = IntervalLevels(config.coverages).probabilities(state.levels)[:, place].tolist()
    return distribution.quantile(lower), distribution.quantile(upper)


@torch.no_grad()
def calibrate_block(
    state: CalibrationState, config: StreamConfig, mixture: AnyMixture, y: Tensor
) -> tuple[CalibrationState, CalibratedBlock]:
    """Learn a block of targets, and say what was predicted before each.

    Args:
        state: The state before the block.
        config: The config of the model.
        mixture: Mixtures of the experts for B rows, in the units of the target.
        y: Targets, shape (B,), or (B, O) for several outputs; NaN where missing.

    Returns:
        The state after the block, and the predictions.
    """
    nothing = torch.zeros_like(y[..., 0] if y.ndim > 1 else y)
    if isinstance(mixture, LatentMixture) or (state.recalibration is None and state.levels is None):
        return state, CalibratedBlock(mixture, nothing, None)
    pit = mixture.cdf(y)
    distribution: StreamDistribution = mixture
    recalibration, levels, intervals, gain = state.recalibration, state.levels, None, nothing
    if recalibration is not None:
        shift, scale = (part.to(y.device) for part in map_components(pit))
        recalibration, log_weights = update_recalibration(recalibration, pit.cpu())
        maps = log_weights.to(y.device), shift, scale
        distribution, gain = Recalibrated(mixture, *maps), log_density(pit, *maps)
        pit = transform(pit, *maps)
    if levels is not None:
        levels, output = IntervalLevels(config.coverages).update_block(levels, pit.cpu())
        intervals = Intervals(config.coverages, *(part.to(y.device) for part in output))
    return CalibrationState(recalibration, levels), CalibratedBlock(distribution, gain, intervals)


def calibration_to_plain(state: CalibrationState) -> dict[str, dict[str, Tensor] | None]:
    """Plain containers, which :func:`calibration_from_plain` reads back.

    Example:
        >>> plain = calibration_to_plain(init_calibration(StreamConfig()))
        >>> calibration_from_plain(plain).levels.lower
        tensor([-1.6449], dtype=torch.float64)
    """
    return {name: None if part is None else dict(part._asdict()) for name, part in state._asdict().items()}


def calibration_from_plain(plain: Mapping[str, Any]) -> CalibrationState:
    """The state that :func:`calibration_to_plain` wrote."""
    recalibration, levels = plain["recalibration"], plain["levels"]
    return CalibrationState(
        None if recalibration is None else RecalibrationState(**recalibration),
        None if levels is None else LevelsState(**levels),
    )
