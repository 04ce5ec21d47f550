"""ChEES-HMC: Hamiltonian Monte Carlo with all chains as one tensor; its settings, state and draws."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.fusion.adaptation import (
    ChEES,
    DualAveraging,
    FixedLength,
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
from gp_ensembles.fusion.diagnostics import mean_ess
from gp_ensembles.fusion.leapfrog import (
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

# Leapfrog steps of the longest trajectory while no metric is known.
_FIRST_STEPS = 10.0
# Chains that the ChEES criterion needs; an energy error above this is a divergence (as in Stan).
_FEWEST, _LOST = 4, 1000.0
# Share of divergent transitions from which a warning is given.
_TOLERATED = 0.01
# Acceptance of a chain that does not move; effective draws of a chain, of at least a hundred, that are too few.
_STILL, _FEW, _MANY = 0.01, 3.0, 100


@final
@dataclass(frozen=True)
class HMCSettings:
    """Settings of :func:`sample_hmc`.

    Args:
        num_draws: Draws of each chain after the warm-up.
        num_warmup: Transitions in which step size, trajectory length and metric are adapted; discarded.
        target_acceptance: Target of the harmonic mean of the chains' acceptance probabilities.
        trajectory: ``ChEES()`` adapts the length of trajectories, ``FixedLength(...)`` does not.
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
    trajectory: ChEES | FixedLength = field(default_factory=ChEES)
    max_steps: int = 256

    def __post_init__(self) -> None:
        if self.num_draws < 0 or self.num_warmup < 0 or self.max_steps < 1:
            raise ValueError("num_draws and num_warmup must not be negative, and max_steps must be at least 1")
        if not 0.0 < self.target_acceptance < 1.0:
            raise ValueError(f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}")


