"""Knots from the inputs alone: k-means, greedy conditional variance, ridge leverage scores, k-DPPs, at random."""

import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from gp_ensembles.sparse.kernels import Covariance


def random_knots(
    X: Tensor, count: int, kernel: Covariance | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Distinct rows at random, shape (count, D); the kernel, which rules are given, does not matter.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> random_knots(torch.arange(4.0).unsqueeze(-1), 2).shape
        torch.Size([2, 1])
    """
    distinct = distinct_rows(X, count)
    return X[distinct[torch.randperm(len(distinct), generator=generator, device="cpu")[:count].to(X.device)]]


def kmeans_knots(
    X: Tensor, count: int, kernel: Covariance | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Centers of k-means with k-means++ starts (scipy's), shape (count, D); the kernel does not matter.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> kmeans_knots(torch.tensor([[0.0], [0.2], [5.0], [5.2]]), 2).sort(0).values
        tensor([[0.1000],
                [5.1000]])
    """
    distinct_rows(X, count)
    seed = int(torch.randint(2**31, (), generator=generator, device="cpu"))
    centers, _ = kmeans2(X.detach().cpu().double().numpy(), count, minit="++", rng=seed, iter=20)
    return torch.as_tensor(centers).to(X)


@torch.no_grad()
def greedy_variance_rows(X: Tensor, count: int, kernel: Covariance, *, tolerance: float = 0.0) -> Tensor:
    """Rows of the largest remaining prior variance, one after the other, in O(N K) memory and O(N K^2) time.

    The pivots of an incomplete Cholesky factorization (Burt et al., 2020): no N x N matrix is made.

    Args:
        X: Inputs, shape (N, D).
        count: Most rows.
        kernel: Covariances of two sets of rows, and variances of one.
        tolerance: Stop when no variance above this share of the first is left.

    Returns:
        Rows in order of choice, shape (k,).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.1], [5.0]])
        >>> with torch.no_grad():
        ...     greedy_variance_rows(X, 2, Covariance(RBFKernel()))
        tensor([0, 2])
    """
    left = kernel.diagonal(X).clone()
    factor = X.new_zeros(X.shape[0], count)
    first = left.max()
    rows: list[int] = []
    for k in range(count):
        pivot = int(left.argmax())
        if not bool(left[pivot] > max(tolerance, 1e-12) * first):
            break
        column = kernel.between(X, X[pivot : pivot + 1]).squeeze(-1) - factor[:, :k] @ factor[pivot, :k]
        factor[:, k] = column / left[pivot].sqrt()
        left = (left - factor[:, k].square()).clamp_min(0.0)
        left[pivot] = 0.0
        rows.append(pivot)
    return torch.tensor(rows, dtype=torch.long, device=X.device)


def greedy_variance_knots(
    X: Tensor, count: int, kernel: Covariance, *, generator: torch.Generator | None = None
) -> Tensor:
    """Rows by :func:`greedy_variance_rows`, shape (k, D); fewer than asked for where they explain the whole prior.

    Nothing is random in it: the generator, which rules are given, does not matter.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.1], [5.0]])
        >>> greedy_variance_knots(X, 2, Covariance(RBFKernel()))
        tensor([[0.],
                [5.]])
    """
    return X[greedy_variance_rows(X, count, kernel)]


def distinct_rows(X: Tensor, count: int) -> Tensor:
    """The first row of every distinct input; refuses to have more knots than those.

    Example:
        >>> import torch
        >>> distinct_rows(torch.tensor([[1.0], [0.0], [1.0]]), 2)
        tensor([1, 0])
    """
    _, index, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    first = torch.argsort(index, stable=True)[counts.cumsum(0) - counts]
    if count > len(first):
        raise ValueError(f"{count} knots are more than the {len(first)} distinct row(s)")
    return first
