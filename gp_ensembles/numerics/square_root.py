"""Square roots of covariances, updated without ever forming the covariance."""

import torch
from torch import Tensor


def lower_factor(columns: Tensor) -> Tensor:
    r"""Lower triangular L with L Lᵀ = M Mᵀ and a positive diagonal, by an orthogonal decomposition.

    Forming M Mᵀ would square the condition number; a QR decomposition of Mᵀ does not.

    Args:
        columns: M, shape (\*batch, n, k) with k >= n.

    Returns:
        L, shape (\*batch, n, n).

    Example:
        >>> import torch
        >>> lower_factor(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
        tensor([[5.]], dtype=torch.float64)
    """
    mode = "reduced" if columns.requires_grad else "r"  # only the derivative needs the orthogonal part
    upper: Tensor = torch.linalg.qr(columns.mT, mode=mode).R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype)
    return (upper * sign.unsqueeze(-1)).mT


def add_diagonal(factor: Tensor, diagonal: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + diag(d).

    Args:
        factor: A, shape (\*batch, n, n).
        diagonal: d >= 0, shape (\*batch, 1) or (\*batch, n).
    """
    root = torch.diag_embed(diagonal.sqrt().expand(factor.shape[:-1]))
    return lower_factor(torch.cat([factor, root], dim=-1))


def add_covariance(factor: Tensor, covariance: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + C, for a positive semidefinite C that may be singular.

    Args:
        factor: A, shape (\*batch, n, n).
        covariance: C, symmetric positive semidefinite, shape (\*batch, n, n).
    """
    values, axes = torch.linalg.eigh(covariance)
    # A semidefinite matrix has eigenvalues that are zero up to round-off, of either sign.
    return lower_factor(torch.cat([factor, axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)], dim=-1))


def condition_array(factor: Tensor, design: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Condition N(0, A Aᵀ) on y = Φ θ + noise by one orthogonal decomposition (the array form).

    .. math::
        \begin{bmatrix} \sigma I & \Phi A \\ 0 & A \end{bmatrix} \Theta =
        \begin{bmatrix} L & 0 \\ W^\top & A_+ \end{bmatrix}

    It loses nothing however small the noise is (Kailath, Sayed and Hassibi 2000, chapter 12), and costs a
    QR decomposition of size B + F.

    Args:
        factor: A, shape (\*batch, F, F).
        design: Φ A, shape (\*batch, B, F).
        noise: Observation noise variance per target, shape (\*batch, B).

    Returns:
        L (\*batch, B, B), W (\*batch, B, F) and A₊ (\*batch, F, F).
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

    With U = Φ A and L Lᵀ = U Uᵀ + σ² I, a square root is A − A Uᵀ L⁻ᵀ (L + σ I)⁻¹ U: matrix products and two
    triangular solves of size B.

    Args:
        factor: A, shape (\*batch, F, F).
        design: U = Φ A, shape (\*batch, B, F).
        lower: L, shape (\*batch, B, B).
        noise: Observation noise variance per target, shape (\*batch, B).
    """
    shifted = lower + torch.diag_embed(noise.sqrt())
    right: Tensor = torch.linalg.solve_triangular(shifted, design, upper=False)
    weights: Tensor = torch.linalg.solve_triangular(lower, design @ factor.mT, upper=False)
    downdated: Tensor = factor - weights.mT @ right
    return downdated
