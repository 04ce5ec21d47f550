"""Predictions by mixtures of Gaussian processes with different kernels, also as a BoTorch model."""

import math
from typing import NamedTuple, Self, final

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from gp_ensembles.bo.data import Observations, normal_likelihood
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood, Processes
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.problem import RegressionProblem
from gp_ensembles.papers.quadrature.quadrature import (
    QuadratureNodes,
    jackknife_sd,
    node_distances,
    positive_weights,
    root_weights,
    rows_without_each_group,
)
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.papers.quadrature.surrogate import Distances, Surrogate

_MISSING = 0.05  # largest share of the weights of products of roots that may be omitted
_LEAST_WEIGHT = 1e-4  # of a kernel used in predictions
_CHUNK = 2**21  # pairs of kernels times points per chunk


class RootMixture(NamedTuple):
    r"""Pointwise normalized products of roots of normal densities (Hamid et al., 2022, appendix A).

    .. math:: p(y) \propto \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}
              = \sum_{ij} W_{ij} B_{ij} N(y; c_{ij}, V_{ij})
    """

    weights: Tensor  # W B over their sum, (P, M), pairs first
    mean: Tensor  # c, (P, M)
    variance: Tensor  # V, (P, M)
    mass: Tensor  # sum of W B before normalization, (M,): one for an exact surrogate (with alpha zero)
    complete: Tensor  # whether the kept kernels have all of the weight, ()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance at each point, shapes (M,)."""
        mean = (self.weights * self.mean).sum(0)
        return mean, (self.weights * (self.variance + (self.mean - mean).square())).sum(0)

    @property
    def usable(self) -> Tensor:
        """Whether mass is between 1/2 and 2, variance is positive, and no kernel is missing, shape (M,)."""
        return self.complete & (self.mass >= 0.5) & (self.mass <= 2.0) & (self.moments()[1] > 0)


