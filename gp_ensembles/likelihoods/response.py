r"""How a target responds to its latent value: densities of any GPyTorch likelihood, exact in both tails."""

import contextlib
import functools
import threading
from collections.abc import Iterator

import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood, SoftmaxLikelihood
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from gp_ensembles.likelihoods.links import log_normal_cdf


@functools.singledispatch
def latent_dim(likelihood: Likelihood) -> int:
    """Number of latent values behind each target: one, or the length of the latent vector.

    A likelihood of latent vectors, whose latent values have a last axis for them, is registered here with
    ``latent_dim.register``; any other has one latent value.

    Example:
        >>> from gpytorch.likelihoods import StudentTLikelihood
        >>> latent_dim(StudentTLikelihood())
        1
    """
    return 1


@latent_dim.register(SoftmaxLikelihood)
def _(likelihood: SoftmaxLikelihood) -> int:
    return int(likelihood.num_features)


@functools.singledispatch
def conditional(likelihood: Likelihood, latent: Tensor) -> Distribution:
    r"""The distribution of targets given their latent values.

    It is what ``likelihood(latent)`` gives, save for three of GPyTorch's own: the Bernoulli likelihood with its probit
    link keeps its log density and derivatives where GPyTorch's rounds the probability to zero or one (beyond latent
    values of 8 in float64), the Gaussian one needs no linear operators, and the softmax never takes N latent vectors of
    length N for their transpose. A likelihood of your own may be registered with ``conditional.register``.

    Args:
        likelihood: A likelihood whose batch shape, if any, is (\*batch).
        latent: Latent values, shape (..., \*batch, N); vectors (..., \*batch, N, C).

    Returns:
        Distributions, batch shape (..., \*batch, N).

    Example:
        >>> import torch
        >>> from gpytorch.likelihoods import BernoulliLikelihood
        >>> conditional(BernoulliLikelihood(), torch.tensor([-10.0])).log_prob(torch.ones(1))
        tensor([-53.2313])
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

    Differentiable to any order that its distribution is, also by ``torch.func`` and under ``vmap``. Targets are not
    checked here, so that it is cheap: see :func:`~gp_ensembles.likelihoods.check_support`.

    Args:
        likelihood: A likelihood whose batch shape, if any, is (\*batch).
        latent: Latent values, shape (..., \*batch, N), or () for one; vectors have a last axis more.
        y: Targets that broadcast with the latent values: (N,), or () for one. NaN where a target is missing.

    Returns:
        Log densities, shape (..., \*batch, N); zero where y is NaN, since a missing target says nothing.

    Example:
        >>> import torch
        >>> from gpytorch.likelihoods import BernoulliLikelihood
        >>> log_prob(BernoulliLikelihood(), torch.zeros(2), torch.tensor([1.0, torch.nan]))
        tensor([-0.6931,  0.0000])
    """
    is_vector = latent_dim(likelihood) > 1
    is_single = latent.ndim == int(is_vector) and y.ndim == 0
    if is_single:  # parameters have an axis for N, at least of length one
        latent = latent.unsqueeze(-2 if is_vector else -1)
    values = observed_log_prob(conditional(likelihood, latent), y.to(latent.dtype))
    return values.squeeze(-1) if is_single else values


def observed_log_prob(distribution: Distribution, y: Tensor) -> Tensor:
    """Log density of targets (floating point) under distributions they broadcast with; zero where y is NaN."""
    missing = torch.isnan(y)
    with _unvalidated():
        values = distribution.log_prob(torch.where(missing, legal_value(distribution), y))
    return torch.where(missing, 0.0, values)


def legal_value(distribution: Distribution) -> float:
    """A value inside the support: zero is one for all counts and labels, a half for all others."""
    return 0.0 if distribution.support.is_discrete else 0.5  # type: ignore[union-attr]


class _Switch:
    """How many are inside :func:`_unvalidated`, and what was set before the first came."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.before = True


_SWITCH = _Switch()


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """Distributions check their arguments by reading values, which ``torch.func`` and tracing forbid.

    GPyTorch's likelihoods leave no other door than the default of all distributions. The first in turns it off and the
    last out restores it, whatever the order in which threads come and go.
    """
    with _SWITCH.lock:
        if _SWITCH.depth == 0:
            _SWITCH.before = Distribution._validate_args
            Distribution.set_default_validate_args(False)
        _SWITCH.depth += 1
    try:
        yield
    finally:
        with _SWITCH.lock:
            _SWITCH.depth -= 1
            if _SWITCH.depth == 0:
                Distribution.set_default_validate_args(_SWITCH.before)
