"""Continuous ranked probability score of normal predictions and their mixtures, in closed form."""

import math

import torch
from torch import Tensor

_ROWS = 512  # rows scored at once: the pairs of 90 experts then stay in the processor's cache
_PAIRS = 32_768  # up to so many ordered pairs at once, twice the work but one pass; above, half of them in turn


def crps_gaussian(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    r"""CRPS of a normal prediction, :math:`E|Y - y| - \tfrac12 E|Y - Y'|`, in units of the target.

    (Gneiting and Raftery 2007.) Smaller is better; for a certain prediction it is the absolute error.

    Args:
        mean: Predictive means, shape (..., N).
        variance: Predictive variances, positive, shape (..., N).
        y: Targets, shape (N,).

    Returns:
        Scores, shape (..., N); NaN where the target is.

    Example:
        >>> import torch
        >>> crps_gaussian(torch.zeros(1), torch.ones(1), torch.zeros(1))
        tensor([0.2337])
    """
    return _expected_distance(y - mean, variance) - (variance / math.pi).sqrt()


def crps_mixture(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor, *, tolerance: float = 0.0) -> Tensor:
    r"""CRPS of a mixture of normals, one score a row, in units of the target.

    .. math:: \sum_m w_m A(y - \mu_m, v_m) - \tfrac12 \sum_{m,n} w_m w_n A(\mu_m - \mu_n, v_m + v_n), \quad
              A(\mu, v) = E|N(\mu, v)|

    (Grimit et al. 2006, eq. 5). The double sum costs M²/2 terms a row; rows are taken in chunks.

    Args:
        log_weights: Log weights in force before each target, shape (M, N) or (M, 1).
        mean: Component means, shape (M, N).
        variance: Component variances, positive, shape (M, N).
        y: Targets, shape (N,).
        tolerance: Largest error allowed per row, in units of the target. Components whose pairs provably
            add less than this in all are left out of the double sum; 0 leaves out those of weight zero only.

    Returns:
        Scores, shape (N,); NaN where the target is.

    Raises:
        ValueError: If the tolerance is negative.

    Example:
        >>> import torch
        >>> one = torch.zeros(1, 1)
        >>> crps_mixture(one, one, one + 1, torch.zeros(1))
        tensor([0.2337])
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least zero, got {tolerance}")
    weights = log_weights.exp().expand(mean.shape)
    distance = (weights * _expected_distance(y - mean, variance)).sum(0)
    parts = zip(weights.split(_ROWS, 1), mean.split(_ROWS, 1), variance.split(_ROWS, 1), strict=True)
    spread = [_half_mean_difference(*part, tolerance) for part in parts]
    return distance - torch.cat(spread) if spread else distance


def _expected_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|Z| of normal Z."""
    inverse = (2 * variance).rsqrt()
    scaled = mean * inverse
    return mean * torch.erf(scaled) + (-scaled.square()).exp() / (inverse * math.sqrt(math.pi))


def _half_mean_difference(weights: Tensor, mean: Tensor, variance: Tensor, tolerance: float) -> Tensor:
    """Half the mean distance of two draws from each mixture, shapes (M, N) to (N,)."""
    num_components, num_rows = mean.shape
    if num_components * num_components * num_rows <= _PAIRS:
        shifts, spreads = mean.unsqueeze(0) - mean.unsqueeze(1), variance.unsqueeze(0) + variance.unsqueeze(1)
        pairs = _expected_distance(shifts, spreads)
        return 0.5 * (weights * (weights.unsqueeze(0) * pairs).sum(1)).sum(0)
    kept = _relevant(weights.detach(), mean.detach(), variance.detach(), tolerance)
    weights, mean, variance = weights[kept], mean[kept], variance[kept]
    total = (weights.square() * (variance / math.pi).sqrt()).sum(0)
    for m in range(mean.shape[0] - 1):
        pairs = _expected_distance(mean[m + 1 :] - mean[m], variance[m + 1 :] + variance[m])
        total = total + weights[m] * (weights[m + 1 :] * pairs).sum(0)
    return total


def _relevant(weights: Tensor, mean: Tensor, variance: Tensor, tolerance: float) -> Tensor:
    """Components to keep, from E|Y_m - Y_n| <= d_m + d_n with d = |mean - center| + standard deviation."""
    distance = (mean - (weights * mean).sum(0)).abs() + variance.sqrt()
    bound = (weights * (distance + (weights * distance).sum(0))).amax(1)
    largest_last, order = bound.sort()
    return order[largest_last.cumsum(0) > tolerance].sort().values
