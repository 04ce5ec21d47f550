"""What runs one expert object over a stream for the shell."""

from abc import ABC, abstractmethod

from torch import Tensor

from gp_ensembles.filters.states import Predictions


class Runner(ABC):
    """Runs one expert object on a state that it changes in place, a block at a time."""

    @abstractmethod
    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""

    @abstractmethod
    def commit(self) -> None:
        """Learn the staged block."""

    @abstractmethod
    def uneven(self, steps: Tensor) -> "Runner":
        """What runs one block whose rows are so many steps after the row before each, (B,), on the same state."""
