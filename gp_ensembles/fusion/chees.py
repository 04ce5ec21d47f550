"""Hamiltonian Monte Carlo with all chains as one tensor, trajectory lengths by the ChEES criterion."""

import math
import warnings
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.fusion.chain_state import ChainState, generator_states, initial_state, refresh, restored_generators
from gp_ensembles.fusion.diagnostics import mean_ess
from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.dual_averaging import start_averaging, update_averaging
from gp_ensembles.fusion.leapfrog import LogDensity, kinetic, leapfrog, log_acceptance, reasonable_step
from gp_ensembles.fusion.metric import metric_scale, metric_windows, start_moments, update_moments
from gp_ensembles.fusion.trajectory_length import (
    ChEES,
    FixedLength,
    chees_gradient,
    start_length,
    update_length,
    van_der_corput,
)

# Chains that the ChEES criterion needs; an energy lost by more than this is a divergence (as in Stan).
_FEWEST, _LOST = 4, 1000.0
# Share of divergent transitions from which a warning is given.
_TOLERATED = 0.01
# Acceptance of a chain that stands still; effective draws of a chain, out of a hundred at least, that are too few.
_STILL, _FEW, _MANY = 0.01, 3.0, 100


@final
@dataclass(frozen=True)
class Settings:
    """How to sample.

    Args:
        num_draws: Draws of each chain after the warm-up.
        num_warmup: Transitions in which step size, trajectory length and metric are adapted; thrown away.
        target: Harmonic mean of the chains' acceptance probabilities that the step size aims at.
        trajectory: ``ChEES()`` adapts the length of trajectories, ``FixedLength(...)`` does not.
        max_steps: Leapfrog steps of one trajectory at most.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> Settings(num_draws=100, num_warmup=100).target
        0.75
    """

    num_draws: int = 500
    num_warmup: int = 500
    target: float = 0.75
    trajectory: ChEES | FixedLength = field(default_factory=ChEES)
    max_steps: int = 256

    def __post_init__(self) -> None:
        if self.num_draws < 0 or self.num_warmup < 0 or self.max_steps < 1:
            raise ValueError("numbers of draws and of warm-up transitions cannot be negative, nor max_steps below one")
        if not 0.0 < self.target < 1.0:
            raise ValueError(f"the acceptance to aim at lies between 0 and 1, got {self.target}")


