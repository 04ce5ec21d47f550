"""What a fleet keeps of each series beside its ensemble: its columns, the state of its inputs, its interval levels."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels, LevelsOutput, LevelsState
from gp_ensembles.fleet.arrivals import batches
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState, Standard


def first_notes(zero: Tensor, intervals: IntervalLevels) -> dict[str, Tensor]:
    """Initial numbers of a series, all packed; ``zero`` is an input of D zeros."""
    sizes = {"columns": Columns.packed_size(len(zero)), "inputs": InputState.packed_size(len(zero))}
    numbers = {name: zero.new_zeros(size) for name, size in sizes.items()}
    return {**numbers, "levels": torch.stack(intervals.init(zero))}


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


def levels_of(series: EnsembleFleet, names: Sequence[Hashable]) -> LevelsState:
    """Interval levels of series side by side, ends (C, S)."""
    return LevelsState(*series.note("levels", names).movedim(0, -1).unbind(0))


def write_levels(series: EnsembleFleet, names: Sequence[Hashable], state: LevelsState) -> None:
    """Keep interval levels (C, S) of distinct series."""
    series.write_note("levels", names, torch.stack(state).movedim(-1, 0))


def levels_of_rows(
    intervals: IntervalLevels, state: LevelsState, series: Tensor, pit: Tensor
) -> tuple[LevelsState, LevelsOutput]:
    """Follow the levels of S series over the rows of a call, of series (N,) and with probabilities ``pit`` (N,).

    Returns: the state after them, ends (C, S); levels (2, C, N) before each row and covered targets (C, N).
    """
    num = len(intervals.coverages)
    levels, covered = pit.new_zeros(2, num, len(pit)), pit.new_zeros(num, len(pit))
    for batch in batches(series, lengths=(1,)):
        rows, here = batch.rows.squeeze(-1), batch.places
        part = LevelsState(*(ends[:, here] for ends in state))
        after, output = intervals.update_each(part, pit[rows])
        state = LevelsState(*(ends.index_copy(1, here, new) for ends, new in zip(state, after, strict=True)))
        levels[:, :, rows], covered[:, rows] = output.levels, output.covered
    return state, LevelsOutput(levels, covered)
