"""What a window needs of a kernel and of a prior mean, their hyperparameters read: plain functions of rows."""

from typing import Protocol

from torch import Tensor


class Covariance(Protocol):
    """A kernel as two functions of rows, their hyperparameters read, in double precision."""

    @property
    def between(self) -> "Between":
        r"""Covariances of rows (\*batch, K, D) and (\*batch, N, D), shape (\*batch, K, N)."""

    @property
    def diagonal(self) -> "Diagonal":
        r"""Variances of rows (\*batch, N, D), shape (\*batch, N)."""

    @property
    def stationary(self) -> "Stationary | None":
        """The same as a function of distances; ``None`` for kernels that are none."""


class Stationary(Protocol):
    """See :class:`Covariance`."""

    @property
    def inverse(self) -> Tensor:
        r"""Reciprocals of length scales, shape (\*batch, 1, D) or (\*batch, 1, 1)."""

    @property
    def profile(self) -> "Profile":
        """Covariances of squared distances in length scales."""


class Profile(Protocol):
    """See :class:`Stationary`."""

    def __call__(self, squared: Tensor, /) -> Tensor:
        r"""Covariances, shape (\*batch, K, N), of squared distances of this shape."""


class Between(Protocol):
    """See :class:`Covariance`."""

    def __call__(self, first: Tensor, second: Tensor, /) -> Tensor:
        """Covariances of two lists of rows."""


class PriorMean(Protocol):
    """What targets are expected to be before any is seen."""

    def __call__(self, X: Tensor, /) -> Tensor:
        r"""Prior means at rows (\*batch, N, D), shape (\*batch, N)."""


class Diagonal(Protocol):
    """See :class:`Covariance`."""

    def __call__(self, X: Tensor, /) -> Tensor:
        """Variances of rows."""
