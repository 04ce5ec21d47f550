"""Scales and interval levels of series, as they stand among the numbers that a fleet keeps for each."""

from collections.abc import Hashable, Sequence

from gp_ensembles.calibration.levels import LevelsState
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.scales import SeriesScales


def scales_of(series: EnsembleFleet, names: Sequence[Hashable]) -> SeriesScales:
    """Scales of the series of N rows."""
    return SeriesScales(*(series.note(field, names) for field in SeriesScales._fields))


def levels_of(series: EnsembleFleet, names: Sequence[Hashable]) -> LevelsState:
    """Interval levels of series side by side, ends (C, S)."""
    return LevelsState(series.note("lower", names).T.clone(), series.note("upper", names).T.clone())
