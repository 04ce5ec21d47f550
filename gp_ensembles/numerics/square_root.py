"""Square roots of covariances, updated without ever forming the covariance."""

import torch
from torch import Tensor


def lower_factor(columns: Tensor) -> Tensor:
    r"""Lower triangular L with L Lᵀ = M Mᵀ and a positive diagonal, by an orthogonal decomposition.

    Shapes: ``columns`` (\*batch, n, k); returns (\*batch, n, n).
    """
    mode = "reduced" if columns.requires_grad else "r"  # only the derivative needs the orthogonal part
    upper: Tensor = torch.linalg.qr(columns.mT, mode=mode).R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype)
    return (upper * sign.unsqueeze(-1)).mT


def add_diagonal(factor: Tensor, diagonal: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + diag(d).

    Shapes: ``factor`` (\*batch, n, n), ``diagonal`` (\*batch, 1) or (\*batch, n).
    """
    root = torch.diag_embed(diagonal.sqrt().expand(factor.shape[:-1]))
    return lower_factor(torch.cat([factor, root], dim=-1))


def add_covariance(factor: Tensor, covariance: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + C, for a positive semidefinite C that may be singular.

    Shapes: ``factor`` (\*batch, n, n), ``covariance`` (\*batch, n, n).
    """
    values, axes = torch.linalg.eigh(covariance)
    # A semidefinite matrix has eigenvalues that are zero up to round-off, of either sign.
    return lower_factor(torch.cat([factor, axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)], dim=-1))


def condition_array(factor: Tensor, design: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Condition N(0, A Aᵀ) on y = Φ θ + noise by one orthogonal decomposition (the array form).

    .. math::
        \begin{bmatrix} \sigma I & \Phi A \\ 0 & A \end{bmatrix} \Theta =
        \begin{bmatrix} L & 0 \\ W^\top & A_+ \end{bmatrix}

    Shapes: ``factor`` (\*batch, F, F), ``design`` (\*batch, B, F), ``noise`` (\*batch, B). Returns: l (\*batch, B,
    B), W (\*batch, B, F) and A₊ (\*batch, F, F).
    """
    num_rows = design.shape[-2]
    top = torch.cat([torch.diag_embed(noise.sqrt()), design], dim=-1)
    bottom = torch.cat([factor.new_zeros(*factor.shape[:-1], num_rows), factor], dim=-1)
    lower = lower_factor(torch.cat([top, bottom], dim=-2))
    return (
        lower[..., :num_rows, :num_rows],
        lower[..., num_rows:, :num_rows].mT,
        lower[..., num_rows:, num_rows:],
    )


def condition_andrews(factor: Tensor, design: Tensor, lower: Tensor, noise: Tensor) -> Tensor:
    r"""A square root of the covariance after conditioning on a block of targets (Andrews 1968).

    Shapes: ``factor`` (\*batch, F, F), ``design`` (\*batch, B, F), ``lower`` (\*batch, B, B), ``noise`` (\*batch,
    B).
    """
    shifted = lower + torch.diag_embed(noise.sqrt())
    right: Tensor = torch.linalg.solve_triangular(shifted, design, upper=False)
    weights: Tensor = torch.linalg.solve_triangular(lower, design @ factor.mT, upper=False)
    downdated: Tensor = factor - weights.mT @ right
    return downdated
