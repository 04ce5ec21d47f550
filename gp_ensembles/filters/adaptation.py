r"""How weights change between rows: objects of one kind, for every filter.

Each of them is a linear Gaussian transition before every row. Inside a block it becomes a random walk in rescaled
coordinates (:class:`Schedule`), so the exact block algebra of :mod:`gp_ensembles.filters.block` serves them all.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Schedule(NamedTuple):
    r"""A block of B rows in coordinates in which the weights only walk at random.

    With :math:`\alpha` the row scale and :math:`\rho` the target scale, the rows :math:`\alpha_t \phi_t` and the
    targets :math:`y_t / \rho_t` are filtered as if the weights walked by Q times ``steps``; a mean of the filter
    times :math:`\rho_t` is the mean of the target, a variance is the variance of the target as it is. After the
    block mean and covariance of the weights are multiplied by the two last scales. ``None`` stands for one
    everywhere (and for no walk).

    Attributes:
        row_scale: :math:`\alpha`, shape (B,) or (\*batch, B).
        target_scale: :math:`\rho`, shape (B,) or (\*batch, B).
        walk: Q: its diagonal (\*batch, 1) or (\*batch, F), or the matrix (\*batch, F, F).
        steps: Steps of the walk before each row, (B,) or (\*batch, B); ``None`` for 1, 2, ..., B.
        mean_scale: Scale of the mean after the block, shape () or (\*batch).
        covariance_scale: Scale of the covariance after the block, shape () or (\*batch).
    """

    row_scale: Tensor | None = None
    target_scale: Tensor | None = None
    walk: Tensor | None = None
    steps: Tensor | None = None
    mean_scale: Tensor | None = None
    covariance_scale: Tensor | None = None


class Adaptation(nn.Module, ABC):
    """How the weights of a batch of experts change from row to row."""

    @abstractmethod
    def schedule(self, num_rows: int, prior_variance: Tensor) -> Schedule:
        r"""The transition over a block.

        Args:
            num_rows: Length B of the block, at most :attr:`max_rows`.
            prior_variance: Prior variance of the weights, shape (\*batch).
        """

    @property
    @abstractmethod
    def max_rows(self) -> int | None:
        """Longest block whose coordinates keep their digits; ``None`` for any."""

    @abstractmethod
    def slowest_walk(self) -> Tensor | None:
        r"""Smallest variance per step that the transition surely adds to any weight, (\*batch); ``None`` for none."""

    @abstractmethod
    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        """Raise a clear error unless the transition fits experts of this batch shape and number of features.

        Raises:
            ValueError: Naming the shape that does not fit.
        """

    @abstractmethod
    def take(self, batch_shape: torch.Size, index: Tensor) -> "Adaptation":
        r"""Independent copies for some experts of a batch, () or (M,): batch shape (S,) for ``index`` (S,)."""


def exact_tensor(value: Tensor | float) -> Tensor:
    """A tensor of a number that keeps all its digits."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
