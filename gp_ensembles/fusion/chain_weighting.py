"""Chains that do not mix as one set of weighted draws."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.inference import Inferred, complain
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


def combine_chains(
    model: FusionModel, draws: Draws, weighting: ChainWeighting, method: str, began: float, spoken: Sequence[str]
) -> Inferred:
    """Draws of all chains that have weight, with what is to be said about them.

    Args:
        model: The model.
        draws: Its chains, of at least one draw each.
        weighting: Weights of the chains.
        method: Name of the inference, for the report.
        began: When it began, by ``time.perf_counter``.
        spoken: What the user is to be warned of anyway.

    Raises:
        NumericalError: If no chain moved.
    """
    num_draws = draws.theta.shape[1]
    if num_draws > 1 and bool((draws.theta == draws.theta[:, :1]).all()):
        raise NumericalError(
            f"none of the {len(draws.theta)} chains moved: every proposal was rejected; check that inputs and targets "
            "are scaled, warm up longer, or use Laplace()"
        )
    likelihood = pointwise(model, draws.theta)
    loo, pareto_k = psis_loo(likelihood)
    weights = weighting.weights(loo)
    chains = chain_report(draws, likelihood, loo, pareto_k, weights)
    complaints = complain([*spoken, *chains.complaints()])
    seconds, num_gradients = perf_counter() - began, int(draws.num_steps.sum())
    report = Report(method, seconds, num_gradients, draws.log_density[:, -1], chains=chains, complaints=complaints)
    kept = weights > 0
    log_weights = weights[kept].log().repeat_interleave(num_draws).log_softmax(0)
    return Inferred(draws.theta[kept].flatten(0, 1), log_weights, report, draws)


@torch.no_grad()
def pointwise(model: FusionModel, theta: Tensor) -> Tensor:
    """Log densities of the training rows under draws (..., P), shape (..., N), some draws at a time."""
    flat = theta.flatten(0, -2)
    values = torch.cat([model.pointwise(part) for part in flat.split(_DRAWS)])
    return values.reshape(*theta.shape[:-1], -1)
