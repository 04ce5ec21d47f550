"""Diagonal metrics from what the chains have seen, each by itself."""

from typing import NamedTuple

import torch
from torch import Tensor

# Observations that the prior guess (the typical scale of all coordinates) counts for.
_PRIOR_COUNT = 5.0


class Moments(NamedTuple):
    """Running means and sums of squared deviations of every chain, positions and gradients, shapes (C, D).

    Args:
        mean: Of the positions.
        squares: Of the positions.
        gradient_mean: Of the gradients of the log density.
        gradient_squares: Of the gradients.
        num_draws: Draws of each chain behind them.
    """

    mean: Tensor
    squares: Tensor
    gradient_mean: Tensor
    gradient_squares: Tensor
    num_draws: int


def start_moments(theta: Tensor) -> Moments:
    """Nothing seen yet.

    Example:
        >>> import torch
        >>> start_moments(torch.ones(2, 3)).num_draws
        0
    """
    zero = torch.zeros_like(theta)
    return Moments(zero, zero, zero, zero, 0)


def update_moments(moments: Moments, theta: Tensor, gradient: Tensor) -> Moments:
    """One more draw of every chain and its gradient, shapes (C, D); Welford's recursion.

    Example:
        >>> import torch
        >>> moments = start_moments(torch.zeros(1, 1))
        >>> for value in (1.0, 3.0):
        ...     moments = update_moments(moments, torch.full((1, 1), value), torch.zeros(1, 1))
        >>> moments.mean.item(), moments.squares.item()
        (2.0, 2.0)
    """
    count = moments.num_draws + 1
    deviation, steepness = theta - moments.mean, gradient - moments.gradient_mean
    mean = moments.mean + deviation / count
    gradient_mean = moments.gradient_mean + steepness / count
    return Moments(
        mean,
        moments.squares + deviation * (theta - mean),
        gradient_mean,
        moments.gradient_squares + steepness * (gradient - gradient_mean),
        count,
    )


def metric_scale(moments: Moments, fallback: Tensor) -> Tensor:
    """Fourth roots of the variances of positions over those of gradients, within chains; shape (D,).

    For a Gaussian with independent coordinates this is the standard deviation even where the chains have seen a small
    part of it, as at the beginning of a run; it is the diagonal metric of least Fisher divergence (Seyboldt, Carlson
    and Carpenter, 2024). Variances are averaged over the chains without what separates the chains: different modes,
    or permuted labels, would blow them up. Few draws are shrunk, in logs, towards the typical scale of all
    coordinates. A coordinate that never moved keeps the fallback.

    Args:
        moments: Of the draws since the last metric.
        fallback: Scales in use, shape (D,).

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(4, 2), torch.ones(4, 2)
        >>> metric_scale(Moments(zero, 0.01 * one, zero, 0.01 / 10.0**4 * one, 1000), torch.ones(2))
        tensor([10., 10.])
    """
    log_scale = 0.25 * (moments.squares.mean(0).log() - moments.gradient_squares.mean(0).log())
    known = log_scale.isfinite()
    if moments.num_draws < 2 or not bool(known.any()):
        return fallback
    typical = torch.where(known, log_scale, 0.0).sum() / known.sum()
    freedom = len(moments.squares) * (moments.num_draws - 1)
    weight = freedom / (freedom + _PRIOR_COUNT)
    return torch.where(known, (weight * log_scale + (1.0 - weight) * typical).exp(), fallback)


def metric_windows(num_warmup: int) -> tuple[tuple[int, int], ...]:
    """Windows of the warm-up, (first, end) in transitions, at whose ends metrics are taken from their draws.

    Between the windows the chains settle: what they do right after a change of the metric is no sample. The last 40 %
    of the warm-up are for the step size, whose adaptation starts again at every metric.

    Example:
        >>> metric_windows(500)
        ((25, 75), (125, 300))
    """
    parts = [[int(part * num_warmup) for part in window] for window in ((0.05, 0.15), (0.25, 0.6))]
    return tuple((first, end) for first, end in parts if end > first)
