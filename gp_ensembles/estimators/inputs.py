"""Conversion of an estimator's inputs: arrays, and frames with dates and categories, encoded as in the CLI."""

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from gp_ensembles.tables.columns import ColumnEncoder
from gp_ensembles.tables.frames import frame_source, has_numbers_only, is_frame
from gp_ensembles.tables.kinds import fit_column, refuse_text
from gp_ensembles.tables.raw import CellError, RawRows, join

Columns = tuple[ColumnEncoder, ...]
Array = np.ndarray[Any, Any]


def as_tensor(values: Array) -> Tensor:
    """A float64 copy as a tensor: the user's memory may be read-only or change later."""
    return torch.from_numpy(np.array(values, dtype=np.float64))


def as_array(values: Tensor) -> Array:
    """A float64 NumPy array."""
    result: Array = values.cpu().double().numpy()
    return result


def fit_frame(X: Any, rows: Array) -> Columns | None:
    """The encoding of a frame's columns, from some of its rows; ``None`` if X is no frame or only has numbers."""
    if not is_frame(X) or has_numbers_only(X):
        return None
    raw, kinds = _raw(X).part(rows), frame_source(X).kinds
    columns = []
    for name, cells in raw.columns.items():
        try:
            column = fit_column(name, cells, ".", kinds.get(name))
            if name not in kinds and column.kind in ("category", "hashed"):
                refuse_text(name, cells)
        except CellError as error:
            problem, row = error.problem.partition(";")[0], rows[error.place] + 1
            raise ValueError(f"column {name} of X, row {row}: {problem}; fix it, or leave it out") from None
        columns.append(column)
    return tuple(columns)


def checked_inputs(estimator: Any, X: Any, columns: Columns | None, *, reset: bool) -> Array:
    """Inputs as numbers, shape (N, D), with scikit-learn's checks of names and values; NaN where missing.

    Infinite numbers are handled by the model, see ``StreamConfig.on_bad_row``.
    """
    if columns is None:
        checked: Array = validate_data(estimator, X, dtype=np.float64, reset=reset, ensure_all_finite=False)
        return checked
    if not is_frame(X):
        raise ValueError(
            f"X must be a frame with the columns {', '.join(c.name for c in columns)}, as in the first call"
        )
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    raw = _raw(X)
    parts = []
    for column in columns:
        try:
            parts.append(column.encode(raw.columns[column.name], "."))
        except CellError as error:
            raise ValueError(f"column {column.name} of X, row {error.place + 1}: {error.problem}") from None
    return np.concatenate(parts, axis=1)


def encoded_names(estimator: Any, columns: Columns | None) -> list[str] | None:
    """Names of the inputs of a model, if they have any."""
    if columns is not None:
        return [name for column in columns for name in column.names]
    known = estimator.__dict__.get("feature_names_in_")
    return None if known is None else [str(name) for name in known]


def _raw(X: Any) -> RawRows:
    source = frame_source(X)
    empty = RawRows({name: np.empty(0) for name in source.header}, None)
    return join(list(source.rows(source.header)) or [empty])
