"""Scores of sparse models as Garton, Niemi and Carriquiry (2020) report them: AUKL, MNLP and SRMSE."""

import torch
from torch import Tensor

from gp_ensembles.metrics.pointwise import observed_mean


def univariate_divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence of normal distributions, point by point, in nats.

    .. math:: \mathrm{KL}(N(m, v) \,\|\, N(m', v')) = \frac12 \left( \frac{v + (m - m')^2}{v'} - 1 - \log \frac{v}{v'}
              \right)

    Args:
        mean: Means m of the reference, over whose distribution the average is taken, shape (..., N).
        variance: Its variances v, positive, shape (..., N).
        other_mean: Means m' of the distributions that are to be close to it, shape (..., N).
        other_variance: Their variances v', positive, shape (..., N).

    Returns:
        Divergences, not negative, shape (..., N).

    Raises:
        ValueError: If a variance is not positive.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> univariate_divergence(0.0 * one, one, one, one)
        tensor([0.5000])
    """
    if not bool((variance > 0).all()) or not bool((other_variance > 0).all()):
        raise ValueError("a divergence needs positive variances; add the nugget or the noise to those that are zero")
    excess = (variance - other_variance) / other_variance
    # Predictions that all but agree have divergences far below the rounding of a ratio near one, others do not.
    logs = torch.where(excess.abs() < 0.5, excess.log1p(), variance.log() - other_variance.log())
    spread = (excess - logs).clamp_min(0.0)
    return 0.5 * (spread + (mean - other_mean).square() / other_variance)


def aukl(
    mean: Tensor,
    variance: Tensor,
    other_mean: Tensor,
    other_variance: Tensor,
    *,
    noise: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    r"""Average univariate Kullback-Leibler divergence (Garton, Niemi and Carriquiry, 2020), in nats a point.

    :math:`\frac1N \sum_i \mathrm{KL}(p(f_i) \,\|\, q(f_i))`: from the exact model's predictive density p of the
    function at each test point to the approximation's q. With noise variances it compares predictive densities of
    the targets instead, as the authors' public code does; noise hides differences of the function.

    Args:
        mean: The exact model's means of f, shape (..., N).
        variance: Its variances of f, shape (..., N).
        other_mean: The approximation's means of f, shape (..., N).
        other_variance: Its variances of f, shape (..., N).
        noise: Noise variances of the exact model and of the approximation, each broadcastable to (..., N), for
            densities of y.

    Returns:
        Averages, shape (...).

    Raises:
        ValueError: If a variance is not positive.

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> aukl(zero, one, one, one), aukl(zero, one, one, one, noise=(one, one))
        (tensor(0.5000), tensor(0.2500))
    """
    if noise is not None:
        variance, other_variance = variance + noise[0], other_variance + noise[1]
    return univariate_divergence(mean, variance, other_mean, other_variance).mean(-1)


def median_mnlp(log_prob: Tensor, y: Tensor) -> Tensor:
    """Median negative log predictive density over the observed rows, in nats; smaller is better.

    What Garton, Niemi and Carriquiry (2020) call MNLP: a few badly missed targets, which rule the mean
    (:func:`~gp_ensembles.metrics.mnlp`), do not count. Of an even number of rows it is the mean of the middle two.

    Args:
        log_prob: Log predictive densities of the targets, noise counted once, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Returns:
        Medians, shape (...); NaN if no target is observed.

    Example:
        >>> import torch
        >>> median_mnlp(torch.tensor([-1.0, -2.0, -90.0]), torch.zeros(3))
        tensor(2.)
    """
    seen = ~torch.isnan(y)
    if not bool(seen.any()):
        return log_prob.new_full(log_prob.shape[:-1], torch.nan)
    return -log_prob[..., seen].quantile(0.5, dim=-1)


def sample_srmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""Root mean squared error over the sample standard deviation of the targets, dimensionless.

    .. math:: \sqrt{\frac{\frac1T \sum_t (y_t - m_t)^2}{\frac{1}{T-1} \sum_t (y_t - \bar y)^2}}

    The deviation is that of the observed test targets with divisor T - 1, as the authors' R code has it;
    :func:`~gp_ensembles.metrics.srmse` divides by T and is larger by :math:`\sqrt{T / (T - 1)}`.

    Args:
        mean: Predictive means, shape (..., T).
        y: Targets, shape (T,); NaN is missing.

    Returns:
        Errors, shape (...); NaN for fewer than two targets, infinite or NaN if they are constant.

    Example:
        >>> import torch
        >>> sample_srmse(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0]))
        tensor(0.5774)
    """
    error = observed_mean((y - mean).square(), y)
    seen = y[~torch.isnan(y)]
    return (error / ((seen - seen.mean()).square().sum() / (seen.shape[0] - 1))).sqrt()
