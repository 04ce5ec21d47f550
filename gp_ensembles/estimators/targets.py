"""Validation of an estimator's targets: gaps, columns, and rows sorted by target."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from torch import Tensor

from gp_ensembles.estimators.inputs import Array
from gp_ensembles.numerics.warn_caller import warn_caller


def filled(y: Any) -> tuple[Any, NDArray[np.bool_] | None]:
    """Targets with gaps set to zero, since scikit-learn's checks reject gaps, and a mask of the gaps."""
    found = np.asarray(y)
    if found.ndim == 0 or found.dtype.kind not in "fOU":
        return y, None
    try:
        values = _numbers(found)
    except TypeError:
        return y, None
    gaps = np.isnan(values)
    return (np.where(gaps, 0.0, values), gaps) if gaps.any() else (y, None)


def checked_targets(y: Any) -> Array:
    """Targets (N,) or (N, O) as numbers; a column (N, 1) becomes a vector (N,)."""
    values = _numbers(np.asarray(y))
    if values.ndim == 2 and values.shape[1] == 1:
        column: Array = column_or_1d(values, warn=True)
        return column
    if values.ndim not in (1, 2):
        raise ValueError(f"y must have shape (N,) or (N, O), got {values.shape}")
    return values


def is_sorted(X: Tensor, y: Tensor, *, has_labels: bool) -> bool:
    """Whether rows are sorted by target y (N,), or grouped by labels, and no column of X (N, D) is a clock; warns.

    Such rows are not in time order: learned in that order, each row would be new to all experts.
    """
    seen = y[~y.isnan()] if y.ndim == 1 else y[:0]
    steps = seen.diff()
    is_grouped = int((steps != 0).sum()) == len(seen.unique()) - 1 > 0
    found = is_grouped and (has_labels or bool((steps >= 0).all() | (steps <= 0).all()))
    if not found or any(map(_is_clock, X.T)):
        return False
    warn_caller(
        f"the {len(y)} rows are sorted by target but by no input, so they are not treated as a time series and are "
        f"learned in random order; if this is their order in time, add the time as an input or pass spec=gpe.auto"
    )
    return True


def _is_clock(column: Tensor) -> bool:
    """Whether a column (N,) is monotone, ignoring gaps, with N / 2 or more distinct values: categories have fewer."""
    steps = column[~column.isnan()].diff()
    return bool((steps >= 0).all() | (steps <= 0).all()) and 2 * (1 + int((steps != 0).sum())) >= len(column)


def _numbers(y: Array) -> Array:
    """Targets as float64; a ``ValueError`` if they are text."""
    try:
        values: Array = (y.astype(object) if y.dtype.kind == "U" else y).astype(np.float64)
    except ValueError as error:
        raise ValueError(f"y must be numbers ({error}); for classes use OnlineClassifier") from None
    return values
