"""The box on which Hilbert-space features live, chosen from warm-up rows."""

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gp_ensembles.features.base import check_matrix
from gp_ensembles.features.shapes import check_positive
from gp_ensembles.spectral.density import form_of


class Box(NamedTuple):
    r"""Centres and half-widths of a box, per expert and column.

    Args:
        centre: Centres c, shape (\*batch, D), in units of the inputs.
        half_width: Half-widths L, shape (\*batch, D), in units of the inputs. Features vanish at c - L and c + L.

    Example:
        >>> import torch
        >>> Box(torch.tensor([1.0]), torch.tensor([2.0])).domain()
        tensor([[-1.],
                [ 3.]])
    """

    centre: Tensor
    half_width: Tensor

    def domain(self) -> Tensor:
        """Intersection of the experts' boxes, lower and upper ends, shape (2, D)."""
        num_columns = self.centre.shape[-1]
        lower = (self.centre - self.half_width).reshape(-1, num_columns).amax(0)
        upper = (self.centre + self.half_width).reshape(-1, num_columns).amin(0)
        return torch.stack([lower, upper])


def box_from_data(kernel: Kernel, X: Tensor, boundary_factor: float = 1.2, lengthscale_factor: float = 3.2) -> Box:
    r"""A box around warm-up rows that is wide enough for the kernel's present length scales.

    .. math:: L_j = \max(a\,S_j,\; b\,\ell_j)

    where :math:`S_j` is half the range of column j, a the boundary factor and b the length-scale factor
    (Riutort-Mayol et al., 2023, who recommend a = 1.2 and b = 3.2 for the RBF kernel, 4.1 for Matern-5/2 and
    4.5 for Matern-3/2). A box that is too narrow for the length scale loses prior variance: with length scales
    of several ranges all features would vanish. Features vanish at the walls: at distance d from one, the prior
    variance of an RBF kernel lacks about exp(-2 (d / l)^2), 14 % at the outermost row with a = 1.2 and a
    length scale of a tenth of the range. A larger a mends that and needs more basis functions.

    Args:
        kernel: RBF or Matern kernel, scaled or not, at its starting length scales.
        X: Warm-up rows, shape (N, D).
        boundary_factor: Factor a, above 1; the room that later rows have.
        lengthscale_factor: Factor b, positive.

    Returns:
        Centres (middles of the ranges) and half-widths, each (\*batch, D), in the dtype of X, without gradients.

    Raises:
        TypeError: If X is not floating point, of another dtype than the kernel, or the kernel is not supported.
        ValueError: If X is not a finite matrix or a factor is out of range.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> kernel = RBFKernel().double()
        >>> kernel.lengthscale = 0.1
        >>> box_from_data(kernel, torch.tensor([[0.0], [2.0]], dtype=torch.float64)).half_width
        tensor([1.2000], dtype=torch.float64)
    """
    check_matrix(X, X.shape[-1])
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must have shape (N, D) with at least one row to place a box, got {tuple(X.shape)}")
    if not (boundary_factor > 1.0 and lengthscale_factor > 0.0):
        raise ValueError(
            f"boundary_factor must be above 1 and lengthscale_factor positive, got {boundary_factor} and "
            f"{lengthscale_factor}"
        )
    lower, upper = X.detach().amin(0), X.detach().amax(0)
    columns = seen_columns(kernel, X.shape[-1])
    with torch.no_grad():
        lengthscale = form_of(kernel, len(columns)).lengthscale.squeeze(-2)
    if lengthscale.dtype != X.dtype:
        raise TypeError(f"X is {X.dtype} and the kernel is {lengthscale.dtype}; convert one with .to(...)")
    batch_shape = torch.Size(kernel.batch_shape)
    wanted = X.new_zeros(*batch_shape, X.shape[-1])
    wanted[..., columns] = lengthscale_factor * lengthscale.expand(*batch_shape, len(columns))
    half_width = torch.maximum(0.5 * boundary_factor * (upper - lower), wanted)
    # a column that the kernel does not see may be constant: any width will do there
    half_width = torch.where(half_width > 0.0, half_width, torch.ones_like(half_width))
    return Box((0.5 * (lower + upper)).expand_as(half_width).clone(), half_width)


def seen_columns(kernel: Kernel, num_inputs: int) -> Tensor:
    """Indices of the columns that a kernel sees: its ``active_dims``, or all; integers, shape (d,).

    Raises:
        ValueError: If one of them is not among the columns.
    """
    active: Tensor | None = kernel.active_dims
    if active is None:
        device = next(kernel.parameters()).device
        return torch.arange(num_inputs, device=device)
    if active.device.type != "meta" and not bool(((active >= 0) & (active < num_inputs)).all()):
        raise ValueError(f"active_dims {active.tolist()} of the kernel are not among the {num_inputs} input columns")
    return active


def check_box(box: Box, batch_shape: torch.Size, num_inputs: int) -> None:
    """Raise unless a box fits a kernel of this batch shape on this many columns.

    Raises:
        TypeError: If the half-widths are not floating point.
        ValueError: If shapes or values are wrong, or the experts' boxes do not overlap in some column.
    """
    expected = torch.Size([*batch_shape, num_inputs])
    if box.centre.shape != expected or box.half_width.shape != expected:
        raise ValueError(
            f"centre and half_width of the box must have shape {tuple(expected)}, got {tuple(box.centre.shape)} and "
            f"{tuple(box.half_width.shape)}"
        )
    check_positive(box.half_width, "half_width")
    lower, upper = box.domain()
    if lower.device.type != "meta" and bool((lower >= upper).any()):
        column = int((lower >= upper).int().argmax())
        raise ValueError(f"the experts' boxes do not overlap in column {column}; choose their boxes closer together")
