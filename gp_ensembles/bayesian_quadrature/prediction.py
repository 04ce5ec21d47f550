"""Predictions: mixtures of processes conditioned on the data (as a BoTorch model too), and standard errors."""

import math
from typing import NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperkernel import Distances
from gp_ensembles.bayesian_quadrature.prior import Hyperparameters
from gp_ensembles.bayesian_quadrature.problem import RegressionProblem
from gp_ensembles.bayesian_quadrature.quadrature import (
    QuadratureNodes,
    jackknife_sd,
    node_distances,
    positive_weights,
    root_weights,
    rows_without_each_group,
)
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics import mixtures

_MISSING = 0.05  # largest share of the weights of products of roots that may be left out
_LEAST_WEIGHT = 1e-4  # of a kernel that predictions are made with
_CHUNK = 2**21  # pairs of kernels times points per chunk


class RootMixture(NamedTuple):
    r"""Products of roots of normal densities, point by point and normalized (Hamid et al., 2022, section 3.4).

    .. math:: p(y) \propto \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}
              = \sum_{ij} W_{ij} B_{ij} N(y; c_{ij}, V_{ij})

    with Bhattacharyya coefficients B. Points are treated separately, so predictions do not depend on one another.
    Weights may be negative; where the mass :math:`\sum W B` is far from one, a variance is negative, or kernels were
    left out whose weights the others have to cancel, ``usable`` is false and the mixture is not to be trusted.

    Args:
        weights: :math:`W_{ij} B_{ij}` over their sum, shape (P, M), pairs first.
        mean: Means c, shape (P, M).
        variance: Variances V, shape (P, M).
        mass: Sum of W B before normalization, shape (M,): one if the surrogate were exact (and alpha zero).
        complete: Whether the kept kernels' weights have the sum of all, shape ().

    Example:
        >>> import torch
        >>> means, variances = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)
        >>> mixture = root_mixture(torch.full((2, 2), 0.25), means, variances)
        >>> [round(float(moment), 3) for moment in mixture.moments()]
        [1.0, 1.622]
    """

    weights: Tensor
    mean: Tensor
    variance: Tensor
    mass: Tensor
    complete: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance at each point, shapes (M,)."""
        mean = (self.weights * self.mean).sum(0)
        return mean, (self.weights * (self.variance + (self.mean - mean).square())).sum(0)

    def density(self, y: Tensor) -> Tensor:
        r"""Density at values (\*sample, M); it integrates to one, and may be negative where weights are."""
        z = (y.unsqueeze(-2) - self.mean).square() / self.variance
        each = (-0.5 * z).exp() / (2.0 * math.pi * self.variance).sqrt()
        return (self.weights * each).sum(-2)

    @property
    def usable(self) -> Tensor:
        """Where mass is between one half and two and variance positive, and no kernel is missing, shape (M,)."""
        return self.complete & (self.mass >= 0.5) & (self.mass <= 2.0) & (self.moments()[1] > 0)


def root_mixture(matrix: Tensor, mean: Tensor, variance: Tensor, total_weight: Tensor | None = None) -> RootMixture:
    """The mixture of products of roots at each of M points.

    Args:
        matrix: Weights W of the kept kernels, shape (R, R).
        mean: Their predictive means, shape (R, M).
        variance: Their predictive variances of the targets, noise included, shape (R, M).
        total_weight: Sum of the weights of all kernels, kept or not; of the kept ones if ``None``.

    Returns:
        The mixture of R^2 pairs.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> mixture = root_mixture(one, one, one)
        >>> mixture.moments(), float(mixture.mass)
        ((tensor([1.]), tensor([1.])), 1.0)
    """
    total = variance.unsqueeze(0) + variance.unsqueeze(1)
    product = variance.unsqueeze(0) * variance.unsqueeze(1)
    gap = mean.unsqueeze(0) - mean.unsqueeze(1)
    coefficient = (2.0 * product.sqrt() / total).sqrt() * (-0.25 * gap.square() / total).exp()
    spread = 2.0 * product / total
    center = (variance.unsqueeze(1) * mean.unsqueeze(0) + variance.unsqueeze(0) * mean.unsqueeze(1)) / total
    weighted = (matrix.unsqueeze(-1) * coefficient).flatten(0, 1)
    mass = weighted.sum(0)
    total_weight = matrix.sum() if total_weight is None else total_weight
    complete = (matrix.sum() - total_weight).abs() <= _MISSING * total_weight.abs()
    return RootMixture(weighted / mass, center.flatten(0, 1), spread.flatten(0, 1), mass, complete)


class KernelMixtureModel(Model):
    """Gaussian processes with R kernels, mixed with posterior weights.

    Args:
        problem: The data and their prior mean.
        hyperparameters: The kernels, of batch shape (R,).
        log_weights: Their log weights, shape (R,).
        root_weights: Weights of products of roots between them, shape (R, R); if ``None``, the weights themselves on
            the diagonal, whose mixture is that of the kernels.
        total_root_weight: Sum of those weights over all evaluated kernels, shape (); over these if ``None``.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, marginalize
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = marginalize(problem, Budget(40, draws=0), generator=generator).model()
        >>> posterior = model.posterior(X[:4], observation_noise=True)
        >>> posterior.mean.shape, bool((posterior.variance > 0).all())
        (torch.Size([4, 1]), True)
    """

    def __init__(
        self,
        problem: RegressionProblem,
        hyperparameters: Hyperparameters,
        log_weights: Tensor,
        root_weights: Tensor | None = None,
        total_root_weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        root_weights = log_weights.softmax(-1).diag_embed() if root_weights is None else root_weights
        self.hyperparameters = hyperparameters
        self.mean = problem.mean
        self.log_weights = log_weights
        self.root_weights = root_weights
        self.total_root_weight = root_weights.sum() if total_root_weight is None else total_root_weight
        self._conditioned = problem.likelihoods.condition(hyperparameters)

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def num_kernels(self) -> int:
        """Number of kernels R."""
        return self.log_weights.shape[0]

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""The mixture of the kernels' joint predictions, weights positive.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to predict targets (with noise) or the function.
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, another output is asked for, or the noise is a tensor.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"the model has one output, asked for {output_indices}")
        if isinstance(observation_noise, Tensor):
            raise ValueError("each kernel has its own noise variance; give observation_noise=True or False")
        self._check(X)
        mean, covariance = self._conditioned.predict(X)
        if observation_noise:
            noise = self.hyperparameters.noise.unsqueeze(-1).expand(-1, X.shape[-2])
            covariance = covariance + noise.diag_embed()
        posterior: Posterior = MixturePosterior(
            self.log_weights, (mean + self.mean).unsqueeze(-1), covariance.unsqueeze(-3)
        )
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def root_mixture(self, X: Tensor) -> RootMixture:
        r"""The paper's mixture of products of roots for targets (noise included) at points (M, D), each separately.

        Raises:
            ValueError: If X has another number of inputs.
        """
        return root_mixture(self.root_weights, *self.marginals(X), self.total_root_weight)

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Each kernel's means and variances of targets (noise included) at points (M, D): (R, M) each.

        Raises:
            ValueError: If X has another number of inputs.
        """
        self._check(X)
        mean, variance = self._conditioned.marginals(X)
        return mean + self.mean, variance + self.hyperparameters.noise.unsqueeze(-1)

    def _check(self, X: Tensor) -> None:
        if X.shape[-1] != self._conditioned.X.shape[-1] or X.ndim < 2:
            raise ValueError(f"inputs must have shape (..., q, {self._conditioned.X.shape[-1]}), got {tuple(X.shape)}")


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


