"""The one abstraction of this package: a rule that weighs experts by their log densities alone."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class MetaState(NamedTuple):
    """What a weight rule carries from one target to the next.

    Attributes:
        log_weights: Log weights after the last target seen, shape (M,); minus infinity for a dead expert.
        num_seen: Number of steps taken, a scalar integer tensor.
    """

    log_weights: Tensor
    num_seen: Tensor


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
                shape (M, B). A column of zeros is a missing target.

        Returns:
            The state after the block, and the weights and mixture log densities before each target.
        """
