r"""Inactive columns: constant in the warm-up or without a value there, and used from their first change on.

An inactive column is zero to the ensemble. Its deviations :math:`d_t` from the constant, or from its first value, are
divided by a scale that only they set, with the geometric mean

.. math:: s_t = \exp\Big(\frac1n \sum_{i \le n} \log |d_i|\Big)

of the first hundred that are not zero, so that a column of zeros and ones is itself, whichever it began with, up to a
sign, and neither one outlier nor a beginning a hundred times smaller sets the scale for good. A scale is doubled for
as many rows as a deviation is more than ten times as large, and no standardized value is beyond ten.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SETTLED = 100  # deviations that set the scale
FAR = 10.0  # scales
_ROUND_OFF = 10 * torch.finfo(torch.float64).eps


class InactiveColumns(NamedTuple):
    """State of K columns, of one series or of many side by side, of which some were constant in the warm-up."""

    base: Tensor  # what they deviate from, NaN before there is a value, shape (..., K)
    log_sum: Tensor  # sum of the logarithms of the deviations that set the scale, (..., K)
    num: Tensor  # how many these are, (..., K)
    floor: Tensor  # what the scale has grown to since, (..., K)
    # Number of the row in which a column first moved, counting the rows of the stream from 1; zero while it is
    # inactive, (..., K)
    activated_at: Tensor

    @classmethod
    def of(cls, base: Tensor) -> "InactiveColumns":
        """Inactive columns with these constants (..., K), NaN where there is none."""
        zero = torch.zeros_like(base, dtype=torch.float64)
        return cls(base.double(), zero, zero, zero, zero)

    @property
    def scale(self) -> Tensor:
        """Current scales, one while a column is inactive, shape (..., K)."""
        return torch.maximum(_own_scale(self.log_sum, self.num), self.floor)

    def follow(self, X: Tensor, num_before: Tensor) -> tuple["InactiveColumns", Tensor]:
        """Standardize consecutive rows X (..., N, K), NaN where there is no value, after so many rows (...)."""
        first = X.gather(-2, (~X.isnan()).int().argmax(-2, keepdim=True)).squeeze(-2)
        base = torch.where(self.base.isnan(), first, self.base)
        deviation = X - base.unsqueeze(-2)
        size = deviation.abs()
        moves = size > _ROUND_OFF * base.abs().unsqueeze(-2)
        if not bool(moves.any()):
            return self._replace(base=base), torch.zeros_like(X)
        num = self.num.unsqueeze(-2) + moves.cumsum(-2)
        logs = torch.where(moves & (num <= SETTLED), size, 1.0).log()
        log_sum = torch.cat([self.log_sum.unsqueeze(-2), logs], dim=-2).cumsum(-2)[..., 1:, :]
        num = num.clamp_max(SETTLED)
        own = _own_scale(log_sum, num)
        floor = _grown(self.floor, own, torch.where(moves & (num >= SETTLED), size, 0.0))
        values = (deviation / torch.maximum(own, floor)).clamp(-FAR, FAR)
        row = num_before.unsqueeze(-1) + 1 + moves.int().argmax(-2)
        is_new = (self.activated_at == 0) & moves.any(-2)
        activated_at = torch.where(is_new, row.to(self.activated_at), self.activated_at)
        after = InactiveColumns(base, log_sum[..., -1, :], num[..., -1, :], floor[..., -1, :], activated_at)
        return after, torch.where(moves, values, 0.0)


def _own_scale(log_sum: Tensor, num: Tensor) -> Tensor:
    """Geometric means of the deviations that set the scales; one where there is none."""
    return torch.where(num > 0, (log_sum / num.clamp_min(1)).exp(), 1.0)


def _grown(floor: Tensor, own: Tensor, size: Tensor) -> Tensor:
    """Least scales at each row, (..., N, K), from those before (..., K) and settled deviations, zero elsewhere."""
    if not bool((size > FAR * torch.maximum(own, floor.unsqueeze(-2))).any()):
        return floor.unsqueeze(-2).expand_as(size)
    floors = list[Tensor]()
    for scale, deviation in zip(own.unbind(-2), size.unbind(-2), strict=True):
        scale = torch.maximum(scale, floor)
        floor = torch.where(deviation > FAR * scale, torch.minimum(2 * scale, deviation / FAR), floor)
        floors.append(floor)
    return torch.stack(floors, dim=-2)
