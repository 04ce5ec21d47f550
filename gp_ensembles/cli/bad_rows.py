"""Rows that cannot be learned: infinite or implausibly large numbers, and the policy for them."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.targets import Target
from gp_ensembles.streaming import OnlineModel
from gp_ensembles.streaming.checks import IllegalRow, too_large
from gp_ensembles.tables.rows import Rows

Policy = Literal["missing", "skip", "stop"]


class BadRows(NamedTuple):
    """Rows that could not be learned as they were.

    Attributes:
        policy: ``missing`` treats the number as missing, ``skip`` the row's target as well, so that nothing is learned
            from the row, and ``stop`` ends the run with an error that names it.
        num_rows: Rows so far that had such a number.
        first: What was wrong with the first of them.
    """

    policy: Policy = "missing"
    num_rows: int = 0
    first: str = ""

    def clean_warm_up(self, rows: Rows, names: tuple[str, ...], target: Target) -> tuple["BadRows", Rows]:
        """The count after the warm-up rows, and these without numbers that cannot be squared."""
        bad, X, y = self._clean(rows.X, rows.y, 1, names, lambda X, y: too_large(X, y) if target.is_real else None)
        return bad, rows._replace(X=X, y=y)

    def clean(self, model: OnlineModel, X: Tensor, y: Tensor, first_row: int) -> tuple["BadRows", Tensor, Tensor]:
        """The count after rows ``X`` (N, D), ``y`` (N,), and these without numbers that cannot be learned."""

        def find(X: Tensor, y: Tensor) -> IllegalRow | None:
            wrong = model.first_illegal(X, y)
            # An unknown class or half a count is a mistake about the table.
            is_other = wrong is not None and wrong.column is None and not model.config.ensemble.target.is_real
            return None if is_other else wrong

        return self._clean(X, y, first_row, model.feature_names or (), find)

    def _clean(
        self,
        X: Tensor,
        y: Tensor,
        first_row: int,
        names: tuple[str, ...],
        find: Callable[[Tensor, Tensor], IllegalRow | None],
    ) -> tuple["BadRows", Tensor, Tensor]:
        bad, last = self, -1
        while bad.policy != "stop" and (wrong := find(X, y)) is not None:
            X, y = bad._without(X, y, wrong)
            if wrong.row != last:
                bad, last = bad._with(wrong.message(first_row, names)), wrong.row
        return bad, X, y

    def _with(self, message: str) -> "BadRows":
        """The count with one more row."""
        return self._replace(num_rows=self.num_rows + 1, first=self.first or message)

    def _without(self, X: Tensor, y: Tensor, wrong: IllegalRow) -> tuple[Tensor, Tensor]:
        """Rows without a number that cannot be learned."""
        X, y = X.clone(), y.clone()
        if wrong.column is not None:
            X[wrong.row, wrong.column] = torch.nan
        if wrong.column is None or self.policy == "skip":
            y[wrong.row] = torch.nan
        return X, y
