r"""Densities and support of any GPyTorch likelihood given its latent value, exact in both tails."""

import contextlib
import functools
import math
import threading
from collections.abc import Iterator

import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, SoftmaxLikelihood
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, constraints
from torch.distributions.constraints import Constraint

from gp_ensembles.numerics.gpytorch_types import Likelihood


@functools.singledispatch
def latent_dim(likelihood: Likelihood) -> int:
    """Number of latent values behind each target: one, or the length of the latent vector."""
    return 1


@latent_dim.register(SoftmaxLikelihood)
def _(likelihood: SoftmaxLikelihood) -> int:
    return int(likelihood.num_features)


@functools.singledispatch
def conditional(likelihood: Likelihood, latent: Tensor) -> Distribution:
    r"""The distribution of targets given their latent values.

    Shapes: ``latent`` (..., \*batch, N); returns (..., \*batch, N).
    """
    with _unvalidated():
        distribution: Distribution = likelihood(latent)
    return distribution


@conditional.register(BernoulliLikelihood)
def _(likelihood: BernoulliLikelihood, latent: Tensor) -> Distribution:
    logits = log_normal_cdf(latent) - log_normal_cdf(-latent)
    return Bernoulli(logits=logits, validate_args=False)


@conditional.register(GaussianLikelihood)
def _(likelihood: GaussianLikelihood, latent: Tensor) -> Distribution:
    return Normal(latent, likelihood.noise.sqrt(), validate_args=False)


@conditional.register(SoftmaxLikelihood)
def _(likelihood: SoftmaxLikelihood, latent: Tensor) -> Distribution:
    mixing = likelihood.mixing_weights
    return Categorical(logits=latent if mixing is None else latent @ mixing.mT, validate_args=False)


def log_prob(likelihood: Likelihood, latent: Tensor, y: Tensor) -> Tensor:
    r"""Log density of targets given their latent values, :math:`\log p(y \mid z)`.

    Shapes: ``latent`` (..., \*batch, N), ``y`` (N,); returns (..., \*batch, N).
    """
    is_vector = latent_dim(likelihood) > 1
    is_single = latent.ndim == int(is_vector) and y.ndim == 0
    if is_single:  # parameters have an axis for N, at least of length one
        latent = latent.unsqueeze(-2 if is_vector else -1)
    values = observed_log_prob(conditional(likelihood, latent), y.to(latent.dtype))
    return values.squeeze(-1) if is_single else values


def observed_log_prob(distribution: Distribution, y: Tensor) -> Tensor:
    """Log density of targets (floating point) under distributions they broadcast with; NaN where y is."""
    missing = torch.isnan(y)
    with _unvalidated():
        values = distribution.log_prob(torch.where(missing, _legal_value(distribution), y))
    return torch.where(missing, torch.nan, values)


_LOCK = threading.Lock()
_BEFORE: list[bool] = []  # the setting before each caller that is inside of :func:`_unvalidated`


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """Distributions check their arguments by reading values, which ``torch.func`` and tracing forbid."""
    with _LOCK:
        _BEFORE.append(Distribution._validate_args)
        Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        with _LOCK:
            Distribution.set_default_validate_args(_BEFORE.pop())  # the last to leave gets what the first one found


def _legal_value(distribution: Distribution) -> float:
    """A value inside the support: zero is one for all counts and labels, a half for all others."""
    return 0.0 if distribution.support.is_discrete else 0.5  # type: ignore[union-attr]


def log_normal_cdf(z: Tensor) -> Tensor:
    r"""Logarithm of :math:`\Phi(z)` by erfcx below zero and by erfc above, exact with its derivatives in both tails."""
    lower = z < 0
    below, above = torch.where(lower, z, 0.0), torch.where(lower, 0.0, z)
    log_lower = (0.5 * torch.special.erfcx(below * -math.sqrt(0.5))).log() - 0.5 * below.square()
    return torch.where(lower, log_lower, torch.log1p(-0.5 * torch.special.erfc(above * math.sqrt(0.5))))


class IllegalTargetError(ValueError):
    """A target that a likelihood cannot produce.

    Attributes:
        value: The target.
        row: Its row among the targets that were checked, counted from zero.
        rule: Which targets there may be.
        remedy: What to do.
    """

    def __init__(self, value: float, row: int, rule: str, remedy: str) -> None:
        super().__init__(value, row, rule, remedy)
        self.value = value
        self.row = row
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"target {self.value:.10g} in row {self.row} is not possible: {self.rule}; {self.remedy}, or set it to "
            f"NaN if it is missing"
        )


def check_support(likelihood: Likelihood, y: Tensor) -> None:
    """Raise unless each target has a positive, finite density under the likelihood; NaN is missing and legal.

    Shapes: ``y`` (N,).

    Raises:
        IllegalTargetError: If a target is outside the support; a ValueError with the value and its row.
    """
    if y.ndim != 1:
        raise ValueError(f"targets must have shape (N,), got {tuple(y.shape)}")
    if y.device.type == "meta" or not y.numel():
        return
    targets = y if y.is_floating_point() else y.double()
    dim = latent_dim(likelihood)
    like = next(iter(likelihood.parameters()), targets)
    with torch.no_grad():
        distribution = conditional(likelihood, like.new_zeros((1, dim) if dim > 1 else 1))
        support: Constraint = distribution.support  # type: ignore[assignment]
        legal = torch.isnan(targets) | support.check(targets)
        inner = torch.where(legal & ~torch.isnan(targets), targets, _legal_value(distribution))
        # The ends of an interval may be in the stated support and have no density all the same.
        dense = torch.isfinite(distribution.log_prob(inner)).reshape(-1, targets.shape[0]).all(0)
    bad = ~(legal & dense)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise IllegalTargetError(float(targets[row]), row, *_describe(support, distribution))


def _describe(support: Constraint, distribution: Distribution) -> tuple[str, str]:
    """The rule for targets, and the remedy for one that breaks it."""
    if support is constraints.boolean:
        return "labels must be 0 or 1", "recode other labels (-1 and 1, say) as 0 and 1"
    if isinstance(support, constraints.integer_interval):
        low, high = int(support.lower_bound), int(support.upper_bound)
        remedy = f"recode other labels ({low + 1} to {high + 1}, say) as {low} to {high}"
        return f"class numbers must be whole, {low} to {high}", remedy
    if support is constraints.nonnegative_integer:
        rule = "counts must be whole numbers from zero"
    elif isinstance(support, constraints.interval):
        rule = f"values must be strictly between {float(support.lower_bound):g} and {float(support.upper_bound):g}"
    elif support is constraints.real:
        rule = "values must be finite"
    else:
        rule = f"{type(distribution).__name__} takes values of {support}"
    return rule, "correct it"