class _Weights(NamedTuple):
    """Weights of some of the kept kernels, their places among those; of roots, if any, and the sum of all of them."""

    places: Tensor
    log_weights: Tensor
    roots: Tensor | None
    total: Tensor | None


class Predictor:
    """Kernels, conditioned on the data once, with their weights and those of every jackknife replicate.

    Args:
        problem: Data and prior.
        cube: The kernels.
        parts: Weights of all, and of those of every replicate.
    """

    def __init__(self, problem: RegressionProblem, cube: Tensor, parts: list[_Weights]) -> None:
        self._parts = parts
        self._mean = problem.mean
        with torch.no_grad():
            hyperparameters = problem.prior.hyperparameters(cube)
        self._model = KernelMixtureModel(problem, hyperparameters, parts[0].log_weights, parts[0].roots, parts[0].total)

    def predict(self, X: Tensor) -> Prediction:
        """Moments at points (M, D), chunk by chunk."""
        size = max(1, _CHUNK // self._model.num_kernels**2)
        chunks = [self._predict(some) for some in X.split(size)]
        return Prediction(*(torch.cat(columns) for columns in zip(*chunks, strict=True)))

    def _predict(self, X: Tensor) -> Prediction:
        mean, variance = self._model.marginals(X)
        mean = mean - self._mean  # so that targets with a large mean lose no digits
        full = _mixed(self._parts[0], mean, variance, None)
        replicates = [_mixed(part, mean, variance, full.from_roots).mean for part in self._parts[1:]]
        return full._replace(mean=full.mean + self._mean, mean_sd=jackknife_sd(replicates))


def quadrature_predictor(problem: RegressionProblem, surrogate: Surrogate, nodes: QuadratureNodes) -> Predictor:
    """Predictions by the quadrature's weights; replicates lack a group of the evaluations.

    Args:
        problem: Data and prior.
        surrogate: Surrogate of the likelihood.
        nodes: Nodes of the weights.
    """
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
    """Predictions by a mixture of kernels (R, C) with log weights (R,); replicates lack a group of the kernels."""
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
