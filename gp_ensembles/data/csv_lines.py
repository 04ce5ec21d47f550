"""The lines of a CSV file as text, with everything said that can be wrong before a cell means anything."""

import csv
import difflib
import gzip
import math
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO


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
        twice = sorted({name for name in header if header.count(name) > 1})
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
    """Raise if a column is not there.

    Raises:
        ValueError: Naming it, names like it, and those there are.
    """
    for name in names:
        if name not in lines.header:
            close = difflib.get_close_matches(name, lines.header, n=3)
            hint = f"did you mean {' or '.join(close)}? its " if close else "its "
            raise ValueError(f"{lines.path} has no column named {name}; {hint}columns are {', '.join(lines.header)}")


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


def _open(path: Path) -> TextIO:
    # "sig": spreadsheets like to begin a file with a byte order mark.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
