r"""Evidence of Bayesian linear models in weight space, for a batch of experts at once; and for all variances at once.

With fixed features one decomposition :math:`\Phi = U \mathrm{diag}(\sqrt{\lambda_i}) V^\top` gives the evidence for
every noise :math:`\sigma^2` and every ratio :math:`r = \sigma_\theta^2 / \sigma^2` of prior to noise at F operations
each. With :math:`c_i = (U^\top y)_i^2` and :math:`e = y^\top y - \sum_i c_i`, what least squares leave,

.. math:: \log p(y) = -\tfrac12 \Bigl( \frac{q(r)}{\sigma^2} + N \log 2 \pi \sigma^2 + \sum_i \log (1 + r \lambda_i)
              \Bigr), \quad q(r) = e + \sum_i \frac{c_i}{1 + r \lambda_i}

(Rasmussen and Williams 2006, section 2.2, by Woodbury's identity). At a given ratio the best noise is
:math:`q(r) / N`, so that the maximum over both is a search in one dimension.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.autograd import gram
from gp_ensembles.numerics.cholesky import NumericalError, cholesky

# The function's prior variance in units of the noise. Below, evidence is that of no function at all to a thousandth
# of a nat for a thousand rows; above, the sum of what a filter in double precision says of a thousand rows one by one
# and the evidence come apart in the fourth decimal.
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e10
_GRID = 300  # ratios that are tried: a sixth of a unit of their logarithm apart, where the evidence changes over units
_GOLDEN, _STEPS = (math.sqrt(5) - 1) / 2, 40  # the bracket shrinks to 1e-9


def log_evidence(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    r"""Log marginal likelihood of targets under :math:`N(0, \sigma_\theta^2 \Phi \Phi^\top + \sigma^2 I)`.

    .. math::
        \log p(y) = -\tfrac12 \Big( \frac{y^\top y - (\sigma_\theta^2 / \sigma^2)
        \|L^{-1} \Phi^\top y\|^2}{\sigma^2} + N \log 2 \pi \sigma^2 \Big) - \sum_i \log L_{ii}

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,), ``prior_variance`` (\*batch), ``noise`` (\*batch); returns
    (\*batch).

    Raises:
        NumericalError: If a matrix is not positive definite to working precision.
    """
    quadratic, half_log_determinant = whitened_statistics(Phi, y, prior_variance / noise)
    normalizer = y.shape[0] * (math.log(2 * math.pi) + noise.log())
    return -0.5 * (quadratic / noise + normalizer) - half_log_determinant


def whitened_statistics(Phi: Tensor, y: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    r"""Terms of every Gaussian evidence, with :math:`K = I + r \Phi \Phi^\top`.

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,), ``ratio`` (\*batch); returns (\*batch).

    Raises:
        NumericalError: If K is not positive definite to working precision.
    """
    num_rows, num_features = Phi.shape[-2:]
    columns = y.unsqueeze(-1) if y.ndim == 1 else y
    scale = ratio[..., None, None]
    if num_features < num_rows:
        factor = cholesky(_add_identity(scale * gram(Phi)), "the posterior precision of the weights")
        projected = torch.linalg.solve_triangular(factor, Phi.mT @ columns, upper=False)
        quadratic: Tensor = columns.square().sum((-2, -1)) - ratio * projected.square().sum((-2, -1))
    else:
        factor = cholesky(_add_identity(scale * (Phi @ Phi.mT)), "the covariance of the targets")
        targets = columns.expand(*Phi.shape[:-1], columns.shape[-1])
        quadratic = torch.linalg.solve_triangular(factor, targets, upper=False).square().sum((-2, -1))
    half_log_determinant: Tensor = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return quadratic, half_log_determinant


def batched_log_evidence(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    """As :func:`log_evidence`, with NaN for those experts of a batch for which it cannot be computed."""
    try:
        return log_evidence(Phi, y, prior_variance, noise)
    except NumericalError:
        batch_shape = prior_variance.shape
        if not batch_shape:
            return (prior_variance + noise) * torch.nan
        parts = zip(Phi.flatten(0, -3), prior_variance.reshape(-1), noise.reshape(-1), strict=True)
        return torch.stack([batched_log_evidence(P, y, p, n) for P, p, n in parts]).reshape(batch_shape)


def _add_identity(matrix: Tensor) -> Tensor:
    return matrix + torch.diag_embed(matrix.new_ones(matrix.shape[:-1]))


class Profile(NamedTuple):
    r"""Sufficient statistics of the evidence for features (\*batch, N, F) and targets."""

    eigenvalues: Tensor  # λ_i, shape (*batch, min(N, F)), or (*batch, F) with zeros
    explained: Tensor  # c_i, of the same shape
    left: Tensor  # e, shape (*batch)
    num_rows: Tensor  # targets that were observed, shape (*batch)


def profile(Phi: Tensor, y: Tensor) -> Profile:
    r"""Decompose features once, in double precision.

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,).
    """
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


def best_variances(found: Profile, least_noise: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""Noise and prior variance with the highest evidence, and the evidence in nats, (\*batch) each.

    A dense grid of ratios, then a golden section search, for each entry.
    """
    size = (found.eigenvalues.sum(-1) / found.num_rows).clamp_min(torch.finfo(torch.float64).tiny)
    lowest, highest = (math.log(ratio) - size.log() for ratio in (_LEAST_RATIO, _MOST_RATIO))
    step = (highest - lowest) / (_GRID - 1)

    def height(logs: Tensor) -> Tensor:
        return evidence_at(found, _noise_at(found, logs.exp(), least_noise), logs.exp())[0]

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
    noise = _noise_at(found, ratio, least_noise)
    return noise, ratio * noise, evidence_at(found, noise, ratio)[0]


def _noise_at(found: Profile, ratio: Tensor, least_noise: float) -> Tensor:
    """The best noise at a ratio: the evidence falls on both sides of the mean square of what is whitened."""
    quadratic = found.left + (found.explained / (1 + ratio.unsqueeze(-1) * found.eigenvalues)).sum(-1)
    return (quadratic / found.num_rows).clamp_min(least_noise)
