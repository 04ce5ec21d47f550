"""Reports of a stream so far: counts of anomalies, and what became of each input."""

from collections.abc import Sequence
from typing import NamedTuple

from gp_ensembles.streaming.checks import CleanRows
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.inputs import InputState


class AnomalyCounts(NamedTuple):
    """Counts of unusual numbers so far.

    Attributes:
        inputs_moved: Inputs out of range that were moved, see :mod:`~gp_ensembles.streaming.input_states`.
        targets_discounted: Targets beyond ``EnsembleSpec.outlier_threshold``, from which less was learned.
        targets_left_out: Targets of the warm-up that count as missing, see
            :mod:`~gp_ensembles.streaming.warm_up_rows`.
        targets_far: Targets of the warm-up that are far from all others but too many to be mistakes: they were learned.
        inputs_imputed: Imputed inputs, see :mod:`~gp_ensembles.streaming.input_states`.
        bad_rows: Rows with a number that cannot be learned, see ``StreamConfig.on_bad_row``.
        first_bad_row: What was wrong with the first of them.
        first_bad_row_number: The number of that row, from 1; zero without one.
        share_missed: Share of the variance of the warm-up's targets that the fit missed, zero for none, see
            :mod:`~gp_ensembles.streaming.missed_structure`.
    """

    inputs_moved: int = 0
    targets_discounted: int = 0
    targets_left_out: int = 0
    inputs_imputed: int = 0
    bad_rows: int = 0
    first_bad_row: str = ""
    targets_far: int = 0
    first_bad_row_number: int = 0
    share_missed: float = 0.0

    def after(self, num_moved: int, targets_discounted: int, inputs_imputed: int) -> "AnomalyCounts":
        """The counts after a block, and how many targets were discounted and inputs imputed in all."""
        inputs = self.inputs_moved + num_moved
        return self._replace(inputs_moved=inputs, targets_discounted=targets_discounted, inputs_imputed=inputs_imputed)

    def with_bad(self, rows: CleanRows, first_row: int, names: Sequence[str] | None) -> "AnomalyCounts":
        """The counts with rows, the first of which has this number, that held what cannot be learned."""
        if rows.first is None:
            return self
        counts, number = self._replace(bad_rows=self.bad_rows + len(rows.bad)), first_row + rows.first.row
        if 0 < self.first_bad_row_number <= number:
            return counts
        return counts._replace(first_bad_row=rows.first.message(first_row, names), first_bad_row_number=number)


class ColumnReport(NamedTuple):
    """One input.

    Attributes:
        name: Its name.
        num_imputed: Imputed values, including those of the warm-up.
        persistence: Weight of the last value in an imputation one row later; the mean has the rest.
        was_constant: Whether it was constant in the warm-up.
        activated_at: Row of the stream, from 1, in which a constant input first changed; zero if it never did.
        has_indicator: Whether the ensemble has an indicator of its missing values.
    """

    name: str
    num_imputed: int
    persistence: float
    was_constant: bool
    activated_at: int
    has_indicator: bool


def column_reports(columns: Columns, followed: InputState, names: Sequence[str]) -> tuple[ColumnReport, ...]:
    """A report of each input."""
    activated_at = followed.inactive_columns.activated_at.int().tolist()
    imputed, used = followed.gaps.num_imputed.int().tolist(), columns.imputation.used.tolist()
    inactive = columns.inactive.tolist()
    return tuple(
        ColumnReport(name, imputed[j], used[j], inactive[j], activated_at[j], j in columns.indicators)
        for j, name in enumerate(names)
    )
