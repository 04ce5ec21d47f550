"""Predictions from the evaluated kernels, with the error that the quadrature leaves."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.geometry import Distances
from gp_ensembles.bayesian_quadrature.jackknife import jackknife_sd, rows_without_each_group
from gp_ensembles.bayesian_quadrature.model import KernelMixtureModel
from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.predict import root_mixture
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate
from gp_ensembles.bayesian_quadrature.weights import node_distances, positive_weights, root_weights
from gp_ensembles.numerics import mixtures

_LEAST_WEIGHT = 1e-4  # of a kernel that predictions are made with
_CHUNK = 2**21  # pairs of kernels times points worked on at once


class Prediction(NamedTuple):
    """Predictions of targets at points, each on its own, and how well the quadrature knows them.

    Args:
        mean: Means, shape (M,).
        variance: Variances of the targets, noise included, shape (M,).
        mean_sd: Standard errors of the means as estimates of those under the exact posterior over kernels, shape (M,):
            a delete-a-group jackknife over the evaluations.
        mass: Mass of the products of roots before normalization, shape (M,); one if the surrogate were exact.
        from_roots: Where products of roots were used; elsewhere they are unsound and positive weights were, (M,).
    """

    mean: Tensor
    variance: Tensor
    mean_sd: Tensor
    mass: Tensor
    from_roots: Tensor


class _Weights(NamedTuple):
    """Weights of some of the kept kernels, their places among those, and what all roots' weights sum to."""

    places: Tensor
    log_weights: Tensor
    roots: Tensor
    total: Tensor


class Predictor:
    """Everything that predictions need, computed once: the kept kernels, conditioned, and their weights ten times over.

    Args:
        problem: Data and prior.
        surrogate: Surrogate of the likelihood.
        nodes: Nodes of the weights.
    """

    def __init__(self, problem: Problem, surrogate: Surrogate, nodes: Nodes) -> None:
        distances = node_distances(surrogate, nodes)
        everything = torch.ones_like(surrogate.roots).cumsum(0).long() - 1
        parts = []
        for rows in [everything, *rows_without_each_group(surrogate.roots)]:
            part = surrogate.only(rows)
            near = Distances(*(table[:, rows] for table in distances))
            parts.append((rows, positive_weights(part, nodes, near), root_weights(part, nodes, near).matrix))
        largest = torch.full_like(surrogate.roots, -torch.inf)
        for rows, log_weights, _ in parts:  # whatever carries weight in any of them is predicted with
            largest[rows] = torch.maximum(largest[rows], log_weights)
        kept = (largest > math.log(_LEAST_WEIGHT)).nonzero().squeeze(-1)
        place = torch.full_like(everything, -1).index_copy(0, kept, everything[: len(kept)])
        self._parts = [_among(place[rows], log_weights, roots) for rows, log_weights, roots in parts]
        self._mean = problem.mean
        with torch.no_grad():
            hyperparameters = problem.prior.hyperparameters(surrogate.evaluations.cube[kept])
        weights = self._parts[0]
        self._model = KernelMixtureModel(problem, hyperparameters, weights.log_weights, weights.roots, weights.total)

    def predict(self, X: Tensor) -> Prediction:
        """Moments at points (M, D), chunk by chunk."""
        size = max(1, _CHUNK // self._model.num_kernels**2)
        chunks = [self._predict(some) for some in X.split(size)]
        return Prediction(*(torch.cat(columns) for columns in zip(*chunks, strict=True)))

    def _predict(self, X: Tensor) -> Prediction:
        mean, variance = self._model.marginals(X)
        mean = mean - self._mean  # digits of large targets are not lost in the moments
        full = _mixed(self._parts[0], mean, variance, None)
        replicates = [_mixed(part, mean, variance, full.from_roots).mean for part in self._parts[1:]]
        return full._replace(mean=full.mean + self._mean, mean_sd=jackknife_sd(replicates))


def _among(places: Tensor, log_weights: Tensor, roots: Tensor) -> _Weights:
    here = places >= 0
    return _Weights(places[here], log_weights[here].log_softmax(-1), roots[here][:, here], roots.sum())


def _mixed(weights: _Weights, mean: Tensor, variance: Tensor, from_roots: Tensor | None) -> Prediction:
    """Moments at each point by products of roots where they are sound (or where it is said), else by weights."""
    mean, variance = mean[weights.places], variance[weights.places]
    mixture = root_mixture(weights.roots, mean, variance, weights.total)
    positive = mixtures.moments(weights.log_weights.unsqueeze(-1), mean, variance)
    use = mixture.usable if from_roots is None else from_roots
    first, second = (torch.where(use, a, b) for a, b in zip(mixture.moments(), positive, strict=True))
    return Prediction(first, second, torch.zeros_like(first), mixture.mass, use)
