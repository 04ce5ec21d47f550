"""Where rows to be embedded come from: a CSV file, an array file, a folder with a manifest, a table of a package."""

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

from gp_ensembles.cli.embed.csv_rows import read_csv_rows
from gp_ensembles.cli.embed.labels import Labels, make_labels
from gp_ensembles.cli.embed.rows import Rows, select
from gp_ensembles.data import folder_names, load

_PREFIX = "name:"
_ARRAYS = (".npz", ".npy")


class Wanted(NamedTuple):
    """What of a source is wanted.

    Attributes:
        label: Column (or array of an ``.npz`` file) that says what a row is; a manifest and a named table know theirs.
        features: Columns to embed; all but the label by default.
        max_rows: So many rows only.
    """

    label: str | None = None
    features: tuple[str, ...] | None = None
    max_rows: int | None = None


def read_rows(data: str, wanted: Wanted, folder: Path | None = None) -> Rows:
    """The rows that a command line names.

    Args:
        data: A ``.csv``, ``.csv.gz``, ``.npz`` or ``.npy`` file; ``name:SET`` for a table that travels with a package;
            with ``folder`` the name of a set in its manifest. An ``.npz`` file holds an array ``X`` and may hold labels
            ``y``; arrays of more than two axes, such as images, are laid out as rows.
        wanted: What of it.
        folder: A folder with a manifest.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If a name is unknown or what is read cannot be embedded.

    Example:
        >>> rows = read_rows("name:trump_approval", Wanted(max_rows=5))
        >>> rows.Y.shape, rows.labels.name
        (torch.Size([5, 6]), 'five_thirty_eight')
    """
    if folder is not None:
        return _from_manifest(folder, data, wanted)
    if data.startswith(_PREFIX):
        return _named(data.removeprefix(_PREFIX), wanted)
    path = Path(data)
    if path.suffix in _ARRAYS:
        return _from_array(path, wanted, "X", wanted.label or "y")
    return read_csv_rows(path, wanted.label, wanted.features, wanted.max_rows)._replace(name=data)


def _named(name: str, wanted: Wanted) -> Rows:
    table = load(name)
    if wanted.label not in (None, table.target_name):
        raise ValueError(f"the label of {name} is {table.target_name}, not {wanted.label}; leave --label out")
    stop = wanted.max_rows
    labels = make_labels(table.target_name, [_text(value) for value in table.y[:stop].tolist()])
    rows = Rows(table.X[:stop], table.feature_names, labels, name, False)
    if wanted.features is None:
        return rows
    unknown = [feature for feature in wanted.features if feature not in table.feature_names]
    if unknown:
        raise ValueError(f"{name} has no column {unknown[0]!r}; it has {', '.join(table.feature_names)}")
    return select(rows, [table.feature_names.index(feature) for feature in wanted.features])


def _from_manifest(folder: Path, name: str, wanted: Wanted) -> Rows:
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
    path, label = folder / str(entry["file"]), wanted.label or entry.get("target")
    if path.suffix in _ARRAYS:
        found = _from_array(path, wanted._replace(label=label), str(entry["features"]), label)
    else:
        if not isinstance(entry["features"], list):
            raise ValueError(f"the features of {name} are {entry['features']!r}, not a list of column names")
        columns = wanted.features or tuple(str(column) for column in entry["features"] if column != label)
        found = read_csv_rows(path, label, columns, wanted.max_rows)
    return found._replace(name=name)


def _from_array(path: Path, wanted: Wanted, values: str, label: str | None) -> Rows:
    if wanted.features is not None:
        raise ValueError(f"{path} is an array file without named columns; leave --features out")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder, not a file' if path.is_dir() else 'not there'}")
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"X": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable array file: {error}") from None
    has_labels = label in arrays and label != values
    if values not in arrays or (wanted.label is not None and not has_labels):
        absent = values if values not in arrays else wanted.label
        raise ValueError(f"{path} has no array {absent}{_for_label(values, absent)}; it has {', '.join(arrays)}")
    array = arrays[values]
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{path}: the array {values} has shape {array.shape} and type {array.dtype}; rows of numbers are needed, "
            f"shape (N, D)"
        )
    stop = wanted.max_rows
    flat = np.asarray(array[:stop].reshape(min(len(array), stop or len(array)), -1), dtype=np.float64)
    Y = torch.from_numpy(flat.copy())
    labels = _array_labels(path, str(label), arrays[str(label)], len(array), stop) if has_labels else None
    rows = Rows(Y, tuple(f"{values}{column}" for column in range(Y.shape[1])), labels, str(path), True)
    infinite = torch.isinf(Y)
    if bool(infinite.any()):
        row, column = infinite.nonzero()[0].tolist()
        raise ValueError(f"{rows.where(row, column)}: the value is infinite; give NaN where nothing was observed")
    return rows


def _for_label(values: str, absent: str | None) -> str:
    return " of rows" if absent == values else " of labels"


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


def split_names(features: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas.

    Example:
        >>> split_names("flow, heat")
        ('flow', 'heat')
    """
    names: Sequence[str] = [] if features is None else [name.strip() for name in features.split(",")]
    return None if features is None else tuple(name for name in names if name)
