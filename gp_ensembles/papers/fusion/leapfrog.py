"""Hamiltonian trajectories of many chains at once, with a random number generator for each chain."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Most doublings or halvings of the first step size.
_MOST_DOUBLINGS = 30

LogDensity = Callable[[Tensor], Tensor]


class Points(NamedTuple):
    """Positions of C chains, shape (C, D), with log densities, shape (C,), and their gradients, shape (C, D)."""

    theta: Tensor
    log_density: Tensor
    gradient: Tensor

    def where(self, keep: Tensor, other: "Points") -> "Points":
        """These points where ``keep``, shape (C,), the others elsewhere."""
        rows = keep.unsqueeze(-1)
        return Points(
            torch.where(rows, self.theta, other.theta),
            torch.where(keep, self.log_density, other.log_density),
            torch.where(rows, self.gradient, other.gradient),
        )


def evaluate(log_density: LogDensity, theta: Tensor) -> Points:
    """Log densities of all chains and their gradients, by one backward pass through their sum.

    Shapes: ``theta`` (C, D).
    """
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = log_density(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return Points(leaf.detach(), value.detach(), gradient)


def leapfrog(
    log_density: LogDensity, start: Points, momentum: Tensor, step: Tensor, num_steps: int, factor: Tensor | None = None
) -> tuple[Points, Tensor]:
    """Ends of trajectories by the leapfrog method, in coordinates in which momenta are standard normal.

    Where a number of a chain was not finite its log density is minus infinity. Shapes: ``momentum`` (C, D), ``step``
    (D,), ``factor`` (D, D). Returns: the points and the momenta (C, D).
    """
    points = start
    alive = start.log_density.isfinite()
    q = torch.addcmul(momentum, _force(start, factor), 0.5 * step)
    for index in range(num_steps):
        moved = torch.addcmul(points.theta, q, step) if factor is None else points.theta + (q * step) @ factor.mT
        points = evaluate(log_density, torch.where(alive.unsqueeze(-1), moved, start.theta))
        alive = alive & points.log_density.isfinite() & points.gradient.sum(-1).isfinite()
        q = torch.addcmul(q, _force(points, factor), step if index < num_steps - 1 else 0.5 * step)
    return points._replace(log_density=torch.where(alive, points.log_density, -torch.inf)), q


def _force(points: Points, factor: Tensor | None) -> Tensor:
    """Gradients by the coordinates of the momenta, less the scales."""
    return points.gradient if factor is None else points.gradient @ factor


def kinetic(momentum: Tensor) -> Tensor:
    """Kinetic energies of standard normal momenta, shape (C, D), up to a constant; shape (C,)."""
    return 0.5 * momentum.square().sum(-1)


def log_acceptance(start: Points, momentum: Tensor, end: Points, end_momentum: Tensor) -> Tensor:
    """Log Metropolis ratios of trajectories, not capped at 0; -inf where a number was not finite; shape (C,)."""
    ratio = (end.log_density - start.log_density) - (kinetic(end_momentum) - kinetic(momentum))
    return torch.where(ratio.isnan(), -torch.inf, ratio)


def reasonable_step(
    log_density: LogDensity, start: Points, momentum: Tensor, scale: Tensor, step: float, factor: Tensor | None = None
) -> float:
    """A step size at which one leapfrog step is accepted about four times in five, by doubling and halving.

    Shapes: ``momentum`` (C, D), ``scale`` (D,).
    """

    def accepted(size: float) -> bool:
        end = leapfrog(log_density, start, momentum, size * scale, 1, factor)
        return bool(log_acceptance(start, momentum, *end).clamp(max=0.0).exp().mean() > 0.8)

    larger = accepted(step)
    for _ in range(_MOST_DOUBLINGS):
        proposed = 2.0 * step if larger else 0.5 * step
        if accepted(proposed) != larger:
            return step if larger else proposed
        step = proposed
    return step


def refresh(generators: Sequence[torch.Generator], like: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normal momenta, (C, D), and logs of uniform numbers, (C,), every chain from its generator."""
    size = like.shape[1] + 1
    normals = torch.stack(
        [torch.randn(size, generator=one, dtype=like.dtype, device=like.device) for one in generators]
    )
    # The last normal number becomes a uniform one: one call for each chain instead of two.
    return normals[:, :-1].contiguous(), torch.special.log_ndtr(normals[:, -1])


def generator_states(generators: Sequence[torch.Generator]) -> Tensor:
    """States of generators, bytes, shape (C, n)."""
    return torch.stack([one.get_state() for one in generators])


def restored_generators(states: Tensor, device: torch.device) -> list[torch.Generator]:
    """Generators in the given states."""
    generators = [torch.Generator(device) for _ in range(len(states))]
    for one, state in zip(generators, states, strict=True):
        one.set_state(state.cpu().clone())  # set_state reads a storage from its beginning: no row of a larger tensor
    return generators
