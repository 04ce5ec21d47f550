"""What an inference found, and how far to believe it."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat
from gp_ensembles.fusion.draws import Draws

# Above these, chains differ and importance weights are not to be trusted; below the third, momenta change too little.
_RHAT, _PARETO, _BFMI = 1.05, 0.7, 0.3


class ChainReport(NamedTuple):
    """Diagnostics of C chains that no permutation of the experts changes.

    Args:
        rhat_log_joint: Rank R-hat of the log joint density, a scalar.
        rhat_log_density: Rank R-hat of the log predictive density of each training row looked at, shape (R,).
        ess_log_joint: Effective draws of the log joint density over all chains, a scalar.
        ess_log_density: Effective draws of the log density of each of those rows, summed over the chains each by
            itself, shape (R,): chains in different modes do not count as disagreeing here.
        loo: Mean leave-one-out log density of each chain, in nats for one row, shape (C,).
        pareto_k: Pareto shapes behind them, shape (C, N).
        weights: Weights of the chains, shape (C,).
        divergences: Divergent transitions of each chain, shape (C,).
        energy_bfmi: Energy Bayesian fraction of missing information of each chain, shape (C,).
    """

    rhat_log_joint: Tensor
    rhat_log_density: Tensor
    ess_log_joint: Tensor
    ess_log_density: Tensor
    loo: Tensor
    pareto_k: Tensor
    weights: Tensor
    divergences: Tensor
    energy_bfmi: Tensor

    @property
    def rhat(self) -> float:
        """The largest rank R-hat; NaN if none could be computed."""
        values = torch.cat([self.rhat_log_joint.reshape(1), self.rhat_log_density])
        values = values[~values.isnan()]
        return float(values.amax()) if values.numel() else math.nan

    @property
    def unreliable(self) -> float:
        """Share of Pareto shapes above 0.7, over the rows of the chains that have weight."""
        return float((~(self.pareto_k[self.weights > 0] <= _PARETO)).double().mean())

    def complaints(self) -> list[str]:
        """What a user should know, one sentence for each."""
        found = []
        if self.rhat > _RHAT:
            found.append(
                f"the chains differ (rank R-hat up to {self.rhat:.2f}), so they are in different modes or too short: "
                "judge the combined chains by held-out densities, and run more chains or more draws"
            )
        if self.unreliable > 0:
            largest = float(self.pareto_k[self.weights > 0].amax())
            found.append(
                f"{self.unreliable:.1%} of the leave-one-out densities are unreliable (Pareto k up to {largest:.2f}), "
                "and so may be the weights of the chains: compare with EqualChains(), or draw more"
            )
        low = (self.energy_bfmi < _BFMI).nonzero().squeeze(-1).tolist()
        if low:
            found.append(
                f"the energies of chains {low} move slowly (E-BFMI below {_BFMI}), so tails may be missing: draw more, "
                "or fix the hyperparameters"
            )
        return found


@final
@dataclass(frozen=True)
class Report:
    """What an inference found.

    Args:
        method: Name of the inference.
        seconds: Time it took.
        num_gradients: Gradients of the log joint density, each for all restarts or chains at once; of chains, those
            behind the draws, without the warm-up.
        log_joint: Log joint density of each restart, or of the last draw of each chain, shape (R,).
        log_evidence: Estimate of the log marginal likelihood, or a lower bound of it; ``None`` if the inference has
            none.
        chains: Diagnostics of the chains; ``None`` if there are none.
        complaints: What the user was warned of.

    Example:
        >>> import torch
        >>> report = Report("MAP", 0.5, 100, torch.tensor([-3.0, -2.0]))
        >>> print(report.summary())
        MAP: 0.5 s, 100 gradients of all chains, log joint -2.0 at best
    """

    method: str
    seconds: float
    num_gradients: int
    log_joint: Tensor
    log_evidence: float | None = None
    chains: ChainReport | None = None
    complaints: tuple[str, ...] = ()

    def summary(self) -> str:
        """A few lines for a person."""
        best = float(self.log_joint.amax()) if self.log_joint.numel() else math.nan
        line = f"{self.method}: {self.seconds:.1f} s, {self.num_gradients} gradients of all chains, "
        lines = [line + f"log joint {best:.1f} at best"]
        if self.log_evidence is not None:
            lines.append(f"log evidence about {self.log_evidence:.1f}")
        if self.chains is not None:
            lines += _chain_lines(self.chains)
        return "\n".join([*lines, *(f"caution: {complaint}" for complaint in self.complaints)])


def chain_report(
    draws: Draws, log_likelihood: Tensor, loo: Tensor, pareto_k: Tensor, weights: Tensor, *, num_rows: int = 64
) -> ChainReport:
    """Diagnostics of chains.

    Args:
        draws: The chains.
        log_likelihood: Log densities of the training rows under every draw, shape (C, S, N).
        loo: Leave-one-out log densities of each chain, shape (C, N).
        pareto_k: Their Pareto shapes, shape (C, N).
        weights: Weights of the chains, shape (C,).
        num_rows: Rows, evenly spread, whose log densities are looked at.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.chees import Settings, sample
        >>> generator = torch.Generator().manual_seed(0)
        >>> y = torch.tensor([0.5, 1.0], dtype=torch.float64)
        >>> def log_density(theta):
        ...     return -0.5 * (y - theta).square().sum(-1)
        >>> draws = sample(log_density, y.new_zeros(4, 1), Settings(100, 50), generator=generator)
        >>> pointwise = -0.5 * (y - draws.theta).square()
        >>> found = chain_report(draws, pointwise, y.new_zeros(4, 2), y.new_zeros(4, 2), y.new_full((4,), 0.25))
        >>> found.rhat < 1.1, found.ess_log_density.shape
        (True, torch.Size([2]))
    """
    step = max(-(-log_likelihood.shape[-1] // num_rows), 1)
    some = log_likelihood[..., ::step]
    within = torch.stack([mean_ess(chain.unsqueeze(0)) for chain in some])
    return ChainReport(
        rank_rhat(draws.log_density),
        rank_rhat(some),
        bulk_ess(draws.log_density),
        within.nansum(0),
        loo.mean(-1),
        pareto_k,
        weights,
        draws.divergent.sum(1),
        draws.energy_bfmi(),
    )


def _chain_lines(chains: ChainReport) -> list[str]:
    used = int((chains.weights > 0).sum())
    return [
        f"{len(chains.weights)} chains, {used} with weight; rank R-hat up to {chains.rhat:.2f}; effective draws of a "
        f"row's density {float(chains.ess_log_density.median()):.0f} (each chain by itself)",
        f"leave-one-out density per row {float(chains.loo.amin()):.3f} to {float(chains.loo.amax()):.3f} by chain; "
        f"{chains.unreliable:.1%} of Pareto k above {_PARETO}; {int(chains.divergences.sum())} divergences",
    ]
