r"""Derivatives of log densities in their latent value in closed form, for log-concave likelihoods.

The site of a target is found by Newton's method on one number, a few steps for each row and expert. With derivatives
in closed form a step is a handful of operations, and with the right start it needs no damping: the function whose zero
is sought, :math:`z - m - s\, \ell'(z)`, is increasing and curved to one side from there on, so that steps never
overshoot.
"""

import functools
import math

import torch
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor

from gp_ensembles.likelihoods.classification import (
    LogisticLikelihood,
    Logit,
    MulticlassLikelihood,
    OrdinalLikelihood,
    Probit,
)
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.numerics.derivatives import Derivatives, KnownDerivatives, KnownVectorDerivatives
from gp_ensembles.numerics.gpytorch_types import Likelihood

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)


@functools.singledispatch
def known_derivatives(likelihood: Likelihood) -> KnownDerivatives | None:
    r"""Derivatives of :math:`\ell(z) = \log p(y \mid z)` in closed form, else ``None``."""
    return None


@functools.singledispatch
def known_vector_derivatives(likelihood: Likelihood) -> KnownVectorDerivatives | None:
    """Gradients and Hessians in closed form for latent vectors: for the softmax, else ``None``."""
    return None


@known_vector_derivatives.register(MulticlassLikelihood)
def _(likelihood: MulticlassLikelihood) -> KnownVectorDerivatives | None:
    return KnownVectorDerivatives(_softmax, is_softmax=True)


@known_derivatives.register(LogisticLikelihood)
def _(likelihood: LogisticLikelihood) -> KnownDerivatives | None:
    return KnownDerivatives(_logistic, _logistic_start, is_logistic=True)


@known_derivatives.register(BernoulliLikelihood)
def _(likelihood: BernoulliLikelihood) -> KnownDerivatives | None:
    return KnownDerivatives(_probit, _mean)


@known_derivatives.register(LogPoissonLikelihood)
def _(likelihood: LogPoissonLikelihood) -> KnownDerivatives | None:
    return KnownDerivatives(_poisson, _poisson_start)


@known_derivatives.register(OrdinalLikelihood)
def _(likelihood: OrdinalLikelihood) -> KnownDerivatives | None:
    """For either link, with the cut points as they are now; none where gradients in them may be wanted."""
    if torch.is_grad_enabled() or not isinstance(likelihood.link, Logit | Probit):
        return None
    is_logit = isinstance(likelihood.link, Logit)
    cuts, scale = likelihood.cut_points.detach(), likelihood.scale.detach()
    beyond = torch.full_like(cuts[..., :1], torch.inf)
    ends = torch.cat([-beyond, cuts, beyond], dim=-1).unsqueeze(-2)

    def interval(latent: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        level = y.long().expand_as(latent).unsqueeze(-1)
        table = ends.expand(*latent.shape, ends.shape[-1])
        return table.gather(-1, level).squeeze(-1), table.gather(-1, level + 1).squeeze(-1)

    def at(latent: Tensor, y: Tensor) -> Derivatives:
        lower, upper = ((end - latent) / scale for end in interval(latent, y))
        first, second = (_logit_slopes if is_logit else _probit_slopes)(lower, upper)
        return Derivatives(first / scale, second / scale.square())

    def start(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        lower, upper = interval(mean, y)
        is_low = mean < 0.5 * (lower + upper)
        end = torch.where(is_low, mean + variance / scale, mean - variance / scale)  # as steep as the density gets
        near = torch.where(is_low, lower, upper)
        return torch.maximum(torch.minimum(mean, end), torch.minimum(torch.maximum(mean, end), near))

    return KnownDerivatives(at, start if is_logit else _mean)


def _logit_slopes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    below, above = lower.sigmoid(), (-upper).sigmoid()
    return below - above, -(below * (1 - below) + above * (1 - above))


def _probit_slopes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    log_share = Probit().log_difference(lower, upper)
    lower_ratio, upper_ratio = ((-0.5 * z.square() - _HALF_LOG_TWO_PI - log_share).exp() for z in (lower, upper))
    first = lower_ratio - upper_ratio
    # Beyond the first and the last cut point there is no density.
    moment = torch.where(lower.isinf(), 0.0, lower * lower_ratio) - torch.where(upper.isinf(), 0.0, upper * upper_ratio)
    return first, moment - first.square()


def _softmax(latent: Tensor, y: Tensor) -> Derivatives:
    shares = latent.softmax(-1)
    hard = torch.nn.functional.one_hot(y.long(), latent.shape[-1]).to(latent)
    second = shares.unsqueeze(-1) * shares.unsqueeze(-2) - torch.diag_embed(shares)
    return Derivatives(hard - shares, second)


def _logistic(latent: Tensor, y: Tensor) -> Derivatives:
    probability = latent.sigmoid()
    return Derivatives(y - probability, torch.addcmul(-probability, probability, probability))


def _logistic_start(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Zero, where the curvature changes its sign, or what is next to it in the interval that holds the mode."""
    end = torch.addcmul(mean, variance, 2 * y - 1)  # the slope is at most one
    return torch.maximum(torch.minimum(mean, end), torch.maximum(mean, end).clamp_max(0.0))


def _mean(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    return mean


def _probit(latent: Tensor, y: Tensor) -> Derivatives:
    sign = 2 * y - 1
    towards = sign * latent
    ratio = _ROOT_TWO_OVER_PI / torch.special.erfcx(-_ROOT_HALF * towards)  # of density and distribution function
    return Derivatives(sign * ratio, -ratio * (towards + ratio))


def _poisson(latent: Tensor, y: Tensor) -> Derivatives:
    rate = latent.exp()
    return Derivatives(y - rate, -rate)


def _poisson_start(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """A point above the mode."""
    return torch.minimum(torch.maximum(mean, y.log()), torch.addcmul(mean, variance, y))
