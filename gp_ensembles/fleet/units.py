"""Scales and interval levels of series, kept as further numbers of a fleet."""

from collections.abc import Hashable, Sequence

from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels, LevelsOutput, LevelsState
from gp_ensembles.fleet.arrivals import batches
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.scales import SeriesScales


def first_notes(zero: Tensor, intervals: IntervalLevels) -> dict[str, Tensor]:
    """Initial further numbers of a series; ``zero`` is an input of D zeros."""
    levels = intervals.init(zero)
    scales = {"X_mean": zero, "X_scale": zero + 1, "y_mean": zero.new_zeros(()), "y_scale": zero.new_ones(())}
    return {**scales, "last": zero, "lower": levels.lower, "upper": levels.upper}


def scales_of(series: EnsembleFleet, names: Sequence[Hashable]) -> SeriesScales:
    """Scales of the series of N rows."""
    return SeriesScales(*(series.note(field, names) for field in SeriesScales._fields))


def write_scales(series: EnsembleFleet, names: Sequence[Hashable], scales: SeriesScales, last: Tensor) -> None:
    """Keep scales of S distinct series, and their last inputs (S, D)."""
    for field, values in {**scales._asdict(), "last": last}.items():
        series.write_note(field, names, values)


def levels_of(series: EnsembleFleet, names: Sequence[Hashable]) -> LevelsState:
    """Interval levels of series side by side, ends (C, S)."""
    return LevelsState(series.note("lower", names).T.clone(), series.note("upper", names).T.clone())


def write_levels(series: EnsembleFleet, names: Sequence[Hashable], state: LevelsState) -> None:
    """Keep interval levels (C, S) of distinct series."""
    series.write_note("lower", names, state.lower.T)
    series.write_note("upper", names, state.upper.T)


def levels_of_rows(
    intervals: IntervalLevels, state: LevelsState, series: Tensor, pit: Tensor
) -> tuple[LevelsState, LevelsOutput, Tensor]:
    """Follow the levels of S series over the rows of a call, of series (N,) and with probabilities ``pit`` (N,).

    Returns: the state after them, ends (C, S); levels (2, C, N) before each row and covered targets (C, N); the newest
    row of each series, shape (S,).
    """
    num = len(intervals.coverages)
    levels, covered = pit.new_zeros(2, num, len(pit)), pit.new_zeros(num, len(pit))
    newest = series.new_zeros(state.lower.shape[-1])
    for batch in batches(series, lengths=(1,)):
        rows, here = batch.rows.squeeze(-1), batch.places
        part = LevelsState(*(ends[:, here] for ends in state))
        after, output = intervals.update_each(part, pit[rows])
        for ends, new in zip(state, after, strict=True):
            ends[:, here] = new
        levels[:, :, rows], covered[:, rows], newest[here] = output.levels, output.covered, rows
    return state, LevelsOutput(levels, covered), newest
