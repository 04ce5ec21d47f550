"""Policies: which kernels to evaluate next, by optimized acquisition functions or prior draws."""

import warnings
from typing import Any, NamedTuple, Protocol

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf_mixed
from torch import Tensor

from gp_ensembles.papers.quadrature.acquisition import ExplainedVariance, InformationGain, LikelihoodUncertainty
from gp_ensembles.papers.quadrature.prior import draw_stratified
from gp_ensembles.papers.quadrature.quadrature import QuadratureNodes, draw_nodes
from gp_ensembles.papers.quadrature.surrogate import Surrogate


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
        >>> from gp_ensembles.papers.quadrature import Budget, RegressionProblem, Search
        >>> from gp_ensembles.papers.quadrature import marginalize
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
        >>> from gp_ensembles.papers.quadrature import Search
        >>> search = Search(UncertaintyPolicy(AcquisitionOptimizer(num_sizes=1)))
        >>> search.policy.optimizer.num_sizes
        1
    """

    optimizer: AcquisitionOptimizer = AcquisitionOptimizer()

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return self.optimizer.optimize(LikelihoodUncertainty(surrogate), surrogate, count, generator)


class PriorPolicy(NamedTuple):
    """Draws from the prior, independent of the evaluations so far (MASKERADE-R).

    Example:
        >>> from gp_ensembles.papers.quadrature import Search
        >>> Search(PriorPolicy()).policy
        PriorPolicy()
    """

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return draw_stratified(surrogate.kernel_distance.prior, count, generator=generator)
