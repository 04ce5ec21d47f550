r"""Closed forms of likelihoods: derivatives of log densities, and distributions under normal latent values.

The site of a target is found by Newton's method on one number, a few steps for each row and expert. With derivatives
in closed form a step is a handful of operations, and with the right start it needs no damping: the function whose zero
is sought, :math:`z - m - s\, \ell'(z)`, is increasing and curved to one side from there on, so that steps never
overshoot.

Distributions of targets in closed form need no quadrature. Under the logistic link there is none, but a fixed rule that
is as good. The logistic function is a probit
curve and a small odd remainder that vanishes within a few units of zero:

.. math:: \sigma(z) = \Phi(\lambda z) + r(z), \qquad
          E\,\sigma(z) = \Phi\big(\lambda m / \sqrt{1 + \lambda^2 s}\big) + \int r(z)\, N(z; m, s)\, dz

The integrand is analytic in a strip and falls exponentially, so the trapezoidal rule on a fixed grid is right to eight
digits or more however wide the normal distribution is; where it is narrow, Gauss-Hermite nodes are. Far below zero,
where the remainder is no longer small compared with the rest, :math:`E\,\sigma(z) = e^{m + s/2}\, E\,\sigma(-z - s)`
takes over.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, LaplaceLikelihood
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints
from torch.distributions.constraints import Constraint

from gp_ensembles.likelihoods.classification import (
    LogisticLikelihood,
    Logit,
    MulticlassLikelihood,
    OrdinalCategorical,
    OrdinalLikelihood,
    Probit,
)
from gp_ensembles.likelihoods.counts import CountLikelihood
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.likelihoods.response import conditional, latent_dim, log_prob
from gp_ensembles.numerics.derivatives import Derivatives, LatentDensity, automatic, diagonal_matrix, library_of
from gp_ensembles.numerics.gauss_hermite import gauss_hermite
from gp_ensembles.numerics.gpytorch_types import Likelihood
from gp_ensembles.numerics.reductions import readable_all

_SLOPE = math.sqrt(math.pi / 8)
_STEP = 0.75
_NARROW, _WIDE = 1.0, 25.0  # variance up to which nodes are used, and up to which a grid needs less reach
_SHORT, _LONG = 27.0, 48.0
_NUM_NODES = 64
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)
_NO_ODDS = -1e20  # log odds of what never happens are below it


class NormalLaplace(Distribution):
    r"""The sum of a normal and a Laplace variable (Reed and Jorgensen 2004), its log density exact in both tails.

    .. math:: p(y) = e^{-d^2 / 2s}\, (\mathrm{erfcx}(u_+) + \mathrm{erfcx}(u_-)) / 4b

    Shapes: ``loc`` (..., N), ``variance`` (..., N), ``scale`` (...).
    """

    arg_constraints: dict[str, Constraint] = {}  # noqa: RUF012 - as torch's distributions have it
    support: Constraint = constraints.real

    def __init__(self, loc: Tensor, variance: Tensor, scale: Tensor) -> None:
        self.loc = loc
        self.normal_variance = variance
        self.scale = scale
        super().__init__(torch.broadcast_shapes(loc.shape, variance.shape, scale.shape), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return self.normal_variance + 2 * self.scale.square()

    def log_prob(self, value: Tensor) -> Tensor:
        stddev = self.normal_variance.sqrt()
        distance = (value - self.loc) / stddev
        ratio = stddev / self.scale
        sides = torch.logaddexp(
            _log_erfcx((ratio + distance) * math.sqrt(0.5)), _log_erfcx((ratio - distance) * math.sqrt(0.5))
        )
        return sides - 0.5 * distance.square() - (4 * self.scale).log()


@functools.singledispatch
def closed_form(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    r"""The exact distribution of targets where the likelihood has one in closed form, else ``None``.

    Shapes: ``mean`` (\*batch, N).
    """
    return None


@closed_form.register(BernoulliLikelihood)
def _(likelihood: BernoulliLikelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    return conditional(likelihood, mean / (1 + variance).sqrt())


@closed_form.register(LogisticLikelihood)
def _(likelihood: LogisticLikelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    return conditional(likelihood, logit_normal_log_odds(mean, variance))


@closed_form.register(OrdinalLikelihood)
def _(likelihood: OrdinalLikelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    if isinstance(likelihood.link, Probit):
        return likelihood.smoothed(mean, variance)
    if not isinstance(likelihood.link, Logit) or likelihood.num_levels > 2:
        return None
    distance = (mean - likelihood.cut_points) / likelihood.scale
    log_odds = logit_normal_log_odds(distance, variance / likelihood.scale.square())
    return OrdinalCategorical(logits=torch.stack([torch.zeros_like(log_odds), log_odds], dim=-1), validate_args=False)


@closed_form.register(GaussianLikelihood)
def _(likelihood: GaussianLikelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    return Normal(mean, (variance + likelihood.noise).sqrt(), validate_args=False)


@closed_form.register(LaplaceLikelihood)
def _(likelihood: LaplaceLikelihood, mean: Tensor, variance: Tensor) -> Distribution | None:
    return NormalLaplace(mean, variance, likelihood.noise.sqrt())


def _log_erfcx(u: Tensor) -> Tensor:
    """Logarithm of exp(u²) erfc(u); the branch not taken is fed zero, for the sake of derivatives."""
    upper = u > 0
    above, below = torch.where(upper, u, 0.0), torch.where(upper, 0.0, u)
    return torch.where(upper, torch.special.erfcx(above).log(), below.square() + torch.special.erfc(below).log())


def logit_normal_log_odds(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Log odds of :math:`E\,\sigma(z)` for :math:`z \sim N(m, s)`, to eight digits of either probability or better."""
    low = -mean.abs()
    log_prob = _by_tiers(low, variance)
    log_odds = log_prob - torch.log(-torch.expm1(log_prob))
    return torch.where(mean <= 0, log_odds, -log_odds)


