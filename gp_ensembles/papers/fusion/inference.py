"""The interface of all inference methods of fusion models: weighted draws of the parameters, and a report on them."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import call_text, record_text
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chains import Chains
from gp_ensembles.papers.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat

# Above the first two, chains differ and importance weights are unreliable; below the third, momenta change too little.
_RHAT, _PARETO, _BFMI = 1.05, 0.7, 0.3


class ChainDiagnostics(NamedTuple):
    """Diagnostics of C chains that no permutation of the experts changes.

    Args:
        rhat_log_joint: Rank R-hat of the log joint density, a scalar.
        rhat_log_density: Rank R-hat of the log predictive density of some training rows, shape (R,).
        ess_log_joint: Effective draws of the log joint density over all chains, a scalar.
        ess_log_density: Effective draws of the log density of each of those rows, summed over the chains each by
            itself, shape (R,): chains in different modes do not lower it.
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

    def cautions(self) -> list[str]:
        """Problems that the diagnostics show, one sentence for each."""
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
class InferenceReport:
    """Report on an inference: cost, log densities, diagnostics, cautions.

    Args:
        method: Name of the inference method.
        seconds: Time it took.
        num_gradients: Gradients of the log joint density, each for all restarts or chains at once; of chains, those
            behind the draws, without the warm-up.
        log_joint: Log joint density of each restart, or of the last draw of each chain, shape (R,).
        log_evidence: Estimate of the log marginal likelihood, or a lower bound of it; ``None`` if the method has
            none.
        diagnostics: Diagnostics of the chains; ``None`` if there are none.
        cautions: Warnings that were given.
    """

    method: str
    seconds: float
    num_gradients: int
    log_joint: Tensor
    log_evidence: float | None = None
    diagnostics: ChainDiagnostics | None = None
    cautions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return call_text(self)

    def summary(self) -> str:
        """A few lines to print."""
        best = float(self.log_joint.amax()) if self.log_joint.numel() else math.nan
        line = f"{self.method}: {self.seconds:.1f} s, {self.num_gradients} gradients of all chains, "
        lines = [line + f"log joint {best:.1f} at best"]
        if self.log_evidence is not None:
            lines.append(f"log evidence about {self.log_evidence:.1f}")
        if self.diagnostics is not None:
            lines += _chain_lines(self.diagnostics)
        return "\n".join([*lines, *(f"caution: {caution}" for caution in self.cautions)])


def chain_diagnostics(
    draws: Chains, log_likelihood: Tensor, loo: Tensor, pareto_k: Tensor, weights: Tensor, *, num_rows: int = 64
) -> ChainDiagnostics:
    """Diagnostics of chains.

    Shapes: ``log_likelihood`` (C, S, N), ``loo`` (C, N), ``pareto_k`` (C, N), ``weights`` (C,).
    """
    step = max(-(-log_likelihood.shape[-1] // num_rows), 1)
    some = log_likelihood[..., ::step]
    within = torch.stack([mean_ess(chain.unsqueeze(0)) for chain in some])
    return ChainDiagnostics(
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


def _chain_lines(chains: ChainDiagnostics) -> list[str]:
    used = int((chains.weights > 0).sum())
    return [
        f"{len(chains.weights)} chains, {used} with weight; rank R-hat up to {chains.rhat:.2f}; effective draws of a "
        f"row's density {float(chains.ess_log_density.median()):.0f} (each chain by itself)",
        f"leave-one-out density per row {float(chains.loo.amin()):.3f} to {float(chains.loo.amax()):.3f} by chain; "
        f"{chains.unreliable:.1%} of Pareto k above {_PARETO}; {int(chains.divergences.sum())} divergences",
    ]


class PosteriorDraws(NamedTuple):
    """Weighted draws of the parameters of a model.

    Args:
        theta: Draws, shape (S, P).
        log_weights: Log weights of the draws, summing to one, shape (S,).
        report: How they were inferred, with diagnostics.
        chains: The chains behind them, all of them and unweighted, with the state from which they continue; ``None`` if
            there are no chains.

    Example:
        >>> import torch
        >>> theta = torch.zeros(2, 3)
        >>> posterior = PosteriorDraws(theta, theta[:, 0].log_softmax(0), InferenceReport("MAP", 0.1, 10, theta[:, 0]))
        >>> posterior.log_weights.exp()
        tensor([0.5000, 0.5000])
    """

    theta: Tensor
    log_weights: Tensor
    report: InferenceReport
    chains: Chains | None = None

    def __repr__(self) -> str:
        return record_text(self)


class InferenceMethod(ABC):
    """A way to learn the parameters of a fusion model."""

    @abstractmethod
    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Draws of the parameters given the model's training data.

        Args:
            model: The model.
            generator: Source of randomness; torch's global one if ``None``.
            progress: Whether to show a progress bar.

        Raises:
            NumericalError: If the log joint density cannot be used where the search starts.
        """


def without_parameters(model: FusionModel, method: str) -> PosteriorDraws:
    """The only draw of a model without parameters, such as the stacking of a single expert.

    Raises:
        NumericalError: If the log likelihood is not finite.
    """
    theta = model.prior_mean.unsqueeze(0)
    value = model.log_joint(theta)
    if not bool(value.isfinite().all()):
        raise NumericalError("the log likelihood is not finite: check the targets and the variances of the expert")
    return PosteriorDraws(
        theta, torch.zeros_like(value), InferenceReport(method, 0.0, 0, value, log_evidence=float(value))
    )


def issue_cautions(cautions: Sequence[str]) -> tuple[str, ...]:
    """Warn of each at the stack level of the caller's caller; returns them."""
    for caution in cautions:
        warnings.warn(caution, stacklevel=4)
    return tuple(cautions)
