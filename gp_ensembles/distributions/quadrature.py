r"""Integrals over the values of N distributions at once, at nodes that reach into heavy tails.

The trapezoidal rule after :math:`y = c + 0.3\, d \sinh(t + t^3 / 40)` with mean c and deviation d: nodes are dense
within the deviation and 1e5 deviations reach from end to end.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.numerics.reductions import sum_over_experts

_CENTER = 0.3
_BEND = 0.025
_REACH = 6.4
_STEP = 0.2


def nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (J, N) around means (N,), and the length that each stands for, (J, N).

    Example:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> y, length = nodes(zero, zero + 1)
        >>> (torch.exp(-0.5 * y**2) * length).sum(0) / math.sqrt(2 * math.pi)
        tensor([1.0000], dtype=torch.float64)
    """
    num = round(2 * _REACH / _STEP) + 1
    t = torch.linspace(-_REACH, _REACH, num, dtype=mean.dtype, device=mean.device).unsqueeze(-1)
    bent, bend = t + _BEND * t**3, 1 + 3 * _BEND * t.square()
    scale = _CENTER * variance.sqrt()
    return mean + scale * bent.sinh(), _STEP * scale * bent.cosh() * bend


def integral_from(y: Tensor, terms: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Integrals of N smooth functions from y (N,) on, from their values times the lengths at all nodes (J, N).

    Between nodes the integral is a cubic; the functions vanish at both ends.
    """
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


def crps_by_quadrature(distribution: Mixture | StudentTMixture, y: Tensor) -> Tensor:
    r"""Continuous ranked probability scores where there is no closed form.

    .. math:: \int (F - 1[z \ge y])^2\, dz = |y - \mu| - \int F (1 - F)\, dz + 2 \int_y^\infty 1 - F\, dz

    for y above the mean, and mirrored below it.

    Args:
        distribution: Of N rows.
        y: Targets, shape (N,).

    Returns:
        Scores, shape (N,), units of the target; NaN where y is.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> crps_by_quadrature(Mixture(0 * one[0], 0 * one, one), one[0])
        tensor([0.6024], dtype=torch.float64)
    """
    mean, variance = distribution.moments()
    at, length = nodes(mean, variance)
    F = distribution.cdf(at)
    spread = sum_over_experts(F * (1 - F) * length)
    beyond = torch.where(y < mean, F.flip(0), 1 - F) * length
    distance = (y - mean).abs()
    return distance - spread + 2 * integral_from(mean + distance, beyond, mean, variance)
