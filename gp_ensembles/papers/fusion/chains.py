"""Chains of Hamiltonian Monte Carlo: the state from which they continue, and their draws."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.papers.fusion.adaptation import (
    DualAveraging,
    LengthState,
    RunningMoments,
    init_averaging,
    init_length,
    init_moments,
)
from gp_ensembles.papers.fusion.leapfrog import LogDensity, Points, evaluate, generator_states, reasonable_step, refresh

# Leapfrog steps of the longest trajectory while no metric is known.
_FIRST_STEPS = 10.0


class ChainState(NamedTuple):
    """State of all chains between two transitions, from which sampling continues.

    Args:
        points: Positions of C chains in D dimensions, their log densities and gradients.
        scale: Standard deviations s of the metric diag(1/s²), shape (D,).
        moments: Of the draws since the last metric.
        averaging: Adaptation of the step size.
        length: Adaptation of the longest trajectory.
        iteration: Transitions made, warm-up included.
        generators: States of the chains' random number generators, bytes, shape (C, n).
        factor: Factor F of the metric, whose inverse is F diag(s²) F', shape (D, D); ``None`` for the identity.
    """

    points: Points
    scale: Tensor
    moments: RunningMoments
    averaging: DualAveraging
    length: LengthState
    iteration: int
    generators: Tensor
    factor: Tensor | None = None

    @property
    def step(self) -> float:
        """Step size after the warm-up, the average of the adapted ones."""
        return math.exp(self.averaging.log_average)

    @property
    def longest(self) -> float:
        """Longest trajectory after the warm-up, the average of the adapted ones."""
        return math.exp(self.length.log_average)

    def to_content(self) -> dict[str, Any]:
        """Tensors and plain containers, for a file."""
        return self._asdict() | {
            "points": self.points._asdict(),
            "moments": self.moments._asdict(),
            "averaging": self.averaging._asdict(),
            "length": self.length._asdict(),
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "ChainState":
        """The state that ``to_content`` wrote.

        Raises:
            KeyError: If a part is missing.
            TypeError: If a part is incomplete.
        """
        return cls(
            Points(**content["points"]),
            content["scale"],
            RunningMoments(**content["moments"]),
            DualAveraging(**content["averaging"]),
            LengthState(**content["length"]),
            content["iteration"],
            content["generators"].cpu(),
            content["factor"],
        )


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
        state: State from which ``sample_hmc`` continues; holds the step size, the longest trajectory and the metric.
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
        """Energy Bayesian fraction of missing information of every chain, shape (C,)."""
        if self.energy.shape[1] < 2:
            return self.energy.new_full((len(self.energy),), torch.nan)
        spread = (self.energy - self.energy.mean(1, keepdim=True)).square().sum(1)
        return self.energy.diff(dim=1).square().sum(1) / torch.where(spread > 0.0, spread, torch.nan)

    def join(self, later: "Chains") -> "Chains":
        """These draws followed by those of a run that went on from ``state``."""
        pairs = list(zip(self[:6], later[:6], strict=True))
        joined = [torch.cat(pair, dim=1) for pair in pairs]
        return Chains(*joined, torch.cat([self.num_steps, later.num_steps]), later.state)  # type: ignore[call-arg, arg-type]


def init_chains(
    log_density: LogDensity, theta: Tensor, factor: Tensor | None = None, *, generator: torch.Generator | None = None
) -> ChainState:
    """The state before the first transition. Shapes: ``theta`` (C, D).

    Raises:
        ValueError: If the positions, the log densities there or the factor cannot be used.
    """
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
