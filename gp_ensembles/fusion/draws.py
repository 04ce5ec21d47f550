"""What a Hamiltonian sampler returns."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.fusion.chain_state import ChainState


class Draws(NamedTuple):
    """Draws of C chains after the warm-up, S of each, in D dimensions.

    Args:
        theta: Draws, shape (C, S, D).
        log_density: Their log densities, shape (C, S).
        acceptance: Probabilities with which the proposals were accepted, shape (C, S).
        accepted: Whether they were, shape (C, S).
        divergent: Whether the energy was lost by more than 1000 or was not finite, shape (C, S).
        energy: Energies of the draws with the momenta they came with, shape (C, S).
        num_steps: Leapfrog steps (gradients) of each transition, shape (S,).
        state: With which ``sample`` goes on; holds the step size, the longest trajectory and the metric.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.chees import Settings, sample
        >>> start = torch.zeros(4, 1, dtype=torch.float64)
        >>> generator = torch.Generator().manual_seed(0)
        >>> draws = sample(
        ...     lambda theta: -0.5 * theta.square().sum(-1),
        ...     start, Settings(50, 20), generator=generator, progress=False,
        ... )
        >>> draws.flatten().shape, draws.join(draws).theta.shape
        (torch.Size([200, 1]), torch.Size([4, 100, 1]))
    """

    theta: Tensor
    log_density: Tensor
    acceptance: Tensor
    accepted: Tensor
    divergent: Tensor
    energy: Tensor
    num_steps: Tensor
    state: ChainState

    def flatten(self) -> Tensor:
        """All draws, chain after chain, shape (C S, D)."""
        return self.theta.flatten(0, 1)

    def energy_bfmi(self) -> Tensor:
        r"""Energy Bayesian fraction of missing information of every chain, shape (C,).

        :math:`\sum_s (E_s - E_{s-1})^2 / \sum_s (E_s - \bar E)^2` (Betancourt, 2016). Below 0.3 the momenta change the
        energy too little to reach the tails: reparametrize. NaN for fewer than two draws or constant energies.
        """
        if self.energy.shape[1] < 2:
            return self.energy.new_full((len(self.energy),), torch.nan)
        spread = (self.energy - self.energy.mean(1, keepdim=True)).square().sum(1)
        return self.energy.diff(dim=1).square().sum(1) / torch.where(spread > 0.0, spread, torch.nan)

    def join(self, later: "Draws") -> "Draws":
        """These draws and those of a run that went on from ``state``."""
        pairs = list(zip(self[:6], later[:6], strict=True))
        joined = [torch.cat(pair, dim=1) for pair in pairs]
        return Draws(*joined, torch.cat([self.num_steps, later.num_steps]), later.state)  # type: ignore[call-arg, arg-type]
