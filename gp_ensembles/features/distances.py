"""GPyTorch kernels with distances that keep their derivatives where two rows coincide.

GPyTorch takes squared distances from a matrix product. Of rows that coincide, or nearly, round-off leaves a little more
or a little less than zero, depending on the processor; what is less is set to zero by a clamp, which has no derivative.
Values do not suffer, but second derivatives of a covariance in its rows vanish, exactly at knots and observed rows,
which is where acquisition functions often have their optima.
"""

import copy
from functools import partial

import torch
from gpytorch.kernels import CosineKernel, MaternKernel, PeriodicKernel, PiecewisePolynomialKernel
from torch import Tensor

from gp_ensembles.numerics.gpytorch_types import Kernel


def with_differences(kernel: Kernel) -> Kernel:
    """A copy of a kernel, on the same parameters, whose distances are taken by differences of the rows."""
    shared = {id(tensor): tensor for tensor in (*kernel.parameters(), *kernel.buffers())}
    other = copy.deepcopy(kernel, shared)
    for part in other.modules():
        if isinstance(part, Kernel):
            part.covar_dist = partial(_covar_dist, part)  # type: ignore[method-assign]
    return other


def _covar_dist(
    kernel: Kernel,
    x1: Tensor,
    x2: Tensor,
    diag: bool = False,
    last_dim_is_batch: bool = False,
    square_dist: bool = False,
    **params: object,
) -> Tensor:
    """What ``Kernel.covar_dist`` computes, by differences."""
    if diag:
        same: Tensor = type(kernel).covar_dist(
            kernel, x1, x2, diag=True, last_dim_is_batch=last_dim_is_batch, square_dist=square_dist, **params
        )
        return same
    if last_dim_is_batch:
        x1, x2 = (x.transpose(-1, -2).unsqueeze(-1) for x in (x1, x2))
    squared = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(-1)
    if square_dist:
        return squared
    if _is_smooth(kernel):
        return (squared + torch.finfo(squared.dtype).eps).sqrt()
    apart = squared > 0.0
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)


def _is_smooth(kernel: Kernel) -> bool:
    """Whether a kernel of the distance is known to be a smooth function of its square."""
    if isinstance(kernel, MaternKernel):
        return float(kernel.nu) > 1.0
    if isinstance(kernel, PiecewisePolynomialKernel):
        return int(kernel.q) > 0
    return isinstance(kernel, PeriodicKernel | CosineKernel)