def root_products(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """B, c and V of all pairs of R normal densities at each of M points, (R^2, M), from moments (R, M)."""
    total = variance.unsqueeze(0) + variance.unsqueeze(1)
    product = variance.unsqueeze(0) * variance.unsqueeze(1)
    gap = mean.unsqueeze(0) - mean.unsqueeze(1)
    coefficient = (2.0 * product.sqrt() / total).sqrt() * (-0.25 * gap.square() / total).exp()
    center = (variance.unsqueeze(1) * mean.unsqueeze(0) + variance.unsqueeze(0) * mean.unsqueeze(1)) / total
    return coefficient.flatten(0, 1), center.flatten(0, 1), (2.0 * product / total).flatten(0, 1)


def root_mixture(
    matrix: Tensor, products: tuple[Tensor, Tensor, Tensor], total_weight: Tensor | None = None
) -> RootMixture:
    """The mixture of products of roots at each of M points, with weights (R, R)."""
    coefficient, center, spread = products
    weighted = matrix.flatten().unsqueeze(-1) * coefficient
    mass = weighted.sum(0)
    total_weight = matrix.sum() if total_weight is None else total_weight
    complete = (matrix.sum() - total_weight).abs() <= _MISSING * total_weight.abs()
    return RootMixture(weighted / mass, center, spread, mass, complete)


@final
class KernelMixtureModel(MixtureModel):
    """Gaussian processes with R kernels, mixed with posterior weights.

    Every process learns additional rows exactly, and weights follow Bayes' rule; kernels are fixed.

    Args:
        problem: The data and their prior mean.
        hyperparameters: The kernels, of batch shape (R,).
        log_weights: Their log weights, shape (R,).
        known_noise: Noise variances of the problem's rows, shape (N, 1), instead of the kernels' own; for the dense
            likelihood.
        input_transform: The transform that was applied to the problem's inputs, if any; it is applied to new ones.
        outcome_transform: The transform that was applied to its targets, if any; it is undone in predictions.

    Raises:
        NumericalError: If a kernel's covariance cannot be factorized.
        ValueError: If ``known_noise`` has the wrong shape, or is given for a likelihood other than the dense one.

    Example:
        >>> from gp_ensembles.papers.quadrature import Budget, marginalize
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> model = marginalize(problem, Budget(40, draws=0)).model()
        >>> posterior = model.posterior(X[:4], observation_noise=True)
        >>> posterior.mean.shape, bool((posterior.variance > 0).all())
        (torch.Size([4, 1]), True)
    """

    mean: Tensor
    log_weights: Tensor
    noise: Tensor
    outputscale: Tensor
    component_weights: Tensor
    component_means: Tensor
    component_scales: Tensor
    _X: Tensor
    _residual: Tensor
    _known_noise: Tensor | None
    _cache: Processes | None

    def __init__(
        self,
        problem: RegressionProblem,
        hyperparameters: KernelHyperparameters,
        log_weights: Tensor,
        *,
        known_noise: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        X, Y = problem.X, (problem.y + problem.mean).unsqueeze(-1)
        if known_noise is not None and known_noise.shape != Y.shape:
            raise ValueError(f"known noise must have shape {tuple(Y.shape)}, got {tuple(known_noise.shape)}")
        if known_noise is not None and not isinstance(problem.likelihoods, DenseLikelihood):
            raise ValueError(f"known noise needs a DenseLikelihood, not {type(problem.likelihoods).__name__}")
        data = Observations(X, Y, known_noise).untransformed(input_transform, outcome_transform)
        super().__init__(data, input_transform, outcome_transform)
        self._likelihood = problem.likelihood
        state = {
            "component_weights": hyperparameters.mixtures.weights,
            "component_means": hyperparameters.mixtures.means,
            "component_scales": hyperparameters.mixtures.scales,
            "outputscale": hyperparameters.outputscale,
            "noise": hyperparameters.noise,
            "mean": problem.mean,
            "log_weights": log_weights,
        }
        for name, value in state.items():
            self.register_buffer(name, value.detach())
        self.register_buffer("_X", X, persistent=False)
        self.register_buffer("_residual", problem.y, persistent=False)
        self.register_buffer("_known_noise", known_noise, persistent=False)
        self.eval()
        self._cache = problem.likelihoods.condition(self._kernels())

    @property
    def num_experts(self) -> int:
        """Number of kernels R."""
        return self.log_weights.shape[0]

    @property
    def hyperparameters(self) -> KernelHyperparameters:
        """The kernels, of batch shape (R,)."""
        mixtures = SpectralMixtures(self.component_weights, self.component_means, self.component_scales)
        return KernelHyperparameters(mixtures, self.outputscale, self.noise)

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """A likelihood with the kernels' weighted mean noise, or the known noise; in transformed outcomes."""
        return normal_likelihood((self.log_weights.exp() * self.noise).sum(), self._known_noise)

    def joint(self, X: Tensor) -> MixturePosterior:
        r"""The mixture of the kernels' joint predictions of the function at transformed points (\*t, q, D)."""
        mean, covariance = self._conditioned.predict(X)
        return MixturePosterior(self.log_weights, (mean + self.mean).unsqueeze(-1), covariance.unsqueeze(-3))

    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        return self.after(self._fantasies, self.noise.unsqueeze(-1), X, noise)

    def learned(self, rows: Observations, data: Observations) -> Self:
        """The processes conditioned on all rows, with weights by Bayes' rule."""
        assert self._conditioned is not None  # siblings share it
        other = self._sibling()
        other.data = data
        if self._likelihood is not DenseLikelihood:  # another likelihood might not support these rows
            other._fantasies = rows if self._fantasies is None else self._fantasies.followed_by(rows)
            return other
        after = self.after(rows, self.noise.unsqueeze(-1), rows.X[:1], False)
        other.log_weights = after.log_weights.detach()
        other._X = torch.cat([self._X, rows.X.detach()])
        other._residual = torch.cat([self._residual, rows.Y.detach().squeeze(-1) - self.mean])
        if self._known_noise is not None and rows.noise is not None:
            other._known_noise = torch.cat([self._known_noise, rows.noise.detach()])
        other._cache = None
        return other

    @property
    def _conditioned(self) -> Processes:
        if self._cache is None:
            bound = self._likelihood(self._X, self._residual)
            self._cache = bound.condition(self._kernels())
        return self._cache

    def _kernels(self) -> KernelHyperparameters:
        """The kernels, with the noise of every row if it is known."""
        known = self._known_noise
        if known is None:
            return self.hyperparameters
        return self.hyperparameters._replace(noise=known.mT.expand(self.num_experts, -1))


@prints_fields
class Prediction(NamedTuple):
    """Marginal predictions of targets at M points, with the standard errors of the quadrature; (M,) each.

    Standard errors of the means refer to the means under the exact posterior over kernels, by a
    delete-a-group jackknife over the evaluations.
    """

    mean: Tensor
    variance: Tensor  # of the targets, noise included
    mean_sd: Tensor
    mass: Tensor  # of the products of roots before normalization; one for an exact surrogate
    from_roots: Tensor  # whether products of roots were used, instead of positive weights


def quadrature_prediction(
    problem: RegressionProblem, surrogate: Surrogate, nodes: QuadratureNodes, X: Tensor
) -> Prediction:
    """Moments at points (M, D) by products of roots if usable, else by positive weights."""
    distances, count = node_distances(surrogate, nodes), len(surrogate.roots)
    found = []
    for rows in [torch.arange(count, device=nodes.cube.device), *rows_without_each_group(surrogate.roots)]:
        part, near = surrogate.only(rows), Distances(*(table[:, rows] for table in distances))
        log_weights = positive_weights(part, nodes, near)
        log_weights = log_weights.new_full((count,), -torch.inf).index_copy(0, rows, log_weights)
        roots = root_weights(part, nodes, near)
        every = roots.new_zeros(count, count).index_put((rows.unsqueeze(-1), rows), roots)
        found.append((log_weights, every))
    largest = torch.stack([log_weights for log_weights, _ in found]).amax(0)
    kept = (largest > math.log(_LEAST_WEIGHT)).nonzero().squeeze(-1)  # kernels with weight in either
    with torch.no_grad():
        hyperparameters = problem.prior.hyperparameters(surrogate.evaluations.cube[kept])
    processes, parts = problem.likelihoods.condition(hyperparameters), []
    for points in X.split(max(1, _CHUNK // len(kept) ** 2)):
        mean, variance = processes.marginals(points)  # without the prior mean, as a large one would cost precision
        variance = variance + hyperparameters.noise.unsqueeze(-1)
        products = root_products(mean, variance)
        mixed = [root_mixture(roots[kept][:, kept], products, roots.sum()) for _, roots in found]
        moments = []
        for (log_weights, _), mixture in zip(found, mixed, strict=True):
            positive = mixtures.moments(log_weights[kept].log_softmax(-1).unsqueeze(-1), mean, variance)
            pairs = zip(mixture.moments(), positive, strict=True)
            moments.append([torch.where(mixed[0].usable, one, other) for one, other in pairs])
        mean_sd = jackknife_sd(torch.stack([center for center, _ in moments[1:]]))
        parts.append(Prediction(moments[0][0] + problem.mean, moments[0][1], mean_sd, mixed[0].mass, mixed[0].usable))
    return Prediction(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
