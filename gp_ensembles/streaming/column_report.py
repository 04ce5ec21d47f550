"""What became of each input of a stream so far."""

from collections.abc import Sequence
from typing import NamedTuple

from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.inputs import InputState


class ColumnReport(NamedTuple):
    """One input.

    Attributes:
        name: Its name.
        num_imputed: Missing values for which something stood in, those of the warm-up among them.
        persistence: Weight of the last value in what stands in one row later; the mean has the rest.
        slept: Whether it was constant in the warm-up.
        activated_at: Row of the stream, counting from 1, in which it first moved if it slept; zero if it never did.
        has_indicator: Whether the ensemble sees where it is missing.
    """

    name: str
    num_imputed: int
    persistence: float
    slept: bool
    activated_at: int
    has_indicator: bool


def column_reports(columns: Columns, followed: InputState, names: Sequence[str]) -> tuple[ColumnReport, ...]:
    """A report of each input."""
    activated_at = dict(zip(columns.inactive, followed.inactive_columns.activated_at.int().tolist(), strict=True))
    imputed, used = followed.gaps.num_imputed.int().tolist(), columns.imputation.used.tolist()
    return tuple(
        ColumnReport(
            name, imputed[j], used[j], j in activated_at, activated_at.get(j, 0), j in columns.imputation.indicators
        )
        for j, name in enumerate(names)
    )
