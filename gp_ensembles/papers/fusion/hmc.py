"""Hamiltonian Monte Carlo for fusion models, diagnostics of its chains, and weights of chains that do not mix."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.metrics.regret import best_fixed_mixture
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.numerics.minimize import Minimum
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chees import Chains, ChainState, HMCSettings, init_chains, sample_hmc
from gp_ensembles.papers.fusion.diagnostics import bulk_ess, mean_ess, psis_loo, rank_rhat
from gp_ensembles.papers.fusion.inference import (
    ChainDiagnostics,
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    find_modes,
    finite_starts,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.papers.fusion.laplace import covariance_factor

# Draws whose log likelihoods are computed at once.
_DRAWS = 256
# Largest gap of stacking to its optimum, in nats per row.
_GAP = 1e-7
# Nats within which the ends of all searches count as one mode, and most parameters of a dense metric.
_ONE_MODE, _MOST_PARAMETERS = 1.0, 1000
_DIAGNOSED_ROWS = 64  # at most about so many, evenly spread


def equal_chains(loo: Tensor) -> Tensor:
    """Equal weights (C,) of chains (C, N), as if their starts were draws of the posterior."""
    return torch.full_like(loo[:, 0], 1.0 / len(loo))


def stacked_chains(loo: Tensor) -> Tensor:
    r"""Stacking weights: the mixture of the chains predicts left-out rows best (Yao, Vehtari and Gelman, 2022).

    .. math:: \max_w \sum_n \log \sum_c w_c\, p_c(y_n \mid y_{-n}) + \sum_c \log w_c

    Shapes: ``loo`` (C, N), leave-one-out log densities of the training rows; returns (C,).
    """
    if len(loo) == 1:
        return torch.ones_like(loo[:, 0])
    own = loo.new_full((len(loo), len(loo)), -torch.inf).fill_diagonal_(0.0)
    rows = torch.cat([loo, own], -1)
    return best_fixed_mixture(rows, tolerance=_GAP).weights


def chain_diagnostics(
    draws: Chains, log_likelihood: Tensor, loo: Tensor, pareto_k: Tensor, weights: Tensor
) -> ChainDiagnostics:
    """Diagnostics of chains.

    Shapes: ``log_likelihood`` (C, S, N), ``loo`` (C, N), ``pareto_k`` (C, N), ``weights`` (C,).
    """
    step = max(-(-log_likelihood.shape[-1] // _DIAGNOSED_ROWS), 1)
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


def combine_chains(
    model: FusionModel,
    draws: Chains,
    weighting: Callable[[Tensor], Tensor],
    method: str,
    began: float,
    messages: Sequence[str],
) -> PosteriorDraws:
    """Draws of all chains that have weight, with diagnostics; a ``NumericalError`` if no chain moved."""
    num_draws = draws.theta.shape[1]
    if num_draws > 1 and bool((draws.theta == draws.theta[:, :1]).all()):
        raise NumericalError(
            f"none of the {len(draws.theta)} chains moved: every proposal was rejected; check that inputs and targets "
            "are scaled, warm up longer, or use LaplaceApproximation()"
        )
    log_likelihood = chain_log_likelihood(model, draws.theta)
    loo, pareto_k = psis_loo(log_likelihood)
    weights = weighting(loo)
    diagnostics = chain_diagnostics(draws, log_likelihood, loo, pareto_k, weights)
    cautions = issue_cautions([*messages, *diagnostics.cautions()])
    seconds, num_gradients = time.perf_counter() - began, int(draws.num_steps.sum())
    log_joint = draws.log_density[:, -1]
    report = InferenceReport(method, seconds, num_gradients, log_joint, diagnostics=diagnostics, cautions=cautions)
    kept = weights > 0
    log_weights = weights[kept].log().repeat_interleave(num_draws).log_softmax(0)
    return PosteriorDraws(draws.theta[kept].flatten(0, 1), log_weights, report, draws)


@torch.no_grad()
def chain_log_likelihood(model: FusionModel, theta: Tensor) -> Tensor:
    """Log densities of the training rows under draws (..., P), shape (..., N), some draws at a time."""
    flat = theta.flatten(0, -2)
    values = torch.cat([model.log_likelihood(part) for part in flat.split(_DRAWS)])
    return values.reshape(*theta.shape[:-1], -1)


@final
@dataclass(frozen=True)
class HMC(InferenceMethod):
    """ChEES-HMC with many chains as one tensor, started at modes, combined by stacking.

    Chains start at the modes of as many restarts, plus noise; sampled hyperparameters start at their prior means. Where
    all searches end at one mode, as those of stacking do, the metric is that of a Laplace approximation there: it
    removes the ridges along which chains move slowly. Where hyperparameters are sampled, a first warm-up of half the
    length, beyond what the settings name, finds the place at which the metric is taken. Chains of a mixture model
    stay in the modes they start in, here as with any sampler: the chains are weighted by how well they predict, and
    the report shows quantities that no permutation of the experts changes. A report without cautions does not prove
    convergence.

    Args:
        num_chains: Number of chains C; with fewer than four the length of trajectories is not adapted.
        settings: Settings of the sampler.
        chain_weighting: Weights of the chains from their leave-one-out log densities, :func:`stacked_chains` or
            :func:`equal_chains`.
        start_iterations: L-BFGS steps of the search for modes; 0 starts at draws of the prior.
        jitter: Standard deviation of the noise at the starts, in standard deviations of the Laplace approximation where
            the metric is its, else in those of the prior.

    Raises:
        ValueError: If there is no chain, or another number is negative.

    Example:
        >>> from gp_ensembles.papers.fusion import FourierPrior, HetGP
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:1]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> inference = HMC(8, HMCSettings(num_draws=100, num_warmup=100))
        >>> with warnings.catch_warnings(action="ignore", category=UserWarning):
        ...     found = inference.infer(model, generator=torch.Generator().manual_seed(0))
        >>> found.chains.theta.shape, found.report.diagnostics.rhat < 1.2
        (torch.Size([8, 100, 4]), True)
    """

    num_chains: int = 16
    settings: HMCSettings = field(default_factory=HMCSettings)
    chain_weighting: Callable[[Tensor], Tensor] = stacked_chains
    start_iterations: int = 100
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.num_chains < 1 or self.start_iterations < 0 or self.jitter < 0:
            raise ValueError("num_chains must be at least 1, start_iterations and jitter at least 0")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Weighted draws of all chains that have weight; Ctrl-C keeps those made so far."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "HMC")
        start = self._start(model, generator, progress)
        return self._run(model, start, self.settings, None, progress=progress, began=began)

    def sample_more(
        self, model: FusionModel, posterior: PosteriorDraws, num_draws: int, *, progress: bool = False
    ) -> PosteriorDraws:
        """Further draws of the same chains; an interrupted warm-up is finished first.

        Args:
            model: The model.
            posterior: Result of this inference.
            num_draws: More draws of each chain.
            progress: Whether to show a progress bar.

        Raises:
            ValueError: If there are no chains to continue.
        """
        before = posterior.chains
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, got {num_draws}")
        if before is None:
            raise ValueError(f"{posterior.report.method} has no chains to continue")
        state = before.state
        made = max(state.iteration - self.settings.num_warmup, 0)
        settings = replace(self.settings, num_draws=made + num_draws)
        return self._run(model, state, settings, before, progress=progress, began=time.perf_counter())

    def _start(self, model: FusionModel, generator: torch.Generator | None, progress: bool) -> ChainState:
        factor = None
        if self.start_iterations:
            found = self._modes(model, model.prior_mean, generator, progress)
            start, value = found.point, found.value
            if float(value.amax() - value.amin()) < _ONE_MODE and model.num_parameters <= _MOST_PARAMETERS:
                factor = covariance_factor(model.log_joint, start[int(value.argmin())], model.prior_stddev)
        else:
            start = model.draw_prior(self.num_chains, generator=generator)
        first = self._near(model, start, factor, generator)
        if factor is None or not model.sampled:
            return first
        pilot = replace(self.settings, num_draws=0, num_warmup=self.settings.num_warmup // 2)
        arrived = sample_hmc(model.log_joint, first, pilot, progress=progress).state.points.theta
        start = self._modes(model, arrived.mean(0), generator, progress).point
        factor = covariance_factor(model.log_joint, start[0], model.prior_stddev)
        return self._near(model, start, factor, generator)

    def _near(
        self, model: FusionModel, start: Tensor, factor: Tensor | None, generator: torch.Generator | None
    ) -> ChainState:
        """Chains that start near positions (C, P)."""
        noise = normal_draws(start.shape, start, generator)
        # In units of the posterior where they are known: a tenth of the prior's may lie far up a wall.
        noise = model.prior_stddev * noise if factor is None else noise @ factor.mT
        start = finite_starts(model, start + self.jitter * noise)
        return init_chains(model.log_joint, start, factor, generator=generator)

    def _modes(self, model: FusionModel, held_at: Tensor, generator: torch.Generator | None, progress: bool) -> Minimum:
        """Modes of the coefficients, with hyperparameters held as in some parameters (P,)."""
        return find_modes(
            model, self.num_chains, self.start_iterations, held_at=held_at, generator=generator, progress=progress
        )

    def _run(
        self,
        model: FusionModel,
        start: ChainState,
        settings: HMCSettings,
        before: Chains | None,
        *,
        progress: bool,
        began: float,
    ) -> PosteriorDraws:
        if start.factor is not None and model.sampled:
            settings = replace(settings, first_length=2.0 * settings.first_length)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            draws = sample_hmc(model.log_joint, start, settings, progress=progress)
        messages = [str(one.message) for one in caught]
        if before is not None:
            draws = before.join(draws)
        if not draws.theta.shape[1]:
            return _unfinished(draws, messages, time.perf_counter() - began)
        return combine_chains(model, draws, self.chain_weighting, "HMC", began, messages)


def _unfinished(draws: Chains, messages: list[str], seconds: float) -> PosteriorDraws:
    """The positions of chains that were stopped before the first draw."""
    points = draws.state.points
    messages = [
        *messages,
        "there is no draw yet: predictions come from the current positions of the chains, not from the posterior",
    ]
    report = InferenceReport("HMC", seconds, 0, points.log_density, cautions=issue_cautions(messages))
    return PosteriorDraws(points.theta, torch.zeros_like(points.log_density).log_softmax(0), report, draws)
