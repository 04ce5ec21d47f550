r"""Evidence of a Gaussian process for every noise, from one decomposition of its covariance or of its features.

With :math:`\Phi = U \mathrm{diag}(\sqrt{\lambda_i}) V^\top`, or a covariance :math:`U \mathrm{diag}(\lambda_i) U^\top`,
every noise :math:`\sigma^2` and every ratio r of the function's prior variance to it cost one operation for each
eigenvalue. With :math:`c_i = (U^\top y)_i^2` and :math:`e = y^\top y - \sum_i c_i`, what least squares leave,

.. math:: \log p(y) = -\tfrac12 \Bigl( \frac{q(r)}{\sigma^2} + N \log 2 \pi \sigma^2 + \sum_i \log (1 + r \lambda_i)
              \Bigr), \quad q(r) = e + \sum_i \frac{c_i}{1 + r \lambda_i}

(Rasmussen and Williams 2006, section 2.2, by Woodbury's identity). At a given ratio the best noise is
:math:`q(r) / N`, so that the maximum over both is a search in one dimension.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The function's prior variance in units of the noise. Below, evidence is that of no function at all to a thousandth
# of a nat for a thousand rows; above, the sum of what a filter in double precision says of a thousand rows one by one
# and the evidence come apart in the fourth decimal.
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e10
_GRID = 300  # ratios that are tried: a sixth of a unit of their logarithm apart, where the evidence changes over units
_GOLDEN, _STEPS = (math.sqrt(5) - 1) / 2, 40  # the bracket shrinks to 1e-9


class Profile(NamedTuple):
    r"""Sufficient statistics of the evidence for features (\*batch, N, F) and targets."""

    eigenvalues: Tensor  # λ_i, shape (*batch, min(N, F)), or (*batch, F) with zeros
    explained: Tensor  # c_i, of the same shape
    left: Tensor  # e, shape (*batch)
    num_rows: Tensor  # targets that were observed, shape (*batch)


def profile(Phi: Tensor, y: Tensor) -> Profile:
    r"""Decompose features once, in double precision. Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,)."""
    seen = ~y.isnan()
    targets = y[seen].double()
    axes, values, _ = torch.linalg.svd(Phi[..., seen, :].double(), full_matrices=False)
    along = (axes.mT @ targets.unsqueeze(-1)).squeeze(-1)
    left = (targets - (axes @ along.unsqueeze(-1)).squeeze(-1)).square().sum(-1)
    return Profile(values.square(), along.square(), left, torch.full_like(left, len(targets)))


def evidence_at(found: Profile, noise: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The evidence at some noise and ratio, shapes that broadcast with the batch of the profile, and its slopes.

    Returns: the evidence in nats; its derivative by the logarithm of the noise, at the same ratio; and by the logarithm
    of the ratio, at the same noise.
    """
    shrink = 1 / (1 + ratio.unsqueeze(-1) * found.eigenvalues)
    quadratic = found.left + (found.explained * shrink).sum(-1)
    value = -0.5 * (quadratic / noise + found.num_rows * (2 * math.pi * noise).log() - shrink.log().sum(-1))
    learned = ratio.unsqueeze(-1) * found.eigenvalues * shrink
    by_ratio = 0.5 * ((found.explained * shrink * learned).sum(-1) / noise - learned.sum(-1))
    by_noise = 0.5 * (quadratic / noise - found.num_rows)
    return value, by_noise, by_ratio


def profiled_evidence(found: Profile, ratio: Tensor, least_noise: float) -> tuple[Tensor, Tensor]:
    """The evidence in nats at some ratio and the best noise, and that noise; shapes as of :func:`evidence_at`.

    The evidence falls on both sides of the mean square of what is whitened.
    """
    shrink = 1 / (1 + ratio.unsqueeze(-1) * found.eigenvalues)
    quadratic = found.left + (found.explained * shrink).sum(-1)
    noise = (quadratic / found.num_rows).clamp_min(least_noise)
    return -0.5 * (quadratic / noise + found.num_rows * (2 * math.pi * noise).log() - shrink.log().sum(-1)), noise


def best_variances(found: Profile, least_noise: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""Noise and prior variance with the highest evidence, and the evidence in nats, (\*batch) each."""
    size = (found.eigenvalues.sum(-1) / found.num_rows).clamp_min(torch.finfo(torch.float64).tiny)
    lowest, highest = (math.log(ratio) - size.log() for ratio in (_LEAST_RATIO, _MOST_RATIO))
    step = (highest - lowest) / (_GRID - 1)

    def height(logs: Tensor) -> Tensor:
        return profiled_evidence(found, logs.exp(), least_noise)[0]

    heights = torch.stack([height(lowest + number * step) for number in range(_GRID)])
    best = lowest + heights.argmax(0) * step
    low, high = torch.maximum(best - step, lowest), torch.minimum(best + step, highest)
    for _ in range(_STEPS):
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        rises = height(first) < height(second)
        low, high = torch.where(rises, first, low), torch.where(rises, high, second)
    # Where the evidence is highest at an end of the grid, the end itself.
    ends = torch.stack([best, 0.5 * (low + high)])
    ratio = ends.gather(0, torch.stack([height(end) for end in ends]).argmax(0, keepdim=True)).squeeze(0).exp()
    evidence, noise = profiled_evidence(found, ratio, least_noise)
    return noise, ratio * noise, evidence
