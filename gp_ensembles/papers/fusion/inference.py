"""Inference of fusion models: the interface of all methods, their reports, and modes of the joint density (MAP)."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import call_text, prints_fields
from gp_ensembles.numerics.minimize import Minimum, minimize
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.fusion.base import FusionModel, hyperparameter_block
from gp_ensembles.papers.fusion.chees import Chains
from gp_ensembles.papers.fusion.leapfrog import evaluate

# Above the first two, chains differ and importance weights are unreliable; below the third, momenta change too little.
_RHAT, _PARETO, _BFMI = 1.05, 0.7, 0.3
# Times that a start is halved towards the prior mean until its log joint density is finite.
_HALVINGS = 20


class ChainDiagnostics(NamedTuple):
    """Diagnostics of C chains that no permutation of the experts changes."""

    rhat_log_joint: Tensor  # rank R-hat of the log joint density, a scalar
    rhat_log_density: Tensor  # and of the log predictive density of some training rows, shape (R,)
    ess_log_joint: Tensor  # effective draws of the log joint density over all chains, a scalar
    ess_log_density: Tensor  # and of those rows' densities, of each chain by itself, summed over the chains, shape (R,)
    loo: Tensor  # mean leave-one-out log density of each chain, in nats for one row, shape (C,)
    pareto_k: Tensor  # Pareto shapes behind them, shape (C, N)
    weights: Tensor  # of the chains, shape (C,)
    divergences: Tensor  # divergent transitions of each chain, shape (C,)
    energy_bfmi: Tensor  # energy Bayesian fraction of missing information of each chain, shape (C,)

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
                "and so may be the weights of the chains: compare with equal_chains, or draw more"
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
    """Report on an inference: cost, log densities, diagnostics, cautions."""

    method: str
    seconds: float
    num_gradients: int  # each for all restarts or chains at once; of chains, those behind the draws
    log_joint: Tensor  # of each restart, or of the last draw of each chain, shape (R,)
    log_evidence: float | None = None  # estimate of the log marginal likelihood, if the method has one
    diagnostics: ChainDiagnostics | None = None
    cautions: tuple[str, ...] = ()  # warnings that were given

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


def _chain_lines(chains: ChainDiagnostics) -> list[str]:
    used = int((chains.weights > 0).sum())
    return [
        f"{len(chains.weights)} chains, {used} with weight; rank R-hat up to {chains.rhat:.2f}; effective draws of a "
        f"row's density {float(chains.ess_log_density.median()):.0f} (each chain separately)",
        f"leave-one-out density per row {float(chains.loo.amin()):.3f} to {float(chains.loo.amax()):.3f} by chain; "
        f"{chains.unreliable:.1%} of Pareto k above {_PARETO}; {int(chains.divergences.sum())} divergences",
    ]


@prints_fields
class PosteriorDraws(NamedTuple):
    """Weighted draws of the parameters of a model.

    Args:
        theta: Draws, shape (S, P).
        log_weights: Log weights of the draws, summing to one, shape (S,).
        report: How they were inferred, with diagnostics.
        chains: The chains behind them, all of them and unweighted, with the state from which they continue; ``None`` if
            there are no chains.

    Example:
        >>> theta = torch.zeros(2, 3)
        >>> posterior = PosteriorDraws(theta, theta[:, 0].log_softmax(0), InferenceReport("MAP", 0.1, 10, theta[:, 0]))
        >>> posterior.log_weights.exp()
        tensor([0.5000, 0.5000])
    """

    theta: Tensor
    log_weights: Tensor
    report: InferenceReport
    chains: Chains | None = None


class InferenceMethod(ABC):
    """A way to learn the parameters of a fusion model."""

    @abstractmethod
    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Draws of the parameters given the model's training data, optionally with a progress bar."""


def without_parameters(model: FusionModel, method: str) -> PosteriorDraws:
    """The only draw of a model without parameters, such as the stacking of a single expert."""
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
        warn_caller(caution)
    return tuple(cautions)


@final
@dataclass(frozen=True)
class MAP(InferenceMethod):
    """Maximum a posteriori parameters: modes of the joint density, searched from draws of the prior.

    All restarts ascend as one tensor by L-BFGS. Sampled hyperparameters are maximized with everything else, under their
    priors; that is not type-II maximum likelihood.

    Args:
        num_restarts: Number of starts R.
        max_iterations: Maximum number of L-BFGS steps of each.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> from gp_ensembles.papers.fusion import FourierPrior, HetGP
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> found = MAP(num_restarts=3).infer(model, generator=torch.Generator().manual_seed(0))
        >>> found.theta.shape, found.log_weights.exp().sum().round(decimals=6)
        (torch.Size([3, 8]), tensor(1., dtype=torch.float64))
    """

    num_restarts: int = 8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if self.num_restarts < 1 or self.max_iterations < 1:
            raise ValueError("num_restarts and max_iterations must be at least 1")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """The modes, shape (R, P), with equal weights: an average of their predictions hedges against poor ones."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "MAP")
        found = find_modes(model, self.num_restarts, self.max_iterations, generator=generator, progress=progress)
        cautions = issue_cautions(_unconverged(found))
        seconds = time.perf_counter() - began
        report = InferenceReport("MAP", seconds, found.num_evaluations, -found.value, cautions=cautions)
        return PosteriorDraws(found.point, torch.zeros_like(found.value).log_softmax(0), report)


def find_modes(
    model: FusionModel,
    num_restarts: int,
    max_iterations: int,
    *,
    held_at: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Minimum:
    """Modes of a model's joint density from draws of its prior, all at once, as minima of its negative.

    Sampled hyperparameters are searched with the rest, or held as in some parameters. Shapes: ``held_at`` (P,).
    """
    fixed = model.prior_mean if held_at is None else held_at
    is_held = {hyperparameter_block(name): held_at is not None for name in model.sampled}
    free = torch.cat(
        [torch.full_like(part, not is_held.get(name)).flatten() for name, part in model.unpack(fixed).items()]
    )

    def held(theta: Tensor) -> Tensor:
        return fixed + free * (theta - fixed)

    start = finite_starts(model, held(model.draw_prior(num_restarts, generator=generator)))
    with tqdm(desc="modes", unit="evaluation", disable=not progress) as bar:

        def descended(theta: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            points = evaluate(lambda theta: model.log_joint(held(theta)), theta)
            bar.set_postfix_str(f"best {float(points.log_density.amax()):.2f}", refresh=False)
            bar.update()
            return -points.log_density, -points.gradient

        return minimize(descended, start, max_iterations=max_iterations, gradient_tolerance=1e-4, loss_tolerance=1e-10)


@torch.no_grad()
def finite_starts(model: FusionModel, start: Tensor) -> Tensor:
    """Starts (R, P), each halved towards the prior mean until its log joint density is finite."""
    for _ in range(_HALVINGS):
        bad = ~model.log_joint(start).isfinite()
        if not bool(bad.any()):
            return start
        start = torch.where(bad.unsqueeze(-1), 0.5 * (start + model.prior_mean), start)
    raise NumericalError(
        "the log joint density is not finite even near the prior mean; check that targets, variances and amplitudes "
        "are of moderate size (standardize the targets) and use float64"
    )


def _unconverged(found: Minimum) -> list[str]:
    """A caution if the best search has not converged."""
    best = int(found.value.argmin())
    if bool(found.converged[best]):
        return []
    slope = float(found.gradient[best].abs().amax())
    if slope < 1e-3:
        return []
    return [f"the search for the mode has not converged (largest gradient {slope:.2g}); raise max_iterations"]
