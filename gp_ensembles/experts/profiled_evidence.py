r"""Evidence of linear models with fixed features, for all variances at once, and empirical Bayes by it.

One decomposition of the features :math:`\Phi = U \mathrm{diag}(\sqrt{\lambda_i}) V^\top` gives the evidence for every
noise :math:`\sigma^2` and every ratio :math:`r = \sigma_\theta^2 / \sigma^2` of prior to noise at F operations each.
With :math:`c_i = (U^\top y)_i^2` and :math:`e = y^\top y - \sum_i c_i`, what least squares leave,

.. math:: \log p(y) = -\tfrac12 \Bigl( \frac{q(r)}{\sigma^2} + N \log 2 \pi \sigma^2 + \sum_i \log (1 + r \lambda_i)
              \Bigr), \quad q(r) = e + \sum_i \frac{c_i}{1 + r \lambda_i}

(Rasmussen and Williams 2006, section 2.2, by Woodbury's identity). At a given ratio the best noise is
:math:`q(r) / N`, so that the maximum over both is a search in one dimension.
"""

import math
from typing import NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import log_priors
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.parameters import trainable
from gp_ensembles.features.fourier import RandomFourierFeatures

# The function's prior variance in units of the noise. Below, evidence is that of no function at all to a thousandth
# of a nat for a thousand rows; above, the sum of what a filter in double precision says of a thousand rows one by one
# and the evidence come apart in the fourth decimal.
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e10
_GRID = 300  # ratios that are tried: a sixth of a unit of their logarithm apart, where the evidence changes over units
_TRAINED = frozenset({"features.kernel.raw_outputscale", "likelihood.noise_covar.raw_noise"})
_GOLDEN, _STEPS = (math.sqrt(5) - 1) / 2, 40  # the bracket shrinks to 1e-9


class Profile(NamedTuple):
    r"""Sufficient statistics of the evidence for features (\*batch, N, F) and targets.

    Attributes:
        eigenvalues: :math:`\lambda_i`, shape (\*batch, min(N, F)), or (\*batch, F) with zeros.
        explained: :math:`c_i`, of the same shape.
        left: e, shape (\*batch).
        num_rows: Targets that were observed, shape (\*batch).
    """

    eigenvalues: Tensor
    explained: Tensor
    left: Tensor
    num_rows: Tensor


class EvidenceAt(NamedTuple):
    """The evidence and its slopes, each (...).

    Attributes:
        value: In nats.
        by_noise: Derivative by the logarithm of the noise, at the same ratio.
        by_ratio: Derivative by the logarithm of the ratio, at the same noise.
    """

    value: Tensor
    by_noise: Tensor
    by_ratio: Tensor


class Variances(NamedTuple):
    r"""Where the evidence is highest, each (\*batch).

    Attributes:
        noise: Noise variance.
        prior: Prior variance of the weights.
        log_evidence: In nats.
    """

    noise: Tensor
    prior: Tensor
    log_evidence: Tensor


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


def evidence_at(found: Profile, noise: Tensor, ratio: Tensor) -> EvidenceAt:
    """The evidence at some noise and ratio, shapes that broadcast with the batch of the profile."""
    shrink = 1 / (1 + ratio.unsqueeze(-1) * found.eigenvalues)
    quadratic = found.left + (found.explained * shrink).sum(-1)
    value = -0.5 * (quadratic / noise + found.num_rows * (2 * math.pi * noise).log() - shrink.log().sum(-1))
    learned = ratio.unsqueeze(-1) * found.eigenvalues * shrink
    by_ratio = 0.5 * ((found.explained * shrink * learned).sum(-1) / noise - learned.sum(-1))
    by_noise = 0.5 * (quadratic / noise - found.num_rows)
    return EvidenceAt(value, by_noise, by_ratio)


def best_variances(found: Profile, least_noise: float) -> Variances:
    """The variances with the highest evidence: a dense grid of ratios, then a golden section search, for each entry."""
    size = (found.eigenvalues.sum(-1) / found.num_rows).clamp_min(torch.finfo(torch.float64).tiny)
    lowest, highest = (math.log(ratio) - size.log() for ratio in (_LEAST_RATIO, _MOST_RATIO))
    step = (highest - lowest) / (_GRID - 1)

    def height(logs: Tensor) -> Tensor:
        return evidence_at(found, _noise_at(found, logs.exp(), least_noise), logs.exp()).value

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
    return Variances(noise, ratio * noise, evidence_at(found, noise, ratio).value)


def has_fixed_kernels(expert: Expert) -> bool:
    """Whether noise and kernel scale are all that is to be fitted of an expert, without priors."""
    return (
        isinstance(expert, GaussianExpert)
        and isinstance(expert.features, RandomFourierFeatures)
        and isinstance(expert.features.kernel, ScaleKernel)
        and set(trainable(expert)) == _TRAINED
        and isinstance(log_priors(expert), float)
    )


@torch.no_grad()
def fit_fixed_kernels(expert: GaussianExpert, X: Tensor, y: Tensor) -> Tensor:
    """Give every expert of a batch the noise and prior variance with the highest evidence, in place.

    Shapes: ``X`` (N, D), ``y`` (N,); returns (M,).

    Raises:
        ValueError: If more hyperparameters are to be fitted.
    """
    if not has_fixed_kernels(expert):
        raise ValueError("an expert has more to be fitted than noise and scale; use fit_empirical_bayes")
    kernel, noise_model = expert.features.kernel, expert.likelihood.noise_covar
    assert isinstance(kernel, ScaleKernel)
    least = float(noise_model.raw_noise_constraint.lower_bound)
    above = least + max(least, 1e-6) ** 2  # the bound itself is infinitely far away on the scale of logarithms
    best = best_variances(profile(expert.features(X), y), above)
    kernel.outputscale = best.prior.to(X)
    expert.likelihood.noise = best.noise.to(X).unsqueeze(-1)
    return best.log_evidence


def _noise_at(found: Profile, ratio: Tensor, least_noise: float) -> Tensor:
    """The best noise at a ratio: the evidence falls on both sides of the mean square of what is whitened."""
    quadratic = found.left + (found.explained / (1 + ratio.unsqueeze(-1) * found.eigenvalues)).sum(-1)
    return (quadratic / found.num_rows).clamp_min(least_noise)
