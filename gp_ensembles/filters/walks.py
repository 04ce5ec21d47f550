"""The variance of a random walk, as a diagonal or as a full matrix, in the few products that filters need."""

import torch
from torch import Tensor


def is_full(walk: Tensor, noise: Tensor) -> bool:
    r"""Whether a walk is a matrix (\*batch, F, F) and not a diagonal (\*batch, 1) or (\*batch, F)."""
    return walk.ndim == noise.ndim + 2


def walk_rows(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""The product :math:`\Phi Q`, shape (..., \*batch, N, F).

    Args:
        Phi: Features, shape (..., \*batch, N, F).
        walk: Q per step: its diagonal (\*batch, 1) or (\*batch, F), or the matrix (\*batch, F, F).
        noise: Observation noise variance, shape (\*batch); tells how many batch axes there are.

    Example:
        >>> import torch
        >>> Phi, noise = torch.ones(1, 2), torch.tensor(1.0)
        >>> walk_rows(Phi, torch.tensor([[2.0, 1.0], [1.0, 3.0]]), noise)
        tensor([[3., 4.]])
    """
    return Phi @ walk if is_full(walk, noise) else Phi * walk.unsqueeze(-2)


def walk_variance(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""What one step of the walk adds to the variance of each row, :math:`\phi^\top Q \phi`, (..., \*batch, N)."""
    return (walk_rows(Phi, walk, noise) * Phi).sum(-1)


def as_matrix(walk: Tensor, noise: Tensor, num_features: int) -> Tensor:
    r"""Q as a matrix, shape (\*batch, F, F)."""
    if is_full(walk, noise):
        return walk
    return torch.diag_embed(walk.expand(*walk.shape[:-1], num_features))


def total_walk(walk: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    r"""Q times the number of steps, shape () or (\*batch), in the form that Q has."""
    missing = walk.ndim - steps.ndim
    return walk * steps.reshape(*steps.shape, *[1] * missing)
