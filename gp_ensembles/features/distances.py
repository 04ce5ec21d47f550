"""GPyTorch kernels with distances that keep their derivatives where two rows coincide.

GPyTorch takes squared distances from a matrix product. Of rows that coincide, or nearly, round-off leaves a little more
or a little less than zero, depending on the processor; what is less is set to zero by a clamp, which has no derivative.
Values do not suffer, but second derivatives of a covariance in its rows vanish, exactly at knots and observed rows,
where optima of acquisition functions like to be.
"""

import copy
from functools import partial

import torch
from gpytorch.kernels import CosineKernel, MaternKernel, PeriodicKernel, PiecewisePolynomialKernel
from torch import Tensor

from gp_ensembles.numerics.gpytorch_types import Kernel


def with_differences(kernel: Kernel) -> Kernel:
    r"""A copy of a kernel, on the same parameters, whose distances are taken by differences of the rows.

    Squared distances, :math:`\sum_d (x_d - x'_d)^2`, then have exact derivatives everywhere. A distance itself has none
    at zero; kernels of GPyTorch that are smooth functions of its square all the same (Matern-3/2 and -5/2, periodic,
    cosine, piecewise polynomials of order one or more) are given :math:`\sqrt{r^2 + \varepsilon}` with the machine's
    :math:`\varepsilon`, which moves their values by round-off. Other kernels get the distance as it is, with a
    derivative of zero at zero.

    Takes N N' D numbers of memory where a matrix product takes N N'.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.settings import trace_mode
        >>> x = torch.full((1, 1), 0.3, dtype=torch.float64)
        >>> kernel = with_differences(RBFKernel(ard_num_dims=1).double().initialize(lengthscale=1.0))
        >>> with trace_mode():  # keeps GPyTorch from derivatives written for one order only
        ...     torch.func.hessian(lambda z: kernel(x, z).to_dense().sum())(x).item()
        -1.0
    """
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
