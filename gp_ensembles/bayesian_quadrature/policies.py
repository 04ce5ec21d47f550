"""How the next kernels are chosen."""

import warnings
from typing import Any, NamedTuple, Protocol

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf_mixed
from torch import Tensor

from gp_ensembles.bayesian_quadrature.acquisition import Explained, InformationGain, Uncertainty
from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior
from gp_ensembles.bayesian_quadrature.nodes import Nodes, draw_nodes
from gp_ensembles.bayesian_quadrature.recombination import recombine
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate


class Policy(Protocol):
    """Chooses kernels; any such class will do."""

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""


class Optimizer(NamedTuple):
    """Settings of BoTorch's ``optimize_acqf_mixed``, one set of fixed features for each number of components.

    Args:
        num_restarts: Ascents for each number of components.
        raw_samples: Points among which they start, for each number of components: draws of the prior, and of the
            neighborhood of the best kernels.
        max_iterations: Iterations of L-BFGS.
        sizes: Numbers of components looked at for each batch: those whose best raw sample is best.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> acquisition = InformationGain(Explained(surrogate, nodes), log=True)
        >>> Optimizer(sizes=1).best(acquisition, surrogate, 2, generator).shape[0]
        2
    """

    num_restarts: int = 1
    raw_samples: int = 32
    max_iterations: int = 8
    sizes: int = 2

    def best(
        self, acquisition: AcquisitionFunction, surrogate: Surrogate, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """A batch of ``count`` kernels, chosen one after the other, so that it may mix numbers of components."""
        prior = surrogate.geometry.prior
        raw = draw_nodes(prior, self.raw_samples, around=surrogate.evaluations.best(3).cube, generator=generator)
        with torch.no_grad():
            values = acquisition(raw.cube.unsqueeze(-2))
        best = [float(values[raw.components == n].max()) for n in range(1, prior.max_components + 1)]
        sizes = sorted(sorted(range(1, prior.max_components + 1), key=lambda n: -best[n - 1])[: self.sizes])

        def initial_conditions(**settings: Any) -> Tensor:  # what is best of the raw points now, with pending points
            mine = raw.cube[raw.components == int(settings["fixed_features"][0])].unsqueeze(-2)
            with torch.no_grad():
                order = acquisition(mine).argsort(descending=True, stable=True)
            return mine[order[: settings["num_restarts"]]]

        with warnings.catch_warnings():
            # a line search that finds no further progress has found the maximum to within rounding
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
    """Kernels whose likelihoods tell most about the evidence (MASKERADE-I).

    Args:
        optimizer: How the acquisition function is optimized.
        nodes: Nodes of the integral for each number of components, as far as the choice is concerned.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> InformationPolicy(Optimizer(sizes=1), nodes=16).propose(surrogate, nodes, 2, generator=generator).shape[0]
        2
    """

    optimizer: Optimizer = Optimizer()
    nodes: int = 64

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        acquisition = InformationGain(Explained(surrogate, nodes.first(self.nodes)), log=True)
        return self.optimizer.best(acquisition, surrogate, count, generator)


class UncertaintyPolicy(NamedTuple):
    """Kernels whose likelihood is most uncertain, as a density over the prior's cube (MASKERADE-U).

    Args:
        optimizer: How the acquisition function is optimized.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> UncertaintyPolicy(Optimizer(sizes=1)).propose(surrogate, nodes, 2, generator=generator).shape[0]
        2
    """

    optimizer: Optimizer = Optimizer()

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return self.optimizer.best(Uncertainty(surrogate), surrogate, count, generator)


class RecombinationPolicy(NamedTuple):
    """Large batches at once: nodes that integrate the surrogate's remaining uncertainty (Hayakawa et al., 2022).

    Args:
        candidates: Draws of the prior to choose from, for each number of components.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> RecombinationPolicy(candidates=20).propose(surrogate, nodes, 2, generator=generator).shape[0]
        2
    """

    candidates: int = 100

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return recombine(surrogate, count, self.candidates, generator=generator).cube


class PriorPolicy(NamedTuple):
    """Draws from the prior, whatever has been seen (MASKERADE-R).

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> PriorPolicy().propose(surrogate, nodes, 2, generator=generator).shape[0]
        2
    """

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return draw_stratified(surrogate.geometry.prior, count, generator=generator)


def draw_stratified(prior: Hyperprior, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Sobol draws of the prior, their numbers of components in proportion to p(n) as nearly as can be, (count, C).

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, one), max_components=3)
        >>> prior.num_components(draw_stratified(prior, 7, generator=torch.Generator().manual_seed(0))).bincount()
        tensor([0, 3, 2, 2])
    """
    wanted = prior.log_prob_components.exp() * count
    counts = wanted.floor().long()
    rest = (wanted - counts).argsort(descending=True, stable=True)[: count - int(counts.sum())]
    counts[rest] += 1
    parts = [prior.draw(int(k), n, generator=generator) for n, k in enumerate(counts.tolist(), 1) if k]
    return torch.cat(parts) if parts else prior.bounds.new_zeros(0, prior.num_columns)
