"""Scores of predictions over a whole stream: points, densities, intervals.

Every function takes plain tensors: predictions made **before** each target, with the weights at that time, and targets
``y`` (N,) in which NaN is missing. Scores of a row are NaN where its target is; averages run over the observed rows.
Mixtures are given by log weights of shape (M, N), (M, 1) or (M,), and by the means and variances (M, N) of their
components, noise included.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.numerics import mixtures

_ROWS = 512  # rows scored at once: the pairs of 90 experts then stay in the processor's cache
_PAIRS = 32_768  # up to so many ordered pairs at once, twice the work but one pass; above, half of them in turn


def observed_mean(score: Tensor, y: Tensor) -> Tensor:
    """Average of a score over the rows with an observed target; NaN if there are none.

    ``score`` (..., N) has one number per row; values of missing rows are ignored.

    Example:
        >>> observed_mean(torch.tensor([1.0, 9.0, 3.0]), torch.tensor([0.0, torch.nan, 0.0]))
        tensor(2.)
    """
    seen = ~torch.isnan(y)
    return torch.where(seen, score, 0.0).sum(-1) / seen.sum(-1)


def log_score(log_prob: Tensor, y: Tensor) -> Tensor:
    """Mean log predictive density in nats per observed row; larger is better.

    ``log_prob`` (..., N) are log predictive densities made before each target.

    Example:
        >>> log_score(torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([0.0, torch.nan, 1.0]))
        tensor(-1.5000)
    """
    return observed_mean(log_prob, y)


def median_mnlp(log_prob: Tensor, y: Tensor) -> Tensor:
    """Median negative log predictive density over the observed rows, in nats; smaller is better.

    What Garton, Niemi and Carriquiry (2020) call MNLP: a few badly missed targets, which dominate the mean
    (:func:`log_score` with the opposite sign), do not count. Of an even number of rows it is the mean of the middle
    two.

    ``log_prob`` (..., N) are log predictive densities, noise counted once. NaN if no target is observed.

    Example:
        >>> median_mnlp(torch.tensor([-1.0, -2.0, -90.0]), torch.zeros(3))
        tensor(2.)
    """
    seen = ~torch.isnan(y)
    if not bool(seen.any()):
        return log_prob.new_full(log_prob.shape[:-1], torch.nan)
    return -log_prob[..., seen].quantile(0.5, dim=-1)


def nmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""Normalized mean squared error, :math:`\sum_t (y_t - m_t)^2 / (T\,\mathrm{Var}(y))`, dimensionless.

    The variance is the population variance of the T observed targets, so predicting their mean scores 1.

    Of means (..., N); infinite or NaN if the targets are constant.

    Example:
        >>> nmse(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
        tensor(1.)
    """
    return observed_mean((y - mean).square(), y) / _population_variance(y)


def running_nmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""NMSE over time, :math:`\sum_{s \le t} (y_s - m_s)^2 / (t\,\mathrm{Var}(y))` (Lu et al. 2022, section 7.1).

    Shapes: ``mean`` (..., N), ``y`` (N,); returns (..., N).
    """
    seen = ~torch.isnan(y)
    errors = torch.where(seen, (y - mean).square(), 0.0).cumsum(-1)
    return errors / seen.cumsum(-1) / _population_variance(y)


def sample_srmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""Root mean squared error over the sample standard deviation of the targets, dimensionless.

    .. math:: \sqrt{\frac{\frac1T \sum_t (y_t - m_t)^2}{\frac{1}{T-1} \sum_t (y_t - \bar y)^2}}

    The deviation is that of the observed test targets with divisor T - 1, as the authors' R code has it;
    the square root of :func:`nmse` divides by T and is larger by :math:`\sqrt{T / (T - 1)}`.

    Of means (..., T); NaN for fewer than two targets, infinite or NaN if they are constant.

    Example:
        >>> sample_srmse(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0]))
        tensor(0.5774)
    """
    error = observed_mean((y - mean).square(), y)
    seen = y[~torch.isnan(y)]
    return (error / ((seen - seen.mean()).square().sum() / (seen.shape[0] - 1))).sqrt()


def crps_mixture(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor, *, tolerance: float = 0.0) -> Tensor:
    r"""CRPS of a mixture of normals, one score per row, in units of the target.

    .. math:: \sum_m w_m A(y - \mu_m, v_m) - \tfrac12 \sum_{m,n} w_m w_n A(\mu_m - \mu_n, v_m + v_n), \quad
              A(\mu, v) = E|N(\mu, v)|

    (Grimit et al. 2006, eq. 5). The double sum costs M²/2 terms per row; rows are taken in chunks.

    Args:
        log_weights: Log weights of the mixture.
        mean: Means of its components.
        variance: Their variances, positive.
        y: Targets.
        tolerance: Largest error allowed per row, in units of the target. Components whose pairs provably
            add less than this in all are left out of the double sum; 0 leaves out those of weight zero only.

    Raises:
        ValueError: If the tolerance is negative.

    Example:
        >>> one = torch.zeros(1, 1)
        >>> crps_mixture(one, one, one + 1, torch.zeros(1))
        tensor([0.2337])
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least zero, got {tolerance}")
    weights = _columns(log_weights).exp().expand(mean.shape)
    distance = (weights * _expected_distance(y - mean, variance)).sum(0)
    parts = zip(weights.split(_ROWS, 1), mean.split(_ROWS, 1), variance.split(_ROWS, 1), strict=True)
    spread = [_half_mean_difference(*part, tolerance) for part in parts]
    return distance - torch.cat(spread) if spread else distance


def pit(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Probability integral transform: the mixture's distribution function at each target.

    Uniform on [0, 1] and independent over time if the predictions are right.

    Example:
        >>> one = torch.zeros(1, 1)
        >>> pit(one, one, one + 1, torch.zeros(1))
        tensor([0.5000])
    """
    return mixtures.cdf(_columns(log_weights), mean, variance, y)


def _columns(log_weights: Tensor) -> Tensor:
    """Log weights that are the same for all rows, (M,), as (M, 1)."""
    return log_weights.unsqueeze(-1) if log_weights.ndim == 1 else log_weights


def covered(pit_values: Tensor, level: float) -> Tensor:
    """Coverage of the central interval of a level, one or zero per PIT value; NaN where that is.

    It lies between the quantiles (1 - level)/2 and (1 + level)/2 exactly when its PIT value lies between these two
    numbers, so no quantile has to be solved for. Coverage is the mean, see :func:`observed_mean`.

    Raises:
        ValueError: If the level is not in [0, 1].

    Example:
        >>> covered(torch.tensor([0.01, 0.5, torch.nan]), level=0.9)
        tensor([0., 1., nan])
    """
    if not 0 <= level <= 1:
        raise ValueError(f"the level of an interval must lie between 0 and 1, got {level}")
    inside = ((pit_values - 0.5).abs() <= level / 2).to(pit_values.dtype)
    return torch.where(torch.isnan(pit_values), torch.nan, inside)


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


def _population_variance(y: Tensor) -> Tensor:
    center = observed_mean(y, y)
    return observed_mean((y - center.unsqueeze(-1)).square(), y)


def _relevant(weights: Tensor, mean: Tensor, variance: Tensor, tolerance: float) -> Tensor:
    """Components to keep, from E|Y_m - Y_n| <= d_m + d_n with d = |mean - center| + standard deviation."""
    distance = (mean - (weights * mean).sum(0)).abs() + variance.sqrt()
    bound = (weights * (distance + (weights * distance).sum(0))).amax(1)
    largest_last, order = bound.sort()
    return order[largest_last.cumsum(0) > tolerance].sort().values
