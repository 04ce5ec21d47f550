"""Data sets of a folder with a manifest of inputs and targets."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gp_ensembles.data.table import Table, read_csv

_MANIFEST = "manifest.json"


def folder_names(folder: str | Path) -> list[str]:
    """Names of the sets in a folder, in the manifest's order.

    Args:
        folder: A folder with a ``manifest.json``: a list ``datasets`` of entries with ``name``, ``file``, ``features``
            (names of the inputs) and ``target``.

    Raises:
        FileNotFoundError: If there is no such folder or no manifest in it.
        ValueError: If the manifest is malformed.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "manifest.json").write_text('{"datasets": [{"name": "pump"}]}')
        >>> folder_names(folder)
        ['pump']
    """
    return list(_entries(Path(folder)))


def folder_file(folder: str | Path, name: str) -> tuple[Path, str, tuple[str, ...]] | None:
    """Path of the text table of a data set, its target and its inputs; ``None`` for a file of arrays."""
    folder = Path(folder)
    entry = _entry(folder, name)
    path = folder / str(entry["file"])
    return None if path.suffix == ".npz" else (path, str(entry["target"]), _listed(folder, name, entry))


def load_folder(folder: str | Path, name: str, *, features: Sequence[str] | None = None) -> Table:
    r"""Load a set of a folder by its manifest: inputs and target by name, never by their place in the file.

    Args:
        folder: The folder, as for :func:`folder_names`. Files are ``.csv``, ``.csv.gz``, or ``.npz`` with arrays for
            ``features`` (N, D) and ``target`` (N,).
        name: Name of the set.
        features: Inputs instead of the manifest's, in the desired order (csv only).

    Returns:
        The table, rows in the order of the file; NaN where a cell is missing.

    Raises:
        FileNotFoundError: If the folder, its manifest or the file does not exist.
        ValueError: If the name is unknown, or the set has no inputs.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "pump.csv").write_text("day,flow,hour\n1,5.0,0\n1,6.0,1\n")
        >>> entry = '{"name": "pump", "file": "pump.csv", "features": ["hour"], "target": "flow"}'
        >>> _ = (folder / "manifest.json").write_text('{"datasets": [' + entry + "]}")
        >>> load_folder(folder, "pump").X
        tensor([[0.],
                [1.]], dtype=torch.float64)
    """
    folder = Path(folder)
    entry = _entry(folder, name)
    path = folder / str(entry["file"])
    if path.suffix == ".npz":
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist")
        if features is not None:
            raise ValueError(f"{name} is an array file without named columns; leave out features")
        return _load_npz(path, entry)
    columns = _listed(folder, name, entry) if features is None else features
    return read_csv(path, str(entry["target"]), columns)._replace(name=name)


def _entry(folder: Path, name: str) -> dict[str, Any]:
    """The entry of a data set in the manifest."""
    entries = _entries(folder)
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(entries) or 'none'}"
        raise ValueError(f"{folder} has no data set named {name}; {hint}")
    absent = [key for key in ("file", "features", "target") if key not in entries[name]]
    if absent:
        raise ValueError(f"the entry {name} of {folder / _MANIFEST} has no {', '.join(absent)}")
    return entries[name]


def _listed(folder: Path, name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    """The inputs of a set, at least one."""
    listed = entry["features"]
    if not isinstance(listed, list):
        raise ValueError(f"the features of {name} in {folder / _MANIFEST} are {listed!r}, not a list of column names")
    if not listed:
        others = ", ".join(entry.get("other_targets", ())) or "none"
        raise ValueError(
            f"{name} has no inputs, only targets (others: {others}); build lagged inputs yourself, or name features"
        )
    return tuple(str(column) for column in listed)


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a data folder needs a manifest that names its columns")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {str(entry["name"]): dict(entry) for entry in manifest["datasets"]}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a manifest with a list of named datasets: {error!r}") from None


def _load_npz(path: Path, entry: dict[str, Any]) -> Table:
    with np.load(path, allow_pickle=False) as arrays:
        absent = {str(entry["features"]), str(entry["target"])} - set(arrays.files)
        if absent:
            raise ValueError(f"{path} has no array {', '.join(sorted(absent))}; it has {', '.join(arrays.files)}")
        X = torch.from_numpy(np.asarray(arrays[str(entry["features"])], dtype=np.float64))
        y = torch.from_numpy(np.asarray(arrays[str(entry["target"])], dtype=np.float64))
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise ValueError(f"{path} has inputs {tuple(X.shape)} and targets {tuple(y.shape)}, not (N, D) and (N,)")
    if not bool(torch.isfinite(X).all()):
        row, column = (~torch.isfinite(X)).nonzero()[0].tolist()
        raise ValueError(f"{path}: the input of row {row + 1}, column {column} is not finite; choose another data set")
    names = tuple(f"{entry['features']}{j}" for j in range(X.shape[1]))
    return Table(X, y, names, str(entry["target"]), str(entry["name"]))
