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

    Shapes: ``X`` (N, D); returns a box (\*batch, D).

    Raises:
        TypeError: If X is not floating point, of another dtype than the kernel, or the kernel is not supported.
        ValueError: If X is not a finite matrix or a factor is out of range.
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
