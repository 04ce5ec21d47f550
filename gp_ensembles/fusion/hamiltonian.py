"""Sampling by many Hamiltonian chains that move together."""

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.chain_state import ChainState
from gp_ensembles.fusion.chain_weighting import ChainWeighting, StackedChains, combine_chains
from gp_ensembles.fusion.chees import Settings, sample
from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.inference import Inference, Inferred, complain, nothing_to_learn
from gp_ensembles.fusion.map_search import find_modes, usable_starts
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.report import Report


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
        """Go on from where the chains ended; with an interrupted warm-up, finish it first.

        Args:
            model: The model.
            inferred: What this inference found.
            num_draws: Further draws of each chain.
            progress: Whether to show a progress bar.

        Raises:
            ValueError: If there are no chains to go on from.
        """
        before = inferred.draws
        if num_draws < 1:
            raise ValueError(f"there must be a further draw at least, got {num_draws}")
        if before is None:
            raise ValueError(f"{inferred.report.method} left no chains to go on from")
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
        return combine_chains(model, draws, self.combine, "HMC", began, spoken)


def _unfinished(draws: Draws, spoken: list[str], seconds: float) -> Inferred:
    """Where the chains stand, if they were stopped before the first draw."""
    points = draws.state.points
    spoken = [*spoken, "there is no draw yet: predictions come from where the chains stand, and are no posterior"]
    report = Report("HMC", seconds, 0, points.log_density, complaints=complain(spoken))
    return Inferred(points.theta, torch.zeros_like(points.log_density).log_softmax(0), report, draws)
