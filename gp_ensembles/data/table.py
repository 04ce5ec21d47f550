"""A table whose rows arrive in time, and the reader of CSV files, which says exactly what is wrong with one."""

import csv
import difflib
import gzip
import math
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
from torch import Tensor

_WORDS = {"true": 1.0, "false": 0.0}  # legal targets besides numbers


class Source(NamedTuple):
    """The file of a table, so that its cells can be named.

    Attributes:
        path: The file.
        lines: Its line of each row, counted from 1, shape (N,).
        has_words: Whether targets were written as true and false.
    """

    path: str
    lines: Tensor
    has_words: bool = False


class Table(NamedTuple):
    """Inputs and a target, a row per time step.

    Attributes:
        X: Inputs, float64, finite, shape (N, D).
        y: Targets, float64, shape (N,); NaN where missing.
        feature_names: Names of the D columns.
        target_name: Name of the target.
        name: What the table is.
        source: Where its rows stand, if it came from a file.

    Example:
        >>> X = torch.zeros(3, 1, dtype=torch.float64)
        >>> Table(X, X.squeeze(-1), ("time",), "height", "wave").feature_names
        ('time',)
    """

    X: Tensor
    y: Tensor
    feature_names: tuple[str, ...]
    target_name: str
    name: str
    source: Source | None = None

    def where(self, row: int) -> str:
        """A row, counted from zero, for a message: the file, and the row as a reader counts.

        Example:
            >>> X = torch.zeros(3, 1, dtype=torch.float64)
            >>> Table(X, X.squeeze(-1), ("time",), "height", "wave").where(2)
            'wave, data row 3'
        """
        # A table that was cut after it was read has other rows than its file.
        if self.source is None or self.source.lines.shape != self.y.shape:
            return f"{self.name}, data row {row + 1}"
        return f"{self.source.path}, data row {row + 1} (line {int(self.source.lines[row])})"


