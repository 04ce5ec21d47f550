"""ChEES-HMC: Hamiltonian Monte Carlo with all chains as one tensor; the state from which they continue."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.fusion.adaptation import (
    DualAveraging,
    LengthState,
    RunningMoments,
    chees_gradient,
    init_averaging,
    init_length,
    init_moments,
    metric_scale,
    metric_windows,
    update_averaging,
    update_length,
    update_moments,
    van_der_corput,
)
from gp_ensembles.papers.fusion.diagnostics import mean_ess
from gp_ensembles.papers.fusion.leapfrog import (
    LogDensity,
    Points,
    evaluate,
    generator_states,
    kinetic,
    leapfrog,
    log_acceptance,
    reasonable_step,
    refresh,
    restored_generators,
)

# Chains that the ChEES criterion needs; an energy error above this is a divergence (as in Stan).
_FEWEST, _LOST = 4, 1000.0
# Share of divergent transitions from which a warning is given.
_TOLERATED = 0.01
# Acceptance of a chain that does not move; effective draws of a chain, of at least a hundred, that are too few.
_STILL, _FEW, _MANY = 0.01, 3.0, 100
# Leapfrog steps of the longest trajectory while no metric is known.
_FIRST_STEPS = 10.0


@final
@dataclass(frozen=True)
class HMCSettings:
    """Settings of :func:`sample_hmc`.

    Args:
        num_draws: Draws of each chain after the warm-up.
        num_warmup: Transitions in which step size, trajectory length and metric are adapted; discarded. ``HMC`` makes
            half as many before these where hyperparameters are sampled and all searches end at one mode.
        target_acceptance: Target of the harmonic mean of the chains' acceptance probabilities.
        first_length: Longest trajectory when the first metric is known, in its units (a standard normal has a period of
            2π); the lower bound is half of it. With fewer than four chains it stays.
        max_steps: Leapfrog steps of one trajectory at most.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> HMCSettings(num_draws=100, num_warmup=100).target_acceptance
        0.75
    """

    num_draws: int = 500
    num_warmup: int = 500
    target_acceptance: float = 0.75
    first_length: float = math.pi
    max_steps: int = 256

    def __post_init__(self) -> None:
        if self.num_draws < 0 or self.num_warmup < 0 or self.max_steps < 1:
            raise ValueError("num_draws and num_warmup must not be negative, and max_steps must be at least 1")
        if not 0.0 < self.target_acceptance < 1.0:
            raise ValueError(f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}")
        if not 0.0 < self.first_length < math.inf:
            raise ValueError(f"first_length must be positive and finite, got {self.first_length}")


class ChainState(NamedTuple):
    """State of C chains in D dimensions between two transitions, from which sampling continues."""

    points: Points
    scale: Tensor  # standard deviations s of the metric diag(1/s²), shape (D,)
    moments: RunningMoments  # of the draws since the last metric
    averaging: DualAveraging
    length: LengthState
    iteration: int  # transitions made, warm-up included
    generators: Tensor  # states of the chains' random number generators, bytes, shape (C, n)
    factor: Tensor | None = None  # F of a metric whose inverse is F diag(s²) F', shape (D, D)

    @property
    def step(self) -> float:
        """Step size after the warm-up, the average of the adapted ones."""
        return math.exp(self.averaging.log_average)

    @property
    def longest(self) -> float:
        """Longest trajectory after the warm-up, the average of the adapted ones."""
        return math.exp(self.length.log_average)


class Chains(NamedTuple):
    """Draws of C chains after the warm-up, S of each, in D dimensions."""

    theta: Tensor  # shape (C, S, D)
    log_density: Tensor  # shape (C, S), as all below
    acceptance: Tensor  # probabilities with which the proposals were accepted
    accepted: Tensor
    divergent: Tensor  # whether the energy error exceeded 1000 or was not finite
    energy: Tensor  # of the draws and their momenta
    num_steps: Tensor  # leapfrog steps (gradients) of each transition, shape (S,)
    state: ChainState  # from which ``sample_hmc`` continues

    def energy_bfmi(self) -> Tensor:
        """Energy Bayesian fraction of missing information of every chain, shape (C,)."""
        if self.energy.shape[1] < 2:
            return self.energy.new_full((len(self.energy),), torch.nan)
        spread = (self.energy - self.energy.mean(1, keepdim=True)).square().sum(1)
        return self.energy.diff(dim=1).square().sum(1) / torch.where(spread > 0.0, spread, torch.nan)

    def join(self, later: "Chains") -> "Chains":
        """These draws followed by those of a run that continued from ``state``."""
        pairs = list(zip(self[:6], later[:6], strict=True))
        joined = [torch.cat(pair, dim=1) for pair in pairs]
        return Chains(*joined, torch.cat([self.num_steps, later.num_steps]), later.state)  # type: ignore[call-arg, arg-type]


def sample_hmc(
    log_density: LogDensity,
    start: Tensor | ChainState,
    settings: HMCSettings | None = None,
    factor: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Chains:
    """Draw from a density by Hamiltonian Monte Carlo with many chains that move together.

    Shapes: ``start`` (C, D), ``factor`` (D, D).

    Raises:
        ValueError: If the log density cannot be used where the chains start.
    """
    settings = HMCSettings() if settings is None else settings
    state = start if isinstance(start, ChainState) else init_chains(log_density, start, factor, generator=generator)
    run = _Run(log_density, settings, state)
    left = max(settings.num_warmup + settings.num_draws - state.iteration, 0)
    try:
        with torch.no_grad(), tqdm(total=left, desc="chains", unit="transition", disable=not progress) as bar:
            for _ in range(left):
                run.advance()
                bar.set_postfix_str(run.summary(), refresh=False)
                bar.update()
    except KeyboardInterrupt:
        made = max(run.state.iteration - settings.num_warmup, 0)
        warn_caller(
            f"interrupted after {run.state.iteration} transitions, {made} of them after the warm-up; pass the "
            "state of the draws as start to continue"
        )
    draws = run.draws()
    for caution in _cautions(draws):
        warn_caller(caution)
    return draws


def _typical_acceptance(acceptance: Tensor) -> float:
    """Harmonic mean of the chains' acceptances; up to one chain in eight that does not move is left out."""
    ordered = acceptance.sort().values
    still = int((ordered < _STILL).sum().clamp(max=len(ordered) // 8))
    return float(ordered[still:].reciprocal().mean().reciprocal())


def _cautions(draws: Chains) -> list[str]:
    """Problems of the draws, one sentence for each."""
    if draws.theta.shape[1] == 0:
        return []
    moved = (draws.theta != draws.theta[:, :1]).flatten(1).any(1) | (draws.theta.shape[1] == 1)
    stuck = (~moved).nonzero().squeeze(-1).tolist()
    share = float(draws.divergent.double().mean())
    cautions = []
    if stuck:
        cautions.append(
            f"chains {stuck} did not move, so that their draws repeat one point; start them elsewhere or leave them out"
        )
    slow = []
    if draws.theta.shape[1] >= _MANY:
        effective = torch.stack([mean_ess(chain.unsqueeze(0)) for chain in draws.log_density])
        slow = [chain for chain in (effective < _FEW).nonzero().squeeze(-1).tolist() if chain not in stuck]
    if slow:
        cautions.append(
            f"chains {slow} mix slowly, fewer than {_FEW:.0f} effective draws each, step {draws.state.step:.2g}: "
            "warm up longer, start elsewhere, or reparametrize where the density has walls or funnels"
        )
    if share > _TOLERATED:
        chains = int(draws.divergent.any(1).sum())
        cautions.append(
            f"{share:.0%} of the transitions, in {chains} of {len(draws.theta)} chains, diverged: the draws miss the "
            "sharpest parts of the density; raise the target acceptance, warm up longer or reparametrize"
        )
    return cautions


class _Run:
    """A run under way: the state after the last whole transition, and the draws so far."""

    def __init__(self, log_density: LogDensity, settings: HMCSettings, state: ChainState) -> None:
        self.log_density = log_density
        self.settings = settings
        self.state = state
        theta = state.points.theta
        self.generators = restored_generators(state.generators, theta.device)
        chains, size = theta.shape
        self.first = max(state.iteration, settings.num_warmup)
        room = max(settings.num_warmup + settings.num_draws - self.first, 0)
        self.theta = theta.new_empty((chains, room, size))
        self.numbers = theta.new_empty((3, chains, room))  # log densities, acceptances, energies
        self.marks = theta.new_empty((2, chains, room), dtype=torch.bool)  # accepted, divergent
        self.num_steps: list[int] = []
        self.windows = metric_windows(settings.num_warmup)
        # Of whitened coordinates the best length is known; others may have been overrated by as much as half.
        self.least = 0.5 if state.factor is None else 1.0
        self.inverse = None if state.factor is None else torch.linalg.inv(state.factor)

    def advance(self) -> None:
        """One transition of all chains; after an exception the state is unchanged."""
        state, settings = self.state, self.settings
        warming = state.iteration < settings.num_warmup
        step = math.exp(state.averaging.log_step) if warming else state.step
        longest = math.exp(state.length.log_length) if warming else state.longest
        momentum, log_uniform = refresh(self.generators, state.points.theta)
        traveled = van_der_corput(state.iteration + 1) * longest
        num_steps = min(max(math.ceil(traveled / step), 1), settings.max_steps)
        end, last = leapfrog(self.log_density, state.points, momentum, step * state.scale, num_steps, state.factor)
        log_ratio = log_acceptance(state.points, momentum, end, last)
        accepted, acceptance = log_uniform < log_ratio, log_ratio.clamp(max=0.0).exp()
        points = end.where(accepted, state.points)
        changed = state._replace(points=points, iteration=state.iteration + 1)
        if warming:
            averaging = update_averaging(state.averaging, _typical_acceptance(acceptance), settings.target_acceptance)
            length = self._length(end, last, acceptance, step, num_steps)
            changed = self._with_metric(changed._replace(averaging=averaging, length=length))
        changed = changed._replace(generators=generator_states(self.generators))
        if not warming:
            at = state.iteration - self.first
            before = kinetic(momentum) - state.points.log_density
            energy = torch.where(accepted, kinetic(last) - end.log_density, before)
            self.theta[:, at] = points.theta
            for row, value in zip(self.numbers, (points.log_density, acceptance, energy), strict=True):
                row[:, at] = value
            for row, mark in zip(self.marks, (accepted, log_ratio < -_LOST), strict=True):
                row[:, at] = mark
            self.num_steps[at:] = [num_steps]
        self.state = changed

    def _length(self, end: Points, momentum: Tensor, acceptance: Tensor, step: float, num_steps: int) -> LengthState:
        """Adaptation of the longest trajectory by those that end here; as it was with too few chains."""
        state = self.state
        if len(acceptance) < _FEWEST:
            return state.length
        before, after = (self._whiten(some.theta) / state.scale for some in (state.points, end))
        derivative = chees_gradient(before, after, momentum, acceptance, num_steps * step)
        measured = bool(self.windows) and state.iteration >= self.windows[0][1]
        shortest = max(step, self.least * self.settings.first_length) if measured else step
        return update_length(state.length, derivative, shortest=shortest, longest=self.settings.max_steps * step)

    def _with_metric(self, state: ChainState) -> ChainState:
        """Moments with the newest draw; at the end of a window a new metric, and step size and length start again."""
        inside = [
            (number, window) for number, window in enumerate(self.windows) if window[0] < state.iteration <= window[1]
        ]
        if not inside:
            return state
        number, (_, end) = inside[0]
        gradient = state.points.gradient if state.factor is None else state.points.gradient @ state.factor
        moments = update_moments(state.moments, self._whiten(state.points.theta), gradient)
        if state.iteration < end:
            return state._replace(moments=moments)
        scale = metric_scale(moments, state.scale)
        momentum, _ = refresh(self.generators, state.points.theta)
        guess = math.exp(state.averaging.log_step)
        step = reasonable_step(self.log_density, state.points, momentum, scale, guess, state.factor)
        longest = self.settings.first_length
        if len(momentum) >= _FEWEST and number > 0:
            # In new units the slowest coordinate is shorter by as much as its scale had been underrated.
            longest = max(longest, state.longest / float((scale / state.scale).amax()))
        return state._replace(
            scale=scale,
            moments=init_moments(state.points.theta),
            averaging=init_averaging(step),
            length=init_length(longest),
        )

    def _whiten(self, theta: Tensor) -> Tensor:
        """Positions in the coordinates of the factor."""
        return theta if self.inverse is None else theta @ self.inverse.mT

    def summary(self) -> str:
        """Step size and trajectory length, for the progress bar."""
        state = self.state
        return f"step {state.step:.3g}, longest {state.longest / state.step:.0f} steps"

    def draws(self) -> Chains:
        """The draws so far."""
        made = max(self.state.iteration - self.first, 0)
        log_density, acceptance, energy = self.numbers[:, :, :made]
        accepted, divergent = self.marks[:, :, :made]
        steps = torch.tensor(self.num_steps[:made], dtype=torch.int64, device=self.theta.device)
        return Chains(
            self.theta[:, :made], log_density, acceptance, accepted, divergent, energy, steps, self.state
        )  # fmt: skip


def init_chains(
    log_density: LogDensity, theta: Tensor, factor: Tensor | None = None, *, generator: torch.Generator | None = None
) -> ChainState:
    """The state before the first transition. Shapes: ``theta`` (C, D)."""
    points = _checked_start(log_density, theta)
    size = theta.shape[1]
    if factor is not None and (factor.shape != (size, size) or not bool(factor.isfinite().all())):
        raise ValueError(f"the factor of the metric must be finite, of shape {(size, size)}, got {tuple(factor.shape)}")
    scale = torch.ones_like(theta[0])
    seeds = torch.randint(2**62, (len(theta),), generator=generator, device=generator_device(generator)).tolist()
    generators = [torch.Generator(theta.device).manual_seed(seed) for seed in seeds]
    momentum, _ = refresh(generators, theta)
    step = reasonable_step(log_density, points, momentum, scale, 0.1, factor)
    return ChainState(
        points,
        scale,
        init_moments(points.theta),
        init_averaging(step),
        init_length(_FIRST_STEPS * step),
        0,
        generator_states(generators),
        factor,
    )


def _checked_start(log_density: LogDensity, theta: Tensor) -> Points:
    if theta.ndim != 2 or not theta.is_floating_point() or 0 in theta.shape:
        raise ValueError(
            f"chains need a floating-point start of shape (chains, parameters), got {tuple(theta.shape)} {theta.dtype}"
        )
    with torch.enable_grad():
        value = log_density(theta.detach().clone().requires_grad_())
    if value.shape != theta.shape[:1]:
        raise ValueError(
            f"the log density must map shape {tuple(theta.shape)} to {tuple(theta.shape[:1])}, one number for each "
            f"chain, but gave {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise ValueError("the log density has no gradient: it must depend on the parameters, by torch operations")
    points = evaluate(log_density, theta.detach().clone())
    finite = points.theta.isfinite().all(-1) & points.log_density.isfinite() & points.gradient.isfinite().all(-1)
    if not bool(finite.all()):
        bad = (~finite).nonzero().squeeze(-1).tolist()
        raise ValueError(
            f"the log density or its gradient is not finite where chains {bad} start; start them elsewhere, for "
            "instance at modes or at smaller values"
        )
    return points
