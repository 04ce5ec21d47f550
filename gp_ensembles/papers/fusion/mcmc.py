"""Markov chain Monte Carlo for fusion models: HMC, NumPyro's NUTS, and weights of chains that do not mix."""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gp_ensembles.metrics.regret import best_fixed_mixture
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import generator_device, normal_draws
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chains import Chains, ChainState, init_chains
from gp_ensembles.papers.fusion.chees import HMCSettings, sample_hmc
from gp_ensembles.papers.fusion.cross_validation import psis_loo
from gp_ensembles.papers.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    chain_diagnostics,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.papers.fusion.laplace import covariance_factor
from gp_ensembles.papers.fusion.leapfrog import Points, evaluate
from gp_ensembles.papers.fusion.modes import find_modes, finite_starts

# Draws whose log likelihoods are computed at once.
_DRAWS = 256
# Largest gap of stacking to its optimum, in nats per row.
_GAP = 1e-7
# Nats within which the ends of all searches count as one mode, and most parameters of a dense metric.
_ONE_MODE, _MOST_PARAMETERS = 1.0, 1000
# What NumPyro records of each transition.
_FIELDS = ("potential_energy", "energy", "diverging", "num_steps", "accept_prob")


class ChainWeighting(ABC):
    """A rule for the weights of chains that do not mix."""

    @abstractmethod
    def weights(self, loo: Tensor) -> Tensor:
        """Weights of C chains, shape (C,), from their leave-one-out log densities of the training rows, (C, N)."""


@final
@dataclass(frozen=True)
class EqualChains(ChainWeighting):
    """Equal weights, as if the starts of the chains were draws of the posterior."""

    def weights(self, loo: Tensor) -> Tensor:
        """1/C each."""
        return torch.full_like(loo[:, 0], 1.0 / len(loo))


@final
@dataclass(frozen=True)
class StackedChains(ChainWeighting):
    r"""Stacking weights: the mixture of the chains predicts left-out rows best (Yao, Vehtari and Gelman, 2022).

    .. math:: \max_w \sum_n \log \sum_c w_c\, p_c(y_n \mid y_{-n}) + a \sum_c \log w_c

    Args:
        prior_count: Rows a; 0 for stacking alone.

    Raises:
        ValueError: If it is negative.
    """

    prior_count: int = 1

    def __post_init__(self) -> None:
        if self.prior_count < 0:
            raise ValueError(f"prior_count cannot be negative, got {self.prior_count}")

    def weights(self, loo: Tensor) -> Tensor:
        """Weights of the best fixed mixture of the chains."""
        if len(loo) == 1:
            return torch.ones_like(loo[:, 0])
        own = loo.new_full((len(loo), len(loo)), -torch.inf).fill_diagonal_(0.0)
        rows = torch.cat([loo, own.repeat(1, self.prior_count)], -1)
        weights: Tensor = best_fixed_mixture(rows, tolerance=_GAP).weights
        return weights


def combine_chains(
    model: FusionModel, draws: Chains, weighting: ChainWeighting, method: str, began: float, messages: Sequence[str]
) -> PosteriorDraws:
    """Draws of all chains that have weight, with diagnostics.

    Raises:
        NumericalError: If no chain moved.
    """
    num_draws = draws.theta.shape[1]
    if num_draws > 1 and bool((draws.theta == draws.theta[:, :1]).all()):
        raise NumericalError(
            f"none of the {len(draws.theta)} chains moved: every proposal was rejected; check that inputs and targets "
            "are scaled, warm up longer, or use LaplaceApproximation()"
        )
    log_likelihood = chain_log_likelihood(model, draws.theta)
    loo, pareto_k = psis_loo(log_likelihood)
    weights = weighting.weights(loo)
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
    removes the ridges along which chains creep. Where hyperparameters are sampled, a first warm-up of half the
    length, beyond what the settings name, finds the place at which the metric is taken. Chains of a mixture model
    stay in the modes they start in, here as with any sampler: the chains are weighted by how well they predict, and
    the report shows quantities that no permutation of the experts changes. A report without cautions is no proof of
    convergence.

    Args:
        num_chains: Number of chains C; with fewer than four the length of trajectories is not adapted.
        settings: Settings of the sampler.
        chain_weighting: Weights of the chains.
        start_iterations: L-BFGS steps of the search for modes; 0 starts at draws of the prior.
        jitter: Standard deviation of the noise at the starts, in standard deviations of the Laplace approximation where
            the metric is its, else in those of the prior.

    Raises:
        ValueError: If there is no chain, or another number is negative.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.fusion.models import HetGP
        >>> from gp_ensembles.papers.fusion.function_priors import FourierPrior
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
    chain_weighting: ChainWeighting = field(default_factory=StackedChains)
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
            start, value = found.theta, found.log_density
            if float(value.amax() - value.amin()) < _ONE_MODE and model.num_parameters <= _MOST_PARAMETERS:
                factor = covariance_factor(model.log_joint, start[int(value.argmax())], model.prior_stddev)
        else:
            start = model.draw_prior(self.num_chains, generator=generator)
        first = self._near(model, start, factor, generator)
        if factor is None or not model.samples_hyperparameters:
            return first
        pilot = replace(self.settings, num_draws=0, num_warmup=self.settings.num_warmup // 2)
        arrived = sample_hmc(model.log_joint, first, pilot, progress=progress).state.points.theta
        start = self._modes(model, arrived.mean(0), generator, progress).theta
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

    def _modes(self, model: FusionModel, held_at: Tensor, generator: torch.Generator | None, progress: bool) -> Points:
        """Modes of the coefficients, with hyperparameters held as in some parameters (P,)."""
        return find_modes(
            model, self.num_chains, self.start_iterations, held_at=held_at, generator=generator, progress=progress
        ).points

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
        if start.factor is not None and model.samples_hyperparameters:
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
        "there is no draw yet: predictions come from the present positions of the chains, not from the posterior",
    ]
    report = InferenceReport("HMC", seconds, 0, points.log_density, cautions=issue_cautions(messages))
    return PosteriorDraws(points.theta, torch.zeros_like(points.log_density).log_softmax(0), report, draws)


