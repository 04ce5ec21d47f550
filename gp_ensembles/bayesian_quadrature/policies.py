"""How the next kernels are chosen."""

from typing import NamedTuple, Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf_mixed
from botorch.utils.sampling import manual_seed
from torch import Tensor

from gp_ensembles.bayesian_quadrature.acquisition import Explained, InformationGain, Uncertainty
from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior
from gp_ensembles.bayesian_quadrature.integral import Nodes
from gp_ensembles.bayesian_quadrature.recombination import recombine
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate


class Policy(Protocol):
    """Chooses kernels; any such class will do."""

    def propose(
        self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""


class Optimiser(NamedTuple):
    """Settings of BoTorch's ``optimize_acqf_mixed``, one set of fixed features for each number of components.

    Args:
        num_restarts: Ascents for each number of components.
        raw_samples: Points among which they start, for each number of components.
        max_iterations: Iterations of L-BFGS.
        sizes: Numbers of components looked at for each batch: those whose best raw sample is best.
    """

    num_restarts: int = 1
    raw_samples: int = 32
    max_iterations: int = 10
    sizes: int = 2

    def best(
        self, acquisition: AcquisitionFunction, prior: Hyperprior, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """A batch of ``count`` kernels, chosen one after the other, so that it may mix numbers of components."""
        sizes = self._promising(acquisition, prior, generator)
        with manual_seed(seed=int(torch.randint(2**31, (), generator=generator))):
            batch, _ = optimize_acqf_mixed(
                acquisition,
                bounds=prior.bounds,
                q=count,
                num_restarts=self.num_restarts,
                raw_samples=self.raw_samples,
                fixed_features_list=[prior.fixed_features(n) for n in sizes],
                options={"maxiter": self.max_iterations, "batch_limit": self.num_restarts},
            )
        return batch

    def _promising(
        self, acquisition: AcquisitionFunction, prior: Hyperprior, generator: torch.Generator | None
    ) -> list[int]:
        every = range(1, prior.max_components + 1)
        if len(every) <= self.sizes:
            return list(every)
        with torch.no_grad():
            best = [
                float(acquisition(prior.draw(self.raw_samples, n, generator=generator).unsqueeze(-2)).max()) for n in every
            ]
        return sorted(sorted(every, key=lambda n: -best[n - 1])[: self.sizes])


class InformationPolicy(NamedTuple):
    """Kernels whose likelihoods tell most about the evidence (MASKERADE-I).

    Args:
        optimiser: How the acquisition function is optimised.
        nodes: Nodes of the integral for each number of components, as far as the choice is concerned.
    """

    optimiser: Optimiser = Optimiser()
    nodes: int = 64

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        acquisition = InformationGain(Explained(surrogate, nodes.first(self.nodes)), log=True)
        return self.optimiser.best(acquisition, surrogate.geometry.prior, count, generator)


class UncertaintyPolicy(NamedTuple):
    """Kernels whose likelihood is most uncertain, as a density over the prior's cube (MASKERADE-U).

    Args:
        optimiser: How the acquisition function is optimised.
    """

    optimiser: Optimiser = Optimiser()

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return self.optimiser.best(Uncertainty(surrogate), surrogate.geometry.prior, count, generator)


class RecombinationPolicy(NamedTuple):
    """Large batches at once: nodes that integrate the surrogate's remaining uncertainty (Hayakawa et al., 2022).

    Args:
        candidates: Draws of the prior to choose from, for each number of components.
    """

    candidates: int = 100

    def propose(self, surrogate: Surrogate, nodes: Nodes, count: int, *, generator: torch.Generator | None) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return recombine(surrogate, count, self.candidates, generator=generator).cube


class PriorPolicy(NamedTuple):
    """Draws from the prior, whatever has been seen (MASKERADE-R)."""

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
