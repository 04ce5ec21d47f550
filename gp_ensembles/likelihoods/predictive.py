r"""Predictions of targets from normal latent values: expectations of a likelihood."""

import math
from abc import ABC, abstractmethod

import torch
from gpytorch.likelihoods import BernoulliLikelihood, Likelihood
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from gp_ensembles.likelihoods.logistic import LogisticLikelihood
from gp_ensembles.likelihoods.ordinal import OrdinalLikelihood
from gp_ensembles.likelihoods.response import conditional, latent_dim, log_prob
from gp_ensembles.likelihoods.softmax import MulticlassLikelihood
from gp_ensembles.numerics.gauss_hermite import gauss_hermite, log_expectation, normal_nodes

_VECTOR_NODES = 1024


class Predictive(ABC):
    r"""How predictions are computed where a latent value is normal.

    Everywhere the latent mean is (\*batch, N) and its variance likewise; for latent vectors (\*batch, N, C) and
    (\*batch, N, C, C).
    """

    @abstractmethod
    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        r"""Log predictive density of legal targets that broadcast with (\*batch, N), shape (\*batch, N)."""

    @abstractmethod
    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of the target, each (\*batch, N); (\*batch, N, C), of each class, for unordered classes."""

    @abstractmethod
    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        r"""Probabilities of the classes, shape (\*batch, N, C).

        Raises:
            TypeError: If the likelihood has no classes.
        """


class GaussHermite(Predictive):
    r"""Expectations by quadrature: Gauss-Hermite for one latent value, fixed nodes for latent vectors.

    Args:
        num_nodes: Number of nodes for one latent value, from 1 to 100.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> GaussHermite().log_prob(LogisticLikelihood(), 0 * one, one, one).exp()
        tensor([0.5000], dtype=torch.float64)
    """

    def __init__(self, num_nodes: int = 64) -> None:
        if not 1 <= num_nodes <= 100:
            raise ValueError(f"the number of nodes must lie between 1 and 100, got {num_nodes}")
        self.num_nodes = num_nodes

    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Predictive.log_prob`."""
        latent, weights = self._nodes(likelihood, mean, variance)
        density = log_prob(likelihood, latent, y)
        return log_expectation(density, weights)

    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """By the law of total variance; see :meth:`Predictive.moments`."""
        if latent_dim(likelihood) > 1:
            probabilities = self.class_probabilities(likelihood, mean, variance)
            return probabilities, probabilities * (1 - probabilities)
        latent, weights = self._nodes(likelihood, mean, variance)
        response = conditional(likelihood, latent)
        weights = weights.reshape(-1, *[1] * mean.ndim)
        centre = (weights * response.mean).sum(0)
        spread = (weights * (response.variance + (response.mean - centre).square())).sum(0)
        return centre, spread

    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Predictive.class_probabilities`."""
        latent, weights = self._nodes(likelihood, mean, variance)
        probabilities = class_probabilities(likelihood, latent)
        return (weights.reshape(-1, *[1] * (probabilities.ndim - 1)) * probabilities).sum(0)

    def _nodes(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Latent values at the nodes, (K, \*batch, N) or (K, \*batch, N, C), and the weights (K,)."""
        size = latent_dim(likelihood)
        if size == 1:
            nodes, weights = gauss_hermite(self.num_nodes, mean)
            return mean + variance.sqrt() * nodes.reshape(-1, *[1] * mean.ndim), weights
        points, weights = normal_nodes(self.num_nodes, size, mean, max(_VECTOR_NODES, 16 * size))
        values, axes = torch.linalg.eigh(variance)  # a covariance may be singular
        root = axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)
        shaped = points.reshape(-1, *[1] * (mean.ndim - 1), size, 1)
        return mean + (root @ shaped).squeeze(-1), weights


class ProbitApproximation(Predictive):
    r"""Closed forms that the papers use (MacKay 1992), exact for the probit link.

    .. math:: p(y = 1) \approx \sigma\big(m / \sqrt{1 + \pi s / 8}\big), \qquad
              p(y = c) \approx \mathrm{softmax}_c\big(m_c / \sqrt{1 + \pi s_{cc} / 8}\big)

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> ProbitApproximation().class_probabilities(LogisticLikelihood(), one, one)
        tensor([[0.3000, 0.7000]], dtype=torch.float64)
    """

    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Predictive.log_prob`."""
        return log_prob(likelihood, _shrunk(likelihood, mean, variance), y)

    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Predictive.moments`."""
        probabilities = self.class_probabilities(likelihood, mean, variance)
        if latent_dim(likelihood) == 1:
            probabilities = probabilities[..., 1]
        return probabilities, probabilities * (1 - probabilities)

    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Predictive.class_probabilities`."""
        return class_probabilities(likelihood, _shrunk(likelihood, mean, variance))


def num_classes(likelihood: Likelihood) -> int | None:
    """Number of classes of a classification likelihood, else ``None``.

    Example:
        >>> num_classes(MulticlassLikelihood(5)), num_classes(LogisticLikelihood())
        (5, 2)
    """
    if isinstance(likelihood, MulticlassLikelihood):
        return likelihood.num_classes
    if isinstance(likelihood, OrdinalLikelihood):
        return likelihood.num_levels
    return 2 if isinstance(likelihood, BernoulliLikelihood | LogisticLikelihood) else None


def class_probabilities(likelihood: Likelihood, latent: Tensor) -> Tensor:
    r"""Probabilities of the classes at latent values, shape (..., \*batch, N, C).

    Raises:
        TypeError: If the likelihood has no classes.
    """
    response = conditional(likelihood, latent)
    if isinstance(response, Bernoulli):
        return torch.stack([1 - response.probs, response.probs], dim=-1)
    if isinstance(response, Categorical):
        probabilities: Tensor = response.probs
        return probabilities
    raise TypeError(f"{type(likelihood).__name__} has no classes")


def _shrunk(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
    """The latent value at which the likelihood itself gives the prediction."""
    if isinstance(likelihood, BernoulliLikelihood):
        return mean / (1 + variance).sqrt()
    if isinstance(likelihood, LogisticLikelihood):
        return mean / (1 + math.pi / 8 * variance).sqrt()
    if isinstance(likelihood, MulticlassLikelihood):
        return mean / (1 + math.pi / 8 * variance.diagonal(dim1=-2, dim2=-1)).sqrt()
    kind = type(likelihood).__name__
    hint = " (with its two classes as 0 and 1)" if num_classes(likelihood) == 2 else ""
    raise TypeError(f"there is no probit approximation for {kind}{hint}; use GaussHermite()")