def _by_tiers(mean: Tensor, variance: Tensor) -> Tensor:
    """Each number by the rule for its own variance, whatever the others are."""
    tiers = [variance <= _NARROW, (variance > _NARROW) & (variance <= _WIDE), ~(variance <= _WIDE)]
    for number, flags in enumerate(tiers):
        if readable_all(flags):
            return _RULES[number](mean, variance)
    try:
        places = [flags.nonzero(as_tuple=True) for flags in tiers]
    except RuntimeError:  # values cannot be read: each rule gets arguments in its range, for derivatives
        parts = [
            rule(mean, torch.where(flags, variance, safe))
            for rule, flags, safe in zip(_RULES, tiers, (_NARROW, _WIDE, 2 * _WIDE), strict=True)
        ]
        return torch.where(tiers[0], parts[0], torch.where(tiers[1], parts[1], parts[2]))
    log_prob = torch.zeros_like(mean)
    for rule, place in zip(_RULES, places, strict=True):
        if place[0].numel():
            log_prob = log_prob.index_put(place, rule(mean[place], variance[place]))
    return log_prob


def _by_nodes(mean: Tensor, variance: Tensor) -> Tensor:
    """Log probability for means that are not positive, by E σ(z) = eᵐ E[eᵈ / (1 + eᵐ⁺ᵈ)] with d = z - m."""
    nodes, weights = (part.reshape(-1, *[1] * mean.ndim) for part in gauss_hermite(_NUM_NODES, mean))
    tilt = (variance.sqrt() * nodes).exp()
    share = (weights * tilt / torch.addcmul(torch.ones_like(mean), mean.exp(), tilt)).sum(0)
    return mean + share.log()


def _by_grid(mean: Tensor, variance: Tensor, reach: float) -> Tensor:
    """Log probability for means that are not positive and variances of at least one, by a grid that reaches so far."""
    tiny = mean < -0.5 * variance
    tilted = mean + variance
    log_prob = _sum(torch.where(tiny, -tilted.abs(), mean), variance, reach)
    beyond = torch.where(tiny & (tilted < 0), log_prob, -1.0)  # there the rest is what is wanted
    rest = torch.where(tilted < 0, torch.log(-torch.expm1(beyond)), log_prob)
    return torch.where(tiny, mean + 0.5 * variance + rest, log_prob)


def _sum(mean: Tensor, variance: Tensor, reach: float) -> Tensor:
    places, remainder = _grid(reach, mean.dtype, str(mean.device))
    places, remainder = (v.reshape(-1, *[1] * mean.ndim) for v in (places, remainder))
    log_main = torch.special.log_ndtr(_SLOPE * mean / (1 + _SLOPE**2 * variance).sqrt())
    scale = variance.rsqrt()
    distance = torch.addcmul(-mean * scale, places, scale)
    height = scale.log() - 0.5 * math.log(2 * math.pi) - log_main
    correction = _STEP * (remainder * torch.addcmul(height, distance, distance, value=-0.5).exp()).sum(0)
    log_prob: Tensor = log_main + torch.log1p(correction)
    return log_prob


