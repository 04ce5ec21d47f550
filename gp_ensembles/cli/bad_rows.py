"""What a long run does about a row that cannot be learned: a number out of all proportion, or an infinite one."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming import OnlineModel

Policy = Literal["missing", "skip", "stop"]


class BadRows(NamedTuple):
    """Rows that could not be learned as they were.

    Attributes:
        policy: ``missing`` takes the number for a missing one, ``skip`` the row's target as well, so that nothing is
            learned from it, and ``stop`` ends the run with an error that names it.
        num_rows: Rows so far that had such a number.
        first: What was wrong with the first of them.
    """

    policy: Policy = "missing"
    num_rows: int = 0
    first: str = ""

    def mend(self, model: OnlineModel, X: Tensor, y: Tensor, first_row: int) -> tuple["BadRows", Tensor, Tensor]:
        """Rows that the model can learn.

        Args:
            model: The model.
            X: Inputs, shape (N, D).
            y: Targets, shape (N,).
            first_row: Number of the first row.

        Returns:
            The count with these rows, their inputs and their targets; as they were where the policy is to stop.
        """
        bad, last = self, -1
        while bad.policy != "stop":
            wrong = model.first_illegal(X, y)
            if wrong is None or (wrong.column is None and not model.config.ensemble.target.is_real):
                break  # a class that is none, or half a count, is a mistake about the table
            X, y = X.clone(), y.clone()
            if wrong.column is not None:
                X[wrong.row, wrong.column] = torch.nan
            if wrong.column is None or bad.policy == "skip":
                y[wrong.row] = torch.nan
            if wrong.row != last:
                first = bad.first or wrong.message(first_row, model.feature_names or ())
                bad, last = bad._replace(num_rows=bad.num_rows + 1, first=first), wrong.row
        return bad, X, y
