"""Which experts of an ensemble lie together: pieces that do not depend on the number of processes.

A piece is computed by one process, and always in the same way. So the same bits come out whoever computes it.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from gp_ensembles.experts.base import Expert
from gp_ensembles.filters.states import FilterState


class Piece(NamedTuple):
    """Some experts of one object.

    Attributes:
        number: Number of the expert object.
        first: First of its experts.
        size: How many of them.
        start: Place of the first one among all experts.
    """

    number: int
    first: int
    size: int
    start: int

    def of(self, experts: Sequence[Expert]) -> Expert:
        """An expert object of their own; the object itself where they are all of it."""
        expert = experts[self.number]
        if self.size == expert.num_experts:
            return expert
        return expert.take(torch.arange(self.first, self.first + self.size, device="cpu"))

    def of_states(self, experts: Sequence[Expert], states: Sequence[FilterState]) -> FilterState:
        """Their states, copied from those of all."""
        state, num_axes = states[self.number], len(experts[self.number].batch_shape)
        here = slice(self.first, self.first + self.size)
        if self.size == experts[self.number].num_experts:
            return type(state)(*(value.detach().clone() for value in state))
        return type(state)(*(value.detach().flatten(0, num_axes - 1)[here].clone() for value in state))


def pieces_of(experts: Sequence[Expert], size: int) -> tuple[Piece, ...]:
    """All experts in pieces of at most so many, in their order.

    Example:
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> experts = [GaussianExpert(LinearFeatures(1, torch.ones(size))) for size in (5, 1)]
        >>> [(piece.number, piece.first, piece.size) for piece in pieces_of(experts, 2)]
        [(0, 0, 2), (0, 2, 2), (0, 4, 1), (1, 0, 1)]
    """
    found, start = list[Piece](), 0
    for number, expert in enumerate(experts):
        for first in range(0, expert.num_experts, size):
            found.append(Piece(number, first, min(size, expert.num_experts - first), start + first))
        start += expert.num_experts
    return tuple(found)


def share_of(costs: Sequence[float], rank: int, num_ranks: int) -> range:
    """Places of the pieces that a rank has: one after the other, about as much work for each, one piece at least.

    Args:
        costs: What each piece costs.
        rank: The rank.
        num_ranks: Number of ranks, at most that of the pieces.

    Example:
        >>> [list(share_of([1.0, 1.0, 4.0, 1.0, 1.0], rank, 3)) for rank in range(3)]
        [[0, 1], [2], [3, 4]]
    """
    total, ends = sum(costs), [0]
    middles = [done - 0.5 * cost for done, cost in zip(accumulate(costs), costs, strict=True)]
    for number in range(1, num_ranks):
        end = sum(middle < total * number / num_ranks for middle in middles)
        ends.append(min(max(end, ends[-1] + 1), len(costs) - (num_ranks - number)))
    ends.append(len(costs))
    return range(ends[rank], ends[rank + 1])
