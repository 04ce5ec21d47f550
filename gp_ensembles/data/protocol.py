"""The papers' stream protocol: standardize by the warm-up rows only, then stream the rest."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data.table import Table

_MIN_WARM_UP = 10


class Standardizer(NamedTuple):
    """Shifts and scales taken from the warm-up rows, for inputs and target.

    Attributes:
        X_mean: Means of the inputs, shape (D,).
        X_scale: Population standard deviations of the inputs, shape (D,).
        y_mean: Mean of the observed targets, a scalar.
        y_scale: Population standard deviation of the observed targets, a scalar.

    Example:
        >>> import torch
        >>> X = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> standardizer = Standardizer.fit(X, torch.tensor([1.0, 5.0], dtype=torch.float64))
        >>> standardizer.inverse_mean(torch.tensor(1.0, dtype=torch.float64))
        tensor(5., dtype=torch.float64)
    """

    X_mean: Tensor
    X_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    @classmethod
    def fit(cls, X: Tensor, y: Tensor, feature_names: Sequence[str] | None = None) -> "Standardizer":
        """Take means and population standard deviations of warm-up rows; missing targets are left out.

        Args:
            X: Warm-up inputs, shape (N, D).
            y: Warm-up targets, shape (N,); NaN where missing.
            feature_names: Names for messages; column numbers by default.

        Raises:
            ValueError: If a column or the target is constant or too large to square, or no target is observed.
        """
        seen = y[~torch.isnan(y)]
        if seen.numel() == 0:
            raise ValueError("no target is observed in the warm-up rows")
        standardizer = cls(X.mean(0), X.std(0, correction=0), seen.mean(), seen.std(correction=0))
        constant = constant_columns(X)
        if constant:
            names = [feature_names[j] if feature_names else f"column {j}" for j in constant]
            raise ValueError(
                f"constant in the {X.shape[0]} warm-up rows: {', '.join(names)}; leave them out, "
                f"or use a longer warm-up"
            )
        if not all(bool(moment.isfinite().all()) for moment in standardizer):
            raise ValueError("a column's or the target's spread overflows; rescale the values of the warm-up rows")
        if not bool(standardizer.y_scale > 0) or bool((seen == seen[0]).all()):
            raise ValueError(f"the target is constant ({float(seen[0]):g}) in the warm-up rows; use a longer warm-up")
        return standardizer

    @classmethod
    def fit_inputs(cls, X: Tensor, y: Tensor, feature_names: Sequence[str] | None = None) -> "Standardizer":
        """As :meth:`fit` for the inputs; targets, such as classes and counts, stay as they are."""
        stand_in = torch.arange(X.shape[0], dtype=X.dtype, device=X.device)
        zero = y.new_zeros(())
        return cls.fit(X, stand_in, feature_names)._replace(y_mean=zero, y_scale=zero + 1)

    def transform(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (..., D) and targets in standardized units."""
        return self.transform_inputs(X), (y - self.y_mean) / self.y_scale

    def transform_inputs(self, X: Tensor) -> Tensor:
        """Inputs (..., D) in standardized units."""
        return (X - self.X_mean) / self.X_scale

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Means, quantiles or targets back in the target's units."""
        return mean * self.y_scale + self.y_mean

    def inverse_std(self, std: Tensor) -> Tensor:
        """Standard deviations back in the target's units."""
        return std * self.y_scale

    def inverse_variance(self, variance: Tensor) -> Tensor:
        """Variances back in the target's squared units."""
        return variance * self.y_scale.square()

    def inverse_log_prob(self, log_prob: Tensor) -> Tensor:
        """Log densities of standardized targets as log densities in the target's units."""
        return log_prob - self.y_scale.log()


def constant_columns(X: Tensor) -> list[int]:
    """Columns of X (N, D) that do not vary beyond round-off.

    Example:
        >>> import torch
        >>> constant_columns(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
        [0]
    """
    spread = X.std(0, correction=0)
    round_off = 10 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    return [int(j) for j in (spread <= round_off).nonzero().flatten()]


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
        >>> from gp_ensembles.data.synthetic import friedman1
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
        >>> from gp_ensembles.data.synthetic import friedman1
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
