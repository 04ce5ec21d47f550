"""Targets of an estimator as scikit-learn gives them: gaps, columns, rows that are sorted by them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from torch import Tensor

from gp_ensembles.estimators.inputs import Array
from gp_ensembles.numerics.warn_caller import warn_caller


def filled(y: Any) -> tuple[Any, NDArray[np.bool_] | None]:
    """Targets with zeros in their gaps, as checks of scikit-learn know none, and where those are."""
    found = np.asarray(y)
    if found.ndim == 0 or found.dtype.kind not in "fOU":
        return y, None
    try:
        values: Array = (found.astype(object) if found.dtype.kind == "U" else found).astype(np.float64)
    except TypeError:
        return y, None
    except ValueError as error:
        raise ValueError(f"y must be numbers ({error}); for classes use OnlineClassifier") from None
    gaps = np.isnan(values)
    return (np.where(gaps, 0.0, values), gaps) if gaps.any() else (y, None)


def checked_targets(y: Array) -> Array:
    """Targets (N,) or (N, O); a column (N, 1) becomes (N,), as a vector is what is meant."""
    if y.ndim == 2 and y.shape[1] == 1:
        column: Array = column_or_1d(y, warn=True)
        return column
    if y.ndim not in (1, 2):
        raise ValueError(f"y must have shape (N,) or (N, O), got {y.shape}")
    return y


def is_sorted(X: Tensor, y: Tensor, *, has_labels: bool) -> bool:
    """Whether rows are sorted by their targets y (N,), or grouped by labels, and by no column of X (N, D); warns then.

    Such an order is not that of time: learned in it, each row would be new to all experts.
    """
    seen = y[~y.isnan()] if y.ndim == 1 else y[:0]
    steps, clock = seen.diff(), X.diff(dim=0)
    is_grouped = int((steps != 0).sum()) == len(seen.unique()) - 1 > 0
    found = is_grouped and (has_labels or bool((steps >= 0).all() | (steps <= 0).all()))
    if not found or bool(((clock > 0).all(0) | (clock < 0).all(0)).any()):
        return False
    warn_caller(
        f"the {len(y)} rows are sorted by target and by no input, so they are not taken as a time series and are "
        f"learned in random order; if this is their order in time, add the time as an input or pass spec=gpe.auto"
    )
    return True
