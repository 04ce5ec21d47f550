r"""Log densities of targets given their latent values, with derivatives in closed form for log-concave likelihoods.

The site of a target is found by Newton's method on one number, a few steps for each row and expert. With derivatives
in closed form a step is a handful of operations, and with the right start it needs no damping: the function whose zero
is sought, :math:`z - m - s\, \ell'(z)`, is increasing and curved to one side from there on, so that steps never
overshoot.
"""

import functools
import math
from typing import Any

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
from gp_ensembles.likelihoods.response import latent_dim, log_prob
from gp_ensembles.numerics.derivatives import Derivatives, LatentDensity, automatic, diagonal_matrix, library_of
from gp_ensembles.numerics.gpytorch_types import Likelihood

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)


def latent_density(likelihood: Likelihood, *, force_autograd: bool = False) -> LatentDensity:
    """The log density of a likelihood; its derivatives are automatic where they have no closed form, or on request."""
    known = None if force_autograd else _known(likelihood)
    return automatic(functools.partial(log_prob, likelihood), latent_dim(likelihood)) if known is None else known


@functools.singledispatch
def _known(likelihood: Likelihood) -> LatentDensity | None:
    return None


@_known.register(MulticlassLikelihood)
def _(likelihood: MulticlassLikelihood) -> LatentDensity | None:
    return LatentDensity(_log_share, _softmax, likelihood.num_classes, takes_arrays=True)


@_known.register(LogisticLikelihood)
def _(likelihood: LogisticLikelihood) -> LatentDensity | None:
    return LatentDensity(_log_sigmoid, _logistic, start=_logistic_start, takes_arrays=True)


@_known.register(BernoulliLikelihood)
def _(likelihood: BernoulliLikelihood) -> LatentDensity | None:
    return LatentDensity(functools.partial(log_prob, likelihood), _probit, start=_mean)


@_known.register(LogPoissonLikelihood)
def _(likelihood: LogPoissonLikelihood) -> LatentDensity | None:
    return LatentDensity(functools.partial(log_prob, likelihood), _poisson, start=_poisson_start)


@_known.register(OrdinalLikelihood)
def _(likelihood: OrdinalLikelihood) -> LatentDensity | None:
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

    density = functools.partial(log_prob, likelihood)
    return LatentDensity(density, at, start=start if is_logit else _mean)


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


def _log_share(latent: Any, y: Any) -> Any:
    """Logarithm of the share of class y under the softmax, on tensors or arrays, as all that follows but the probit."""
    xp = library_of(latent)
    away = latent - xp.amax(latent, -1)[..., None]
    return xp.where(_is_class(latent, y), away, 0.0).sum(-1) - xp.log(xp.exp(away).sum(-1))


def _softmax(latent: Any, y: Any) -> Derivatives:
    xp = library_of(latent)
    shares = xp.exp(latent - xp.amax(latent, -1)[..., None])
    shares = shares / shares.sum(-1)[..., None]
    second = shares[..., :, None] * shares[..., None, :] - diagonal_matrix(shares)
    return Derivatives(xp.where(_is_class(latent, y), 1 - shares, -shares), second)


def _is_class(latent: Any, y: Any) -> Any:
    return library_of(latent).ones_like(latent).cumsum(-1) == y[..., None] + 1


def _log_sigmoid(latent: Any, y: Any) -> Any:
    xp, towards = library_of(latent), (2 * y - 1) * latent
    size = abs(towards)
    return 0.5 * (towards - size) - xp.log1p(xp.exp(-size))


def _logistic(latent: Any, y: Any) -> Derivatives:
    probability = latent.sigmoid() if isinstance(latent, Tensor) else 1 / (1 + library_of(latent).exp(-latent))
    return Derivatives(y - probability, probability * probability - probability)


def _logistic_start(mean: Any, variance: Any, y: Any) -> Any:
    """Zero, where the curvature changes its sign, or what is next to it in the interval that holds the mode."""
    xp, end = library_of(mean), mean + variance * (2 * y - 1)  # the slope is at most one
    highest = xp.maximum(mean, end)
    return xp.maximum(xp.minimum(mean, end), 0.5 * (highest - abs(highest)))


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
