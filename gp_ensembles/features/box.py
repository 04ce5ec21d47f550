"""The box of Hilbert-space features, chosen from warm-up rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.base import check_matrix
from gp_ensembles.features.shapes import check_positive
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.density import form_of


class Box(NamedTuple):
    r"""Centers and half-widths of a box, per expert and column.

    Args:
        center: Centers c, shape (\*batch, D), in units of the inputs.
        half_width: Half-widths L, shape (\*batch, D), in units of the inputs. Features vanish at c - L and c + L.

    Example:
        >>> import torch
        >>> Box(torch.tensor([1.0]), torch.tensor([2.0])).domain()
        tensor([[-1.],
                [ 3.]])
    """

    center: Tensor
    half_width: Tensor

    def domain(self) -> Tensor:
        """Intersection of the experts' boxes, lower and upper ends, shape (2, D)."""
        num_columns = self.center.shape[-1]
        lower = (self.center - self.half_width).reshape(-1, num_columns).amax(0)
        upper = (self.center + self.half_width).reshape(-1, num_columns).amin(0)
        return torch.stack([lower, upper])


def box_from_data(
    kernel: Kernel,
    X: Tensor,
    boundary_factor: float = 1.2,
    lengthscale_factor: float | None = None,
    edge_factor: float = 2.0,
) -> Box:
    r"""A box around warm-up rows that is wide enough for the kernel's present length scales.

    .. math:: L_j = \max(a\,S_j,\; b\,\ell_j,\; S_j + c\,\ell_j)

    where :math:`S_j` is half the range of column j, a the boundary factor, b the length-scale factor and c the edge
    factor. Riutort-Mayol et al. (2023) recommend a = 1.2 and b = 3.2 for the RBF kernel, 4.1 for Matern-5/2 and 4.5
    for Matern-3/2: with less, length scales of several ranges lose prior variance, up to all of it.

    Features vanish at the walls. With enough of them, the prior variance of a unit kernel :math:`\kappa` at distance d
    from the nearer wall lacks :math:`\kappa(2 d)`, which is :math:`e^{-2 (d / \ell)^2}` for the RBF kernel (and further
    images in both walls, too small to matter; the losses of several columns of a product add up). The first two rules
    alone leave the outermost warm-up row :math:`d = 0.2\,S` when the length scale is :math:`0.375\,S`, and 57 % is lost
    there, whatever the number of features. The third, with c = 2, leaves :math:`\kappa(4 \ell)`: at the outermost row
    at most 0.04 % is lost for RBF, 0.5 % for Matern-5/2, 0.8 % for Matern-3/2 and 1.9 % for Matern-1/2. With c = 0 the
    box is that of the first two rules. Later rows between the outermost one and the wall lose more; a larger box takes
    more basis functions, about 1.75 L / l per column for RBF. All this holds at the starting length scales: fitted ones
    that are longer lose more again.

    Args:
        kernel: RBF or Matern kernel, scaled or not, at its starting length scales.
        X: Warm-up rows, shape (N, D).
        boundary_factor: Factor a, above 1; the room that later rows have.
        lengthscale_factor: Factor b, positive; the recommended one for the kernel if ``None``.
        edge_factor: Factor c, zero or positive: length scales between the outermost rows and the walls.

    Returns:
        Centers (middles of the ranges) and half-widths, each (\*batch, D), in the dtype of X, without gradients.

    Raises:
        TypeError: If X is not floating point, of another dtype than the kernel, or the kernel is not supported.
        ValueError: If X is not a finite matrix or a factor is out of range.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> kernel = RBFKernel().double()
        >>> kernel.lengthscale = 0.1
        >>> X = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> box_from_data(kernel, X).half_width, box_from_data(kernel, 0.1 * X).half_width
        (tensor([1.2000], dtype=torch.float64), tensor([0.3200], dtype=torch.float64))
    """
    check_matrix(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must have shape (N, D) with at least one row to place a box, got {tuple(X.shape)}")
    _check_factors(boundary_factor, lengthscale_factor, edge_factor)
    lower, upper = X.detach().amin(0), X.detach().amax(0)
    columns = seen_columns(kernel, X.shape[-1])
    with torch.no_grad():
        form = form_of(kernel, len(columns))
        lengthscale = form.lengthscale.squeeze(-2)
    if lengthscale.dtype != X.dtype:
        raise TypeError(f"X is {X.dtype} and the kernel is {lengthscale.dtype}; convert one with .to(...)")
    batch_shape = torch.Size(kernel.batch_shape)
    reach = X.new_zeros(*batch_shape, X.shape[-1])  # the length scales, zero where the kernel does not look
    reach[..., columns] = lengthscale.expand(*batch_shape, len(columns))
    half_range = 0.5 * (upper - lower)
    wanted = (form.box_factor if lengthscale_factor is None else lengthscale_factor) * reach
    half_width = torch.maximum(boundary_factor * half_range, wanted).maximum(half_range + edge_factor * reach)
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


def _check_factors(boundary_factor: float, lengthscale_factor: float | None, edge_factor: float) -> None:
    if not boundary_factor > 1.0:
        raise ValueError(f"boundary_factor must be above 1, got {boundary_factor}")
    if lengthscale_factor is not None and not lengthscale_factor > 0.0:
        raise ValueError(f"lengthscale_factor must be positive, got {lengthscale_factor}")
    if not edge_factor >= 0.0:
        raise ValueError(f"edge_factor must be zero or positive, got {edge_factor}")


def check_box(box: Box, batch_shape: torch.Size, num_inputs: int) -> None:
    """Raise unless a box fits a kernel of this batch shape on this many columns.

    Raises:
        TypeError: If the half-widths are not floating point.
        ValueError: If shapes or values are wrong, or the experts' boxes do not overlap in some column.
    """
    expected = torch.Size([*batch_shape, num_inputs])
    if box.center.shape != expected or box.half_width.shape != expected:
        raise ValueError(
            f"center and half_width of the box must have shape {tuple(expected)}, got {tuple(box.center.shape)} and "
            f"{tuple(box.half_width.shape)}"
        )
    check_positive(box.half_width, "half_width")
    lower, upper = box.domain()
    if lower.device.type != "meta" and bool((lower >= upper).any()):
        column = int((lower >= upper).int().argmax())
        raise ValueError(f"the experts' boxes do not overlap in column {column}; choose their boxes closer together")
