"""The tables of a folder as tasks: rows in their order, standardized by the warm-up rows."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.streaming.columns import Standardizer, constant_columns
from gp_ensembles.tables import TableOptions
from gp_ensembles.tables.numbers import number_in
from gp_ensembles.tables.text import text_source
from studies.arena.scores import Array, lattice_unit
from studies.harness.protocol import split_stream

FEWEST_ROWS, MOST_WARM_UP = 600, 1000
_CLIP = 1e3  # standardized inputs are clipped there, as in the other studies
_KINDS = {"regression": "numbers", "time-series": "series", "classification": "classes"}


class Entry(NamedTuple):
    """A set of a folder.

    Attributes:
        name: Its name.
        kind: ``numbers``, ``series`` (numbers, and no input but time) or ``classes``.
        path: Its file.
        features: Names of its inputs; none for a series without a column of time.
        target: Name of its target.
        num_rows: How many rows it has.
    """

    name: str
    kind: str
    path: Path
    features: tuple[str, ...]
    target: str
    num_rows: int


class Task(NamedTuple):
    """A set as rivals meet it.

    Attributes:
        name: Of the set.
        kind: As in :class:`Entry`.
        warm_X: Inputs of the warm-up rows, standardized by them, without constant ones, shape (N0, D).
        warm_y: Their targets, standardized by them, shape (N0,); labels 0, 1, ... for classes; NaN where missing.
        X: Inputs of the scored rows, shape (N, D).
        y: Their targets, shape (N,).
        num_classes: How many classes there are; 0 for numbers.
        unit: Unit of targets on a lattice, see :func:`~studies.arena.scores.lattice_unit`.
    """

    name: str
    kind: str
    warm_X: Array
    warm_y: Array
    X: Array
    y: Array
    num_classes: int = 0
    unit: float | None = None


def entries(folder: Path) -> list[Entry]:
    """The sets of a folder that are tables of numbers or classes with at least 600 rows, small ones first.

    Args:
        folder: A folder with a ``manifest.json``: a list ``datasets`` with ``name``, ``file``, ``task``
            (``regression``, ``time-series`` or ``classification``), ``rows``, ``features`` and ``target``.

    Raises:
        OSError: If the manifest cannot be read.
        ValueError: If something is missing.
    """
    path = folder / "manifest.json"
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["datasets"]
        found = [
            Entry(
                str(entry["name"]),
                _KINDS[entry["task"]],
                folder / str(entry["file"]),
                tuple(str(name) for name in entry["features"]),
                str(entry["target"]),
                int(entry["rows"]),
            )
            for entry in listed
            if entry["task"] in _KINDS and int(entry["rows"]) >= FEWEST_ROWS
        ]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a manifest with task, rows, features and target: {error!r}") from None
    return sorted(found, key=lambda entry: min(entry.num_rows, 11_000) * (len(entry.features) + 1))


def load_task(entry: Entry, max_rows: int) -> Task:
    """The first rows of a set: a quarter of all, at most 1 000, as warm-up, and at most so many to be scored.

    A missing input is set to the mean of the warm-up rows; a set without inputs gets the number of the row as one.

    Args:
        entry: The set.
        max_rows: Most rows that are scored.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is malformed, or the target or all inputs are constant in the warm-up rows.
    """
    num_warmup = min(MOST_WARM_UP, entry.num_rows // 4)
    lines = read_lines(entry.path, num_warmup + max_rows)
    check_columns(lines, [entry.target, *entry.features])
    columns = [[number_in(cell) for cell in lines.column(name)] for name in (*entry.features, entry.target)]
    if any(value is None for column in columns for value in column):
        raise ValueError(f"{entry.path} has text in a column of numbers")
    *inputs, y = (torch.tensor(column, dtype=torch.float64, device="cpu") for column in columns)
    X = torch.stack(inputs or [torch.arange(float(len(y)), dtype=torch.float64, device="cpu")], dim=-1)
    X = torch.where(torch.isnan(X), torch.nanmean(X[:num_warmup], 0), X)
    names = entry.features or ("row",)
    if entry.kind == "classes":
        return _classes(entry, X, y, num_warmup)
    stream = split_stream(Table(X, y, names, entry.target, entry.name), num_warmup, drop_constant=True, clip=_CLIP)
    warm_X, warm_y, X, y = stream.warm_X, stream.warm_y, stream.X, stream.y
    unit = lattice_unit(torch.cat([warm_y, y]).numpy())
    return Task(entry.name, entry.kind, warm_X.numpy(), warm_y.numpy(), X.numpy(), y.numpy(), unit=unit)


def _classes(entry: Entry, X: Tensor, y: Tensor, num_warmup: int) -> Task:
    constant = set(constant_columns(X[:num_warmup]))
    kept = [j for j in range(X.shape[1]) if j not in constant]
    if not kept:
        raise ValueError(f"all inputs of {entry.name} are constant in the {num_warmup} warm-up rows")
    names = [entry.features[j] for j in kept]
    scales = Standardizer.fit_inputs(X[:num_warmup, kept], y[:num_warmup], names)
    inputs = scales.transform_inputs(X[:, kept]).clamp(-_CLIP, _CLIP).numpy()
    labels, found = np.unique(y.numpy(), return_inverse=True)
    targets = found.astype(np.float64)
    parts = (inputs[:num_warmup], targets[:num_warmup], inputs[num_warmup:], targets[num_warmup:])
    return Task(entry.name, entry.kind, *parts, num_classes=len(labels))


class CsvLines(NamedTuple):
    """A table as text.

    Attributes:
        path: The file.
        header: Names of the columns.
        cells: Cells of each column, by name.
        numbers: Line of the file of each row, counted from 1.
        decimal: The mark before decimals.
    """

    path: Path
    header: list[str]
    cells: dict[str, list[str]]
    numbers: list[int]
    decimal: str

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        return self.cells[name]

    def where(self, row: int, name: str) -> str:
        """A cell, its row counted from zero, for a message that counts from one."""
        return f"{self.path}, data row {row + 1} (line {self.numbers[row]}), column {name}"


def read_lines(path: Path, max_rows: int | None = None) -> CsvLines:
    """Read a text table of any dialect as it is written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no text table, has no data row, or a row has another number of cells than there are names.
    """
    source = text_source(str(path), TableOptions())
    header = list(source.header)
    cells, numbers = {name: list[str]() for name in header}, list[int]()
    for batch in source.rows(header):
        for name, column in batch.columns.items():
            cells[name] += column.tolist()
        numbers += [] if batch.lines is None else batch.lines.tolist()
        if max_rows is not None and len(numbers) >= max_rows:
            break
    if not numbers:
        raise ValueError(f"{path} has a header but no data rows")
    stop = slice(max_rows)
    return CsvLines(path, header, {name: cells[name][stop] for name in header}, numbers[stop], source.decimal)


def check_columns(lines: CsvLines, names: Sequence[str]) -> None:
    """Raise if a column does not exist.

    Raises:
        ValueError: Naming it, names like it, and those there are.
    """
    for name in names:
        if name not in lines.header:
            close = difflib.get_close_matches(name, lines.header, n=3)
            hint = f"did you mean {' or '.join(close)}? its " if close else "its "
            raise ValueError(f"{lines.path} has no column named {name}; {hint}columns are {', '.join(lines.header)}")
