"""Whether predictive distributions mean what they say: PIT values, coverage, reliability."""

import torch
from torch import Tensor

from gp_ensembles.metrics.pointwise import observed_mean


def pit(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Probability integral transform: the mixture's distribution function at each target.

    Uniform on [0, 1] and independent over time if the predictions are right.

    Args:
        log_weights: Log weights in force before each target, shape (M, N) or (M, 1).
        mean: Component means, shape (M, N).
        variance: Component variances, observation noise included, shape (M, N).
        y: Targets, shape (N,).

    Returns:
        PIT values, shape (N,); NaN where the target is.

    Example:
        >>> import torch
        >>> one = torch.zeros(1, 1)
        >>> pit(one, one, one + 1, torch.zeros(1))
        tensor([0.5000])
    """
    below = 0.5 * torch.erfc((mean - y) * (2 * variance).rsqrt())
    return (log_weights.exp() * below).sum(-2)


def interval_coverage(pit_values: Tensor, level: float) -> Tensor:
    """Share of the targets inside the central predictive interval of a level.

    The target lies in the interval between the quantiles (1 - level)/2 and (1 + level)/2 exactly when its
    PIT value lies between these two numbers, so no quantile need be solved for.

    Args:
        pit_values: PIT values, shape (N,); NaN is missing.
        level: Level of the interval, between 0 and 1, for instance 0.9.

    Returns:
        Share covered, a scalar; right is ``level``.

    Raises:
        ValueError: If the level is not in [0, 1].

    Example:
        >>> import torch
        >>> interval_coverage(torch.tensor([0.01, 0.5, 0.7, 0.97]), level=0.9)
        tensor(0.5000)
    """
    return observed_mean(covered(pit_values, level), pit_values)


def covered(pit_values: Tensor, level: float) -> Tensor:
    """One where the target lies in the central interval of a level, else zero, in the dtype of the PIT.

    Example:
        >>> import torch
        >>> covered(torch.tensor([0.01, 0.5]), level=0.9)
        tensor([0., 1.])
    """
    if not 0 <= level <= 1:
        raise ValueError(f"the level of an interval must lie between 0 and 1, got {level}")
    return ((pit_values - 0.5).abs() <= level / 2).to(pit_values.dtype)


def reliability_curve(pit_values: Tensor, levels: Tensor) -> Tensor:
    """Share of targets below each predictive quantile; the diagonal is right.

    Args:
        pit_values: PIT values, shape (N,); NaN is missing.
        levels: Probabilities of the quantiles, shape (K,).

    Returns:
        Observed shares, shape (K,).

    Example:
        >>> import torch
        >>> reliability_curve(torch.tensor([0.1, 0.3, 0.6, 0.9]), torch.tensor([0.25, 0.5, 1.0]))
        tensor([0.2500, 0.5000, 1.0000])
    """
    below = (pit_values <= levels.unsqueeze(-1)).to(pit_values.dtype)
    return observed_mean(below, pit_values)


def mean_squared_z(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Mean squared standardized error; 1 is right, above 1 the predictions are too sure.

    Args:
        mean: Predictive means, shape (..., N).
        variance: Predictive variances, observation noise included, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Example:
        >>> import torch
        >>> mean_squared_z(torch.zeros(2), torch.full((2,), 4.0), torch.tensor([2.0, torch.nan]))
        tensor(1.)
    """
    return observed_mean((y - mean).square() / variance, y)
