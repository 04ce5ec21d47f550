"""Student-t distributions with a location, a squared scale and degrees of freedom that may be infinite."""

import math

import numpy as np
import torch
from scipy import special
from torch import Tensor


def log_prob(y: Tensor, location: Tensor, squared_scale: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    r"""Log density; all arguments broadcast.

    Infinite degrees of freedom give the normal distribution.

    Example:
        >>> import torch
        >>> one = torch.ones((), dtype=torch.float64)
        >>> log_prob(0 * one, 0 * one, one, one).exp() * torch.pi  # Cauchy
        tensor(1., dtype=torch.float64)
    """
    error = (y - location).square() / squared_scale
    is_normal = torch.isinf(degrees_of_freedom)
    half = 0.5 * torch.where(is_normal, 1.0, degrees_of_freedom)
    heavy = _log_gamma_ratio(half) - 0.5 * (2 * half).log() - 0.5 * math.log(math.pi)
    heavy = heavy - (half + 0.5) * torch.log1p(error / (2 * half))
    normal = -0.5 * (error + math.log(2 * math.pi))
    return torch.where(is_normal, normal, heavy) - 0.5 * squared_scale.log()


def cdf(z: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Distribution function of the standard distribution; not differentiable, and computed on the host.

    Example:
        >>> import torch
        >>> cdf(torch.tensor([1.0], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        tensor([0.7500], dtype=torch.float64)
    """
    return _on_host(special.stdtr, z, degrees_of_freedom)


def icdf(p: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Quantiles of the standard distribution; not differentiable, and computed on the host.

    Example:
        >>> import torch
        >>> icdf(torch.tensor([0.75], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        tensor([1.0000], dtype=torch.float64)
    """
    # In the lower tail, where the quantile function of scipy keeps its digits.
    tail = torch.minimum(p, 1 - p)
    quantile = _on_host(special.stdtrit, tail, degrees_of_freedom)
    return torch.where(p > 0.5, -quantile, quantile)


def _log_gamma_ratio(x: Tensor) -> Tensor:
    """The logarithm of Γ(x + 1/2) / Γ(x), whose two parts cancel where x is large."""
    large = x > 1e3
    small = torch.where(large, 1.0, x)
    big = torch.where(large, x, 1.0)
    series = 0.5 * big.log() - 1 / (8 * big) + 1 / (192 * big**3)
    return torch.where(large, series, torch.lgamma(small + 0.5) - torch.lgamma(small))


def _on_host(function: np.ufunc, x: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    x, degrees_of_freedom = torch.broadcast_tensors(x, degrees_of_freedom)
    values = function(degrees_of_freedom.detach().double().cpu().numpy(), x.detach().double().cpu().numpy())
    return torch.as_tensor(values).to(x)
