"""Rows that a latent variable model accepts, and what it says about the others."""

import torch
from torch import Tensor

from gp_ensembles.features.base import check_matrix


def check_rows(Y: Tensor, num_outputs: int, like: Tensor) -> None:
    """Raise unless Y (N, D) has the right form and every row has an observed entry; NaN means not observed.

    Raises:
        TypeError: If Y is not a tensor of the model's dtype.
        ValueError: If the shape is wrong, an entry is infinite, or a row has no observed entry (it is named).
    """
    if not isinstance(Y, Tensor) or Y.dtype != like.dtype:
        kind = Y.dtype if isinstance(Y, Tensor) else type(Y).__name__
        raise TypeError(f"Y must be a tensor of {like.dtype}, the model's dtype, got {kind}; convert it with .to(...)")
    if Y.ndim != 2 or Y.shape[1] != num_outputs:
        raise ValueError(f"Y must have shape (N, {num_outputs}), got {tuple(Y.shape)}")
    infinite = torch.isinf(Y)
    if bool(infinite.any()):
        row, column = divmod(int(infinite.flatten().int().argmax()), num_outputs)
        raise ValueError(f"Y is infinite in row {row}, column {column}; give NaN where a value was not observed")
    empty = torch.isnan(Y).all(-1)
    if bool(empty.any()):
        raise ValueError(f"row {int(empty.int().argmax())} of Y has no observed entry; drop it")


def check_complete(Y: Tensor) -> None:
    """Raise if an entry is missing.

    Raises:
        ValueError: Naming the first one.
    """
    missing = torch.isnan(Y)
    if bool(missing.any()):
        row, column = divmod(int(missing.flatten().int().argmax()), Y.shape[1])
        raise ValueError(
            f"Y is NaN in row {row}, column {column}; the rows to start from must be complete: start from other rows, "
            f"or fill the value in"
        )


def check_latent(X: Tensor, expert: Tensor, num_latent: int, num_experts: int) -> None:
    """Raise unless X (N, d) is finite and ``expert`` (N,) names the expert in whose latent space each row lies.

    Raises:
        TypeError: If X is not a floating point tensor.
        ValueError: If a shape is wrong, an entry is not finite, or there is no such expert.
    """
    check_matrix(X)
    if X.ndim != 2 or X.shape[1] != num_latent or expert.shape != X.shape[:1]:
        raise ValueError(
            f"X must have shape (N, {num_latent}) and expert (N,), got {tuple(X.shape)} and {tuple(expert.shape)}"
        )
    if bool(((expert < 0) | (expert >= num_experts)).any()):
        raise ValueError(f"expert must hold numbers of experts, from 0 to {num_experts - 1}")