def read_csv(
    path: str | Path, target: str, features: Sequence[str] | None = None, *, gaps: Sequence[str] = ()
) -> Table:
    r"""Read a table with a header row from a ``.csv`` or ``.csv.gz`` file.

    A missing target (empty or NaN) is kept as NaN; true and false in its column are 1 and 0. A missing or infinite
    input, other text in a numeric column, or a row of the wrong length is an error that names the row.

    Args:
        path: The file.
        target: Name of the target column.
        features: Names of the input columns, in the order wanted; all other columns by default.
        gaps: Names of input columns in which cells may be missing: NaN there is kept.

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
    path = Path(path)
    lines = read_lines(path)
    columns = list(features) if features is not None else [name for name in lines.header if name != target]
    check_columns(lines, [target, *columns])
    if target in columns:
        raise ValueError(f"the target {target} is also among the features; leave it out there")
    if not columns:
        raise ValueError(f"{path} has no input column besides the target {target}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"the same feature is named twice in {', '.join(columns)}")
    X = torch.tensor([_inputs(lines, name, name in gaps) for name in columns], dtype=torch.float64, device="cpu")
    y = torch.tensor(_targets(lines, target), dtype=torch.float64, device="cpu")
    has_words = any(text.strip().lower() in _WORDS for text in lines.column(target))
    numbers = torch.tensor(lines.numbers, dtype=torch.int64, device="cpu")
    source = Source(str(path), numbers, has_words)
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Table(X.T.contiguous(), y, tuple(columns), target, name, source)


class CsvLines(NamedTuple):
    """A table as text.

    Attributes:
        path: The file.
        header: Names of the columns.
        cells: Cells of the data rows, one for each column.
        numbers: Line of the file of each row, counted from 1.
    """

    path: Path
    header: list[str]
    cells: list[list[str]]
    numbers: list[int]

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        place = self.header.index(name)
        return [cells[place] for cells in self.cells]

    def where(self, row: int, name: str) -> str:
        """A cell, its row counted from zero, for a message that counts from one."""
        return f"{self.path}, data row {row + 1} (line {self.numbers[row]}), column {name}"


def read_lines(path: Path, max_rows: int | None = None) -> CsvLines:
    r"""Read a ``.csv`` or ``.csv.gz`` file with a header row; empty lines are skipped.

    Args:
        path: The file.
        max_rows: Read so many data rows only.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no text table, has no data row, a name stands twice in the header, or a row has another
            number of cells.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "small.csv"
        >>> _ = path.write_text("time,load\n\n0,1.5\n")
        >>> read_lines(path).column("load"), read_lines(path).where(0, "load").partition(", ")[2]
        (['1.5'], 'data row 1 (line 3), column load')
    """
    if not path.is_file():
        kind = "a folder, not a file" if path.is_dir() else "not there"
        raise FileNotFoundError(f"{path} is {kind}")
    stop = None if max_rows is None else max_rows + 1
    try:
        with _open(path) as file:
            reader = csv.reader(file)
            found = list(islice(((reader.line_num, cells) for cells in reader if cells), stop))
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{path} is not a text table: {error}") from None
    if not found:
        raise ValueError(f"{path} is empty; a header row and data rows are needed")
    header = [name.strip() for name in found[0][1]]
    if len(set(header)) < len(header):
        twice = sorted({name or "nothing at all" for name in header if header.count(name) > 1})
        raise ValueError(f"{path} has several columns named {', '.join(twice)}; rename them")
    if len(found) == 1:
        raise ValueError(f"{path} has a header but no data rows")
    for row, (line, cells) in enumerate(found[1:], start=1):
        if len(header) == 1 and ";" in header[0] and len(cells) > 1:
            raise ValueError(f"{path}: cells must be separated by commas and numbers written with points, not 1;2,5")
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, data row {row} (line {line}): {len(cells)} cells under {len(header)} column names; mend the "
                f"row"
            )
    return CsvLines(path, header, [cells for _, cells in found[1:]], [line for line, _ in found[1:]])


def check_columns(lines: CsvLines, names: Sequence[str]) -> None:
    """Raise if a column is not there or has no name.

    Raises:
        ValueError: Naming it, names like it, and those there are.
    """
    for name in names:
        if name not in lines.header:
            close = difflib.get_close_matches(name, lines.header, n=3)
            hint = f"did you mean {' or '.join(close)}? its " if close else "its "
            raise ValueError(f"{lines.path} has no column named {name}; {hint}columns are {', '.join(lines.header)}")
        if not name:
            raise ValueError(
                f"{lines.path}: column {lines.header.index(name) + 1} has no name in the header; name it, or choose "
                f"the other columns as features (--features)"
            )


def number_in(text: str) -> float | None:
    """The number in a cell, NaN in an empty one, ``None`` in one with text.

    Example:
        >>> number_in(" 2.5 "), number_in(""), number_in("2024_05")
        (2.5, nan, None)
    """
    stripped = text.strip()
    if not stripped:
        return math.nan
    # Python reads 2024_05 as 202405; a table that says so means something else.
    if "_" in stripped:
        return None
    try:
        return float(stripped)
    except ValueError:
        return None


def _inputs(lines: CsvLines, name: str, may_miss: bool) -> list[float]:
    values = []
    for row, cell in enumerate(lines.column(name)):
        value = number_in(cell)
        if value is None or not (math.isfinite(value) or (may_miss and math.isnan(value))):
            text, where = cell.strip(), lines.where(row, name)
            if value is None:
                raise ValueError(
                    f"{where}: {text!r} is not a number; choose numeric columns as features (--features), or encode "
                    f"this one"
                )
            raise ValueError(
                f"{where}: the input is {text or 'missing'}; inputs must be finite numbers, so fill it in, drop the "
                f"row, or leave the column out of the features (--features)"
            )
        values.append(value)
    return values


def _targets(lines: CsvLines, name: str) -> list[float]:
    values = []
    for row, cell in enumerate(lines.column(name)):
        text = cell.strip()
        value = _WORDS.get(text.lower(), number_in(text))
        if value is None or math.isinf(value):
            where = lines.where(row, name)
            if value is None:
                raise ValueError(
                    f"{where}: the target {text!r} is not a number; encode the classes as 0, 1, ... (true and false "
                    f"are read as 1 and 0), or choose another target"
                )
            raise ValueError(f"{where}: the target is infinite; leave the cell empty")
        values.append(value)
    return values


def _open(path: Path) -> TextIO:
    # "sig": spreadsheets like to begin a file with a byte order mark.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
