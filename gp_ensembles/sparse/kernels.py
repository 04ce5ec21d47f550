"""A GPyTorch kernel as two functions of plain tensors."""

from typing import NamedTuple

from gpytorch.kernels import Kernel
from torch import Tensor


class Covariance(NamedTuple):
    """Covariances by a kernel, evaluated at once.

    Args:
        kernel: Any GPyTorch kernel without a batch.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.1], [5.0]])
        >>> Covariance(RBFKernel()).diagonal(X)
        tensor([1., 1., 1.])
    """

    kernel: Kernel

    def between(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariances of rows, shape (A, B)."""
        matrix: Tensor = self.kernel(first, second).to_dense()
        return matrix

    def diagonal(self, X: Tensor) -> Tensor:
        """Variances of rows, shape (A,)."""
        values: Tensor = self.kernel(X, diag=True)
        return values