@final
@dataclass(frozen=True)
class NUTS(InferenceMethod):
    """NumPyro's no-U-turn sampler, an independent check; needs ``gp_ensembles[numpyro]``.

    Log densities and gradients stay in torch, and jax calls them: any model works, but small models
    take many times as long as with :class:`HMC`. Chains start at draws of the prior and move
    in step. They cannot be continued.

    Args:
        num_chains: Number of chains.
        num_draws: Draws of each after the warm-up.
        num_warmup: Warm-up transitions.
        max_tree_depth: A trajectory has at most two to this power less one steps.
        target_acceptance: Target of the acceptance probability.
        chain_weighting: Weights of the chains.

    Raises:
        ValueError: If a number is not at least one, or the target not between 0 and 1.

    Example:
        >>> NUTS(num_draws=100).max_tree_depth
        8
    """

    num_chains: int = 4
    num_draws: int = 500
    num_warmup: int = 500
    max_tree_depth: int = 8
    target_acceptance: float = 0.8
    chain_weighting: ChainWeighting = field(default_factory=StackedChains)

    def __post_init__(self) -> None:
        if min(self.num_chains, self.num_draws, self.num_warmup, self.max_tree_depth) < 1:
            raise ValueError(
                "numbers of chains, of draws, of warm-up transitions and the tree depth must be at least 1"
            )
        if not 0.0 < self.target_acceptance < 1.0:
            raise ValueError(f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Weighted draws of all chains that have weight.

        Raises:
            ImportError: If NumPyro is not installed.
        """
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "NUTS")
        start = finite_starts(model, model.draw_prior(self.num_chains, generator=generator))
        seed = int(torch.randint(2**31, (), generator=generator, device=generator_device(generator)))
        theta, fields = self._run(model, start, seed, progress)
        # As the chains of sample_hmc.
        draws = Chains(
            theta,
            -fields["potential_energy"].to(theta),
            fields["accept_prob"].to(theta),
            theta.diff(dim=1, prepend=theta[:, :1] * torch.nan).ne(0).any(-1),
            fields["diverging"].to(theta.device),
            fields["energy"].to(theta),
            fields["num_steps"].amax(0).to(theta.device),
            init_chains(model.log_joint, theta[:, -1], generator=generator),
        )
        return combine_chains(model, draws, self.chain_weighting, "NUTS", began, [])

    def _run(
        self, model: FusionModel, start: torch.Tensor, seed: int, progress: bool
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        try:
            import jax
            from numpyro import infer
        except ImportError:
            raise ImportError('NumPyro is not installed: pip install "gp_ensembles[numpyro]"') from None

        dtype = np.asarray(start.cpu().numpy()).dtype
        shapes = (jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((start.shape[1],), dtype))

        def host(theta: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            given = np.array(theta)
            points = evaluate(model.log_joint, torch.as_tensor(given).to(start).reshape(-1, given.shape[-1]))
            value, gradient = ((-part).cpu().numpy() for part in points[1:])
            return value.reshape(given.shape[:-1]), gradient.reshape(given.shape)

        def both(theta: Any) -> Any:
            return jax.pure_callback(host, shapes, theta, vmap_method="broadcast_all")

        @jax.custom_vjp  # type: ignore[untyped-decorator]
        def potential(theta: Any) -> Any:
            return both(theta)[0]

        potential.defvjp(both, lambda gradient, weight: (weight * gradient,))
        # jax's switch is global: its context manager does not reach into callbacks.
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", dtype == np.float64)
        try:
            kernel = infer.NUTS(
                potential_fn=potential, target_accept_prob=self.target_acceptance, max_tree_depth=self.max_tree_depth
            )
            chains = infer.MCMC(
                kernel,
                num_warmup=self.num_warmup,
                num_samples=self.num_draws,
                num_chains=self.num_chains,
                chain_method="vectorized",
                progress_bar=progress,
            )
            first = jax.numpy.asarray(start.cpu().numpy())
            chains.run(
                jax.random.PRNGKey(seed), init_params=first if self.num_chains > 1 else first[0], extra_fields=_FIELDS
            )
            found = np.array(chains.get_samples(group_by_chain=True))
            fields = {name: np.array(value) for name, value in chains.get_extra_fields(group_by_chain=True).items()}
        finally:
            jax.config.update("jax_enable_x64", before)
        return torch.as_tensor(found).to(start), {name: torch.as_tensor(value) for name, value in fields.items()}
