"""Counts of three families that one batch of experts may mix: Poisson, negative binomial, and zero-inflated ones."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch.likelihoods import Likelihood, _OneDimensionalLikelihood
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint
from torch.nn.functional import logsigmoid, softplus

from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.numerics.reductions import readable_all

FAMILIES = ("poisson", "negative binomial", "zero inflated")
POISSON = 39.0  # log size from which a negative binomial is taken for its limit
_SMALLEST, _LARGEST = -3.0, 23.0  # log sizes of negative binomials
_NEVER = -1e30  # log odds of a zero that has no other cause than a small rate
_EXACT = 40.0  # beyond it softplus is linear to round-off
_SERIES = 100.0  # size from which Stirling's series has all digits


class CountParameters(NamedTuple):
    r"""What turns latent values z into distributions of counts, each (\*batch, 1)."""

    log_scale: Tensor  # Logarithm of the rate at z = 0
    log_size: Tensor  # Logarithm of the size r; at least ``POISSON`` for Poisson counts
    log_odds: Tensor  # Log odds of a zero of its own kind


class CountDistribution(Distribution):
    r"""Negative binomial counts of mean :math:`\mu` and size r, in place of which there is a zero with probability p.

    .. math:: E\,y = (1 - p)\, \mu, \qquad \mathrm{Var}\,y = (1 - p)\, (\mu + \mu^2 / r + p \mu^2)
    """

    arg_constraints: dict[str, Constraint] = {}  # noqa: RUF012 - as torch's distributions have it
    support: Constraint = constraints.nonnegative_integer
    log_rate: Tensor
    log_size: Tensor
    log_odds: Tensor

    def __init__(self, log_rate: Tensor, log_size: Tensor, log_odds: Tensor) -> None:
        self.log_rate, self.log_size, self.log_odds = torch.broadcast_tensors(log_rate, log_size, log_odds)
        self._small = log_size, log_odds  # without the axes that they lack, for what does not depend on rates
        super().__init__(self.log_rate.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return (-self.log_odds).sigmoid() * self._rate

    @property
    def variance(self) -> Tensor:
        rest = (-self.log_odds).sigmoid()
        return rest * self._rate * (1 + self._rate * ((-self.log_size).exp() + 1 - rest))

    @property
    def _rate(self) -> Tensor:
        return self.log_rate.clamp_max(highest_log_rate(self.log_rate)).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of counts that broadcast with the rates."""
        log_size, log_odds = self._small
        size, above = log_size.exp(), self.log_rate - log_size
        constant = _log_rising(value, log_size) - torch.lgamma(value + 1)
        base = constant + value * self.log_rate - (value + size) * torch.logaddexp(above, above.new_zeros(()))
        rest = base + logsigmoid(-log_odds)
        if readable_all(value != 0):
            return rest
        return rest + torch.where(value == 0, softplus(log_odds - base, threshold=_EXACT), 0.0)

    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draws from torch's global generator, shape (*sample_shape, *batch_shape)."""
        shape = (*sample_shape, *self.batch_shape)
        with torch.no_grad():
            size = self.log_size.exp().expand(shape)
            draws = torch.poisson(self._rate.expand(shape) * torch._standard_gamma(size) / size)
            return draws * (torch.rand_like(draws) >= self.log_odds.sigmoid())

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: object = None
    ) -> "CountDistribution":
        """The same distribution with a larger batch shape."""
        return CountDistribution(*(part.expand(batch_shape) for part in (self.log_rate, self.log_size, self.log_odds)))


