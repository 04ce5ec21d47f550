"""Rows of a table that are exact copies of others, as after a join, a file read twice or a bootstrap."""

import torch
from torch import Tensor

from gp_ensembles.numerics.warn_caller import warn_caller

_FEWEST, _OWN = 0.02, 0.95  # share of copies; share of distinct rows with inputs of their own
_OFTEN = 10  # times that a row occurs, as a multiple of the median: a sensor at rest
_LEVELS = 20  # most values of a column of categories or counts


def first_of_each(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of every distinct one of (N, D), shape (U,), and how often it occurs, shape (U,)."""
    if bool(rows.isnan().any()):
        rows = torch.cat([rows.nan_to_num(), rows.isnan().to(rows)], dim=1)
    _, index, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    return torch.argsort(index, stable=True)[counts.cumsum(0) - counts], counts


def without_copies(X: Tensor, y: Tensor) -> Tensor:
    """Indices (K,) of rows X (N, D), y (N, ...) without copies of earlier ones, in their order; warns if there are any.

    Two measurements would differ, so copies suggest that there is no noise. If rows recur naturally, one of them
    often (a sensor at rest), or equal inputs with several targets, or all columns with few values, all rows stay.
    Rows without a target teach no noise and stay, too.
    """
    places = torch.arange(len(X), dtype=torch.int64, device=X.device)
    targets = y.reshape(len(y), -1).to(X)
    stays = targets.isnan().all(dim=1)
    seen = places[~stays]
    first, counts = first_of_each(torch.cat([X, targets], dim=1)[seen])
    num_copies = len(seen) - len(first)
    if num_copies <= _FEWEST * len(seen) or bool(counts.max() > _OFTEN * counts.median()):
        return places
    inputs = X[seen][first]
    own = len(first_of_each(inputs)[0])
    if own < _OWN * len(first) or all(len(column.unique()) <= _LEVELS for column in inputs.T):
        return places
    warn_caller(
        f"{num_copies} of the {len(X)} rows are exact copies of other rows and are left out: counted as separate "
        f"measurements, they would suggest that there is no noise"
    )
    stays[seen[first]] = True
    return places[stays]
