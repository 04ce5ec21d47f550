"""The one abstraction of this package: a rule that weighs experts by their log densities alone."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class MetaState(NamedTuple):
    """What a weight rule carries from one target to the next.

    Attributes:
        log_weights: Log weights after the last target seen, shape (M,); minus infinity for a dead expert.
        num_seen: Number of steps taken, a scalar integer tensor.
        memory: What a rule remembers besides, shape (M, K), one row an expert; K is zero for rules whose weights
            are all there is to know.
    """

    log_weights: Tensor
    num_seen: Tensor
    memory: Tensor


class MetaOutput(NamedTuple):
    """What a weight rule says about a block of targets.

    Attributes:
        log_weights: Log weights in force **before** each target, shape (M, B); they sum to one over M.
        log_prob: Log density of each target under the mixture, shape (B,).
    """

    log_weights: Tensor
    log_prob: Tensor


class MetaLearner(nn.Module, ABC):
    """A rule that turns the experts' log densities into mixture weights, one step behind the data."""

    @abstractmethod
    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data, with the dtype and device of ``like``.

        Raises:
            ValueError: If the rule was built for another number of experts.
        """

    @abstractmethod
    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights in force for the next target, shape (M,)."""

    @abstractmethod
    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order.

        Args:
            state: The state before the block.
            log_prob: Log densities of the block's targets under each expert, made before each target,
                shape (M, B). A column of zeros is a missing target: nothing is learned from it, though a rule
                whose weights move with time (by switching, sharing or forgetting) lets time pass.

        Returns:
            The state after the block, and the weights and mixture log densities before each target.
        """

    @abstractmethod
    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """A state in which new experts stand behind the old ones; ``state`` itself is unchanged.

        Call it on the rule of the **enlarged** ensemble. Rules built for no particular number of experts serve old
        and new ensemble alike; one built with prior weights or a transition has to be built anew for M + n experts.

        Args:
            state: State of the M experts so far.
            num_new: Number of new experts n, put after the old ones.
            share: Weight that the new experts get together, in equal parts; between 0 and 1. The old ones keep their
                proportions.

        Raises:
            ValueError: If ``num_new`` or ``share`` is out of range, the rule was built for another number of experts
                than M + n, or it goes on from a memory that is not in the state: another rule left it.
        """

    def revive(self, state: MetaState, experts: Tensor, share: float) -> MetaState:
        """A state in which dead experts have weight again; ``state`` itself is unchanged.

        Args:
            state: The state with dead experts, those of log weight minus infinity.
            experts: Indices of the experts to revive, integers, shape (n,).
            share: Weight that they get together, in equal parts; between 0 and 1. The living keep their proportions.

        Raises:
            ValueError: If ``share`` is out of range, an index is not an expert's or stands twice, or an expert lives.
            TypeError: If the indices are not integers.
        """
        check_share(share, lowest_is_legal=False)
        dead = torch.isneginf(state.log_weights)
        num_experts = dead.shape[0]
        if experts.dtype != torch.int64:
            raise TypeError(f"experts to revive are given by their indices, int64, got {experts.dtype}")
        indices = experts.tolist()
        if experts.ndim != 1 or len(set(indices)) != len(indices) or not indices:
            raise ValueError(f"experts to revive must be different indices of shape (n,), got {indices}")
        for index in indices:
            if not 0 <= index < num_experts:
                raise ValueError(
                    f"there is no expert {index} to revive: the ensemble has experts 0 to {num_experts - 1}"
                )
            if not bool(dead[index]):
                raise ValueError(f"expert {index} is alive, it has weight already; revive dead experts only")
        log_weights = state.log_weights + math.log1p(-share)
        part = log_weights.new_full(experts.shape, math.log(share / len(indices)))
        return state._replace(log_weights=log_weights.index_copy(0, experts.to(log_weights.device), part))


def check_share(share: float, lowest_is_legal: bool) -> None:
    """Raise a clear error unless a share is a number between 0 and 1, not 1, and 0 only where that is legal."""
    if not (0 <= share < 1 and (share > 0 or lowest_is_legal)):
        kind = "at least 0" if lowest_is_legal else "above 0"
        raise ValueError(f"share must be {kind} and below 1, got {share}")


def check_memory(rule: MetaLearner, state: MetaState, width: int) -> None:
    """Raise unless a state to grow has the memory, (M, ``width``), from which a rule goes on."""
    if state.memory.shape[-1] != width:
        raise ValueError(
            f"{type(rule).__name__} goes on from a memory of {width} numbers an expert, but the state has "
            f"{state.memory.shape[-1]}: another rule left it; use a rule without memory, or start this one afresh with "
            f"init"
        )


def grown_weights(state: MetaState, num_new: int, share: float) -> MetaState:
    """The state of a rule without memory, with ``num_new`` more experts that have weight ``share`` together.

    Raises:
        ValueError: If ``num_new`` is not positive or ``share`` is not between 0 and 1.
    """
    if num_new < 1:
        raise ValueError(f"at least one expert must be added, got {num_new}")
    check_share(share, lowest_is_legal=False)
    new = state.log_weights.new_full((num_new,), math.log(share / num_new))
    log_weights = torch.cat([state.log_weights + math.log1p(-share), new])
    return state._replace(log_weights=log_weights, memory=state.memory.new_zeros(log_weights.shape[0], 0))
