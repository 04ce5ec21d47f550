r"""Inactive columns: constant in the warm-up or without a value there, and used from their first change on.

An inactive column is zero to the ensemble. Its deviations :math:`d_t` from the constant, or from its first value, are
divided by a scale that only they set, with the geometric mean

.. math:: s_t = \exp\Big(\frac1n \sum_{i \le n} \log |d_i|\Big)

of the first hundred that are not zero, so that a column of zeros and ones is itself, whichever it began with, up to a
sign, and neither one outlier nor a beginning a hundred times smaller sets the scale for good. A scale is doubled for
as many rows as a deviation is more than ten times as large, and no standardized value is beyond ten.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

SETTLED = 100  # deviations that set the scale
FAR = 10.0  # scales
_ROUND_OFF = 10 * torch.finfo(torch.float64).eps


class InactiveColumns(NamedTuple):
    """State of S columns that were constant in the warm-up.

    Attributes:
        base: What they deviate from, NaN before there is a value, shape (S,).
        log_sum: Sum of the logarithms of the deviations that set the scale, (S,).
        num: How many these are, (S,).
        floor: What the scale has grown to since, (S,).
        activated_at: Number of the row in which a column first moved, counting the rows of the stream from 1; zero
            while it is inactive, (S,).
    """

    base: Tensor
    log_sum: Tensor
    num: Tensor
    floor: Tensor
    activated_at: Tensor

    @classmethod
    def of(cls, base: Tensor) -> "InactiveColumns":
        """Inactive columns with these constants (S,), NaN where there is none."""
        zero = torch.zeros_like(base, dtype=torch.float64)
        return cls(base.double(), zero, zero, zero, zero)

    @property
    def scale(self) -> Tensor:
        """Current scales, one while a column is inactive, shape (S,)."""
        own = torch.where(self.num > 0, (self.log_sum / self.num.clamp_min(1)).exp(), 1.0)
        return torch.maximum(own, self.floor)

    def follow(self, X: Tensor, first_row: int) -> tuple["InactiveColumns", Tensor]:
        """Standardize consecutive rows X (N, S)."""
        columns, found = [], []
        for one, values in zip(torch.stack(self).T.tolist(), X.T, strict=True):
            if bool((values == one[0]).all()) or bool(values.isnan().all()):
                columns.append([0.0] * X.shape[0])
                found.append(one)
                continue
            number = _Column(*one)
            columns.append([number.take(value, first_row + row) for row, value in enumerate(values.tolist())])
            found.append(number.numbers)
        known = X.new_tensor(found).reshape(-1, len(self)).T
        return InactiveColumns(*known.unbind(0)), X.new_tensor(columns).reshape(-1, X.shape[0]).T

    def each(self, X: Tensor) -> Tensor:
        """Standardize rows (N, S) that all come next, each on its own."""
        values = torch.zeros_like(X)
        for column, one in enumerate(torch.stack(self).T.tolist()):
            for row in (X[:, column] != one[0]).nonzero().flatten().tolist():
                values[row, column] = _Column(*one).take(float(X[row, column]), 1)
        return values


class _Column:
    """One column, one value at a time."""

    def __init__(self, base: float, log_sum: float, count: float, floor: float, activated_at: float) -> None:
        self.numbers = [base, log_sum, count, floor, activated_at]

    def take(self, value: float, row: int) -> float:
        """The standardized value of a row."""
        base, log_sum, count, floor, activated_at = self.numbers
        if math.isnan(value):
            return 0.0
        if math.isnan(base):
            self.numbers[0] = value
            return 0.0
        deviation = value - base
        size = abs(deviation)
        if size <= _ROUND_OFF * abs(base):
            return 0.0
        if count < SETTLED:
            log_sum, count = log_sum + math.log(size), count + 1
        scale = max(math.exp(log_sum / count), floor)
        if size > FAR * scale and count >= SETTLED:
            floor = min(2 * scale, size / FAR)
        scale = max(scale, floor)
        self.numbers = [base, log_sum, count, floor, activated_at or float(row)]
        return max(-FAR, min(FAR, deviation / scale))
