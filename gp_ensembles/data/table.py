"""A table whose rows arrive in time, and a reader that says exactly what is wrong with a file."""

import csv
import difflib
import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
from torch import Tensor


class Table(NamedTuple):
    """Inputs and a target, a row per time step.

    Attributes:
        X: Inputs, float64, finite, shape (N, D).
        y: Targets, float64, shape (N,); NaN where missing.
        feature_names: Names of the D columns.
        target_name: Name of the target.
        name: What the table is.
    """

    X: Tensor
    y: Tensor
    feature_names: tuple[str, ...]
    target_name: str
    name: str


def read_csv(path: str | Path, target: str, features: Sequence[str] | None = None) -> Table:
    r"""Read a table with a header row from a ``.csv`` or ``.csv.gz`` file.

    A missing target (empty or NaN) is kept as NaN. A missing or infinite input, text in a numeric column, or a row
    of the wrong length is an error that names the row.

    Args:
        path: The file.
        target: Name of the target column.
        features: Names of the input columns, in the order wanted; all other columns by default.

    Returns:
        The table, rows in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file or a cell is malformed, or a column is unknown; data rows are counted from 1.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.csv"
        >>> _ = path.write_text("time,load\n0,1.5\n1,\n")
        >>> read_csv(path, "load").y
        tensor([1.5000,    nan], dtype=torch.float64)
    """
    path = Path(path)
    if not path.is_file():
        kind = "a folder, not a file" if path.is_dir() else "not there"
        raise FileNotFoundError(f"{path} is {kind}")
    try:
        with _open(path) as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{path} is not a text table: {error}") from None
    rows = [row for row in rows if row]
    if not rows:
        raise ValueError(f"{path} is empty; a header row and data rows are needed")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise ValueError(f"{path} has several columns named {', '.join(twice)}; rename them")
    if len(rows) == 1:
        raise ValueError(f"{path} has a header but no data rows")
    columns = list(features) if features is not None else [name for name in header if name != target]
    for name in [target, *columns]:
        if name not in header:
            raise ValueError(_unknown(name, header, path))
    if target in columns:
        raise ValueError(f"the target {target} is also among the features; leave it out there")
    if not columns:
        raise ValueError(f"{path} has no input column besides the target {target}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"the same feature is named twice in {', '.join(columns)}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise ValueError(f"{path}, data row {number}: {len(row)} cells under {len(header)} column names")
    X = torch.tensor(
        [_inputs(rows, header.index(name), name, path) for name in columns], dtype=torch.float64, device="cpu"
    )
    y = torch.tensor(_targets(rows, header.index(target), target, path), dtype=torch.float64, device="cpu")
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Table(X.T.contiguous(), y, tuple(columns), target, name)


def _open(path: Path) -> TextIO:
    # "sig": spreadsheets like to begin a file with a byte order mark.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _inputs(rows: list[list[str]], index: int, name: str, path: Path) -> list[float]:
    values = []
    for number, row in enumerate(rows[1:], start=1):
        value = _number(row[index], number, name, path)
        if not math.isfinite(value):
            text = row[index].strip() or "missing"
            raise ValueError(
                f"{path}, data row {number}, column {name}: the input is {text}; inputs must be finite numbers, "
                f"so fill it in, drop the row, or leave the column out with --features"
            )
        values.append(value)
    return values


def _targets(rows: list[list[str]], index: int, name: str, path: Path) -> list[float]:
    values = []
    for number, row in enumerate(rows[1:], start=1):
        value = _number(row[index], number, name, path)
        if math.isinf(value):
            raise ValueError(f"{path}, data row {number}, column {name}: the target is infinite; leave the cell empty")
        values.append(value)
    return values


def _number(text: str, row: int, name: str, path: Path) -> float:
    stripped = text.strip()
    if not stripped:
        return math.nan
    try:
        return float(stripped)
    except ValueError:
        raise ValueError(
            f"{path}, data row {row}, column {name}: {stripped!r} is not a number; choose numeric columns with "
            f"--features, or encode this one"
        ) from None


def _unknown(name: str, header: Sequence[str], path: Path) -> str:
    close = difflib.get_close_matches(name, header, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"columns are {', '.join(header)}"
    return f"{path} has no column named {name}; {hint}"
