"""What draws sample paths: one-step predictions of experts along paths that they have not seen but for themselves."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor


class Ahead(NamedTuple):
    """Predictions of the next target of L paths, each by the expert of the path.

    Attributes:
        mean: Means, shape (L,).
        variance: Variances, noise included, shape (L,).
        degrees_of_freedom: Of Student-t predictions, shape (L,); ``None`` for normal ones.
    """

    mean: Tensor
    variance: Tensor
    degrees_of_freedom: Tensor | None = None


class Simulator(ABC):
    """Some experts along L sample paths: predict a target, learn the one that was drawn, and so on for H steps.

    Shapes: ``batches`` (L,).
    """

    def __init__(self, batches: Tensor, sees_targets: bool) -> None:
        self.batches = batches
        self.sees_targets = sees_targets

    @abstractmethod
    def predict(self, step: int, X: Tensor | None) -> Ahead:
        """Predict the next target of each path.

        Shapes: ``X`` (L, D + P).
        """

    @abstractmethod
    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """Learn the targets that were drawn, (L,), and how far they are from the means."""
