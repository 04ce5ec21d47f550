"""Length scales of a GPyTorch kernel, checked against the number of columns."""

from gpytorch.kernels import Kernel
from torch import Tensor


def lengthscale_of(kernel: Kernel, num_inputs: int) -> Tensor:
    r"""The length scales, shape (\*batch, 1, D) or (\*batch, 1, 1), in units of the inputs.

    Args:
        kernel: A kernel with a length scale.
        num_inputs: Number of columns D that the kernel sees.

    Raises:
        ValueError: If the kernel has one length scale for each of another number of columns.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> lengthscale_of(RBFKernel(ard_num_dims=3), 3).shape
        torch.Size([1, 3])
    """
    lengthscale: Tensor = kernel.lengthscale
    if lengthscale.shape[-1] not in (1, num_inputs):
        raise ValueError(
            f"{type(kernel).__name__} has {lengthscale.shape[-1]} length scales but sees {num_inputs} input "
            f"column(s); set ard_num_dims or active_dims to match"
        )
    return lengthscale
