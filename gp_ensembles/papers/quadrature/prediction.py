"""Predictions of targets by a mixture of processes conditioned on the data, with standard errors."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import record_text
from gp_ensembles.papers.quadrature.hyperkernel import Distances
from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel, root_mixture
from gp_ensembles.papers.quadrature.problem import RegressionProblem
from gp_ensembles.papers.quadrature.quadrature import (
    QuadratureNodes,
    jackknife_sd,
    node_distances,
    positive_weights,
    root_weights,
    rows_without_each_group,
)
from gp_ensembles.papers.quadrature.surrogate import Surrogate

_LEAST_WEIGHT = 1e-4  # of a kernel that predictions are made with
_CHUNK = 2**21  # pairs of kernels times points per chunk


class Prediction(NamedTuple):
    """Predictions of targets at points, each separately, with the standard errors of the quadrature.

    Args:
        mean: Means, shape (M,).
        variance: Variances of the targets, noise included, shape (M,).
        mean_sd: Standard errors of the means as estimates of those under the exact posterior over kernels, shape (M,):
            by a delete-a-group jackknife over the evaluations.
        mass: Mass of the products of roots before normalization, shape (M,); one if the surrogate were exact.
        from_roots: Where products of roots were used, shape (M,); elsewhere positive weights were.
    """

    mean: Tensor
    variance: Tensor
    mean_sd: Tensor
    mass: Tensor
    from_roots: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class _Weights(NamedTuple):
    """Weights of some of the kept kernels, their places among those; of roots, if any, and the sum of all of them."""

    places: Tensor
    log_weights: Tensor
    roots: Tensor | None
    total: Tensor | None


class Predictor:
    """Kernels, conditioned on the data once, with their weights and those of every jackknife replicate."""

    def __init__(self, problem: RegressionProblem, cube: Tensor, parts: list[_Weights]) -> None:
        self._parts = parts
        self._mean = problem.mean
        with torch.no_grad():
            hyperparameters = problem.prior.hyperparameters(cube)
        self._model = KernelMixtureModel(problem, hyperparameters, parts[0].log_weights, parts[0].roots, parts[0].total)

    def predict(self, X: Tensor) -> Prediction:
        """Moments at points (M, D), chunk by chunk."""
        size = max(1, _CHUNK // self._model.num_experts**2)
        chunks = [self._predict(some) for some in X.split(size)]
        return Prediction(*(torch.cat(columns) for columns in zip(*chunks, strict=True)))

    def _predict(self, X: Tensor) -> Prediction:
        mean, variance = self._model.marginals(X)
        mean = mean - self._mean  # so that targets with a large mean lose no digits
        full = _mixed(self._parts[0], mean, variance, None)
        replicates = [_mixed(part, mean, variance, full.from_roots).mean for part in self._parts[1:]]
        return full._replace(mean=full.mean + self._mean, mean_sd=jackknife_sd(replicates))


def quadrature_predictor(problem: RegressionProblem, surrogate: Surrogate, nodes: QuadratureNodes) -> Predictor:
    """Predictions by the quadrature's weights; each replicate leaves out a group of the evaluations."""
    distances = node_distances(surrogate, nodes)
    everything = torch.ones_like(surrogate.roots).cumsum(0).long() - 1
    parts = []
    for rows in [everything, *rows_without_each_group(surrogate.roots)]:
        part = surrogate.only(rows)
        near = Distances(*(table[:, rows] for table in distances))
        parts.append((rows, positive_weights(part, nodes, near), root_weights(part, nodes, near)))
    largest = torch.full_like(surrogate.roots, -torch.inf)
    for rows, log_weights, _ in parts:  # kept: kernels with weight in any of them
        largest[rows] = torch.maximum(largest[rows], log_weights)
    kept = (largest > math.log(_LEAST_WEIGHT)).nonzero().squeeze(-1)
    place = torch.full_like(everything, -1).index_copy(0, kept, everything[: len(kept)])
    among = [_among(place[rows], log_weights, roots) for rows, log_weights, roots in parts]
    return Predictor(problem, surrogate.evaluations.cube[kept], among)


def weighted_predictor(problem: RegressionProblem, cube: Tensor, log_weights: Tensor) -> Predictor:
    """Predictions by a mixture of kernels (R, C) with log weights (R,); each replicate leaves out a group."""
    groups = [torch.arange(len(cube), device=cube.device), *rows_without_each_group(log_weights)]
    parts = [_Weights(rows, log_weights[rows].log_softmax(-1), None, None) for rows in groups]
    return Predictor(problem, cube, parts)


def _among(places: Tensor, log_weights: Tensor, roots: Tensor) -> _Weights:
    here = places >= 0
    return _Weights(places[here], log_weights[here].log_softmax(-1), roots[here][:, here], roots.sum())


def _mixed(weights: _Weights, mean: Tensor, variance: Tensor, from_roots: Tensor | None) -> Prediction:
    """Moments at each point by products of roots where usable (or as given), else by positive weights."""
    mean, variance = mean[weights.places], variance[weights.places]
    if weights.roots is None:
        first, second = mixtures.moments(weights.log_weights.unsqueeze(-1), mean, variance)
        return Prediction(first, second, torch.zeros_like(first), torch.ones_like(first), first != first)
    mixture = root_mixture(weights.roots, mean, variance, weights.total)
    positive = mixtures.moments(weights.log_weights.unsqueeze(-1), mean, variance)
    use = mixture.usable if from_roots is None else from_roots
    first, second = (torch.where(use, a, b) for a, b in zip(mixture.moments(), positive, strict=True))
    return Prediction(first, second, torch.zeros_like(first), mixture.mass, use)
