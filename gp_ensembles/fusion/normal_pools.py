r"""Log densities of pooled normal experts by their log standard deviations, as samplers need them.

Everything has the experts' axis last but one and works on logarithms of standard deviations, so that a density with a
tiny or huge scale loses nothing on its way through a variance.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class PooledNormal(NamedTuple):
    """One normal density for each input.

    Args:
        mean: Means, shape (..., N).
        log_precision: Logarithms of the inverse variances, shape (..., N).
    """

    mean: Tensor
    log_precision: Tensor


def normal_log_prob(mean: Tensor, log_scale: Tensor, y: Tensor) -> Tensor:
    """Log densities of normals at y (N,), of the common shape of all.

    Example:
        >>> import torch
        >>> normal_log_prob(torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(1)).flatten()
        tensor([-0.9189, -0.9189])
    """
    opposite = -log_scale
    error = (y - mean) * opposite.exp()
    return torch.addcmul(opposite, error, error, value=-0.5) - _LOG_ROOT_TWO_PI


def linear_log_prob(logits: Tensor, log_density: Tensor) -> Tensor:
    r"""Log density of a linear pool, :math:`\log \sum_k \mathrm{softmax}(a)_k p_k(y)`, Eq. (11).

    Args:
        logits: Unnormalized log weights a, shape (..., K, N).
        log_density: The experts' log densities, broadcastable to (..., K, N).

    Returns:
        Log densities, shape (..., N).

    Example:
        >>> import torch
        >>> linear_log_prob(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]).log()).exp()
        tensor([2.])
    """
    return (logits + log_density).logsumexp(-2) - logits.logsumexp(-2)


def log_linear_pool_of(log_weights: Tensor, mean: Tensor, log_scale: Tensor) -> PooledNormal:
    r"""The log-linear pool of normal experts, a normal density with precision :math:`\sum_k w_k s_k^{-2}`, Eq. (22).

    Args:
        log_weights: Log weights, which need not sum to one, shape (..., K, N).
        mean: Means, broadcastable to (..., K, N).
        log_scale: Logarithms of the standard deviations, broadcastable to (..., K, N).

    Example:
        >>> import torch
        >>> zeros = torch.zeros(2, 1)
        >>> log_linear_pool_of(zeros, torch.tensor([[-1.0], [1.0]]), zeros).mean
        tensor([0.])
    """
    log_precisions = log_weights - 2.0 * log_scale
    total = log_precisions.logsumexp(-2)
    return PooledNormal((log_precisions.softmax(-2) * mean).sum(-2), total)


def pooled_log_prob(pooled: PooledNormal, y: Tensor) -> Tensor:
    """Log density of normals at y (N,), shape (..., N).

    Example:
        >>> import torch
        >>> pooled_log_prob(PooledNormal(torch.zeros(1), torch.zeros(1)), torch.zeros(1))
        tensor([-0.9189])
    """
    half = 0.5 * pooled.log_precision
    return half - 0.5 * ((y - pooled.mean) * half.exp()).square() - _LOG_ROOT_TWO_PI


def with_reference(logits: Tensor) -> Tensor:
    """Logits of K experts from those of the first K - 1, that of the last being zero, shape (..., K, N).

    Example:
        >>> import torch
        >>> with_reference(torch.ones(2, 3))[:, 0]
        tensor([1., 1., 0.])
    """
    return torch.nn.functional.pad(logits, (0, 0, 0, 1))
