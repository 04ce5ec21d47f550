"""The papers' stream protocol: a table in standardized units, by its warm-up rows only, and what comes after them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.streaming.columns import Standardizer, constant_columns

_MIN_WARM_UP = 10


class Stream(NamedTuple):
    """A table in standardized units, cut in two.

    Attributes:
        warm_X: Warm-up inputs, shape (N0, D).
        warm_y: Warm-up targets, shape (N0,); NaN where missing, which fits leave out.
        X: Inputs of the stream, shape (N, D).
        y: Targets of the stream, shape (N,); NaN where missing.
        standardizer: From and to the table's units, float64.
        feature_names: Names of the D columns that were kept.
        dropped: Names of the columns that were dropped as constant.

    Example:
        >>> from gp_ensembles.data import friedman1
        >>> import torch
        >>> stream = split_stream(friedman1(35, generator=torch.Generator().manual_seed(0)).table, 20)
        >>> [len(y) for X, y in stream.blocks(10)]
        [10, 5]
    """

    warm_X: Tensor
    warm_y: Tensor
    X: Tensor
    y: Tensor
    standardizer: Standardizer
    feature_names: tuple[str, ...]
    dropped: tuple[str, ...] = ()

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (B, D) and targets (B,) after the warm-up, ``size`` rows at a time and the rest in a last block.

        Args:
            size: B.

        Raises:
            ValueError: If ``size`` is not positive.
        """
        if size < 1:
            raise ValueError(f"blocks of {size} rows were asked for; at least one row is needed")
        return zip(self.X.split(size), self.y.split(size), strict=True)


def split_stream(
    table: Table,
    num_warmup: int = 1000,
    *,
    drop_constant: bool = False,
    clip: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Stream:
    """Cut a table after its warm-up rows and standardize both parts by the first.

    Args:
        table: The table, rows in the order of time.
        num_warmup: Rows for statistics and hyperparameters.
        drop_constant: Drop columns that are constant in the warm-up rows instead of raising.
        clip: Largest standardized input kept (the papers use 1000); larger ones are set to it. ``None``: no clipping.
        dtype: Of the two parts; statistics are taken, and rows standardized, in the table's own dtype before.

    Raises:
        ValueError: If fewer than ten warm-up rows have a target, no row is left after them, or a column or the
            target is constant in the warm-up rows.

    Example:
        >>> from gp_ensembles.data import friedman1
        >>> import torch
        >>> stream = split_stream(friedman1(300, generator=torch.Generator().manual_seed(0)).table, 100)
        >>> stream.X.shape, bool(stream.warm_y.mean().abs() < 1e-12)
        (torch.Size([200, 10]), True)
    """
    num_rows = table.X.shape[0]
    if num_warmup < _MIN_WARM_UP:
        raise ValueError(f"{num_warmup} warm-up rows are too few; at least {_MIN_WARM_UP} are needed")
    if num_rows <= num_warmup:
        raise ValueError(
            f"{table.name} has {num_rows} rows, not more than the {num_warmup} warm-up rows; use a shorter warm-up"
        )
    if clip is not None and not clip > 0:
        raise ValueError(f"clip is {clip:g}; it must be positive, or None for no clipping")
    seen = int((~torch.isnan(table.y[:num_warmup])).sum())
    if 0 < seen < _MIN_WARM_UP:
        raise ValueError(
            f"only {seen} of the {num_warmup} warm-up rows have a target; at least {_MIN_WARM_UP} are needed, so use a "
            f"longer warm-up"
        )
    X, names, constant = table.X, table.feature_names, set[int]()
    if drop_constant:
        constant = set(constant_columns(X[:num_warmup]))
        kept = [j for j in range(X.shape[1]) if j not in constant]
        if not kept:
            raise ValueError(f"all columns are constant in the {num_warmup} warm-up rows; use a longer warm-up")
        X, names = X[:, kept], tuple(names[j] for j in kept)
    standardizer = Standardizer.fit(X[:num_warmup], table.y[:num_warmup], names)
    X, y = standardizer.transform(X, table.y)
    if clip is not None:
        X = X.clamp(-clip, clip)
    X, y = X.to(dtype), y.to(dtype)
    dropped = tuple(table.feature_names[j] for j in sorted(constant))
    return Stream(X[:num_warmup], y[:num_warmup], X[num_warmup:], y[num_warmup:], standardizer, names, dropped)
