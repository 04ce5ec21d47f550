"""Diagonal metrics from the variances within chains."""

from typing import NamedTuple

import torch
from torch import Tensor

# Observations that the prior guess (the typical variance of all coordinates) counts for.
_PRIOR_COUNT = 5.0


class Moments(NamedTuple):
    """Running means and sums of squared deviations of every chain, shapes (C, D), and the draws behind them."""

    mean: Tensor
    squares: Tensor
    count: int


def start_moments(theta: Tensor) -> Moments:
    """Nothing seen yet.

    Example:
        >>> import torch
        >>> start_moments(torch.ones(2, 3)).count
        0
    """
    return Moments(torch.zeros_like(theta), torch.zeros_like(theta), 0)


def update_moments(moments: Moments, theta: Tensor) -> Moments:
    """One more draw of every chain, shape (C, D); Welford's recursion.

    Example:
        >>> import torch
        >>> moments = start_moments(torch.zeros(1, 1))
        >>> for value in (1.0, 3.0):
        ...     moments = update_moments(moments, torch.full((1, 1), value))
        >>> moments.mean.item(), moments.squares.item()
        (2.0, 2.0)
    """
    count = moments.count + 1
    deviation = theta - moments.mean
    mean = moments.mean + deviation / count
    return Moments(mean, moments.squares + deviation * (theta - mean), count)


def metric_scale(moments: Moments, fallback: Tensor) -> Tensor:
    """Standard deviations within chains, averaged over the chains as variances; shape (D,).

    Between-chain differences are left out: chains in different modes, or with permuted labels, would blow them up. Few
    draws are shrunk, in logs, towards the typical variance of all coordinates. A coordinate that never moved keeps
    the fallback.

    Args:
        moments: Of the draws since the last metric.
        fallback: Scales in use, shape (D,).

    Example:
        >>> import torch
        >>> moments = Moments(torch.zeros(4, 2), torch.tensor([[4.0, 100.0]]).expand(4, 2) * 999.0, 1000)
        >>> metric_scale(moments, torch.ones(2))
        tensor([ 2.00..., 9.99...])
    """
    if moments.count < 2:
        return fallback
    variance = moments.squares.mean(0) / (moments.count - 1)
    moved = variance.isfinite() & (variance > 0.0)
    if not bool(moved.any()):
        return fallback
    log_variance = torch.where(moved, variance, 1.0).log()
    typical = torch.where(moved, log_variance, 0.0).sum() / moved.sum()
    freedom = moments.squares.shape[0] * (moments.count - 1)
    weight = freedom / (freedom + _PRIOR_COUNT)
    shrunk = (0.5 * (weight * log_variance + (1.0 - weight) * typical)).exp()
    return torch.where(moved, shrunk, fallback)


def metric_updates(num_warmup: int) -> tuple[int, ...]:
    """After which warm-up transitions a metric is taken; draws before the first are dropped.

    The first number ends the approach; at the others a metric is taken from the draws since the number before. Most
    of the rest, 40 % of the warm-up, is for the step size, whose adaptation starts again at every metric.

    Example:
        >>> metric_updates(500)
        (50, 125, 300)
    """
    ends = sorted({int(part * num_warmup) for part in (0.1, 0.25, 0.6)})
    return tuple(end for end in ends if end > 0)
