"""Rows from a CSV file: empty cells are gaps, text is refused with advice, and a label may be anything."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from gp_ensembles.cli.embed.labels import make_labels
from gp_ensembles.cli.embed.rows import Rows
from gp_ensembles.data.table import CsvLines, check_columns, number_in, read_lines


def read_csv_rows(
    path: Path, label: str | None = None, features: Sequence[str] | None = None, max_rows: int | None = None
) -> Rows:
    r"""Read rows from a ``.csv`` or ``.csv.gz`` file with a header.

    Args:
        path: The file.
        label: Column that says what a row is, by text or number; it is not embedded.
        features: Columns to embed; all but the label by default.
        max_rows: Read so many rows only.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is malformed, a column is unknown, or a cell holds text or an infinite number; data
            rows are counted from 1 after the header.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "pump.csv"
        >>> _ = path.write_text("flow,heat,state\n1.5,,on\n2,3,off\n")
        >>> rows = read_csv_rows(path, label="state")
        >>> rows.Y, rows.labels.categories
        (tensor([[1.5000,    nan],
                 [2.0000, 3.0000]], dtype=torch.float64), ('off', 'on'))
    """
    lines = read_lines(path, max_rows)
    columns = list(features) if features is not None else [name for name in lines.header if name != label]
    check_columns(lines, columns if label is None else [label, *columns])
    if label in columns:
        raise ValueError(f"the label {label} is also among the features; leave it out there")
    if len(set(columns)) < len(columns):
        raise ValueError(f"the same feature is named twice in {', '.join(columns)}")
    if not columns:
        raise ValueError(f"{path} has no column to embed besides the label {label}")
    values = [_column(lines, name) for name in columns]
    Y = torch.tensor(values, dtype=torch.float64, device="cpu").T.contiguous()
    labels = None if label is None else make_labels(label, lines.column(label))
    numbers = torch.tensor(lines.numbers, dtype=torch.int64, device="cpu")
    return Rows(Y, tuple(columns), labels, str(path), False, numbers)


def _column(lines: CsvLines, name: str) -> list[float]:
    values = []
    for row, text in enumerate(lines.column(name)):
        value, where = number_in(text), lines.where(row, name)
        if value is None and len(lines.header) == 1 and ";" in text:
            raise ValueError(f"{where}: {text.strip()!r}; cells must be separated by commas, not semicolons")
        if value is None:
            raise ValueError(
                f"{where}: {text.strip()!r} is not a number; if the column says what a row is, give --label {name}, "
                f"otherwise choose numeric columns with --features"
            )
        if math.isinf(value):
            raise ValueError(f"{where}: the value is infinite; leave the cell empty where nothing was observed")
        values.append(value)
    return values
