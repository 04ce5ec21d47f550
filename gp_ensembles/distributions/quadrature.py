r"""Integrals over the values of N distributions at once, at nodes that reach into heavy tails.

The trapezoidal rule after :math:`y = c + 0.3\, d \sinh(t + t^3 / 40)` with mean c and standard deviation d: nodes
are dense within d and span 1e5 d.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.numerics import student_t
from gp_ensembles.numerics.reductions import sum_over_experts

_CENTER = 0.3
_BEND = 0.025
_REACH = 6.4
_STEP = 0.2
_FEW = 64  # components that are kept one by one
# Rows at once, whose numbers fit in a cache: of nodes and of single targets.
_ROWS = 32
_TARGETS = 128

_Mixture = Mixture | StudentTMixture


def nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (J, N) around means (N,), and the length that each represents, (J, N)."""
    num = round(2 * _REACH / _STEP) + 1
    t = torch.linspace(-_REACH, _REACH, num, dtype=mean.dtype, device=mean.device).unsqueeze(-1)
    bent, bend = t + _BEND * t**3, 1 + 3 * _BEND * t.square()
    scale = _CENTER * variance.sqrt()
    return mean + scale * bent.sinh(), _STEP * scale * bent.cosh() * bend


def integral_from(y: Tensor, terms: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Integrals of N smooth functions from y (N,) on, from their values times the lengths at all nodes (J, N)."""
    height = terms / _STEP  # by t
    slope = torch.zeros_like(height)
    slope[1:-1] = (height[2:] - height[:-2]) / (2 * _STEP)
    pieces = _STEP / 2 * (height[1:] + height[:-1]) - _STEP**2 / 12 * (slope[1:] - slope[:-1])
    tail = torch.cat([pieces.flip(0).cumsum(0).flip(0), torch.zeros_like(height[:1])])
    bent = ((y.nan_to_num(0.0) - mean) / (_CENTER * variance.sqrt())).asinh()
    # The only root of t + _BEND t³ = bent, by Cardano's formula.
    t = 2 / math.sqrt(3 * _BEND) * ((1.5 * math.sqrt(3 * _BEND) * bent).asinh() / 3).sinh()
    place = (t.clamp(-_REACH, _REACH) + _REACH) / _STEP
    left = place.floor().long().clamp(0, height.shape[0] - 2).unsqueeze(0)
    s = place - left.squeeze(0)
    a, b, p, q = (part.gather(0, left + k).squeeze(0) for part in (tail, -height) for k in (0, 1))
    # Hermite's cubic through the integrals at both nodes, whose derivatives are minus the heights.
    value = a + s.square() * (3 - 2 * s) * (b - a) + _STEP * s * (1 - s) * ((1 - s) * p - s * q)
    return torch.where(y.isnan(), math.nan, value)


class AtNodes(NamedTuple):
    """N distribution functions at J nodes each."""

    mean: Tensor  # means, (N,)
    variance: Tensor  # variances, (N,)
    y: Tensor  # nodes, (J, N)
    length: Tensor  # lengths that they represent, (J, N)
    cdf: Tensor  # distribution functions there, (J, N)


def at_nodes(mixture: Mixture | StudentTMixture) -> AtNodes:
    """The distribution functions of mixtures at their nodes; of many components the lightest count as one or two."""
    mean, variance = mixture.moments()
    y, length = nodes(mean, variance)
    return AtNodes(mean, variance, y, length, _cdf(mixture, y, _ROWS, simplified))


def simplified(mixture: _Mixture) -> _Mixture:
    """Mixtures whose components beyond the 64 heaviest of each row become one normal and one Student-t."""
    mean = mixture.component_mean
    if mean.shape[0] <= _FEW + 2:
        return mixture
    log_weights = mixture.log_weights
    log_weights = (log_weights.unsqueeze(-1) if log_weights.ndim == 1 else log_weights).expand(mean.shape)
    order = log_weights.sort(dim=0, descending=True, stable=True).indices
    some, rest = order[:_FEW], order[_FEW:]
    weights, centers, spreads = (part.gather(0, rest) for part in (log_weights.exp(), mean, mixture.component_variance))
    kept = [part.gather(0, some) for part in (log_weights, *mixture[1:])]
    if isinstance(mixture, Mixture):
        lumps = [_lump(weights, centers, spreads)]
    else:
        df = mixture.degrees_of_freedom.gather(0, rest)
        heavy = df.isfinite()
        least = df.masked_fill(~heavy, 0.0).amax(0)  # they are equal, as a rule
        lumps = [
            [*_lump(weights * ~heavy, centers, spreads), torch.full_like(least, torch.inf)],
            [*_lump(weights * heavy, centers, spreads), torch.where(least > 0, least, torch.inf)],
        ]
    return type(mixture)(
        *(torch.cat([one, torch.stack(new)]) for one, new in zip(kept, zip(*lumps, strict=True), strict=True))
    )


def _lump(weights: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
    """Log weight, mean and variance (N,) of components (M, N) together; a standard one where they weigh nothing."""
    total = sum_over_experts(weights)
    share = weights / total.clamp_min(torch.finfo(total.dtype).tiny)
    center = sum_over_experts(share * mean)
    spread = sum_over_experts(share * (variance + (mean - center).square()))
    return [total.log(), center, torch.where(total > 0, spread, 1.0)]


def crps_at_nodes(y: Tensor, found: AtNodes, cdf: Tensor, mean: Tensor) -> Tensor:
    r"""Continuous ranked probability scores of N distributions whose functions (J, N) are known at nodes.

    .. math:: \int (F - 1[z \ge y])^2\, dz = |y - \mu| - \int F (1 - F)\, dz + 2 \int_y^\infty 1 - F\, dz

    Shapes: ``y`` (N,), ``mean`` (N,); returns (N,).
    """
    spread = sum_over_experts(cdf * (1 - cdf) * found.length)
    # The nodes are symmetric around the mean of the base: mirrored there, F up to y is 1 - F from y on.
    is_below = y < found.mean
    beyond = torch.where(is_below, cdf.flip(0), 1 - cdf) * found.length
    tail = integral_from(found.mean + (y - found.mean).abs(), beyond, found.mean, found.variance)
    return torch.where(is_below, mean - y, y - mean) - spread + 2 * tail


def cdf_by_pieces(mixture: Mixture | StudentTMixture, y: Tensor) -> Tensor:
    """Distribution functions of mixtures at targets (N,), some rows at a time; of one row by numpy if it can be."""
    is_one_row = y.shape == (1,) and y.device.type == "cpu" and mixture.component_mean.dtype == torch.float64
    if not (is_one_row and isinstance(mixture, StudentTMixture)):
        return _cdf(mixture, y, _TARGETS, lambda part: part)
    parts = (part.detach()[:, 0].numpy() for part in (mixture.log_weights.reshape(-1, 1).exp(), *mixture[1:]))
    return y.new_tensor([student_t.mixture_cdf(float(y), *parts)])


def _cdf(mixture: _Mixture, y: Tensor, num_rows: int, change: Callable[[_Mixture], _Mixture]) -> Tensor:
    """Distribution functions of changed mixtures at y (..., N), this many rows at a time."""
    parts = []
    for start in range(0, y.shape[-1], num_rows):
        rows = slice(start, start + num_rows)
        some = type(mixture)(*(part if part.ndim == 1 else part[:, rows] for part in mixture))
        parts.append(change(some).cdf(y[..., rows]))
    return torch.cat(parts, -1) if parts else torch.zeros_like(y)