class CountLikelihood(_OneDimensionalLikelihood):
    r"""Counts with the exponential link: Poisson, negative binomial, or zero inflated, each expert its own family.

    .. math:: \mu = e^{c + z}, \qquad p(y \mid z) = \pi\, [y = 0] + (1 - \pi)\, \mathrm{NB}(y;\, \mu, r), \qquad
              \mathrm{Var}_{\mathrm{NB}} = \mu + \mu^2 / r

    A Poisson expert has an infinite size r and no inflation :math:`\pi`, a negative binomial one no inflation. The
    scale c, the logarithm of the size and the log odds of the inflation are trained with the other hyperparameters; of
    what a family lacks, nothing is learned.

    Args:
        families: The family of each expert of a batch, of :data:`FAMILIES`.
        batch_shape: Shape of the batch, () or one axis as long as there are families.

    Raises:
        ValueError: If a family is unknown, or there are not as many as experts.

    Example:
        >>> likelihood = CountLikelihood(("poisson", "negative binomial"), torch.Size([2]))
        >>> likelihood(torch.zeros(2, 1)).variance.squeeze(-1)
        tensor([1., 2.], grad_fn=...)
    """

    latent_dim = 1
    log_scale: Tensor
    free_log_size: Tensor
    free_log_odds: Tensor
    is_dispersed: Tensor
    is_inflated: Tensor

    def __init__(self, families: Sequence[str], batch_shape: torch.Size | None = None) -> None:
        super().__init__()
        wrong = [family for family in families if family not in FAMILIES]
        if wrong:
            raise ValueError(f"families of counts are {', '.join(FAMILIES)}; got {wrong[0]!r}")
        shape = torch.Size([len(families)]) if batch_shape is None else batch_shape
        if shape.numel() != len(families):
            raise ValueError(f"{len(families)} families do not fit a batch of shape {tuple(shape)}")
        ones = torch.ones(*shape, 1, dtype=torch.get_default_dtype(), device=torch.get_default_device())
        for name, value in (("log_scale", 0.0), ("free_log_size", 0.0), ("free_log_odds", -2.0)):
            self.register_parameter(name, nn.Parameter(value * ones))
        for name, start in (("is_dispersed", 1), ("is_inflated", 2)):  # parameters, as those have an axis for experts
            flags = ones.new_tensor([FAMILIES.index(family) >= start for family in families]).reshape(ones.shape)
            self.register_parameter(name, nn.Parameter(flags, requires_grad=False))

    @property
    def families(self) -> tuple[str, ...]:
        """The family of each expert, in order."""
        return tuple(FAMILIES[int(k)] for k in (self.is_dispersed + self.is_inflated).flatten().tolist())

    @property
    def parts(self) -> CountParameters:
        """The parameters, those included that a family lacks."""
        sizes = self.free_log_size.clamp(_SMALLEST, _LARGEST)
        log_size = torch.where(self.is_dispersed > 0, sizes, POISSON)
        return CountParameters(self.log_scale, log_size, torch.where(self.is_inflated > 0, self.free_log_odds, _NEVER))

    @torch.no_grad()
    def start_from_(self, y: Tensor) -> None:
        """Set the parameters to simple moments of counts (N,), of which at least one is positive."""
        seen = y[~torch.isnan(y)]
        is_inflated = self.is_inflated > 0
        for some, where in ((seen, ~is_inflated), (seen[seen > 0], is_inflated)):
            mean = some.mean()
            excess = (some.var(correction=0) - mean).clamp_min(0.01 * mean)
            self.log_scale.masked_fill_(where, float(mean.log()))
            self.free_log_size.masked_fill_(where, float((mean.square() / excess).log().clamp(-2.0, 12.0)))
        zeros = (seen == 0).double().mean() - (-seen.mean().double()).exp()
        self.free_log_odds.fill_(float(torch.logit(zeros.clamp(0.02, 0.98))))

    def forward(self, function_samples: Tensor, *inputs: object) -> CountDistribution:
        r"""Distributions of counts given latent values, shape (..., \*batch, N)."""
        log_scale, log_size, log_odds = self.parts
        return CountDistribution(function_samples + log_scale, log_size, log_odds)


def count_parameters(likelihood: Likelihood, like: Tensor) -> CountParameters | None:
    """Parameters of a likelihood of counts with the exponential link; ``None`` for any other."""
    if isinstance(likelihood, CountLikelihood):
        return likelihood.parts
    if isinstance(likelihood, LogPoissonLikelihood):
        return CountParameters(*(like.new_full((1,), value) for value in (0.0, POISSON, _NEVER)))
    return None


def count_moments(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""Mean and variance of counts whose log rate is normal, (\*batch, N); ``None`` under other likelihoods."""
    parameters = count_parameters(likelihood, mean)
    if parameters is None:
        return None
    log_scale, log_size, log_odds = parameters
    highest, rest = highest_log_rate(mean), (-log_odds).sigmoid()
    first = rest * (mean + log_scale + 0.5 * variance).clamp_max(highest).exp()
    second = rest * (2 * (mean + log_scale + variance)).clamp_max(2 * highest).exp()
    return first, first + (second * (1 + (-log_size).exp()) - first.square()).clamp_min(0.0)


def highest_log_rate(like: Tensor) -> float:
    """Log rate beyond which the square of a variance might overflow."""
    return 150.0 if like.dtype == torch.float64 else 18.0


def _log_rising(y: Tensor, log_size: Tensor) -> Tensor:
    r"""Logarithm of :math:`\Gamma(y + r) / \Gamma(r) / r^y`, by Stirling's series where r is large."""
    size = log_size.exp()
    is_large = size > _SERIES
    small, large = torch.where(is_large, 1.0, size), torch.where(is_large, size, _SERIES)
    exact = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
    series = (y + large - 0.5) * torch.log1p(y / large) - y + _stirling(y + large) - _stirling(large)
    return torch.where(is_large, series, exact)


def _stirling(x: Tensor) -> Tensor:
    return (1 / 12 - 1 / (360 * x.square())) / x
