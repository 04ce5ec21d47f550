r"""Pools of normal predictions: linear, which is a mixture, and log-linear, which is normal again.

:func:`linear_pool` and :func:`log_linear_pool` take variances. The functions below them are the same log densities in
terms of log standard deviations, with the experts' axis last but one, for samplers. All of them compute with
logarithms, so that weights and precisions may underflow or overflow on the way.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.numerics.display import record_text
from gp_ensembles.papers.fusion.experts import check_log_weights, check_moments

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class LogLinearPool(NamedTuple):
    r"""Log-linear pool of normal experts: a normal distribution for each of N rows.

    .. math:: \log p(y) = \log c + \sum_k w_k \log N(y; \mu_k, \sigma_k^2)

    Attributes:
        mean: Means, shape (..., N).
        log_variance: Logarithms of the variances, shape (..., N); exact where the variances underflow.
        log_c: Logarithm of the normalizing constant c, shape (..., N), in nats. For weights that sum to one it is
            not negative, and zero if and only if the experts with positive weight agree.
    """

    mean: Tensor
    log_variance: Tensor
    log_c: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances, shape (..., N)."""
        return self.log_variance.exp()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density. Shapes: ``y`` (..., N); returns (..., N)."""
        standardized = (y - self.mean) * (-0.5 * self.log_variance).exp()
        return -0.5 * (standardized.square() + self.log_variance + math.log(2 * math.pi))


def linear_pool(mean: Tensor, variance: Tensor, log_weights: Tensor) -> Mixture:
    r"""Linear pool :math:`\sum_k w_k N(y; \mu_k, \sigma_k^2)`, Eq. (11) of Ajirak et al. (2024).

    Weights are normalized here, :math:`w = \operatorname{softmax}(\log w)` over the experts. Leading axes of the
    arguments are draws from a posterior; the pool is then the mixture over draws and experts, Eq. (16), which has the
    draws' average density, Eq. (15).

    Args:
        mean: The experts' means, shape (K, N) or (..., K, N).
        variance: Their variances, of the same shape. For densities of targets they include the observation noise
            (Eqs. 1 to 3 omit it, Eq. 11 needs it).
        log_weights: Log weights, in nats and up to a constant, shape (K,), (K, N), or (..., K, N); minus infinity is
            weight zero.

    Returns:
        A mixture of K components, or of all draws' components.

    Raises:
        ValueError: If shapes do not fit, a variance is not positive, a mean or variance is not finite, or all
            weights of a row are zero.

    Example:
        >>> import torch
        >>> mean = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
        >>> pool = linear_pool(mean, torch.ones_like(mean), torch.tensor([3.0, 3.0], dtype=torch.float64))
        >>> pool.mean, pool.variance
        (tensor([0., 0.], dtype=torch.float64), tensor([2., 1.], dtype=torch.float64))
    """
    if log_weights.ndim > mean.ndim:  # many draws of the weights, one set of predictions
        shape = (*log_weights.shape[:-2], *mean.shape[-2:])
        mean, variance = mean.expand(shape), variance.expand(shape)
    check_moments(mean, variance)
    normalized = check_log_weights(log_weights, mean).log_softmax(-2)
    draws = mean.shape[:-2]
    if not draws:
        return Mixture(normalized.squeeze(-1) if log_weights.ndim == 1 else normalized.expand_as(mean), mean, variance)
    joint = (normalized - math.log(max(draws.numel(), 1))).expand_as(mean)
    return Mixture(*(part.reshape(-1, mean.shape[-1]) for part in (joint, mean, variance)))


def log_linear_pool(mean: Tensor, variance: Tensor, log_weights: Tensor, *, simplex: bool = False) -> LogLinearPool:
    """Log-linear pool, Eqs. (22) to (25) of Ajirak et al. (2024); a generalized product of experts (Cao, Fleet 2014).

    Shapes: ``mean`` and ``variance`` (..., K, N), ``log_weights`` (K,), (K, N) or (..., K, N).

    Raises:
        ValueError: If shapes do not fit, a variance is not positive, a mean or variance is not finite, or all
            weights of a row are zero.
    """
    if log_weights.ndim > mean.ndim:
        shape = (*log_weights.shape[:-2], *mean.shape[-2:])
        mean, variance = mean.expand(shape), variance.expand(shape)
    check_moments(mean, variance)
    weights = check_log_weights(log_weights, mean)
    if simplex:
        weights = weights.log_softmax(-2)
    log_precision = -variance.log()
    shares = weights + log_precision
    log_total = shares.logsumexp(-2)
    # Means relative to that of the largest share: equal means stay exact, and squares do not cancel.
    leader = shares.argmax(-2, keepdim=True)
    origin = mean.gather(-2, leader).detach()
    offset = mean - origin
    shift = ((shares - log_total.unsqueeze(-2)).exp() * offset).sum(-2)
    scaled = (0.5 * shares).exp() * (offset - shift.unsqueeze(-2))
    log_two_pi = math.log(2 * math.pi)
    own = (weights.exp() * (log_precision - log_two_pi)).sum(-2)
    log_c = 0.5 * (log_total - log_two_pi - own + scaled.square().sum(-2))
    return LogLinearPool(origin.squeeze(-2) + shift, -log_total, log_c)


class PooledNormal(NamedTuple):
    """One normal density for each input.

    Args:
        mean: Means, shape (..., N).
        log_precision: Logarithms of the inverse variances, shape (..., N).
    """

    mean: Tensor
    log_precision: Tensor

    def __repr__(self) -> str:
        return record_text(self)


def normal_log_prob(mean: Tensor, log_scale: Tensor, y: Tensor) -> Tensor:
    """Log densities of normals at y (N,), of the common shape of all."""
    opposite = -log_scale
    error = (y - mean) * opposite.exp()
    return torch.addcmul(opposite, error, error, value=-0.5) - _LOG_ROOT_TWO_PI


def linear_pool_log_prob(logits: Tensor, log_density: Tensor) -> Tensor:
    r"""Log density of a linear pool, :math:`\log \sum_k \mathrm{softmax}(a)_k p_k(y)`, Eq. (11).

    Shapes: ``logits`` (..., K, N); returns (..., N).
    """
    return (logits + log_density).logsumexp(-2) - logits.logsumexp(-2)


def log_linear_pool_from_log_scales(log_weights: Tensor, mean: Tensor, log_scale: Tensor) -> PooledNormal:
    r"""The log-linear pool of normal experts, a normal density with precision :math:`\sum_k w_k s_k^{-2}`, Eq. (22).

    Shapes: ``log_weights`` (..., K, N).
    """
    log_precisions = log_weights - 2.0 * log_scale
    total = log_precisions.logsumexp(-2)
    return PooledNormal((log_precisions.softmax(-2) * mean).sum(-2), total)


def pooled_log_prob(pooled: PooledNormal, y: Tensor) -> Tensor:
    """Log density of normals at y (N,), shape (..., N)."""
    half = 0.5 * pooled.log_precision
    return half - 0.5 * ((y - pooled.mean) * half.exp()).square() - _LOG_ROOT_TWO_PI


def append_zero_logit(logits: Tensor) -> Tensor:
    """Logits of K experts from those of the first K - 1, that of the last being zero, shape (..., K, N)."""
    return torch.nn.functional.pad(logits, (0, 0, 0, 1))
