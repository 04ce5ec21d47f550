r"""Predictions of targets from normal latent values: expectations under a likelihood."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from gpytorch.likelihoods import BernoulliLikelihood, SoftmaxLikelihood
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from gp_ensembles.likelihoods.classification import LogisticLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.closed_forms import closed_form
from gp_ensembles.likelihoods.counts import count_moments
from gp_ensembles.likelihoods.response import conditional, latent_dim, log_prob, observed_log_prob
from gp_ensembles.numerics.gauss_hermite import gauss_hermite, log_expectation, normal_nodes
from gp_ensembles.numerics.gpytorch_types import Likelihood
from gp_ensembles.numerics.reductions import readable_all

_VECTOR_NODES = 1024
_NARROW = 0.7  # share of the prior standard deviation below which nodes move
_CLOSER = 0.05  # share of the last width to which one refinement may shrink
_FURTHER = 0.1  # share of the last move to which it may
_CACHE_NUMBERS = 60_000  # half a megabyte in double precision
_SMOOTH = 4.0  # latent variance up to which classes need no refinement


class Predictive(ABC):
    r"""A method to compute predictions of targets whose latent value is normal.

    Everywhere the latent mean is (\*batch, N) and its variance likewise; for latent vectors (\*batch, N, C) and
    (\*batch, N, C, C).
    """

    @abstractmethod
    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        r"""Log predictive density of legal targets that broadcast with (\*batch, N), shape (\*batch, N)."""

    @abstractmethod
    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of the target, each (\*batch, N); of each class, (\*batch, N, C), if unordered."""

    @abstractmethod
    def assess(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Results of :meth:`moments` and :meth:`log_prob`, at little more than the cost of one of them."""

    @abstractmethod
    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        r"""Probabilities of the classes, shape (\*batch, N, C)."""


class GaussHermite(Predictive):
    r"""Expectations by quadrature: Gauss-Hermite for one latent value, fixed nodes for latent vectors.

    Where there is a closed form (see :func:`closed_form`) that is taken. Where the target pins its latent value down
    (large counts, little noise), the nodes of a density move to where the product of prior and likelihood lies, as
    often as ``num_refinements``, until they resolve it; classes do not need that while the latent variance is at most
    four. For C unordered classes the nodes have C - 1 dimensions, since a common shift of the latent values changes
    nothing: a product rule for up to four classes, Sobol points for more.

    With 64 nodes log densities are right to 1e-6 for latent variances up to 4; take more nodes for more. Not resolved
    is a product with two separate peaks of different width, as Student-t noise much narrower than the latent value
    makes of a gross outlier.

    Args:
        num_nodes: Number of nodes for one latent value, from 1 to 256.
        num_refinements: How often nodes may move at most.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> GaussHermite().log_prob(LogisticLikelihood(), 0 * one, one, one).exp()
        tensor([0.5000], dtype=torch.float64)
    """

    def __init__(self, num_nodes: int = 64, num_refinements: int = 5) -> None:
        if not 1 <= num_nodes <= 256:
            raise ValueError(f"the number of nodes must lie between 1 and 256, got {num_nodes}")
        if num_refinements < 0:
            raise ValueError(f"the number of refinements must not be negative, got {num_refinements}")
        self.num_nodes = num_nodes
        self.num_refinements = num_refinements

    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        exact = closed_form(likelihood, mean, variance)
        if exact is not None:
            return observed_log_prob(exact, y.to(mean.dtype))
        smooth = variance <= (_SMOOTH if num_classes(likelihood) is not None else -1.0)
        if self.num_refinements == 0 or latent_dim(likelihood) > 1 or readable_all(smooth):
            latent, weights = self._nodes(likelihood, mean, variance)
            return log_expectation(log_prob(likelihood, latent, y), weights)
        nodes, weights = gauss_hermite(self.num_nodes, mean)
        nodes = nodes.reshape(-1, *[1] * mean.ndim)
        stddev = variance.sqrt()
        density = partial(log_prob, likelihood, y=y)
        center, spread = self._refined(density, mean, stddev, nodes, weights)
        center, spread = torch.where(smooth, 0.0, center), torch.where(smooth, 1.0, spread)
        place = center + spread * nodes
        ratio = spread.log() + 0.5 * (nodes.square() - place.square())  # of the prior to the law of the moved nodes
        return log_expectation(density(mean + stddev * place) + ratio, weights)

    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """By the law of total variance; see :meth:`Predictive.moments`."""
        if latent_dim(likelihood) > 1:
            probabilities = self.class_probabilities(likelihood, mean, variance)
            return probabilities, probabilities * (1 - probabilities)
        exact = closed_form(likelihood, mean, variance)
        if exact is not None:
            return exact.mean, exact.variance
        known = count_moments(likelihood, mean, variance)
        if known is not None:
            return known
        latent, weights = self._nodes(likelihood, mean, variance)
        response = conditional(likelihood, latent)
        weights = weights.reshape(-1, *[1] * mean.ndim)
        has_weight = weights > 0  # in single precision the outermost nodes have none, and responses may overflow there
        center = torch.where(has_weight, weights * response.mean, 0.0).sum(0)
        spread = response.variance + (response.mean - center).square()
        return center, torch.where(has_weight, weights * spread, 0.0).sum(0)

    def assess(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = closed_form(likelihood, mean, variance)
        if exact is not None:
            return exact.mean, exact.variance, observed_log_prob(exact, y.to(mean.dtype))
        average, spread = self.moments(likelihood, mean, variance)
        if latent_dim(likelihood) > 1:  # the density of a class is its probability, where that has all its digits
            place = y.to(mean.dtype).nan_to_num(0.0).long().expand(average.shape[:-1]).unsqueeze(-1)
            probability = average.gather(-1, place).squeeze(-1)
            info = torch.finfo(probability.dtype)
            if readable_all(probability > info.tiny / info.eps):
                return average, spread, torch.where(torch.isnan(y), torch.nan, probability.log())
        return average, spread, self.log_prob(likelihood, mean, variance, y)

    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        _check_has_classes(likelihood)
        exact = closed_form(likelihood, mean, variance)
        if exact is not None:
            return _probabilities(exact)
        if isinstance(likelihood, MulticlassLikelihood):
            return self._softmax(mean, variance)
        latent, weights = self._nodes(likelihood, mean, variance)
        probabilities = class_probabilities(likelihood, latent)
        return (weights.reshape(-1, *[1] * (probabilities.ndim - 1)) * probabilities).sum(0)

    def _nodes(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Latent values at the nodes, (K, \*batch, N) or (K, \*batch, N, C), and the weights (K,)."""
        if latent_dim(likelihood) == 1:
            nodes, weights = gauss_hermite(self.num_nodes, mean)
            return mean + variance.sqrt() * nodes.reshape(-1, *[1] * mean.ndim), weights
        root = _softmax_root(mean, variance) if isinstance(likelihood, MulticlassLikelihood) else _root(variance)
        points, weights = self._points(root)
        shaped = points.reshape(-1, *[1] * (mean.ndim - 1), root.shape[-1], 1)
        return mean + (root @ shaped).squeeze(-1), weights

    def _points(self, root: Tensor) -> tuple[Tensor, Tensor]:
        """Standard normal nodes (K, D) for factors (..., C, D), and their weights (K,)."""
        dim = root.shape[-1]
        return normal_nodes(self.num_nodes, dim, root, max(_VECTOR_NODES, 16 * dim))

    def _softmax(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Expected softmax of latent vectors; nodes along the last axis and some rows at a time stay in the cache."""
        root = _softmax_root(mean, variance)
        points, weights = self._points(root)
        size = max(1, _CACHE_NUMBERS // (mean.shape[-1] * len(weights)))
        centers, roots = mean.reshape(-1, *mean.shape[-1:]).split(size), root.reshape(-1, *root.shape[-2:]).split(size)
        parts = []
        for center, part in zip(centers, roots, strict=True):
            latent = center.unsqueeze(-1) + part @ points.mT
            odds = (latent - latent.detach().amax(-2, keepdim=True)).exp()
            parts.append((odds @ (weights / odds.sum(-2)).unsqueeze(-1)).squeeze(-1))
        return torch.cat(parts).reshape(mean.shape)

    def _refined(
        self, density: Callable[[Tensor], Tensor], mean: Tensor, stddev: Tensor, nodes: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Center and spread of the nodes, in prior standard deviations from the mean; constants to autograd."""
        log_weights = weights.log().reshape(nodes.shape)
        center, spread, wide = torch.zeros_like(mean), torch.ones_like(mean), None
        with torch.no_grad():
            for _ in range(self.num_refinements):
                place = center + spread * nodes
                joint = density(mean + stddev * place) + log_weights + 0.5 * (nodes.square() - place.square())
                shares = joint.softmax(0)
                found = (shares * place).sum(0)
                narrow = (shares * (place - found).square()).sum(0).sqrt()
                if wide is None:
                    wide = ~(narrow < _NARROW)  # also where no node has any density
                    if readable_all(wide):
                        break
                # All the mass may lie on one node, or beyond the last: then look closer, not blindly.
                least = torch.maximum(_CLOSER * spread, _FURTHER * (found - center).abs())
                spread = torch.where(wide, 1.0, torch.maximum(narrow, least))
                center = torch.where(wide, 0.0, found)
        return center, spread


class ProbitApproximation(Predictive):
    r"""Closed forms that the papers use (MacKay 1992), exact for the probit link.

    .. math:: p(y = 1) \approx \sigma\big(m / \sqrt{1 + \pi s / 8}\big), \qquad
              p(y = c) \approx \mathrm{softmax}_c\big(m_c / \sqrt{1 + \pi s_{cc} / 8}\big)

    For ordered levels the noise of the link widens by the latent variance in the same way.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> ProbitApproximation().class_probabilities(LogisticLikelihood(), one, one)
        tensor([[0.3000, 0.7000]], dtype=torch.float64)
    """

    def log_prob(self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return observed_log_prob(_smoothed(likelihood, mean, variance), y.to(mean.dtype))

    def moments(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        response = _smoothed(likelihood, mean, variance)
        if latent_dim(likelihood) == 1:
            return response.mean, response.variance
        probabilities = _probabilities(response)
        return probabilities, probabilities * (1 - probabilities)

    def assess(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return *self.moments(likelihood, mean, variance), self.log_prob(likelihood, mean, variance, y)

    def class_probabilities(self, likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Tensor:
        _check_has_classes(likelihood)
        return _probabilities(_smoothed(likelihood, mean, variance))


def num_classes(likelihood: Likelihood) -> int | None:
    """Number of classes of a classification likelihood, else ``None``."""
    if isinstance(likelihood, MulticlassLikelihood | SoftmaxLikelihood):
        return int(likelihood.num_classes)
    if isinstance(likelihood, OrdinalLikelihood):
        return likelihood.num_levels
    return 2 if isinstance(likelihood, BernoulliLikelihood | LogisticLikelihood) else None


def class_probabilities(likelihood: Likelihood, latent: Tensor) -> Tensor:
    r"""Probabilities of the classes at latent values, shape (..., \*batch, N, C)."""
    _check_has_classes(likelihood)
    return _probabilities(conditional(likelihood, latent))


def _check_has_classes(likelihood: Likelihood) -> None:
    if num_classes(likelihood) is None:
        raise TypeError(f"{type(likelihood).__name__} has no classes; use the mean and variance of its targets")


def _probabilities(response: Distribution) -> Tensor:
    if isinstance(response, Bernoulli):
        return torch.stack([-response.logits, response.logits], dim=-1).sigmoid()
    assert isinstance(response, Categorical)
    probabilities: Tensor = response.probs
    return probabilities


def _smoothed(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Distribution:
    """The distribution of the target, exact or by the probit approximation."""
    if isinstance(likelihood, LogisticLikelihood):
        return conditional(likelihood, mean / (1 + math.pi / 8 * variance).sqrt())
    if isinstance(likelihood, OrdinalLikelihood):
        return likelihood.smoothed(mean, variance)
    if isinstance(likelihood, MulticlassLikelihood):
        return conditional(likelihood, mean / (1 + math.pi / 8 * variance.diagonal(dim1=-2, dim2=-1)).sqrt())
    exact = closed_form(likelihood, mean, variance)
    if exact is not None:
        return exact
    raise TypeError(f"there is no probit approximation for {type(likelihood).__name__}; use GaussHermite()")


def _contrasts(like: Tensor) -> Tensor:
    """Orthonormal contrasts (Helmert) of C latent values (..., C), shape (C - 1, C): each row sums to zero."""
    size = like.shape[-1]
    order = torch.arange(1, size, device=like.device).to(like.dtype)
    rows = like.new_ones(size - 1, size).tril() - torch.diag_embed(order, offset=1)[: size - 1]
    return rows / (order * (order + 1)).sqrt().unsqueeze(-1)


def _softmax_root(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Factors (\*batch, N, C, C - 1) of the covariances of latent vectors, less their common shift."""
    contrasts = _contrasts(mean)
    return contrasts.mT @ _root(contrasts @ variance @ contrasts.mT)


def _root(covariance: Tensor) -> Tensor:
    """A factor whose product with its transpose is the covariance, which may be singular."""
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(covariance)
    positive = info == 0
    if readable_all(positive):  # has derivatives where eigenvalues coincide, as they do a priori
        return factor
    values, axes = torch.linalg.eigh(covariance)
    root = axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    return torch.where(positive[..., None, None], factor, root)
