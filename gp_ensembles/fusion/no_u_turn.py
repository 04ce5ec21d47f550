"""The no-U-turn sampler's trajectories, of many chains in step: they end where a chain would turn back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.fusion.leapfrog import LogDensity, Points, kinetic, leapfrog

# An energy error above this is a divergence, as in Stan.
_LOST = 1000.0


@final
@dataclass(frozen=True)
class NoUTurn:
    """Trajectories that are doubled until they turn back (Hoffman and Gelman, 2014), with multinomial draws from them.

    Chains move in step, and the longest trajectory of a transition sets its cost: with many chains :class:`ChEES` gives
    more effective draws for a gradient. An independent check, and for a density in which lengths differ much.

    Args:
        max_depth: Doublings at most; a trajectory has at most two to this power less one steps.

    Raises:
        ValueError: If it is not from 1 to 20.

    Example:
        >>> NoUTurn()
        NoUTurn(max_depth=8)
    """

    max_depth: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= 20:
            raise ValueError(f"max_depth must be from 1 to 20, got {self.max_depth}")


class Transition(NamedTuple):
    """What came of a transition of C chains.

    Args:
        points: The points drawn.
        energy: Their energies, shape (C,).
        acceptance: Mean acceptance probabilities along the trajectories, shape (C,).
        moved: Whether a point is another than the start, shape (C,).
        divergent: Whether an energy error exceeded 1000 or was not finite, shape (C,).
        num_steps: Leapfrog steps that were made.
    """

    points: Points
    energy: Tensor
    acceptance: Tensor
    moved: Tensor
    divergent: Tensor
    num_steps: int


class _Edge(NamedTuple):
    """An end of a trajectory: points and momenta (C, D)."""

    points: Points
    momentum: Tensor

    def where(self, keep: Tensor, other: "_Edge") -> "_Edge":
        rows = keep.unsqueeze(-1)
        return _Edge(self.points.where(keep, other.points), torch.where(rows, self.momentum, other.momentum))


class _Draw(NamedTuple):
    """A point drawn from a part of a trajectory, its log weight, and the log of the sum of the part's weights (C,)."""

    points: Points
    log_weight: Tensor
    total: Tensor


class _Part(NamedTuple):
    """A new part of a trajectory: its end, its draw, and the sum of its momenta (C, D)."""

    edge: _Edge
    draw: _Draw
    momenta: Tensor


def double_until_turn(
    log_density: LogDensity,
    start: Points,
    momentum: Tensor,
    step: Tensor,
    max_depth: int,
    generators: Sequence[torch.Generator],
    factor: Tensor | None = None,
) -> Transition:
    """A transition of the no-U-turn sampler with multinomial weights (Betancourt, 2017, appendix A).

    New halves are drawn from with a bias to the newer; a chain ends at a turn of the trajectory or of any of the parts
    that doublings make it of, at a divergence, or at the greatest depth. Only the generators of chains that go on are
    asked.

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,).
        start: Where the chains are.
        momentum: Momenta, shape (C, D).
        step: Step sizes times scales, shape (D,).
        max_depth: Most doublings.
        generators: One for each chain.
        factor: As for :func:`~gp_ensembles.fusion.leapfrog.leapfrog`.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.leapfrog import evaluate
        >>> def density(theta):
        ...     return -0.5 * theta.square().sum(-1)
        >>> start = evaluate(density, torch.zeros(2, 3, dtype=torch.float64))
        >>> sources = [torch.Generator().manual_seed(seed) for seed in range(2)]
        >>> step = start.theta.new_full((3,), 0.1)
        >>> found = double_until_turn(density, start, torch.ones_like(start.theta), step, 8, sources)
        >>> found.num_steps, bool((found.acceptance > 0.99).all())
        (27, True)
    """
    tree = _Tree(log_density, start, momentum, step, generators, factor)
    for depth in range(max_depth):
        if not bool(tree.active.any()):
            break
        tree.double(depth)
    draw = tree.draw
    count = tree.leaves.clamp(min=1.0)
    return Transition(
        draw.points,
        tree.first_energy - draw.log_weight,
        tree.accepted / count,
        (draw.points.theta != start.theta).any(-1),
        tree.divergent,
        tree.num_steps,
    )


