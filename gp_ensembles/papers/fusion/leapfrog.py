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
        """These points where ``keep``, shape (C,), the others elsewhere.

        Example:
            >>> import torch
            >>> one = Points(torch.ones(2, 1), torch.ones(2), torch.ones(2, 1))
            >>> zero = Points(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, 1))
            >>> one.where(torch.tensor([True, False]), zero).log_density
            tensor([1., 0.])
        """
        rows = keep.unsqueeze(-1)
        return Points(
            torch.where(rows, self.theta, other.theta),
            torch.where(keep, self.log_density, other.log_density),
            torch.where(rows, self.gradient, other.gradient),
        )


class Trajectory(NamedTuple):
    """Ends of trajectories: points, momenta (C, D), and whether all numbers of a chain were finite (C,)."""

    points: Points
    momentum: Tensor
    alive: Tensor


def evaluate(log_density: LogDensity, theta: Tensor) -> Points:
    """Log densities of all chains and their gradients, by one backward pass through their sum.

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,), each of its own row only.
        theta: Positions, shape (C, D).

    Example:
        >>> import torch
        >>> points = evaluate(lambda theta: -0.5 * theta.square().sum(-1), torch.tensor([[1.0], [2.0]]))
        >>> points.log_density, points.gradient.squeeze(-1)
        (tensor([-0.5000, -2.0000]), tensor([-1., -2.]))
    """
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = log_density(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return Points(leaf.detach(), value.detach(), gradient)


def leapfrog(
    log_density: LogDensity,
    start: Points,
    momentum: Tensor,
    step: Tensor,
    num_steps: int,
    factor: Tensor | None = None,
) -> Trajectory:
    r"""Steps of the leapfrog method in coordinates in which momenta are standard normal.

    With scales s and step ε the position moves by ε F (s ∘ q) and the momentum q by ε s ∘ F'∇, where F is the factor or
    the identity: the inverse of the metric is F diag(s²) F'. A chain with a number that is not finite is put back to
    its start, so that the log density is only evaluated at finite positions.

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,).
        start: Where the chains are.
        momentum: Momenta q, shape (C, D).
        step: ε s, shape (D,).
        num_steps: Steps, at least one; each costs one gradient.
        factor: The factor F, shape (D, D); the identity if ``None``.

    Returns:
        Where the trajectories end.

    Example:
        >>> import torch
        >>> def density(theta):
        ...     return -0.5 * theta.square().sum(-1)
        >>> start = evaluate(density, torch.ones(1, 1, dtype=torch.float64))
        >>> q = torch.zeros(1, 1, dtype=torch.float64)
        >>> end = leapfrog(density, start, q, q.new_full((1,), 0.01), 314)
        >>> f"{end.points.theta.item():.3f}"
        '-1.000'
    """
    points = start
    alive = start.log_density.isfinite()
    q = torch.addcmul(momentum, _force(start, factor), 0.5 * step)
    for index in range(num_steps):
        moved = torch.addcmul(points.theta, q, step) if factor is None else points.theta + (q * step) @ factor.mT
        points = evaluate(log_density, torch.where(alive.unsqueeze(-1), moved, start.theta))
        alive = alive & points.log_density.isfinite() & points.gradient.sum(-1).isfinite()
        q = torch.addcmul(q, _force(points, factor), step if index < num_steps - 1 else 0.5 * step)
    return Trajectory(points, q, alive)


def _force(points: Points, factor: Tensor | None) -> Tensor:
    """Gradients by the coordinates of the momenta, less the scales."""
    return points.gradient if factor is None else points.gradient @ factor


def kinetic(momentum: Tensor) -> Tensor:
    """Kinetic energies of standard normal momenta, shape (C, D), up to a constant; shape (C,).

    Example:
        >>> import torch
        >>> kinetic(torch.tensor([[3.0, 4.0]]))
        tensor([12.5000])
    """
    return 0.5 * momentum.square().sum(-1)


def log_acceptance(start: Points, momentum: Tensor, end: Trajectory) -> Tensor:
    """Log Metropolis ratios of trajectories, not capped at 0; -inf where a number was not finite; shape (C,).

    Example:
        >>> import torch
        >>> def density(theta):
        ...     return -0.5 * theta.square().sum(-1)
        >>> start = evaluate(density, torch.ones(1, 1, dtype=torch.float64))
        >>> q = torch.ones(1, 1, dtype=torch.float64)
        >>> end = leapfrog(density, start, q, q.new_full((1,), 0.01), 10)
        >>> bool(log_acceptance(start, q, end).abs() < 1e-4)
        True
    """
    ratio = (end.points.log_density - start.log_density) - (kinetic(end.momentum) - kinetic(momentum))
    return torch.where(end.alive & ~ratio.isnan(), ratio, -torch.inf)


def reasonable_step(
    log_density: LogDensity,
    start: Points,
    momentum: Tensor,
    scale: Tensor,
    step: float,
    factor: Tensor | None = None,
) -> float:
    """A step size at which one leapfrog step is accepted about four times in five, by doubling and halving.

    Mean over the chains of the acceptance of one step, for the same momenta (after Hoffman and Gelman, 2014,
    Algorithm 4, with 0.8 for their 0.5: trajectories are longer than one step).

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,).
        start: Where the chains are.
        momentum: Momenta, shape (C, D).
        scale: Standard deviations s, shape (D,).
        step: First guess.
        factor: As for :func:`leapfrog`.

    Example:
        >>> import torch
        >>> start = torch.zeros(4, 1, dtype=torch.float64)
        >>> def density(theta):
        ...     return -0.5 * theta.square().sum(-1)
        >>> reasonable_step(density, evaluate(density, start), start + 1.0, start.new_ones(1), 0.01) > 0.1
        True
    """

    def accepted(size: float) -> bool:
        end = leapfrog(log_density, start, momentum, size * scale, 1, factor)
        return bool(log_acceptance(start, momentum, end).clamp(max=0.0).exp().mean() > 0.8)

    larger = accepted(step)
    for _ in range(_MOST_DOUBLINGS):
        proposed = 2.0 * step if larger else 0.5 * step
        if accepted(proposed) != larger:
            return step if larger else proposed
        step = proposed
    return step


def refresh(generators: Sequence[torch.Generator], like: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normal momenta, shape (C, D), and logs of uniform numbers, shape (C,), every chain from its generator.

    Example:
        >>> import torch
        >>> momentum, log_uniform = refresh([torch.Generator(), torch.Generator()], torch.zeros(2, 3))
        >>> bool((momentum[0] == momentum[1]).all()), log_uniform.shape
        (True, torch.Size([2]))
    """
    size = like.shape[1] + 1
    normals = torch.stack(
        [torch.randn(size, generator=one, dtype=like.dtype, device=like.device) for one in generators]
    )
    # The last normal number becomes a uniform one: one call for each chain instead of two.
    return normals[:, :-1].contiguous(), torch.special.log_ndtr(normals[:, -1])


def generator_states(generators: Sequence[torch.Generator]) -> Tensor:
    """States of generators, bytes, shape (C, n).

    Example:
        >>> import torch
        >>> generator_states([torch.Generator(), torch.Generator()]).shape[0]
        2
    """
    return torch.stack([one.get_state() for one in generators])


def restored_generators(states: Tensor, device: torch.device) -> list[torch.Generator]:
    """Generators in the given states.

    Example:
        >>> import torch
        >>> states = generator_states([torch.Generator().manual_seed(3)])
        >>> bool((generator_states(restored_generators(states, torch.device("cpu"))) == states).all())
        True
    """
    generators = [torch.Generator(device) for _ in range(len(states))]
    for one, state in zip(generators, states, strict=True):
        one.set_state(state.clone())  # set_state reads a storage from its beginning: no row of a larger tensor
    return generators