def sample(
    log_density: LogDensity,
    start: Tensor | ChainState,
    settings: Settings | None = None,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Draws:
    """Draw from a density by Hamiltonian Monte Carlo with many chains that move together.

    All chains take the same number of leapfrog steps, so that a gradient for all of them is one backward pass. The
    longest trajectory climbs the ChEES criterion for each unit of time and each transition travels a part of it from
    Halton's sequence (after Hoffman, Radul and Sountsov, 2021); the step size follows the harmonic mean of the
    acceptances by dual averaging; the metric is diagonal, from variances within chains, because differences between
    chains may be different modes.
    Chains in different modes do not mix: look at ``rank_rhat`` of quantities that do not depend on labels.

    Log densities may be NaN or infinite away from the start: such proposals are rejected and counted as divergent.
    Ctrl-C ends the run with a warning and the draws so far; ``draws.state`` as ``start`` goes on exactly.

    Args:
        log_density: From positions, shape (C, D), to log densities up to a constant, shape (C,), differentiable.
        start: Where the C chains start, shape (C, D); or a state from which a run goes on until it has made
            ``num_warmup + num_draws`` transitions in all, of which the draws still missing are returned.
        settings: How to sample.
        generator: Seeds one generator for each chain; not used by a state, which has its own.
        progress: Whether to show a progress bar.

    Returns:
        Draws after the warm-up, with diagnostics and the final state.

    Raises:
        ValueError: If the log density cannot be used where the chains start.

    Example:
        >>> import torch
        >>> start = torch.zeros(8, 2, dtype=torch.float64)
        >>> generator = torch.Generator().manual_seed(1)
        >>> draws = sample(
        ...     lambda theta: -0.5 * (theta - 3.0).square().sum(-1),
        ...     start, Settings(100, 100), generator=generator, progress=False,
        ... )
        >>> bool((draws.flatten().mean(0) - 3.0).abs().max() < 0.2)
        True
    """
    settings = Settings() if settings is None else settings
    state = start if isinstance(start, ChainState) else initial_state(log_density, start, generator=generator)
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
        warnings.warn(
            f"interrupted after {run.state.iteration} transitions, {made} of them after the warm-up; pass the "
            "state of the draws as start to go on",
            stacklevel=2,
        )
    draws = run.draws()
    for complaint in _complaints(draws):
        warnings.warn(complaint, stacklevel=2)
    return draws


def _typical_acceptance(acceptance: Tensor) -> float:
    """Harmonic mean of the chains' acceptances; one chain in eight may stand still without freezing all others."""
    ordered = acceptance.sort().values
    still = int((ordered < _STILL).sum().clamp(max=len(ordered) // 8))
    return float(ordered[still:].reciprocal().mean().reciprocal())


def _complaints(draws: Draws) -> list[str]:
    """What a user should know about draws before believing them."""
    if draws.theta.shape[1] == 0:
        return []
    moved = (draws.theta != draws.theta[:, :1]).flatten(1).any(1) | (draws.theta.shape[1] == 1)
    stuck = (~moved).nonzero().squeeze(-1).tolist()
    share = float(draws.divergent.double().mean())
    complaints = []
    if stuck:
        complaints.append(
            f"chains {stuck} did not move, so that their draws repeat one point; start them elsewhere or leave them out"
        )
    slow = []
    if draws.theta.shape[1] >= _MANY:
        traveled = torch.stack([mean_ess(chain.unsqueeze(0)) for chain in draws.log_density])
        slow = [chain for chain in (traveled < _FEW).nonzero().squeeze(-1).tolist() if chain not in stuck]
    if slow:
        complaints.append(
            f"chains {slow} hardly traveled, less than {_FEW:.0f} effective draws each, step {draws.state.step:.2g}: "
            "warm up longer, start elsewhere, or reparametrize where the density has walls or funnels"
        )
    if share > _TOLERATED:
        chains = int(draws.divergent.any(1).sum())
        complaints.append(
            f"{share:.0%} of the transitions, in {chains} of {len(draws.theta)} chains, diverged: the draws miss the "
            "sharpest parts of the density; raise the target acceptance, warm up longer or reparametrize"
        )
    return complaints


class _Run:
    """A run in the making: the state after the last whole transition, and records of what came before."""

    def __init__(self, log_density: LogDensity, settings: Settings, state: ChainState) -> None:
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
        self.chees = settings.trajectory if isinstance(settings.trajectory, ChEES) and chains >= _FEWEST else None
        trajectory = settings.trajectory
        self.first_length = trajectory.start if isinstance(trajectory, ChEES) else trajectory.length

    def advance(self) -> None:
        """One transition of all chains; on an exception the state is that of before."""
        state, settings = self.state, self.settings
        warming = state.iteration < settings.num_warmup
        step = math.exp(state.averaging.log_step) if warming else state.step
        longest = math.exp(state.length.log_length) if warming else state.longest
        traveled = van_der_corput(state.iteration + 1) * longest
        num_steps = min(max(math.ceil(traveled / step), 1), settings.max_steps)
        momentum, log_uniform = refresh(self.generators, state.points.theta)
        end = leapfrog(self.log_density, state.points, momentum, step * state.scale, num_steps)
        log_ratio = log_acceptance(state.points, momentum, end)
        acceptance = log_ratio.clamp(max=0.0).exp()
        accepted = log_uniform < log_ratio
        points = end.points.where(accepted, state.points)
        before = kinetic(momentum) - state.points.log_density
        energy = torch.where(accepted, kinetic(end.momentum) - end.points.log_density, before)
        changed = state._replace(points=points, iteration=state.iteration + 1)
        if warming:
            averaging = update_averaging(state.averaging, _typical_acceptance(acceptance), settings.target)
            length = state.length
            if self.chees is not None:
                before, after = state.points.theta / state.scale, end.points.theta / state.scale
                derivative = chees_gradient(before, after, end.momentum, acceptance, num_steps * step)
                measured = bool(self.windows) and state.iteration >= self.windows[0][1]
                shortest = max(step, 0.5 * self.first_length) if measured else step
                length = update_length(
                    length, derivative, self.chees.rate, shortest=shortest, longest=settings.max_steps * step
                )
            changed = self._with_metric(changed._replace(averaging=averaging, length=length))
        changed = changed._replace(generators=generator_states(self.generators))
        if not warming:
            at = state.iteration - self.first
            self.theta[:, at] = points.theta
            for row, value in zip(self.numbers, (points.log_density, acceptance, energy), strict=True):
                row[:, at] = value
            for row, mark in zip(self.marks, (accepted, log_ratio < -_LOST), strict=True):
                row[:, at] = mark
            self.num_steps[at:] = [num_steps]
        self.state = changed

    def _with_metric(self, state: ChainState) -> ChainState:
        """Moments with the newest draw; at the end of a window a new metric, and step size and length start again."""
        inside = [
            (number, window) for number, window in enumerate(self.windows) if window[0] < state.iteration <= window[1]
        ]
        if not inside:
            return state
        number, (_, end) = inside[0]
        moments = update_moments(state.moments, state.points.theta, state.points.gradient)
        if state.iteration < end:
            return state._replace(moments=moments)
        scale = metric_scale(moments, state.scale)
        momentum, _ = refresh(self.generators, state.points.theta)
        guess = math.exp(state.averaging.log_step)
        step = reasonable_step(self.log_density, state.points, momentum, scale, guess)
        longest = self.first_length
        if self.chees is not None and number > 0:
            # In new units the slowest coordinate is shorter by as much as its scale had been underrated.
            longest = max(longest, state.longest / float((scale / state.scale).amax()))
        return state._replace(
            scale=scale,
            moments=start_moments(state.points.theta),
            averaging=start_averaging(step),
            length=start_length(longest),
        )

    def summary(self) -> str:
        """Where the adaptation stands, for the progress bar."""
        state = self.state
        return f"step {state.step:.3g}, longest {state.longest / state.step:.0f} steps"

    def draws(self) -> Draws:
        """What was recorded."""
        made = max(self.state.iteration - self.first, 0)
        log_density, acceptance, energy = self.numbers[:, :, :made]
        accepted, divergent = self.marks[:, :, :made]
        steps = torch.tensor(self.num_steps[:made], dtype=torch.int64, device=self.theta.device)
        return Draws(
            self.theta[:, :made], log_density, acceptance, accepted, divergent, energy, steps, self.state
        )  # fmt: skip
