"""Policies: which kernels to evaluate next, by optimized acquisition functions, recombination or prior draws."""

import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf_mixed
from scipy.optimize import linprog
from torch import Tensor

from gp_ensembles.bayesian_quadrature.acquisition import ExplainedVariance, InformationGain, LikelihoodUncertainty
from gp_ensembles.bayesian_quadrature.prior import draw_stratified
from gp_ensembles.bayesian_quadrature.quadrature import QuadratureNodes, draw_nodes
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate


class Policy(Protocol):
    """Selects the kernels to evaluate next; any class with this method will do."""

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""


class AcquisitionOptimizer(NamedTuple):
    """Settings of BoTorch's ``optimize_acqf_mixed``, one set of fixed features for each number of components.

    Args:
        num_restarts: Ascents for each number of components.
        raw_samples: Candidates for their starts, for each number of components: draws of the prior and of the
            neighborhood of the best kernels.
        max_iterations: Iterations of L-BFGS.
        num_sizes: Numbers of components optimized over for each batch: those with the best raw samples.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> generator = torch.Generator().manual_seed(0)
        >>> problem = RegressionProblem(X, X.squeeze(-1).sin())
        >>> surrogate = marginalize(problem, Budget(8, draws=0), generator=generator).quadrature.surrogate
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> acquisition = InformationGain(ExplainedVariance(surrogate, nodes), log=True)
        >>> AcquisitionOptimizer(num_sizes=1).optimize(acquisition, surrogate, 2, generator).shape[0]
        2
    """

    num_restarts: int = 1
    raw_samples: int = 32
    max_iterations: int = 8
    num_sizes: int = 2

    def optimize(
        self, acquisition: AcquisitionFunction, surrogate: Surrogate, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """A batch of ``count`` kernels, chosen one after the other, so that it may mix numbers of components."""
        prior = surrogate.kernel_distance.prior
        raw = draw_nodes(prior, self.raw_samples, around=surrogate.evaluations.best(3).cube, generator=generator)
        with torch.no_grad():
            values = acquisition(raw.cube.unsqueeze(-2))
        best = [float(values[raw.components == n].max()) for n in range(1, prior.max_components + 1)]
        sizes = sorted(sorted(range(1, prior.max_components + 1), key=lambda n: -best[n - 1])[: self.num_sizes])

        def initial_conditions(**settings: Any) -> Tensor:  # the best raw samples, given the pending points
            mine = raw.cube[raw.components == int(settings["fixed_features"][0])].unsqueeze(-2)
            with torch.no_grad():
                order = acquisition(mine).argsort(descending=True, stable=True)
            return mine[order[: settings["num_restarts"]]]

        with warnings.catch_warnings():
            # a line search without progress has found the maximum to within rounding
            warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
            batch, _ = optimize_acqf_mixed(
                acquisition,
                bounds=prior.bounds,
                q=count,
                num_restarts=min(self.num_restarts, self.raw_samples),
                raw_samples=self.raw_samples,
                fixed_features_list=[prior.fixed_features(n) for n in sizes],
                ic_generator=initial_conditions,  # type: ignore[arg-type]  # any acquisition function will do
                options={"maxiter": self.max_iterations},
                retry_on_optimization_warning=False,
            )
        return batch


class InformationPolicy(NamedTuple):
    """Kernels whose likelihoods are most informative about the evidence (MASKERADE-I).

    Args:
        optimizer: How the acquisition function is optimized.
        num_nodes: Quadrature nodes of the acquisition function for each number of components.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, Search
        >>> from gp_ensembles.bayesian_quadrature import marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> search = Search(
        ...     InformationPolicy(AcquisitionOptimizer(num_sizes=1), num_nodes=16)
        ... )
        >>> marginalize(
        ...     RegressionProblem(X, X.squeeze(-1).sin()), Budget(10, draws=0), search
        ... ).num_evaluations
        10
    """

    optimizer: AcquisitionOptimizer = AcquisitionOptimizer()
    num_nodes: int = 64

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        acquisition = InformationGain(ExplainedVariance(surrogate, nodes.first(self.num_nodes)), log=True)
        return self.optimizer.optimize(acquisition, surrogate, count, generator)


class UncertaintyPolicy(NamedTuple):
    """Kernels whose likelihood is most uncertain, as a density over the prior's cube (MASKERADE-U).

    Args:
        optimizer: How the acquisition function is optimized.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, Search
        >>> from gp_ensembles.bayesian_quadrature import marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> search = Search(UncertaintyPolicy(AcquisitionOptimizer(num_sizes=1)))
        >>> marginalize(
        ...     RegressionProblem(X, X.squeeze(-1).sin()), Budget(10, draws=0), search
        ... ).num_evaluations
        10
    """

    optimizer: AcquisitionOptimizer = AcquisitionOptimizer()

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return self.optimizer.optimize(LikelihoodUncertainty(surrogate), surrogate, count, generator)


class RecombinationPolicy(NamedTuple):
    """Large batches at once by recombination of prior draws (Hayakawa et al., 2022); see :func:`recombine`.

    Args:
        num_candidates: Draws of the prior to select from, for each number of components.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, Search
        >>> from gp_ensembles.bayesian_quadrature import marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> search = Search(RecombinationPolicy(num_candidates=20))
        >>> marginalize(
        ...     RegressionProblem(X, X.squeeze(-1).sin()), Budget(10, draws=0), search
        ... ).num_evaluations
        10
    """

    num_candidates: int = 100

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return recombine(surrogate, count, self.num_candidates, generator=generator)[0]


class PriorPolicy(NamedTuple):
    """Draws from the prior, independent of the evaluations so far (MASKERADE-R).

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, Search
        >>> from gp_ensembles.bayesian_quadrature import marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> search = Search(PriorPolicy())
        >>> marginalize(
        ...     RegressionProblem(X, X.squeeze(-1).sin()), Budget(10, draws=0), search
        ... ).num_evaluations
        10
    """

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return draw_stratified(surrogate.kernel_distance.prior, count, generator=generator)


def recombine(
    surrogate: Surrogate, count: int, num_candidates: int = 100, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    r"""A batch that integrates the leading eigenfunctions of the surrogate's covariance as many prior draws do.

    Candidates are draws of the prior weighted by the likelihood's linearized standard deviation, whose covariance C has
    q - 1 leading eigenvectors; a vertex of :math:`\{w \ge 0 : \sum w = 1, \Phi^\top w = \Phi^\top \mu\}` has at most q
    positive weights (Hayakawa, Oberhauser and Lyons, 2022; Adachi et al., 2022, use it for batches of quadrature).
    If fewer have positive weights, the batch is filled up with the most uncertain candidates left.

    Args:
        surrogate: The surrogate.
        count: Size q of the batch.
        num_candidates: Draws for each number of components.
        generator: Source of randomness.

    Returns:
        Rows of the prior's cube, shape (q, C), and their weights, of sum one, shape (q,).

    Raises:
        ValueError: If there are fewer candidates than q.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> generator = torch.Generator().manual_seed(0)
        >>> problem = RegressionProblem(X, X.squeeze(-1).sin())
        >>> surrogate = marginalize(problem, Budget(8, draws=0), generator=generator).quadrature.surrogate
        >>> cube, weights = recombine(surrogate, 5, num_candidates=20, generator=generator)
        >>> cube.shape[0], bool((weights >= 0).all())
        (5, True)
    """
    nodes = draw_nodes(surrogate.kernel_distance.prior, num_candidates, generator=generator)
    if nodes.cube.shape[0] < count:
        raise ValueError(f"{nodes.cube.shape[0]} candidates are too few for a batch of {count}; raise num_candidates")
    with torch.no_grad():
        latent = surrogate.latent(nodes.cube)
    spread = latent.mean.abs() * latent.covariance.diagonal().clamp_min(0.0).sqrt()
    measure = nodes.weights * (spread + torch.finfo(spread.dtype).tiny)
    measure = measure / measure.sum()
    weights = torch.as_tensor(_vertex(latent.covariance, measure, count)).to(measure)
    chosen = weights.argsort(descending=True, stable=True)[: min(count, int((weights > 0).sum()))]
    left = measure.index_fill(0, chosen, -1.0).argsort(descending=True, stable=True)[: count - chosen.numel()]
    rows = torch.cat([chosen, left])
    return nodes.cube[rows], weights[rows]


def _vertex(covariance: Tensor, measure: Tensor, count: int) -> np.ndarray:
    """Non-negative weights, at most ``count`` of them positive, with the integrals of the measure."""
    _, vectors = torch.linalg.eigh(covariance)
    functions = vectors[:, -(count - 1) :].mT if count > 1 else vectors[:, :0].mT
    scale = functions.abs().amax(-1, keepdim=True).clamp_min(1e-300)
    equations = torch.cat([torch.ones_like(measure).unsqueeze(0), functions / scale]).cpu().double().numpy()
    target = equations @ measure.cpu().double().numpy()
    # the objective prefers vertices where the measure is large
    cost = -np.log(np.maximum(measure.cpu().double().numpy(), 1e-300))
    result = linprog(cost, A_eq=equations, b_eq=target, bounds=(0.0, None), method="highs-ds")
    weights: np.ndarray = np.asarray(result.x if result.success else measure.cpu().double().numpy())
    return weights
