"""Sets of the OpenML collection, through scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gp_ensembles.data.table import Table


def load_openml(data_id: int, target: str, *, cache: str | Path) -> Table:
    """Load a numeric set of OpenML; fetched once, read from the cache afterwards.

    Args:
        data_id: Number of the set at openml.org.
        target: Name of the target column; all other columns are inputs.
        cache: Folder that keeps what was fetched.

    Returns:
        The table, X (N, D) and y (N,), rows in the set's order; NaN where the target is missing.

    Raises:
        ImportError: If scikit-learn is not installed.
        ConnectionError: If the set is not in the cache and cannot be fetched.
        ValueError: If a column is not numeric (categories are not made numbers), or an input is missing.

    Example:
        >>> table = load_openml(189, "y", cache="openml_cache")  # doctest: +SKIP
    """
    try:
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        raise ImportError("OpenML sets need scikit-learn; pip install 'gp_ensembles[sklearn]'") from error
    try:
        bunch = fetch_openml(
            data_id=data_id, target_column=target, data_home=str(cache), as_frame=False, parser="liac-arff"
        )
    except OSError as error:  # what urllib raises without a network
        raise ConnectionError(
            f"OpenML set {data_id} is not in {cache} and could not be fetched ({error}); fetch it once with a network"
        ) from error
    names = tuple(str(name) for name in bunch.feature_names)
    # Numbers that stand for categories have an order that means nothing.
    categories = [name for name in names if name in (bunch.get("categories") or {})]
    if categories:
        raise ValueError(
            f"inputs of OpenML set {data_id} are categories, not numbers: {', '.join(categories)}; choose another set, "
            f"or encode them into a csv file"
        )
    X, y = _numeric(bunch.data, f"an input of OpenML set {data_id}"), _numeric(bunch.target, f"the target {target}")
    finite = np.isfinite(X)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"OpenML set {data_id}, row {row + 1}, column {names[column]}: the input is missing or infinite; "
            f"choose another set, or clean it into a csv file"
        )
    if np.isinf(y).any():
        raise ValueError(f"OpenML set {data_id}: the target {target} is infinite in a row")
    return Table(torch.from_numpy(X), torch.from_numpy(y.reshape(-1)), names, target, f"openml_{data_id}")


def _numeric(values: Any, what: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    # Sparse matrices know how to become arrays; the rest are arrays already.
    dense = values.toarray() if callable(getattr(values, "toarray", None)) else values
    try:
        return np.array(dense, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is not numeric: {error}") from None
