r"""Monotone maps of the unit interval onto itself that are mixtures of normal distributions of the normal score.

With the normal score :math:`z = \Phi^{-1}(u)` of a probability u, a component with shift m and scale s is the map
:math:`G(u) = \Phi((z - m) / s)` and its density :math:`g(u) = N(z; m, s^2) / N(z; 0, 1)`: for s = 1 and m = 0 the
identity. A mixture of them is the mixture of the maps. Where \|z\| exceeds :data:`LIMIT` a map continues as a straight
line in u, to 0 and to 1, so that its density is bounded: by 2.2e4 for scales up to 1.8 and
shifts up to 0.5.

The components' axis is the last but one, as in :mod:`gp_ensembles.numerics.mixtures`; probabilities are float64.
"""

import math
from itertools import product

import torch
from torch import Tensor

from gp_ensembles.numerics import mixtures, normal
from gp_ensembles.numerics.reductions import logsumexp_over_experts, sum_over_experts

LIMIT = 5.0  # normal scores beyond which maps are straight lines
_INTERVALS = 200  # of a table
TAIL = 0.5 * math.erfc(LIMIT / math.sqrt(2))  # probability beyond it, on either side


def normal_score(u: Tensor) -> Tensor:
    """Normal scores of probabilities, held within ``LIMIT``; NaN where u is."""
    score: Tensor = torch.special.ndtri(u.clamp(TAIL, 1 - TAIL))
    return score.clamp(-LIMIT, LIMIT)


def component_log_densities(u: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    r"""Log densities :math:`\log g_k(u)` of K maps, shape (K, \*batch). Shapes: ``shift`` (K,), ``scale`` (K,)."""
    z = normal_score(u)
    m, s = (part.reshape(-1, *[1] * u.ndim) for part in (shift, scale))
    inside = 0.5 * (z.square() - ((z - m) / s).square()) - s.log()
    beyond = (u < TAIL) | (u > 1 - TAIL)
    if not bool(beyond.any()):
        return inside
    outside = torch.special.log_ndtr((z.sign() * m - LIMIT) / s) - math.log(TAIL)
    return torch.where(beyond, outside, inside)


def log_density(u: Tensor, log_weights: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Log densities of mixtures of K maps, each row its own or all the same.

    Shapes: ``u`` (..., N), ``log_weights`` (K, N) or (K, 1), ``shift`` (K,), ``scale`` (K,); returns (..., N).
    """
    components = component_log_densities(u, shift, scale).movedim(0, -2)
    return logsumexp_over_experts(log_weights + components)


def transform(u: Tensor, log_weights: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Mixtures of K maps at probabilities u (..., N); arguments and shapes as in :func:`log_density`."""
    weights, m, s = log_weights.exp(), shift.unsqueeze(-1), scale.unsqueeze(-1)
    inside = sum_over_experts(weights * normal.cdf((normal_score(u).unsqueeze(-2) - m) / s))
    lower, upper = _ends(weights, m, s)
    below = u.clamp_min(0.0) / TAIL * lower
    above = 1 - (1 - u).clamp_min(0.0) / TAIL * upper
    return torch.where(u < TAIL, below, torch.where(u > 1 - TAIL, above, inside))


def tabulated(u: Tensor, log_weights: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """As :func:`transform`, from a table of each mixture by Hermite's cubics: for many probabilities of each row.

    Shapes: ``u`` (J, N), ``log_weights`` (K, N) or (K, 1), ``shift`` (K,), ``scale`` (K,).
    """
    grid = torch.linspace(-LIMIT, LIMIT, _INTERVALS + 1, dtype=u.dtype, device=u.device)
    z = (grid - shift.unsqueeze(-1)) / scale.unsqueeze(-1)
    densities = (-0.5 * z.square()).exp() / (scale.unsqueeze(-1) * math.sqrt(2 * math.pi))
    weights = log_weights.exp().mT.contiguous().unsqueeze(1)  # a product for each row: its bits depend on no other
    values = torch.cat([normal.cdf(z), densities], dim=1)
    tables = torch.bmm(weights, values.expand(weights.shape[0], -1, -1))
    heights, slopes = tables.squeeze(1).mT.split(_INTERVALS + 1)
    step = 2 * LIMIT / _INTERVALS
    place = (normal_score(u) + LIMIT) / step
    left = place.floor().long().clamp(0, _INTERVALS - 1)
    s = place - left
    a, b, p, q = (part.expand(-1, u.shape[-1]).gather(0, left + k) for part, k in product((heights, slopes), (0, 1)))
    inside = a + s.square() * (3 - 2 * s) * (b - a) + step * s * (1 - s) * ((1 - s) * p - s * q)
    below, above = u / TAIL * heights[0], 1 - (1 - u) / TAIL * (1 - heights[-1])
    return torch.where(u < TAIL, below, torch.where(u > 1 - TAIL, above, inside))


def inverse(p: Tensor, log_weights: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """The probabilities at which mixtures of K maps reach p; to round-off of the nearer tail.

    Shapes: ``p`` (..., N), ``log_weights`` (K, N), ``shift`` (K,), ``scale`` (K,); returns (..., N).
    """
    m, s = shift.unsqueeze(-1).expand_as(log_weights), scale.unsqueeze(-1).expand_as(log_weights)
    score = mixtures.icdf(log_weights, m, s.square(), p)
    lower, upper = _ends(log_weights.exp(), m, s)
    below, above = p * (TAIL / lower), 1 - (1 - p) * (TAIL / upper)
    return torch.where(score < -LIMIT, below, torch.where(score > LIMIT, above, normal.cdf(score)))


def _ends(weights: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mass of mixtures below and above the limits, (N,) each."""
    lower = sum_over_experts(weights * normal.cdf((-LIMIT - shift) / scale))
    return lower, sum_over_experts(weights * normal.cdf((shift - LIMIT) / scale))
