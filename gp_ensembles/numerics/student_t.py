"""Student-t distributions with degrees of freedom that may be infinite; of one row of their mixtures in numpy."""

import math

import numpy as np
import torch
from scipy import special
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.compiled import IS_COMPILED, compiled
from gp_ensembles.numerics.mixtures import LOST
from gp_ensembles.numerics.normal_scores import LIMIT, TAIL

_NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)
_MOST_EVEN = 20  # even degrees of freedom up to here are taken in closed form, a polynomial of half as many terms
_EVEN = frozenset(range(2, _MOST_EVEN + 1, 2))


def log_prob(y: Tensor, location: Tensor, squared_scale: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Log density; all arguments broadcast."""
    error = (y - location).square() / squared_scale
    is_normal = torch.isinf(degrees_of_freedom)
    half = 0.5 * torch.where(is_normal, 1.0, degrees_of_freedom)
    heavy = _log_gamma_ratio(half) - 0.5 * (2 * half).log() - 0.5 * math.log(math.pi)
    heavy = heavy - (half + 0.5) * torch.log1p(error / (2 * half))
    normal = -0.5 * (error + math.log(2 * math.pi))
    return torch.where(is_normal, normal, heavy) - 0.5 * squared_scale.log()


def cdf(z: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Distribution function of the standard distribution; not differentiable."""
    is_normal = torch.isinf(degrees_of_freedom)
    if bool(is_normal.all()):
        return normal.cdf(z)
    even = None if bool(is_normal.any()) else _one_even(degrees_of_freedom)
    if even is not None:
        return _cdf_of_even(z, even)[0]
    return _cdf_of_several(z, degrees_of_freedom)


def mixture_cdf(
    y: float, weights: np.ndarray, location: np.ndarray, variance: np.ndarray, degrees_of_freedom: np.ndarray
) -> float:
    """Distribution function at one number of a mixture given by its components' variances: numpy, as it is one."""
    if IS_COMPILED:
        found = _mixture_cdf(y, weights, location, variance, degrees_of_freedom)
        if found == found:
            return found
    z = (y - location) / np.sqrt(variance * (1 - 2 / degrees_of_freedom))
    return float(weights.dot(special.stdtr(degrees_of_freedom, z)))


def normal_score_of(u: float) -> float:
    """:func:`~gp_ensembles.numerics.normal_scores.normal_score` of one probability, as a plain number."""
    return u if u != u else min(max(float(special.ndtri(min(max(u, TAIL), 1 - TAIL))), -LIMIT), LIMIT)


def typical_width_of(weights: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """:func:`~gp_ensembles.numerics.mixtures.typical_width` of one row in numpy, all arguments (M,)."""
    error = mean - weights.dot(mean)
    root: float = weights.dot(np.sqrt(np.sqrt(variance + error * error)))
    if root < math.inf:
        return root * root
    kept = weights > LOST
    return math.nan if kept.all() else typical_width_of(weights[kept], mean[kept], variance[kept])


@compiled
def _mixture_cdf(
    y: float, weights: np.ndarray, location: np.ndarray, variance: np.ndarray, degrees_of_freedom: np.ndarray
) -> float:
    """:func:`mixture_cdf` as one loop; NaN where degrees of freedom are neither infinite nor even and at most 20."""
    total = 0.0
    for m in range(len(weights)):
        df, error = degrees_of_freedom[m], y - location[m]
        if np.isinf(df):
            total += weights[m] * 0.5 * math.erfc(-error / math.sqrt(2.0 * variance[m]))
            continue
        if df > _MOST_EVEN or df % 2 != 0:
            return math.nan
        size = min(abs(error) / math.sqrt(variance[m] * ((df - 2) / df)), 1e150)
        square = size * size + df
        x = (0.5 * df) / ((size / math.sqrt(square) + 1) * square)
        half, term, series, power = int(df) // 2, 1.0, 1.0, x
        for j in range(1, half):
            term *= (1 - x) * (half - 1 + j) / j
            series += term
            power *= x
        tail = power * series
        total += weights[m] * (1 - tail if error > 0 else tail)
    return total


def cdf_and_density(z: Tensor, degrees_of_freedom: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution function and density of the standard distribution, which share their work; not differentiable."""
    is_normal = torch.isinf(degrees_of_freedom)
    if bool(is_normal.all()):
        return normal.cdf(z), (-0.5 * z.square()).exp() * _NORMAL_PEAK
    even = None if bool(is_normal.any()) else _one_even(degrees_of_freedom)
    return _of_several(z, degrees_of_freedom) if even is None else _of_even(z, even)


def icdf(p: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """Quantiles of the standard distribution; not differentiable, and computed on the host."""
    # In the lower tail, where the quantile functions keep their digits.
    tail = torch.minimum(p, 1 - p)
    is_normal = torch.isinf(degrees_of_freedom)
    if bool((is_normal | (degrees_of_freedom == 4)).all()):
        quantile = torch.where(is_normal, torch.special.ndtri(tail), _icdf_of_four(tail))
    else:
        quantile = _on_host(special.stdtrit, tail, degrees_of_freedom)
    return torch.where(p > 0.5, -quantile, quantile)


def _of_even(z: Tensor, df: int) -> tuple[Tensor, Tensor]:
    """Distribution function and density for one even number of degrees of freedom."""
    probability, root = _cdf_of_even(z, df)
    peak = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return probability, math.exp(peak + 0.5 * (df + 1) * math.log(df)) / _power(root, df + 1)


def _of_several(z: Tensor, degrees_of_freedom: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution function and density for several degrees of freedom; each element is what it would be alone."""
    z, degrees_of_freedom, kinds = _by_kind(z, degrees_of_freedom)
    probability, density = normal.cdf(z), (-0.5 * z.square()).exp() * _NORMAL_PEAK
    for even, place in kinds:
        if even is not None:
            probability[place], density[place] = _of_even(z[place], even)
            continue
        some, df = z[place], degrees_of_freedom[place]
        zero = torch.zeros_like(some)
        probability[place], density[place] = _on_host(special.stdtr, some, df), log_prob(some, zero, zero + 1, df).exp()
    return probability, density


def _cdf_of_several(z: Tensor, degrees_of_freedom: Tensor) -> Tensor:
    """The distribution function of :func:`_of_several`."""
    z, degrees_of_freedom, kinds = _by_kind(z, degrees_of_freedom)
    probability = normal.cdf(z)
    for even, place in kinds:
        if even is not None:
            probability[place] = _cdf_of_even(z[place], even)[0]
        else:
            probability[place] = _on_host(special.stdtr, z[place], degrees_of_freedom[place])
    return probability


def _by_kind(z: Tensor, degrees_of_freedom: Tensor) -> tuple[Tensor, Tensor, list[tuple[int | None, Tensor]]]:
    """Both in one shape, and where they are not normal: a mask for each small even number, and one for the others."""
    shape = torch.broadcast_shapes(z.shape, degrees_of_freedom.shape)
    is_other, kinds = ~torch.isinf(degrees_of_freedom), list[tuple[int | None, Tensor]]()
    for number in degrees_of_freedom.unique().tolist():
        if number in _EVEN:
            here = degrees_of_freedom == number
            kinds.append((int(number), here.expand(shape)))
            is_other = is_other & ~here
    if bool(is_other.any()):
        kinds.append((None, is_other.expand(shape)))
    return z.expand(shape), degrees_of_freedom.expand(shape), kinds


def _one_even(degrees_of_freedom: Tensor) -> int | None:
    """The number that all are, if it is even and small; ``None`` if not."""
    if degrees_of_freedom.numel() == 0:
        return None
    first = float(degrees_of_freedom.flatten()[0])
    is_even = first in range(2, _MOST_EVEN + 1, 2)
    return int(first) if is_even and bool((degrees_of_freedom == first).all()) else None


def _cdf_of_even(z: Tensor, df: int) -> tuple[Tensor, Tensor]:
    r"""The distribution function for :math:`2 n` degrees of freedom, and :math:`\sqrt{2 n + z^2}`.

    .. math:: F = x^n \sum_{j < n} \binom{n - 1 + j}{j} (1 - x)^j, \qquad x = \frac{1 + s}{2}, \quad
              s = \frac{z}{\sqrt{2 n + z^2}}
    """
    size = z.abs().clamp_max_(0.1 * torch.finfo(z.dtype).max ** 0.5)  # its square is finite
    square = size.square().add_(df)
    root = square.sqrt()
    x = (0.5 * df) / size.div_(root).add_(1).mul_(square)
    half, rest = df // 2, 1 - x
    total = torch.full_like(x, math.comb(2 * half - 2, half - 1))
    for j in range(half - 2, -1, -1):
        total.mul_(rest).add_(math.comb(half - 1 + j, j))
    tail = total.mul_(_power(x, half))
    is_above = z.sign().clamp_min_(0.0)
    return torch.addcmul(tail, is_above, 1 - 2 * tail), root


def _power(x: Tensor, exponent: int) -> Tensor:
    """A whole power, by products."""
    result: Tensor | None = None
    while exponent:
        if exponent % 2:
            result = x if result is None else result * x
        x, exponent = x * x, exponent // 2
    return torch.ones_like(x) if result is None else result


def _icdf_of_four(p: Tensor) -> Tensor:
    """The quantile of a probability up to one half: the root of a cubic by its cosine (Shaw 2006, section 2.2)."""
    root = (4 * p * (1 - p)).sqrt()
    excess = (torch.acos(root.clamp_max(1.0)) / 3).cos() / root - 1
    quantile = -2 * excess.clamp_min(0.0).sqrt()
    density = 0.375 * (1 + quantile.square() / 4) ** -2.5
    step = (_cdf_of_even(quantile, 4)[0] - p) / density  # where p is near one half the cosine has half of the digits
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
