"""Averages that accumulate over a stream: state in, state out, the same for any blocking.

States are named tuples of float64 scalars whatever the dtype of the data, so that long sums do not round.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RunningMean(NamedTuple):
    """Average of a score so far.

    Attributes:
        num_scored: Number of rows counted, a scalar.
        total: Their sum, a scalar.
    """

    num_scored: Tensor
    total: Tensor

    @property
    def value(self) -> Tensor:
        """The average; NaN before the first row."""
        return self.total / self.num_scored


class RunningNMSE(NamedTuple):
    """Normalized mean squared error so far.

    Attributes:
        num_scored: Number of observed targets, a scalar.
        target_mean: Their mean.
        target_deviation: Their sum of squared deviations from it.
        squared_error: Sum of squared errors.
    """

    num_scored: Tensor
    target_mean: Tensor
    target_deviation: Tensor
    squared_error: Tensor

    @property
    def value(self) -> Tensor:
        """Sum of squared errors over that of the targets' deviations; NaN or infinite if those are zero."""
        return self.squared_error / self.target_deviation


def init_mean(like: Tensor) -> RunningMean:
    """An empty average on the device of ``like``.

    Example:
        >>> import torch
        >>> init_mean(torch.zeros(1)).value
        tensor(nan, dtype=torch.float64)
    """
    zero = like.new_zeros((), dtype=torch.float64)
    return RunningMean(zero, zero)


def update_mean(state: RunningMean, score: Tensor, y: Tensor) -> RunningMean:
    """Count a block of scores, skipping rows with a missing target.

    Args:
        state: The state before the block.
        score: One number a row, shape (B,).
        y: Targets, shape (B,); NaN is missing.

    Returns:
        The state after the block.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, torch.nan, 0.0])
        >>> update_mean(init_mean(y), torch.tensor([1.0, 9.0, 3.0]), y).value
        tensor(2., dtype=torch.float64)
    """
    seen = ~torch.isnan(y)
    return RunningMean(state.num_scored + seen.sum(), state.total + total(score, seen))


def init_nmse(like: Tensor) -> RunningNMSE:
    """An empty nMSE on the device of ``like``.

    Example:
        >>> import torch
        >>> init_nmse(torch.zeros(1)).value
        tensor(nan, dtype=torch.float64)
    """
    zero = like.new_zeros((), dtype=torch.float64)
    return RunningNMSE(zero, zero, zero, zero)


def update_nmse(state: RunningNMSE, mean: Tensor, y: Tensor) -> RunningNMSE:
    """Count a block of predictions, skipping rows with a missing target.

    Moments of the targets are merged as in Chan, Golub and LeVeque (1983), Welford's rule for blocks.

    Args:
        state: The state before the block.
        mean: Predictive means, shape (B,).
        y: Targets, shape (B,); NaN is missing.

    Returns:
        The state after the block.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, 2.0])
        >>> update_nmse(init_nmse(y), torch.tensor([1.0, 1.0]), y).value
        tensor(1., dtype=torch.float64)
    """
    seen = ~torch.isnan(y)
    error = total((y.double() - mean.double()).square(), seen)
    moments = merge_moments(state.num_scored, state.target_mean, state.target_deviation, y, seen)
    return RunningNMSE(*moments, state.squared_error + error)


def total(score: Tensor, seen: Tensor) -> Tensor:
    """Sum of a score (B,) over the rows ``seen`` (B,)."""
    return torch.where(seen, score.double(), 0.0).sum()


def merge_moments(
    count: Tensor, mean: Tensor, deviation: Tensor, y: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations with a block added; an empty block changes nothing."""
    values = y.double()
    num = seen.sum().double()
    block_mean = total(values, seen) / num.clamp(min=1)
    block_deviation = total((values - block_mean).square(), seen)
    after = count + num
    shift = torch.where(num > 0, block_mean - mean, 0.0)
    share = num / after.clamp(min=1)
    return after, mean + shift * share, deviation + block_deviation + shift.square() * count * share
