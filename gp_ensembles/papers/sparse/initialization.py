"""Knots from inputs and kernel only: k-means centers, and rows with the largest conditional variance."""

import torch
from torch import Tensor

from gp_ensembles.numerics.copies import first_of_each
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.numerics.kmeans import kmeans


def kmeans_knots(X: Tensor, num_knots: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Centers of :func:`~gp_ensembles.numerics.kmeans.kmeans`, shape (num_knots, D).

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> kmeans_knots(torch.tensor([[0.0], [0.2], [5.0], [5.2]]), 2).sort(0).values
        tensor([[0.1000],
                [5.1000]])
    """
    distinct_rows(X, num_knots)
    return kmeans(X, num_knots, generator=generator)


@torch.no_grad()
def greedy_variance_rows(X: Tensor, num_rows: int, kernel: Kernel) -> Tensor:
    """Rows that successively have the largest remaining prior variance, in O(N K) memory and O(N K^2) time.

    Shapes: ``X`` (N, D); returns (k,).
    """
    left: Tensor = kernel(X, diag=True).clone()
    factor = X.new_zeros(X.shape[0], num_rows)
    first = left.max()
    rows: list[int] = []
    for k in range(num_rows):
        pivot = int(left.argmax())
        if not bool(left[pivot] > 1e-12 * first):
            break
        column = kernel(X, X[pivot : pivot + 1]).to_dense().squeeze(-1) - factor[:, :k] @ factor[pivot, :k]
        factor[:, k] = column / left[pivot].sqrt()
        left = (left - factor[:, k].square()).clamp_min(0.0)
        left[pivot] = 0.0
        rows.append(pivot)
    return torch.tensor(rows, dtype=torch.long, device=X.device)


def distinct_rows(X: Tensor, num_knots: int = 1) -> Tensor:
    """The first row of every distinct input, shape (U,); raises if there are more knots than those."""
    first, _ = first_of_each(X)
    if num_knots > len(first):
        raise ValueError(f"{num_knots} knots are more than the {len(first)} distinct row(s)")
    return first
