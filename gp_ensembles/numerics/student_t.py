"""Student-t distributions with a location, a squared scale and degrees of freedom that may be infinite."""

import math

import numpy as np
import torch
from scipy import special
from torch import Tensor

from gp_ensembles.numerics import normal

_NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)
_FOUR = 4.0  # degrees of freedom of which there is a closed form, and of which ensembles are made


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
    """Distribution function of the standard distribution; not differentiable.

    In closed form for 4 and infinite degrees of freedom, else computed on the host.

    Example:
        >>> import torch
        >>> cdf(torch.tensor([1.0], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        tensor([0.7500], dtype=torch.float64)
    """
    is_normal = torch.isinf(degrees_of_freedom)
    if bool((is_normal | (degrees_of_freedom == _FOUR)).all()):
        return torch.where(is_normal, normal.cdf(z), _cdf_of_four(z))
    return _on_host(special.stdtr, z, degrees_of_freedom)


def cdf_and_density(z: Tensor, degrees_of_freedom: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution function and density of the standard distribution, which share their work; not differentiable.

    Example:
        >>> import torch
        >>> zero, four = torch.zeros((), dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)
        >>> cdf_and_density(zero, four)
        (tensor(0.5000, dtype=torch.float64), tensor(0.3750, dtype=torch.float64))
    """
    is_normal = torch.isinf(degrees_of_freedom)
    if bool(is_normal.all()):
        return normal.cdf(z), (-0.5 * z.square()).exp() * _NORMAL_PEAK
    if bool((degrees_of_freedom == _FOUR).all()):
        inverse = (4 + z.square()).rsqrt()
        s = z * inverse
        above = torch.where(z < 0, (2 * inverse).square() / (1 - s), 1 + s)
        return 0.25 * above.square() * (2 - s), 12 * inverse**5
    zero = torch.zeros_like(z)
    return cdf(z, degrees_of_freedom), log_prob(z, zero, zero + 1, degrees_of_freedom).exp()


def icdf(p: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Quantiles of the standard distribution; not differentiable, and computed on the host.

    Example:
        >>> import torch
        >>> icdf(torch.tensor([0.75], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        tensor([1.0000], dtype=torch.float64)
    """
    # In the lower tail, where the quantile functions keep their digits.
    tail = torch.minimum(p, 1 - p)
    is_normal = torch.isinf(degrees_of_freedom)
    if bool((is_normal | (degrees_of_freedom == _FOUR)).all()):
        quantile = torch.where(is_normal, torch.special.ndtri(tail), _icdf_of_four(tail))
    else:
        quantile = _on_host(special.stdtrit, tail, degrees_of_freedom)
    return torch.where(p > 0.5, -quantile, quantile)


def _cdf_of_four(z: Tensor) -> Tensor:
    """Four degrees of freedom: (1 + s)^2 (2 - s) / 4 with s = z / sqrt(4 + z^2), 1 + s without cancellation."""
    square = z.square()
    s = z / (4 + square).sqrt()
    s = torch.where(torch.isinf(square), z.sign(), s)
    above = torch.where(z < 0, 4 / ((4 + square) * (1 - s)), 1 + s)
    return 0.25 * above.square() * (2 - s)


def _icdf_of_four(p: Tensor) -> Tensor:
    """The quantile of a probability up to one half: the root of a cubic by its cosine (Shaw 2006, section 2.2)."""
    root = (4 * p * (1 - p)).sqrt()
    excess = (torch.acos(root.clamp_max(1.0)) / 3).cos() / root - 1
    quantile = -2 * excess.clamp_min(0.0).sqrt()
    density = 0.375 * (1 + quantile.square() / 4) ** -2.5
    step = (_cdf_of_four(quantile) - p) / density  # where p is near one half the cosine has half of the digits
    return torch.where(torch.isfinite(step), quantile - step, quantile)


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
