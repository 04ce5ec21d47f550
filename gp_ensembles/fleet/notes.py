"""Packed tensors per series of a fleet: its columns, and the states of its inputs and of its calibration."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels, LevelsState
from gp_ensembles.calibration.recalibration import RecalibrationState, map_components
from gp_ensembles.distributions import Mixture, Recalibrated, StudentTMixture, WithPointMass
from gp_ensembles.distributions.quadrature import cdf_by_pieces
from gp_ensembles.engine.predictions import AnyMixture
from gp_ensembles.fleet.arrivals import batches
from gp_ensembles.fleet.point_mass import learn_points, next_shares, no_point, with_central_levels, with_points
from gp_ensembles.fleet.predictions import SeriesDistribution, merge_distributions
from gp_ensembles.streaming.calibration import CalibrationState, NumberCalibration, calibration_of
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState, Standard
from gp_ensembles.streaming.point_mass import without_point
from gp_ensembles.streaming.predictions import Intervals

NOTES = ("columns", "inputs", "calibration", "point")  # stored for each series


def first_notes(config: StreamConfig, zero: Tensor) -> dict[str, Tensor]:
    """Initial packed values of a series; ``zero`` is an input of D zeros."""
    sizes = {"columns": Columns.packed_size(len(zero)), "inputs": InputState.packed_size(len(zero))}
    numbers = {name: zero.new_zeros(size) for name, size in sizes.items()}
    calibration = pack_calibration(calibration_of(config).init()).to(zero)
    return {**numbers, "calibration": calibration, "point": no_point(zero)}


def path_of(config: StreamConfig, columns: Tensor) -> InputPath:
    """The transformation of rows for series with these packed columns (S, ...)."""
    return InputPath(config, Columns.unpacked(columns))


def follow_rows(config: StreamConfig, columns: Tensor, states: Tensor, X: Tensor, series: Tensor) -> Standard:
    """Standardize rows X (N, D) of series (N,) in any order; columns and states of the S series are packed, (S, ...).

    See :meth:`~gp_ensembles.streaming.inputs.InputPath.follow`; the states after the rows cover all S series.
    """
    num_rows, num_inputs = X.shape
    states, scaled, extra, num_moved = states.clone(), torch.empty_like(X), X.new_zeros(num_rows), series.clone()
    inputs = X.new_empty(num_rows, num_inputs, dtype=config.torch_dtype)
    for places, numbers in batches(series):
        state, rows = InputState.unpacked(states[places], num_inputs), numbers.flatten()
        part = path_of(config, columns[places]).follow(state, X[numbers])
        scaled[rows], inputs[rows] = part.scaled.flatten(0, 1), part.inputs.flatten(0, 1)
        num_moved[rows] = part.num_moved.flatten()
        if part.extra is not None:
            extra[rows] = part.extra.flatten().to(extra)
        states[places] = part.state.packed()
    after = InputState.unpacked(states, num_inputs)
    return Standard(scaled, inputs, extra if bool(extra.any()) else None, num_moved, after)


def pack_calibration(state: CalibrationState) -> Tensor:
    """Concatenate the state of a series into one vector (..., P); :func:`unpack_calibration` is the inverse."""
    known = [part for part in (state.recalibration, state.levels) if part is not None]
    lead = known[0][-1].shape[:-1] if known else ()
    parts = [value.reshape(*lead, -1) for part in known for value in part]
    return torch.cat(parts, dim=-1) if parts else torch.zeros(0, dtype=torch.float64, device="cpu")


def unpack_calibration(config: StreamConfig, numbers: Tensor) -> CalibrationState:
    """Unpack a state from a vector (..., P), as views."""
    start = calibration_of(config).init()
    sizes = [value.numel() for part in (start.recalibration, start.levels) if part is not None for value in part]
    values: Iterator[Tensor] = iter(numbers.split(sizes, dim=-1) if sizes else ())

    def read(like: RecalibrationState | LevelsState) -> list[Tensor]:
        return [next(values).unflatten(-1, value.shape) for value in like]

    recalibration = None if start.recalibration is None else RecalibrationState(*read(start.recalibration))
    return CalibrationState(recalibration, None if start.levels is None else LevelsState(*read(start.levels)))


def calibrate_rows(
    config: StreamConfig,
    numbers: Tensor,
    points: Tensor,
    mixture: AnyMixture,
    log_prob: Tensor,
    y: Tensor,
    series: Tensor,
) -> tuple[SeriesDistribution, Tensor, Intervals]:
    """Learn targets (N,) of series (N,) in any order; the packed states of the S series change in place.

    ``points`` are their point masses, and ``log_prob`` (N,) log densities of targets elsewhere. Returns
    distributions, log densities including calibration, and intervals, each based only on data before its
    target. See :func:`~gp_ensembles.streaming.calibration.NumberCalibration`.
    """
    stage, num, own = calibration_of(config), len(config.coverages), points[series]
    assert isinstance(stage, NumberCalibration)
    assert isinstance(mixture, Mixture | StudentTMixture)
    pit = cdf_by_pieces(mixture, without_point(y, own[:, 0]))
    (shift, scale), gain = map_components(pit), torch.zeros_like(pit)
    log_weights = pit.new_empty(len(shift) if config.recalibrate else 0, len(y))
    levels, covered = pit.new_empty(2, num, len(y)), pit.new_empty(num, len(y))
    for places, single in batches(series, lengths=(1,)):
        rows = single.squeeze(-1)
        here = slice(None) if len(places) == len(numbers) else places  # a view if all have a row
        base = merge_distributions([mixture], rows)
        assert isinstance(base, Mixture | StudentTMixture)
        state = unpack_calibration(config, numbers[here])
        after, predicted, gain[rows], intervals = stage.learn(state, base, pit[rows])
        numbers[here] = pack_calibration(after)
        if isinstance(predicted, Recalibrated):
            log_weights[:, rows] = predicted.map_log_weights
        if intervals is not None:
            levels[..., rows], covered[:, rows] = intervals[1:]
    others = Recalibrated(mixture, log_weights, shift, scale) if config.recalibrate else mixture
    distribution = with_points(others, own, learn_points(points, y, series))
    log_prob, ends_of_all = log_prob + gain, Intervals(config.coverages, levels, covered)
    if isinstance(distribution, WithPointMass):
        log_prob = distribution.mixed_log_prob(y, log_prob)
    return distribution, log_prob, with_central_levels(distribution, ends_of_all, y)


def predict_rows(
    config: StreamConfig, numbers: Tensor, points: Tensor, mixture: AnyMixture
) -> tuple[SeriesDistribution, Tensor]:
    """Distributions of rows one step ahead, and levels of their intervals, (2, C, N), from packed states per row."""
    calibration = unpack_calibration(config, numbers)
    others = calibration_of(config).predict(calibration, mixture)
    assert isinstance(others, Mixture | StudentTMixture | Recalibrated)
    levels = numbers.new_zeros(2, 0, len(numbers))
    if calibration.levels is not None:
        levels = IntervalLevels(config.coverages).probabilities(calibration.levels, others.typical_width())
    distribution = with_points(others, points, next_shares(points))
    return distribution, with_central_levels(distribution, Intervals(config.coverages, levels, levels[0]), None).levels
