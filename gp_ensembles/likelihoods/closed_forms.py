"""Predictions that need no quadrature: distributions of targets whose latent values are normal."""

import functools
import math

import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, LaplaceLikelihood, Likelihood
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from gp_ensembles.likelihoods.links import Logit, Probit
from gp_ensembles.likelihoods.logistic import LogisticLikelihood
from gp_ensembles.likelihoods.logit_normal import logit_normal_log_odds
from gp_ensembles.likelihoods.ordinal import OrdinalCategorical, OrdinalLikelihood
from gp_ensembles.likelihoods.response import conditional


class NormalLaplace(Distribution):
    r"""The sum of a normal and a Laplace variable (Reed and Jorgensen 2004), its log density exact in both tails.

    With :math:`d = y - m` and :math:`u_\pm = (\sqrt{s} / b \pm d / \sqrt{s}) / \sqrt{2}`,

    .. math:: p(y) = e^{-d^2 / 2s}\, (\mathrm{erfcx}(u_+) + \mathrm{erfcx}(u_-)) / 4b

    Args:
        loc: Mean m, shape (..., N).
        variance: Variance s of the normal part, positive, of the same shape.
        scale: Scale b of the Laplace part, which broadcasts with it.

    Example:
        >>> import torch
        >>> NormalLaplace(torch.zeros(1), torch.ones(1), torch.ones(1)).variance
        tensor([3.])
    """

    arg_constraints = {}  # noqa: RUF012 - as torch's distributions have it
    support = constraints.real

    def __init__(self, loc: Tensor, variance: Tensor, scale: Tensor) -> None:
        self.loc = loc
        self.normal_variance = variance
        self.scale = scale
        super().__init__(torch.broadcast_shapes(loc.shape, variance.shape, scale.shape), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean."""
        return self.loc.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """Variance of the sum."""
        return self.normal_variance + 2 * self.scale.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density."""
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

    There is one for the probit link (two classes or ordered levels), for Gaussian and Laplace noise, and, by a fixed
    rule that is as good (:mod:`gp_ensembles.likelihoods.logit_normal`), for the logistic link of two classes. One of
    your own is registered with ``closed_form.register``.

    Args:
        likelihood: A likelihood of one latent value.
        mean: Means of the latent values, shape (\*batch, N).
        variance: Their variances, positive, of the same shape.

    Example:
        >>> import torch
        >>> closed_form(BernoulliLikelihood(), torch.ones(1), 3 * torch.ones(1)).probs
        tensor([0.6915])
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
