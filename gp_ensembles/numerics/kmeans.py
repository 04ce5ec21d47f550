"""K-means: the centers of clusters of rows."""

import math

import torch
from torch import Tensor

from gp_ensembles.numerics.draws import generator_device

_MAX_SWEEPS = 100


def kmeans(X: Tensor, num_centers: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Centers of clusters of rows, with a small sum of squared distances from the rows to the nearest of them.

    Shapes: ``X`` (N, D); returns (K, D).
    """
    if X.ndim != 2:
        raise ValueError(f"X must have shape (N, D) to place centers, got {tuple(X.shape)}")
    if num_centers < 1:
        raise ValueError(f"the number of centers must be at least 1, got {num_centers}")
    rows = X.detach().cpu().double()
    num_distinct = torch.unique(rows, dim=0).shape[0]
    if num_distinct < num_centers:
        raise ValueError(
            f"{num_centers} centers need as many distinct rows, X has {num_distinct}; use fewer centers or more rows"
        )
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator_device(generator)))
    centers = rows[_first_centers(rows, num_centers, torch.Generator(device="cpu").manual_seed(seed))]
    nearest = torch.full_like(rows[:, 0], -1, dtype=torch.int64)
    for _ in range(_MAX_SWEEPS):
        before, nearest = nearest, torch.cdist(rows, centers).argmin(1)
        if torch.equal(before, nearest):
            break
        sizes = torch.bincount(nearest, minlength=num_centers).unsqueeze(-1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, rows)
        centers = torch.where(sizes > 0, sums / sizes.clamp_min(1), centers)
    return centers.to(X)


def _first_centers(rows: Tensor, num_centers: int, generator: torch.Generator) -> Tensor:
    """Numbers of distinct rows to start from, shape (K,)."""
    tries = 2 + int(math.log(num_centers))
    drawn = torch.randint(len(rows), (1,), generator=generator, device=rows.device)
    chosen, squares = [drawn], (rows - rows[drawn]).square().sum(-1)  # to the nearest center so far
    for _ in range(num_centers - 1):
        drawn = torch.multinomial(squares, tries, replacement=True, generator=generator)
        # Exact differences: a row that is a center already must be at distance zero.
        left = torch.cdist(rows[drawn], rows, compute_mode="donot_use_mm_for_euclid_dist").square().minimum(squares)
        best = int(left.sum(-1).argmin())
        squares = left[best]
        chosen.append(drawn[best : best + 1])
    return torch.cat(chosen)
