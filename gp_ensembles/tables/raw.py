"""Rows of a table as written, by column: the common form of all sources before encoding."""

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.tables.numbers import number_in

Cells = NDArray[np.object_] | NDArray[np.float64] | NDArray[np.datetime64]  # text, numbers or dates


class CellError(ValueError):
    """A cell that does not fit its column."""

    def __init__(self, place: int, problem: str, *, is_odd: bool = False) -> None:
        super().__init__(problem)
        self.place = place  # its row, counted from 0 in the batch
        self.problem = problem  # to follow the name of the column
        self.is_odd = is_odd  # whether the column is valid without this cell


class RawRows(NamedTuple):
    """Consecutive rows."""

    # Cells of each column, shape (B,): text as objects (missing is empty), numbers as float64 (NaN), or dates as
    # datetime64[us] (NaT)
    columns: dict[str, Cells]
    lines: NDArray[np.int64] | None  # The line of each row in the file, shape (B,); ``None`` without a file

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def part(self, rows: slice | NDArray[np.int64]) -> "RawRows":
        """Some of the rows."""
        columns = {name: cells[rows] for name, cells in self.columns.items()}
        return RawRows(columns, None if self.lines is None else self.lines[rows])


@dataclass(frozen=True)
class RawSource:
    """A source of rows, read once."""

    name: str  # of the table, for results
    path: str  # its name in messages
    header: tuple[str, ...]  # names of its columns, all different
    rows: Callable[[Sequence[str]], Iterator[RawRows]]  # all rows of some columns, in batches
    num_rows: int | None = None  # if known in advance
    notes: tuple[str, ...] = ()  # on renamed columns
    kinds: Mapping[str, str] = field(default_factory=dict)  # column types declared by the source, by name
    decimal: str = "."  # the decimal mark in text
    is_pipe: bool = False


def without(raw: RawRows, words: Sequence[str]) -> RawRows:
    """Rows in which given values are missing; whole numbers include ``-999.0``."""
    if not words:
        return raw
    pattern = re.compile("|".join(re.escape(word) + r"(?:[.,]0+)?" * word[-1:].isdigit() for word in words))
    numbers = [value for word in words if (value := number_in(word)) is not None]
    columns: dict[str, Cells] = {}
    for name, cells in raw.columns.items():
        if cells.dtype.kind == "f":
            columns[name] = np.where(np.isin(cells, numbers), np.nan, cells)
        elif cells.dtype.kind == "O":
            columns[name] = np.where([bool(pattern.fullmatch(cell)) for cell in cells], "", cells)
        else:
            columns[name] = cells
    return RawRows(columns, raw.lines)


def blank(raw: RawRows, names: Sequence[str], rows: NDArray[np.bool_]) -> RawRows:
    """Rows without the cells of some columns in some rows (B,)."""
    columns = dict(raw.columns)
    for name in names:
        cells: Any = columns[name].copy()
        cells[rows] = {"O": "", "M": np.datetime64("NaT")}.get(cells.dtype.kind, np.nan)
        columns[name] = cells
    return RawRows(columns, raw.lines)


def texts_of(cells: Cells) -> list[str]:
    """Cells (B,) as text; whole numbers without decimals, so that 3.0 in a file with gaps is the level 3."""
    if cells.dtype.kind == "f":
        numbers: Sequence[float] = cells.tolist()
        return ["" if value != value else f"{value:.17g}" for value in numbers]
    return [str(cell) for cell in cells]


def as_option(*values: str) -> str:
    """Values as an option of the command line, for a shell; those with commas in double quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return shlex.quote(line.getvalue())


def join(parts: Sequence[RawRows]) -> RawRows:
    """Consecutive batches as one; a column that is text in one of them is text."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    lines = [part.lines for part in parts if part.lines is not None]
    return RawRows(columns, np.concatenate(lines) if len(lines) == len(parts) else None)


def unique_names(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Distinct names, and notes on repeated ones; a column without a name is named by its number."""
    found = dict[str, None]()
    known, notes = set(names), []
    for place, given in enumerate(names, start=1):
        plain = given.strip() or f"column {place}"
        name, number = plain, 1
        while name in found or (number > 1 and name in known):
            number += 1
            name = f"{plain}.{number}"
        if name != plain:
            ordinal = {2: "second", 3: "third"}.get(number, f"{number}th")
            notes.append(f"the name {plain} occurs {list(names).count(given)} times; the {ordinal} is renamed {name}")
        found[name] = None
    return tuple(found), tuple(notes)