@functools.cache
def _grid(reach: float, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Places of the trapezoidal rule and the remainder there, built in float64."""
    places = torch.arange(-reach, reach + _STEP / 2, _STEP, dtype=torch.float64, device="cpu")
    remainder = torch.sigmoid(places) - torch.special.ndtr(_SLOPE * places)
    return places.to(device=device, dtype=dtype), remainder.to(device=device, dtype=dtype)


_RULES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _by_nodes,
    functools.partial(_by_grid, reach=_SHORT),
    functools.partial(_by_grid, reach=_LONG),
)


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


@_known.register(CountLikelihood)
def _(likelihood: CountLikelihood) -> LatentDensity | None:
    """Gradients in the parameters pass through it. Below a zero that may be inflated, convex parts are left out."""
    tensors, arrays = likelihood.parts, list[Any]()

    def of(latent: Any) -> Sequence[Any]:
        """The parameters for tensors (..., N), or for arrays (...) of one row."""
        if isinstance(latent, Tensor):
            return tensors
        if not arrays:
            arrays.extend(part.detach().squeeze(-1).numpy() for part in tensors)
        return arrays

    def density(latent: Any, y: Any) -> Any:
        if isinstance(latent, Tensor):
            return log_prob(likelihood, latent, y)
        with torch.no_grad():
            one = torch.from_numpy(latent).unsqueeze(-1)
            return log_prob(likelihood, one, one.new_tensor([y])).squeeze(-1).numpy()

    def at(latent: Any, y: Any) -> Derivatives:
        xp, (log_scale, log_size, log_odds) = library_of(latent), of(latent)
        size, above = xp.exp(log_size), latent + log_scale - log_size
        share = _sigmoid(above)
        first, bend = y - (y + size) * share, (y + size) * share * (1 - share)
        base = -size * (torch.nn.functional.softplus(above, threshold=40) if xp is torch else xp.logaddexp(0, above))
        weight = xp.where(y == 0, _sigmoid(base - log_odds), 1.0)  # that a zero is not one of its own kind
        second = weight * ((1 - weight) * first * first - bend)
        return weight * first, xp.clip(second, None, 0.0)

    def start(mean: Any, variance: Any, y: Any) -> Any:
        """Where the curvature changes its sign, or what is next to it in the interval that holds the mode."""
        xp, (log_scale, log_size, log_odds) = library_of(mean), of(mean)
        peak = xp.log(xp.clip(y, 1e-30, None)) - log_scale
        highest = xp.minimum(xp.maximum(mean, peak), mean + variance * y)
        lowest = xp.maximum(xp.minimum(mean, peak), mean - variance * xp.exp(log_size))
        bent = xp.maximum(lowest, xp.minimum(highest, log_size - log_scale))
        return xp.where((y == 0) & (log_odds > _NO_ODDS), mean, bent)

    return LatentDensity(density, at, start=start, takes_arrays=True)


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
        return first / scale, second / scale.square()

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
    return xp.where(_is_class(latent, y), 1 - shares, -shares), second


def _is_class(latent: Any, y: Any) -> Any:
    return library_of(latent).ones_like(latent).cumsum(-1) == y[..., None] + 1


def _log_sigmoid(latent: Any, y: Any) -> Any:
    xp, towards = library_of(latent), (2 * y - 1) * latent
    size = abs(towards)
    return 0.5 * (towards - size) - xp.log(1 + xp.exp(-size))  # round-off of the log density does no harm


def _logistic(latent: Any, y: Any) -> Derivatives:
    probability = _sigmoid(latent)
    return y - probability, probability * probability - probability


def _sigmoid(values: Any) -> Any:
    return values.sigmoid() if isinstance(values, Tensor) else 1 / (1 + library_of(values).exp(-values))


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
    return sign * ratio, -ratio * (towards + ratio)


def _poisson(latent: Tensor, y: Tensor) -> Derivatives:
    rate = latent.exp()
    return y - rate, -rate


def _poisson_start(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """A point above the mode."""
    return torch.minimum(torch.maximum(mean, y.log()), torch.addcmul(mean, variance, y))
