"""Rows of a table that are exact copies of others, as after a join, a file read twice or a bootstrap."""

import torch
from torch import Tensor

from gp_ensembles.numerics.warn_caller import warn_caller

_FEWEST, _OFTEN, _OWN = (
    0.02,
    10,
    0.95,
)  # share of copies; times a row occurs; share of rows with unique inputs


def first_of_each(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of every distinct one of (N, D), shape (U,), and how often it occurs, shape (U,)."""
    _, index, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    return torch.argsort(index, stable=True)[counts.cumsum(0) - counts], counts


def without_copies(X: Tensor, y: Tensor) -> Tensor:
    """Places (K,) of rows X (N, D), y (N, ...) without copies of earlier ones, in their order; warns if there are any.

    Two measurements would differ, so copies suggest that there is no noise. If rows recur naturally, one of them
    often (a sensor at rest), or equal inputs have several targets (categories), all rows stay.
    """
    rows = torch.cat([X, y.reshape(len(y), -1).to(X)], dim=1)
    first, counts = first_of_each(torch.cat([rows.nan_to_num(), rows.isnan().to(rows)], dim=1))
    num_copies = len(rows) - len(first)
    if num_copies <= _FEWEST * len(rows) or int(counts.max()) > _OFTEN:
        return torch.arange(len(rows), dtype=torch.int64, device=X.device)
    inputs = X[first]
    own = len(first_of_each(torch.cat([inputs.nan_to_num(), inputs.isnan().to(inputs)], dim=1))[0])
    if own < _OWN * len(first):
        return torch.arange(len(rows), dtype=torch.int64, device=X.device)
    warn_caller(
        f"{num_copies} of the {len(rows)} rows are exact copies of other rows and are left out: counted as separate "
        f"measurements, they would suggest that there is no noise"
    )
    return first.sort().values