class ChainState(NamedTuple):
    """State of all chains between two transitions, from which sampling goes on.

    Args:
        points: Positions of C chains in D dimensions, their log densities and gradients.
        scale: Standard deviations s of the metric diag(1/s²), shape (D,).
        moments: Of the draws since the last metric.
        averaging: Adaptation of the step size.
        length: Adaptation of the longest trajectory.
        iteration: Transitions made, warm-up included.
        generators: States of the chains' random number generators, bytes, shape (C, n).

    Example:
        >>> import torch
        >>> theta = torch.zeros(4, 2, dtype=torch.float64)
        >>> state = init_chains(lambda theta: -theta.square().sum(-1), theta, generator=torch.Generator())
        >>> saved = state.to_tensors()
        >>> ChainState.from_tensors(saved).iteration
        0
    """

    points: Points
    scale: Tensor
    moments: RunningMoments
    averaging: DualAveraging
    length: LengthState
    iteration: int
    generators: Tensor

    @property
    def step(self) -> float:
        """Step size after the warm-up, the average of the adapted ones."""
        return math.exp(self.averaging.log_average)

    @property
    def longest(self) -> float:
        """Longest trajectory after the warm-up, the average of the adapted ones."""
        return math.exp(self.length.log_average)

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary of tensors, for ``torch.save`` or safetensors; floats are kept to the last bit."""
        tensors = {"scale": self.scale, "generators": self.generators, "iteration": _number(self.iteration)}
        for name, part in self._parts().items():
            for key, value in part._asdict().items():
                tensors[f"{name}.{key}"] = value if isinstance(value, Tensor) else _number(value)
        return tensors

    def _parts(self) -> dict[str, Points | RunningMoments | DualAveraging | LengthState]:
        return {"points": self.points, "moments": self.moments, "averaging": self.averaging, "length": self.length}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ChainState":
        """The state that ``to_tensors`` wrote.

        Raises:
            ValueError: If something is missing.
        """
        try:
            return cls(
                Points(*(tensors[f"points.{key}"] for key in Points._fields)),
                tensors["scale"],
                RunningMoments(
                    *(tensors[f"moments.{key}"] for key in RunningMoments._fields[:-1]),  # type: ignore[arg-type]
                    num_draws=int(tensors["moments.num_draws"]),  # type: ignore[misc]
                ),
                DualAveraging(*(_value(tensors[f"averaging.{key}"]) for key in DualAveraging._fields)),
                LengthState(*(_value(tensors[f"length.{key}"]) for key in LengthState._fields)),
                int(tensors["iteration"]),
                tensors["generators"].cpu(),
            )
        except KeyError as error:
            raise ValueError(f"these are not the tensors of a ChainState: {error} is missing") from error


class Chains(NamedTuple):
    """Draws of C chains after the warm-up, S of each, in D dimensions.

    Args:
        theta: Draws, shape (C, S, D).
        log_density: Their log densities, shape (C, S).
        acceptance: Probabilities with which the proposals were accepted, shape (C, S).
        accepted: Whether they were, shape (C, S).
        divergent: Whether the energy error exceeded 1000 or was not finite, shape (C, S).
        energy: Energies of the draws and their momenta, shape (C, S).
        num_steps: Leapfrog steps (gradients) of each transition, shape (S,).
        state: State from which ``sample_hmc`` goes on; holds the step size, the longest trajectory and the metric.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.chees import HMCSettings, sample_hmc
        >>> start = torch.zeros(4, 1, dtype=torch.float64)
        >>> generator = torch.Generator().manual_seed(0)
        >>> draws = sample_hmc(
        ...     lambda theta: -0.5 * theta.square().sum(-1),
        ...     start, HMCSettings(50, 20), generator=generator,
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

    def join(self, later: "Chains") -> "Chains":
        """These draws followed by those of a run that went on from ``state``."""
        pairs = list(zip(self[:6], later[:6], strict=True))
        joined = [torch.cat(pair, dim=1) for pair in pairs]
        return Chains(*joined, torch.cat([self.num_steps, later.num_steps]), later.state)  # type: ignore[call-arg, arg-type]


def init_chains(log_density: LogDensity, theta: Tensor, *, generator: torch.Generator | None = None) -> ChainState:
    """The state before the first transition.

    Every chain gets a generator of its own, seeded from the given one, on the device of the positions: what a chain
    draws does not depend on the other chains.

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,).
        theta: Where the C chains start, shape (C, D), floating point and finite.
        generator: Seeds the chains.

    Raises:
        ValueError: If the positions or the log densities there cannot be used.

    Example:
        >>> import torch
        >>> theta = torch.zeros(4, 2, dtype=torch.float64)
        >>> state = init_chains(lambda theta: -theta.square().sum(-1), theta, generator=torch.Generator())
        >>> state.points.log_density
        tensor([-0., -0., -0., -0.], dtype=torch.float64)
    """
    points = _checked_start(log_density, theta)
    scale = torch.ones_like(theta[0])
    seeds_device = "cpu" if generator is None else generator.device
    seeds = torch.randint(2**62, (len(theta),), generator=generator, device=seeds_device).tolist()
    generators = [torch.Generator(theta.device).manual_seed(seed) for seed in seeds]
    momentum, _ = refresh(generators, theta)
    step = reasonable_step(log_density, points, momentum, scale, 0.1)
    return ChainState(
        points,
        scale,
        init_moments(points.theta),
        init_averaging(step),
        init_length(_FIRST_STEPS * step),
        0,
        generator_states(generators),
    )


def sample_hmc(
    log_density: LogDensity,
    start: Tensor | ChainState,
    settings: HMCSettings | None = None,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Chains:
    """Draw from a density by Hamiltonian Monte Carlo with many chains that move together.

    All chains take the same number of leapfrog steps, so that a gradient for all of them is one backward pass. The
    longest trajectory is adapted by the ChEES criterion per unit of time, and each transition has a part of that length
    from Halton's sequence (after Hoffman, Radul and Sountsov, 2021); the step size follows the harmonic mean of the
    acceptances by dual averaging; the metric is diagonal, from variances within chains, because differences between
    chains may be different modes.
    Chains in different modes do not mix: look at ``rank_rhat`` of quantities that do not depend on labels.

    Log densities may be NaN or infinite away from the start: such proposals are rejected and count as divergent.
    Ctrl-C ends the run with a warning and the draws so far; ``draws.state`` as ``start`` goes on exactly.

    Args:
        log_density: From positions, shape (C, D), to log densities up to a constant, shape (C,), differentiable.
        start: Where the C chains start, shape (C, D); or a state from which a run goes on until it has made
            ``num_warmup + num_draws`` transitions in all, of which the draws still missing are returned.
        settings: Numbers of draws and warm-up, adaptation.
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
        >>> draws = sample_hmc(
        ...     lambda theta: -0.5 * (theta - 3.0).square().sum(-1),
        ...     start, HMCSettings(100, 100), generator=generator,
        ... )
        >>> bool((draws.flatten().mean(0) - 3.0).abs().max() < 0.2)
        True
    """
    settings = HMCSettings() if settings is None else settings
    state = start if isinstance(start, ChainState) else init_chains(log_density, start, generator=generator)
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
    for caution in _cautions(draws):
        warnings.warn(caution, stacklevel=2)
    return draws


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64, device="cpu")


def _value(tensor: Tensor) -> Any:
    """The number that ``_number`` wrote: a float or an integer."""
    return tensor.item()


def _checked_start(log_density: LogDensity, theta: Tensor) -> Points:
    if theta.ndim != 2 or not theta.is_floating_point() or 0 in theta.shape:
        raise ValueError(
            f"chains start at a floating tensor of shape (chains, parameters), got {tuple(theta.shape)} {theta.dtype}"
        )
    with torch.enable_grad():
        value = log_density(theta.detach().clone().requires_grad_())
    if value.shape != theta.shape[:1]:
        raise ValueError(
            f"the log density must turn shape {tuple(theta.shape)} into {tuple(theta.shape[:1])}, one number for each "
            f"chain, but gave {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise ValueError("the log density does not depend on the parameters, or leaves torch, so it has no gradient")
    points = evaluate(log_density, theta.detach().clone())
    finite = points.theta.isfinite().all(-1) & points.log_density.isfinite() & points.gradient.isfinite().all(-1)
    if not bool(finite.all()):
        bad = (~finite).nonzero().squeeze(-1).tolist()
        raise ValueError(
            f"the log density or its gradient is not finite where chains {bad} start; start them elsewhere, for "
            "instance at modes or at smaller values"
        )
    return points


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
            f"chains {slow} mix slowly, less than {_FEW:.0f} effective draws each, step {draws.state.step:.2g}: "
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
        self.chees = settings.trajectory if isinstance(settings.trajectory, ChEES) and chains >= _FEWEST else None
        trajectory = settings.trajectory
        self.first_length = trajectory.start if isinstance(trajectory, ChEES) else trajectory.length

    def advance(self) -> None:
        """One transition of all chains; after an exception the state is unchanged."""
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
            averaging = update_averaging(state.averaging, _typical_acceptance(acceptance), settings.target_acceptance)
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
            moments=init_moments(state.points.theta),
            averaging=init_averaging(step),
            length=init_length(longest),
        )

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
