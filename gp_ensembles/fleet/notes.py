"""Columns of each series of a fleet, and the states of its inputs and of its calibration, kept as packed numbers."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels, LevelsState
from gp_ensembles.calibration.recalibration import RecalibrationState, map_components, recalibrate
from gp_ensembles.distributions import Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.quadrature import cdf_by_pieces
from gp_ensembles.engine.predictions import AnyMixture
from gp_ensembles.fleet.arrivals import batches
from gp_ensembles.fleet.predictions import SeriesDistribution
from gp_ensembles.streaming.after_mixture import CalibrationState, init_calibration
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState, Standard
from gp_ensembles.streaming.predictions import Intervals


def first_notes(config: StreamConfig, zero: Tensor) -> dict[str, Tensor]:
    """Initial numbers of a series, all packed; ``zero`` is an input of D zeros."""
    sizes = {"columns": Columns.packed_size(len(zero)), "inputs": InputState.packed_size(len(zero))}
    numbers = {name: zero.new_zeros(size) for name, size in sizes.items()}
    return {**numbers, "calibration": pack_calibration(init_calibration(config)).to(zero)}


def path_of(config: StreamConfig, columns: Tensor) -> InputPath:
    """The transformation of the rows of series with these columns, packed, (S, ...)."""
    return InputPath(config, Columns.unpacked(columns))


def follow_rows(config: StreamConfig, columns: Tensor, states: Tensor, X: Tensor, series: Tensor) -> Standard:
    """Standardize rows X (N, D) of series (N,) in any order; columns and states of the S series are packed.

    The state that is returned is that of the S series.
    """
    num_rows, num_inputs = X.shape
    scaled, extra, num_moved = torch.empty_like(X), X.new_zeros(num_rows), series.new_zeros(num_rows)
    inputs = X.new_empty(num_rows, num_inputs, dtype=config.torch_dtype)
    for batch in batches(series):
        state = InputState.unpacked(states[batch.places], num_inputs)
        part, rows = path_of(config, columns[batch.places]).follow(state, X[batch.rows]), batch.rows.flatten()
        scaled[rows], inputs[rows] = part.scaled.flatten(0, 1), part.inputs.flatten(0, 1)
        num_moved[rows] = part.num_moved.flatten()
        if part.extra is not None:
            extra[rows] = part.extra.flatten()
        states = states.index_copy(0, batch.places, part.state.packed())
    noise = extra if bool(extra.any()) else None
    return Standard(scaled, inputs, noise, num_moved, InputState.unpacked(states, num_inputs))


def pack_calibration(state: CalibrationState) -> Tensor:
    """All numbers of a series side by side, (..., P), which :func:`unpack_calibration` reads back."""
    known = [part for part in (state.recalibration, state.levels) if part is not None]
    lead = known[0][-1].shape[:-1] if known else ()
    parts = [value.reshape(*lead, -1) for part in known for value in part]
    return torch.cat(parts, dim=-1) if parts else torch.zeros(0, dtype=torch.float64, device="cpu")


def unpack_calibration(config: StreamConfig, numbers: Tensor) -> CalibrationState:
    """The state whose numbers (..., P) these are."""
    start, known = init_calibration(config), numbers
    parts = [part for part in (start.recalibration, start.levels) if part is not None]
    sizes = [value.numel() for part in parts for value in part]
    values: Iterator[Tensor] = iter(known.split(sizes, dim=-1) if sizes else ())

    def read(like: RecalibrationState | LevelsState) -> list[Tensor]:
        return [next(values).reshape(*numbers.shape[:-1], *value.shape) for value in like]

    recalibration = None if start.recalibration is None else RecalibrationState(*read(start.recalibration))
    return CalibrationState(recalibration, None if start.levels is None else LevelsState(*read(start.levels)))


def calibrate_rows(
    state: CalibrationState, config: StreamConfig, mixture: AnyMixture, y: Tensor, series: Tensor
) -> tuple[CalibrationState, SeriesDistribution, Tensor, Intervals]:
    """Learn targets (N,) of series (N,) in any order.

    Returns: the states of the S series after them; distributions, what recalibration adds to each log density, (N,),
    and intervals, each from what came before the target.
    See :func:`~gp_ensembles.streaming.after_mixture.calibrate_block`.
    """
    assert isinstance(mixture, Mixture | StudentTMixture)
    pit, intervals = cdf_by_pieces(mixture, y), IntervalLevels(config.coverages)
    components, num = map_components(pit), len(config.coverages)
    log_weights, gain = pit.new_empty(len(components.shift), len(y)), torch.zeros_like(pit)
    levels, covered = pit.new_empty(2, num, len(y)), pit.new_empty(num, len(y))
    for batch in batches(series, lengths=(1,)):
        rows, here = batch.rows.squeeze(-1), batch.places
        u = pit[rows]
        if state.recalibration is not None:
            after, block = recalibrate(RecalibrationState(*(part[here] for part in state.recalibration)), u)
            log_weights[:, rows], gain[rows], u = block.log_weights, block.gain, block.pit
            recalibration = zip(state.recalibration, after, strict=True)
            state = state._replace(
                recalibration=RecalibrationState(*(old.index_copy(0, here, new) for old, new in recalibration))
            )
        if state.levels is not None:
            ends, output = intervals.update(LevelsState(*(part[here] for part in state.levels)), u)
            levels[..., rows], covered[:, rows] = output
            both = zip(state.levels, ends, strict=True)
            state = state._replace(levels=LevelsState(*(old.index_copy(0, here, new) for old, new in both)))
    distribution = mixture if state.recalibration is None else Recalibrated(mixture, log_weights, *components)
    return state, distribution, gain, Intervals(config.coverages, levels, covered)
