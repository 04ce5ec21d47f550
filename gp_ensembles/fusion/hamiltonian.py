"""Sampling by Hamiltonian chains, and how chains in different modes are combined."""

import time
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.chain_state import ChainState
from gp_ensembles.fusion.chees import Settings, sample
from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.inference import Inference, Inferred, complain, nothing_to_learn
from gp_ensembles.fusion.map_search import find_modes, usable_starts
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.psis import psis_loo
from gp_ensembles.fusion.report import Report, chain_report
from gp_ensembles.meta_learners.hindsight import best_fixed_mixture
from gp_ensembles.numerics.cholesky import NumericalError

# Draws whose densities of all training rows are computed at once.
_DRAWS = 256
# Nats for one row within which stacking is exact.
_GAP = 1e-7


class ChainWeighting(ABC):
    """Weights of chains that do not mix."""

    @abstractmethod
    def weights(self, loo: Tensor) -> Tensor:
        """Weights of C chains, shape (C,), from their leave-one-out log densities of the training rows, (C, N)."""


@final
@dataclass(frozen=True)
class EqualChains(ChainWeighting):
    """All chains count the same, as if their starts were draws of the posterior.

    Example:
        >>> import torch
        >>> EqualChains().weights(torch.zeros(4, 10))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def weights(self, loo: Tensor) -> Tensor:
        """One over the number of chains each."""
        return torch.full_like(loo[:, 0], 1.0 / len(loo))


@final
@dataclass(frozen=True)
class StackedChains(ChainWeighting):
    r"""Weights with which the mixture of the chains predicts left-out rows best (Yao, Vehtari and Gelman, 2022).

    .. math:: \max_w \sum_n \log \sum_c w_c\, p_c(y_n \mid y_{-n}) + a \sum_c \log w_c

    Chains that fell into poor modes get little. The optimum is found exactly. The second term counts as much as a rows
    for each chain that only this chain could explain: without it one of many chains in the same mode would take all the
    weight for a hair's breadth, and the draws of the others would be lost.

    Args:
        prior_count: Rows a; 0 for stacking alone.

    Raises:
        ValueError: If it is negative.

    Example:
        >>> import torch
        >>> loo = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log()
        >>> StackedChains(prior_count=0).weights(loo)
        tensor([0.2222, 0.7778], dtype=torch.float64)
        >>> StackedChains().weights(loo[:, :1].expand(-1, 100) * 1e-4).round(decimals=3)
        tensor([0.5020, 0.4980], dtype=torch.float64)
    """

    prior_count: int = 1

    def __post_init__(self) -> None:
        if self.prior_count < 0:
            raise ValueError(f"prior_count cannot be negative, got {self.prior_count}")

    def weights(self, loo: Tensor) -> Tensor:
        """The best fixed mixture of the chains."""
        if len(loo) == 1:
            return torch.ones_like(loo[:, 0])
        own = loo.new_full((len(loo), len(loo)), -torch.inf).fill_diagonal_(0.0)
        rows = torch.cat([loo, own.repeat(1, self.prior_count)], -1)
        weights: Tensor = best_fixed_mixture(rows, tolerance=_GAP).weights
        return weights


@final
@dataclass(frozen=True)
class HMC(Inference):
    """Many Hamiltonian chains as one tensor, from modes found beforehand, combined by stacking.

    Chains start at the modes of as many restarts, moved by a little noise. Chains of a mixture model stay in the modes
    they start in, here as with any sampler: the combination weighs the chains by how they predict, and the report
    shows what no permutation of the experts changes. A report without complaints is no proof of convergence.

    Args:
        num_chains: Number of chains C; with fewer than four the length of trajectories is not adapted.
        settings: How to sample.
        combine: Weights of the chains.
        start_iterations: Steps of the search for modes; 0 starts at draws of the prior.
        jitter: Noise at the starts, in prior standard deviations.

    Raises:
        ValueError: If there is no chain, or another number is negative.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:1]))
        >>> model = HetGP(X, X.squeeze(-1), role, role)
        >>> inference = HMC(8, Settings(num_draws=100, num_warmup=100))
        >>> with warnings.catch_warnings(action="ignore"):
        ...     found = inference.infer(model, generator=torch.Generator().manual_seed(0), progress=False)
        >>> found.draws.theta.shape, found.report.chains.rhat < 1.2
        (torch.Size([8, 100, 4]), True)
    """

    num_chains: int = 16
    settings: Settings = field(default_factory=Settings)
    combine: ChainWeighting = field(default_factory=StackedChains)
    start_iterations: int = 100
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.num_chains < 1 or self.start_iterations < 0 or self.jitter < 0:
            raise ValueError("num_chains must be at least 1, start_iterations and jitter at least 0")

    def infer(self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = True) -> Inferred:
        """Draws of all chains that have weight, with weights; Ctrl-C keeps those made so far."""
        began = time.perf_counter()
        if not model.num_parameters:
            return nothing_to_learn(model, "HMC")
        start = self._start(model, generator, progress)
        return self._run(model, start, self.settings, None, progress=progress, began=began, generator=generator)

    def more(self, model: FusionModel, inferred: Inferred, num_draws: int, *, progress: bool = True) -> Inferred:
        """Further draws of the same chains; with an interrupted warm-up, what is left of it first."""
        if inferred.draws is None:
            return super().more(model, inferred, num_draws, progress=progress)
        before = inferred.draws
        state = before.state
        made = max(state.iteration - self.settings.num_warmup, 0)
        settings = replace(self.settings, num_draws=made + num_draws)
        return self._run(model, state, settings, before, progress=progress, began=time.perf_counter())

    def _start(self, model: FusionModel, generator: torch.Generator | None, progress: bool) -> Tensor:
        if self.start_iterations:
            found = find_modes(model, self.num_chains, self.start_iterations, generator=generator, progress=progress)
            start = found.points.theta
        else:
            start = model.draw_prior(self.num_chains, generator=generator)
        noise = torch.empty_like(start).normal_(generator=generator)
        return usable_starts(model, start + self.jitter * model.prior_stddev * noise)

    def _run(
        self,
        model: FusionModel,
        start: Tensor | ChainState,
        settings: Settings,
        before: Draws | None,
        *,
        progress: bool,
        began: float,
        generator: torch.Generator | None = None,
    ) -> Inferred:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            draws = sample(model.log_joint, start, settings, generator=generator, progress=progress)
        spoken = [str(one.message) for one in caught]
        if before is not None:
            draws = before.join(draws)
        if not draws.theta.shape[1]:
            return _unfinished(draws, spoken, time.perf_counter() - began)
        if draws.theta.shape[1] > 1 and bool((draws.theta == draws.theta[:, :1]).all()):
            raise NumericalError(
                f"none of the {len(draws.theta)} chains moved: every proposal was rejected; check that inputs and "
                "targets are scaled, warm up longer, or use Laplace()"
            )
        likelihood = pointwise(model, draws.theta)
        loo, pareto_k = psis_loo(likelihood)
        weights = self.combine.weights(loo)
        chains = chain_report(draws, likelihood, loo, pareto_k, weights)
        complaints = complain([*spoken, *chains.complaints()])
        seconds = time.perf_counter() - began
        report = Report(
            "HMC", seconds, int(draws.num_steps.sum()), draws.log_density[:, -1], chains=chains, complaints=complaints
        )
        kept = weights > 0
        num_draws = draws.theta.shape[1]
        log_weights = weights[kept].log().repeat_interleave(num_draws).log_softmax(0)
        return Inferred(draws.theta[kept].flatten(0, 1), log_weights, report, draws)


@torch.no_grad()
def pointwise(model: FusionModel, theta: Tensor) -> Tensor:
    """Log densities of the training rows under draws (..., P), shape (..., N), some draws at a time."""
    flat = theta.flatten(0, -2)
    values = torch.cat([model.pointwise(part) for part in flat.split(_DRAWS)])
    return values.reshape(*theta.shape[:-1], -1)


def _unfinished(draws: Draws, spoken: list[str], seconds: float) -> Inferred:
    """Where the chains stand, if they were stopped before the first draw."""
    points = draws.state.points
    spoken = [*spoken, "there is no draw yet: predictions come from where the chains stand, and are no posterior"]
    report = Report("HMC", seconds, 0, points.log_density, complaints=complain(spoken))
    return Inferred(points.theta, torch.zeros_like(points.log_density).log_softmax(0), report, draws)