@final
class _Tree:
    """The trajectories of all chains while they are doubled."""

    def __init__(
        self,
        log_density: LogDensity,
        start: Points,
        momentum: Tensor,
        step: Tensor,
        generators: Sequence[torch.Generator],
        factor: Tensor | None,
    ) -> None:
        self.log_density, self.step, self.generators, self.factor = log_density, step, generators, factor
        self.first_energy = kinetic(momentum) - start.log_density
        self.left = self.right = _Edge(start, momentum)
        zero = torch.zeros_like(start.log_density)
        self.draw = _Draw(start, zero, zero)
        self.momenta = momentum
        self.active = start.log_density.isfinite()
        self.divergent = ~self.active
        self.accepted, self.leaves = zero, zero
        self.num_steps = 0

    def double(self, depth: int) -> None:
        """Twice the trajectory of every chain that is still active."""
        uniform = self._uniform(2**depth + 2)
        forward = uniform[:, 0] < 0.5
        edge = self.right.where(forward, self.left)
        before = self.active
        part, whole = self._part(edge, forward, depth, uniform[:, 2:])
        taken = whole & (uniform[:, 1].log() < part.draw.total - self.draw.total)
        self.draw = _Draw(
            part.draw.points.where(taken, self.draw.points),
            torch.where(taken, part.draw.log_weight, self.draw.log_weight),
            torch.where(whole, torch.logaddexp(self.draw.total, part.draw.total), self.draw.total),
        )
        self.right = part.edge.where(whole & forward, self.right)
        self.left = part.edge.where(whole & ~forward, self.left)
        self.momenta = torch.where(whole.unsqueeze(-1), self.momenta + part.momenta, self.momenta)
        turned = _turns(self.left.momentum, self.right.momentum, self.momenta)
        self.active = before & whole & ~turned

    def _part(self, edge: _Edge, forward: Tensor, depth: int, uniform: Tensor) -> tuple[_Part, Tensor]:
        """As many steps again from an edge; and the chains for which none of its parts turned or was lost."""
        whole = self.active
        sign = torch.where(forward, 1.0, -1.0).to(self.step).unsqueeze(-1)
        nothing = torch.full_like(self.first_energy, -torch.inf)
        draw = _Draw(edge.points, nothing, nothing)
        momenta = torch.zeros_like(edge.momentum)
        # Momenta at the first leaf of parts that are not complete yet, and the sums up to them.
        saved: list[tuple[Tensor, Tensor]] = []
        for leaf in range(2**depth):
            end = leapfrog(self.log_density, edge.points, edge.momentum, sign * self.step, 1, self.factor)
            self.num_steps += 1
            edge = _Edge(end.points, end.momentum).where(whole, edge)
            log_weight = self.first_energy - kinetic(end.momentum) + end.points.log_density
            log_weight = torch.where(end.alive & ~log_weight.isnan(), log_weight, -torch.inf)
            lost = whole & (log_weight < -_LOST)
            self.divergent = self.divergent | lost
            self.accepted = torch.where(whole, self.accepted + log_weight.clamp(max=0.0).exp(), self.accepted)
            self.leaves = torch.where(whole, self.leaves + 1.0, self.leaves)
            whole = whole & ~lost
            total = torch.logaddexp(draw.total, log_weight)
            taken = whole & (uniform[:, leaf].log() < log_weight - total)
            draw = _Draw(end.points.where(taken, draw.points), torch.where(taken, log_weight, draw.log_weight), total)
            momenta = momenta + edge.momentum
            if leaf % 2 == 0:
                saved.append((edge.momentum, momenta))
            else:
                # The trailing ones of the leaf's number are the parts that end with it, the smallest first.
                for back in range(1, ((leaf + 1) & -(leaf + 1)).bit_length()):
                    first, up_to = saved[-back]
                    whole = whole & ~_turns(first, edge.momentum, momenta - up_to + first)
                # Only the first leaf of the largest of them can begin a larger part.
                del saved[len(saved) - ((leaf + 1) & -(leaf + 1)).bit_length() + 2 :]
            if not bool(whole.any()):
                break
        return _Part(edge, draw, momenta), whole

    def _uniform(self, size: int) -> Tensor:
        """Uniform numbers of the active chains, shape (C, size); ones for the others."""
        like = self.first_energy
        numbers = like.new_ones(len(like), size)
        for chain in self.active.nonzero().squeeze(-1).tolist():
            numbers[chain] = torch.rand(size, generator=self.generators[chain], dtype=like.dtype, device=like.device)
        return numbers


def _turns(first: Tensor, last: Tensor, momenta: Tensor) -> Tensor:
    """Whether the ends of a part move apart no more: momenta at its ends, and their sum over it, shape (C, D)."""
    between = momenta - 0.5 * (first + last)
    return ((first * between).sum(-1) <= 0.0) | ((last * between).sum(-1) <= 0.0)
