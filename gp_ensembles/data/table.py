"""Tables in memory, and whole files read as tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.rows import Rows
from gp_ensembles.tables.stream import USUAL_WARM_UP, open_rows
from gp_ensembles.tables.text import table_name


@prints_fields
class Table(NamedTuple):
    """Inputs and a target, a row per time step.

    Attributes:
        X: Inputs, float64, shape (N, D); NaN where missing.
        y: Targets, float64, shape (N,); NaN where missing.
        feature_names: Names of the D columns.
        target_name: Name of the target.
        name: Name of the table.

    Example:
        >>> import torch
        >>> X = torch.zeros(3, 1, dtype=torch.float64)
        >>> Table(X, X.squeeze(-1), ("time",), "height", "wave").feature_names
        ('time',)
    """

    X: Tensor
    y: Tensor
    feature_names: tuple[str, ...]
    target_name: str
    name: str


def read_csv(path: str | Path, target: str, features: Sequence[str] | None = None) -> Table:
    r"""Read a whole text table, gzipped or not, or a Parquet file.

    Its dialect is detected, and non-numeric columns are encoded, as :func:`~gp_ensembles.tables.open_rows` does
    for files of any length. A missing cell is NaN; true and false as targets are 1 and 0.

    Args:
        path: The file.
        target: Name of the target column.
        features: Names of the input columns, in the desired order; all other columns by default.

    Returns:
        The table, rows in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file or a cell is malformed, or a column is unknown; data rows are counted from 1 after the
            header, lines from 1 with it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.csv"
        >>> _ = path.write_text("time,load\n0,1.5\n1,\n")
        >>> read_csv(path, "load").y
        tensor([1.5000,    nan], dtype=torch.float64)
    """
    chosen = None if features is None else tuple(features)
    if chosen is not None and len(set(chosen)) < len(chosen):
        raise ValueError(f"the same feature is named twice in {', '.join(chosen)}")
    options = TableOptions(features=chosen)
    stream = open_rows(path, target, options, num_warm_up=USUAL_WARM_UP)
    rows = Rows.join(list(stream))
    return Table(rows.X, rows.y, stream.feature_names, target, table_name(str(path)))
