"""Scores of one-step-ahead predictions: one number a row, and their averages over a stream.

Every function takes plain tensors: ``log_weights`` (M, N) or (M, 1), ``mean`` and ``variance`` (M, N) of the
components, targets ``y`` (N,) in which NaN is missing. Weights must be those in force **before** each target.
Averages run over the observed rows; per-row scores are NaN where the target is.
"""

import math

import torch
from torch import Tensor


def gaussian_log_prob(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Log density of a normal prediction at each target, in nats.

    Args:
        mean: Predictive means, shape (..., N).
        variance: Predictive variances, observation noise included, shape (..., N).
        y: Targets, shape (N,).

    Returns:
        Log densities, shape (..., N).

    Example:
        >>> import torch
        >>> gaussian_log_prob(torch.zeros(1), torch.ones(1), torch.zeros(1))
        tensor([-0.9189])
    """
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2 * math.pi))


def mixture_log_prob(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    r"""Log density of the full mixture at each target, :math:`\log \sum_m w_m N(y; \mu_m, v_m)`, in nats.

    Args:
        log_weights: Log weights in force before each target, shape (M, N) or (M, 1).
        mean: Component means, shape (M, N).
        variance: Component variances, observation noise included, shape (M, N).
        y: Targets, shape (N,).

    Returns:
        Log densities, shape (N,).

    Example:
        >>> import torch
        >>> half = torch.tensor([[0.5], [0.5]]).log()
        >>> mixture_log_prob(half, torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1), torch.zeros(1))
        tensor([-1.4189])
    """
    return (log_weights + gaussian_log_prob(mean, variance, y)).logsumexp(-2)


def mixture_moments(log_weights: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture: the moment-matched normal prediction.

    Args:
        log_weights: Log weights, shape (M, N) or (M, 1).
        mean: Component means, shape (M, N).
        variance: Component variances, shape (M, N).

    Returns:
        Mean and variance, each of shape (N,).

    Example:
        >>> import torch
        >>> half = torch.tensor([[0.5], [0.5]]).log()
        >>> mixture_moments(half, torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
        (tensor([0.]), tensor([2.]))
    """
    weights = log_weights.exp()
    center = (weights * mean).sum(-2)
    return center, (weights * (variance + (mean - center.unsqueeze(-2)).square())).sum(-2)


def observed_mean(score: Tensor, y: Tensor) -> Tensor:
    """Average of a score over the rows with an observed target; NaN if there are none.

    Args:
        score: One number a row, shape (..., N); what stands in a missing row is ignored.
        y: Targets, shape (N,); NaN is missing.

    Returns:
        Averages, shape (...).

    Example:
        >>> import torch
        >>> observed_mean(torch.tensor([1.0, 9.0, 3.0]), torch.tensor([0.0, torch.nan, 0.0]))
        tensor(2.)
    """
    seen = ~torch.isnan(y)
    return torch.where(seen, score, 0.0).sum(-1) / seen.sum(-1)


def log_score(log_prob: Tensor, y: Tensor) -> Tensor:
    """Mean log predictive density in nats per observed row; larger is better.

    Args:
        log_prob: Log predictive densities made before each target, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Example:
        >>> import torch
        >>> log_score(torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([0.0, torch.nan, 1.0]))
        tensor(-1.5000)
    """
    return observed_mean(log_prob, y)


def mnlp(log_prob: Tensor, y: Tensor) -> Tensor:
    """Mean negative log predictive density, minus the log score; smaller is better. Arguments as there.

    Example:
        >>> import torch
        >>> mnlp(torch.tensor([-1.0, -2.0]), torch.zeros(2))
        tensor(1.5000)
    """
    return -log_score(log_prob, y)


def mean_absolute_error(mean: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error over the observed rows, in units of the target.

    Args:
        mean: Predictive means, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Example:
        >>> import torch
        >>> mean_absolute_error(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0]))
        tensor(1.5000)
    """
    return observed_mean((y - mean).abs(), y)


def nmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""Normalized mean squared error, :math:`\sum_t (y_t - m_t)^2 / (T\,\mathrm{Var}(y))`, dimensionless.

    The variance is the population variance of the T observed targets, so predicting their mean scores 1.

    Args:
        mean: Predictive means, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Returns:
        Errors, shape (...); infinite or NaN if the targets are constant.

    Example:
        >>> import torch
        >>> nmse(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
        tensor(1.)
    """
    return observed_mean((y - mean).square(), y) / _population_variance(y)


def running_nmse(mean: Tensor, y: Tensor) -> Tensor:
    r"""NMSE over time, :math:`\sum_{s \le t} (y_s - m_s)^2 / (t\,\mathrm{Var}(y))` (Lu et al. 2022, section 7).

    The variance is that of **all** observed targets, so the curve's last value is :func:`nmse`. A missing
    row repeats the value before it.

    Args:
        mean: Predictive means, shape (..., N).
        y: Targets, shape (N,); NaN is missing.

    Returns:
        The curve, shape (..., N).

    Example:
        >>> import torch
        >>> running_nmse(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
        tensor([0.0000, 0.5000])
    """
    seen = ~torch.isnan(y)
    errors = torch.where(seen, (y - mean).square(), 0.0).cumsum(-1)
    return errors / seen.cumsum(-1) / _population_variance(y)


def srmse(mean: Tensor, y: Tensor) -> Tensor:
    """Standardized root mean squared error, the square root of :func:`nmse`; arguments as there.

    Example:
        >>> import torch
        >>> srmse(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
        tensor(0.)
    """
    return nmse(mean, y).sqrt()


def _population_variance(y: Tensor) -> Tensor:
    center = observed_mean(y, y)
    return observed_mean((y - center.unsqueeze(-1)).square(), y)
