"""Rows to be embedded and their labels, read from CSV, array files, a folder with a manifest, or a package."""

import difflib
import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.data import folder_names, load
from gp_ensembles.data.table import CsvLines, check_columns, read_lines
from gp_ensembles.tables.numbers import is_missing, number_in

MOST_NUMBERED = 50  # whole numbers of more kinds than this are a quantity, such as a count


class Labels(NamedTuple):
    """A label for each row.

    Attributes:
        name: Name of the column.
        texts: As written, empty where missing.
        categories: Their names in order; empty if the labels are a quantity.
        values: Number of the category, or the quantity, float64, shape (N,); NaN where missing.
    """

    name: str
    texts: tuple[str, ...]
    categories: tuple[str, ...]
    values: Tensor

    def drawn(self, rows: Tensor) -> list[str] | Tensor | None:
        """What a picture of some rows (boolean, shape (N,)) is colored by: names, a quantity, or nothing known."""
        if self.categories:
            return [text for text, is_drawn in zip(self.texts, rows.tolist(), strict=True) if is_drawn]
        values = self.values[rows]
        return None if bool(torch.isnan(values).all()) else values


def make_labels(name: str, texts: Sequence[str]) -> Labels:
    """Tell categories from a quantity: text, and whole numbers of at most 50 kinds, are categories.

    Args:
        name: Name of the column.
        texts: Its cells; an empty one, ``nan`` and the like are missing.

    Example:
        >>> make_labels("state", ["on", "off", "", "on"]).categories
        ('off', 'on')
        >>> make_labels("digit", ["10", "2"]).categories, make_labels("load", ["0.5", "2"]).categories
        (('2', '10'), ())
    """
    cells = ["" if is_missing(text) else text.strip() for text in texts]
    kinds = sorted(set(cells) - {""})
    numbers = {kind: number_in(kind) for kind in kinds}
    if all(value is not None and math.isfinite(value) for value in numbers.values()):
        found = {kind: value for kind, value in numbers.items() if value is not None}
        whole = all(value == round(value) for value in found.values())
        if not whole or len(set(found.values())) > MOST_NUMBERED:
            quantity = torch.tensor([found.get(cell, math.nan) for cell in cells], dtype=torch.float64, device="cpu")
            return Labels(name, tuple(cells), (), quantity)
        kinds = sorted(kinds, key=lambda kind: (found[kind], kind))
    places = {kind: float(place) for place, kind in enumerate(kinds)}
    codes = torch.tensor([places.get(cell, math.nan) for cell in cells], dtype=torch.float64, device="cpu")
    return Labels(name, tuple(cells), tuple(kinds), codes)


class Rows(NamedTuple):
    """Rows in the order of time.

    Attributes:
        Y: Entries, float64, shape (N, D); NaN where nothing was observed.
        names: Names of the D columns.
        labels: Labels of the rows, if there are any.
        name: What the rows are a table of.
        is_array: They came from an array file, whose columns share one unit.
        lines: Line of the file of each row, counted from 1, shape (N,); ``None`` if they came from no text file.
    """

    Y: Tensor
    names: tuple[str, ...]
    labels: Labels | None
    name: str
    is_array: bool
    lines: Tensor | None = None

    def where(self, row: int, column: int | None = None) -> str:
        """A row or a cell, counted from zero, for a message that counts from one.

        Example:
            >>> import torch
            >>> Rows(torch.zeros(3, 2), ("a", "b"), None, "pump", False).where(2, 1)
            'pump, data row 3, column b'
        """
        line = "" if self.lines is None else f" (line {int(self.lines[row])})"
        return f"{self.name}, data row {row + 1}{line}" + ("" if column is None else f", column {self.names[column]}")


def select(rows: Rows, columns: Sequence[int]) -> Rows:
    """The rows with some of their columns only.

    Example:
        >>> import torch
        >>> select(Rows(torch.zeros(3, 2), ("a", "b"), None, "pump", False), [1]).names
        ('b',)
    """
    return rows._replace(Y=rows.Y[:, list(columns)], names=tuple(rows.names[column] for column in columns))


