"""What a model from outside has to offer: trained on rows, it predicts the mean and the deviation of targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Inputs (N, D) to means and standard deviations, (N,) each; None for the size of past errors.
Forecast = Callable[[Tensor], tuple[Tensor, Tensor | None]]

LAST_ERRORS = 500  # whose size stands in for a deviation that a model does not state
LEAST_DEVIATION = 1e-3  # of standardized targets, as of the noise of other experts
_LEAST_ERRORS = 10


class GuestRows(NamedTuple):
    """What a model is trained on: N observed rows in the order of time, on the CPU, in double precision.

    Attributes:
        inputs: Shape (N, D).
        targets: Shape (N,).
        shares: What counts of each target, shape (N,): one, or less for an outlier.
        errors: What was left of each target by the prediction made before it, shape (N,); NaN where there was none.
    """

    inputs: Tensor
    targets: Tensor
    shares: Tensor
    errors: Tensor


class Guest(ABC):
    """A model from outside, trained now and then on rows that were stored."""

    @abstractmethod
    def fit(self, rows: GuestRows) -> Forecast:
        """Train on rows from scratch.

        It must depend on the rows only: the same rows give the same forecasts, for a model that was saved is trained
        again where it is loaded. What it returns must not change any more.

        Returns:
            A function of inputs (N, D), double precision on the CPU, that gives means (N,) and standard deviations
            (N,). ``None`` instead of these means the size of the model's last errors.
        """


def error_size(rows: GuestRows) -> float:
    """Root mean square of the last 500 errors; while there are fewer than ten, the targets' standard deviation.

    Example:
        >>> one = torch.ones(20, dtype=torch.float64)
        >>> error_size(GuestRows(one.unsqueeze(-1), one, one, 3 * one))
        3.0
    """
    seen = ~torch.isnan(rows.errors)
    values, shares = rows.errors[seen][-LAST_ERRORS:], rows.shares[seen][-LAST_ERRORS:]
    if values.shape[0] < _LEAST_ERRORS:
        shares = rows.shares
        values = rows.targets - (shares * rows.targets).sum() / shares.sum()
    size = math.sqrt(float((shares * values.square()).sum() / shares.sum()))
    return max(size, LEAST_DEVIATION)