def read_csv_rows(
    path: Path, label: str | None = None, features: Sequence[str] | None = None, max_rows: int | None = None
) -> Rows:
    r"""Read rows from a text table of any dialect.

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
        value, where = number_in(text, lines.decimal), lines.where(row, name)
        if value is None:
            raise ValueError(
                f"{where}: {text.strip()!r} is not a number; if the column says what a row is, give --label {name}, "
                f"otherwise choose numeric columns with --features"
            )
        if math.isinf(value):
            raise ValueError(f"{where}: the value is infinite; leave the cell empty where nothing was observed")
        values.append(value)
    return values


_PREFIX = "name:"
_ARRAYS = (".npz", ".npy")


class Selection(NamedTuple):
    """Which columns and rows of a source are read.

    Attributes:
        label: Column (or array of an ``.npz`` file) that says what a row is; a manifest and a named table know theirs.
        features: Columns to embed; all but the label by default.
        max_rows: So many rows only.
    """

    label: str | None = None
    features: tuple[str, ...] | None = None
    max_rows: int | None = None


def read_rows(data: str, selection: Selection, folder: Path | None = None) -> Rows:
    """The rows that a command line names.

    Args:
        data: A ``.csv``, ``.csv.gz``, ``.npz`` or ``.npy`` file; ``name:SET`` for a table that travels with a package;
            with ``folder`` the name of a set in its manifest. An ``.npz`` file holds an array ``X`` and may hold labels
            ``y``; arrays of more than two axes, such as images, are laid out as rows.
        selection: Which columns and rows of it.
        folder: A folder with a manifest.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If a name is unknown or what is read cannot be embedded.

    Example:
        >>> rows = read_rows("name:trump_approval", Selection(max_rows=5))
        >>> rows.Y.shape, rows.labels.name
        (torch.Size([5, 6]), 'five_thirty_eight')
    """
    if folder is not None:
        return _from_manifest(folder, data, selection)
    if data.startswith(_PREFIX):
        return _named(data.removeprefix(_PREFIX), selection)
    path = Path(data)
    if path.suffix in _ARRAYS:
        return _from_array(path, selection, "X", selection.label or "y")
    return read_csv_rows(path, selection.label, selection.features, selection.max_rows)._replace(name=data)


def _named(name: str, selection: Selection) -> Rows:
    table = load(name)
    if selection.label not in (None, table.target_name):
        raise ValueError(f"the label of {name} is {table.target_name}, not {selection.label}; leave --label out")
    stop = selection.max_rows
    labels = make_labels(table.target_name, [_text(value) for value in table.y[:stop].tolist()])
    rows = Rows(table.X[:stop], table.feature_names, labels, name, False)
    if selection.features is None:
        return rows
    unknown = [feature for feature in selection.features if feature not in table.feature_names]
    if unknown:
        raise ValueError(f"{name} has no column {unknown[0]!r}; it has {', '.join(table.feature_names)}")
    return select(rows, [table.feature_names.index(feature) for feature in selection.features])


def _from_manifest(folder: Path, name: str, selection: Selection) -> Rows:
    names = folder_names(folder)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(names) or 'none'}"
        raise ValueError(f"{folder} has no set named {name}; {hint}")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    entry = next(entry for entry in manifest["datasets"] if str(entry["name"]) == name)
    absent = [key for key in ("file", "features") if key not in entry]
    if absent:
        raise ValueError(f"the entry {name} of {folder / 'manifest.json'} lacks {', '.join(absent)}")
    path, label = folder / str(entry["file"]), selection.label or entry.get("target")
    if path.suffix in _ARRAYS:
        found = _from_array(path, selection._replace(label=label), str(entry["features"]), label)
    else:
        if not isinstance(entry["features"], list):
            raise ValueError(f"the features of {name} are {entry['features']!r}, not a list of column names")
        columns = selection.features or tuple(str(column) for column in entry["features"] if column != label)
        found = read_csv_rows(path, label, columns, selection.max_rows)
    return found._replace(name=name)


def _from_array(path: Path, selection: Selection, values: str, label: str | None) -> Rows:
    if selection.features is not None:
        raise ValueError(f"{path} is an array file without named columns; leave --features out")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder, not a file' if path.is_dir() else 'not there'}")
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"X": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable array file: {error}") from None
    has_labels = label in arrays and label != values
    if values not in arrays or (selection.label is not None and not has_labels):
        absent = f"{values} of rows" if values not in arrays else f"{selection.label} of labels"
        raise ValueError(f"{path} has no array {absent}; it has {', '.join(arrays)}")
    array = arrays[values]
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{path}: the array {values} has shape {array.shape} and type {array.dtype}; rows of numbers are needed, "
            f"shape (N, D)"
        )
    stop = selection.max_rows
    flat = np.asarray(array[:stop].reshape(min(len(array), stop or len(array)), -1), dtype=np.float64)
    Y = torch.from_numpy(flat.copy())
    labels = _array_labels(path, str(label), arrays[str(label)], len(array), stop) if has_labels else None
    rows = Rows(Y, tuple(f"{values}{column}" for column in range(Y.shape[1])), labels, str(path), True)
    infinite = torch.isinf(Y)
    if bool(infinite.any()):
        row, column = infinite.nonzero()[0].tolist()
        raise ValueError(f"{rows.where(row, column)}: the value is infinite; give NaN where nothing was observed")
    return rows


def _array_labels(path: Path, name: str, array: NDArray[np.generic], num_rows: int, stop: int | None) -> Labels:
    if array.shape != (num_rows,):
        raise ValueError(f"{path}: the labels {name} have shape {array.shape} for {num_rows} rows; give one a row")
    return make_labels(name, [_text(value) for value in array[:stop].tolist()])


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    return str(int(value)) if value == round(value, 0) and abs(value) < 2**53 else repr(value)
