"""Folders of data sets as users have them."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path


def write_set(folder: Path, name: str, columns: Sequence[str], cells: Sequence[Sequence[float]], **entry) -> Path:
    """A folder with a manifest and a set, whose last column is the target; others stay."""
    folder.mkdir(exist_ok=True)
    manifest = folder / "manifest.json"
    known = json.loads(manifest.read_text())["datasets"] if manifest.exists() else []
    entry = {"name": name, "file": f"{name}.csv", "features": columns[:-1], "target": columns[-1], **entry}
    entry = {"task": "regression", "rows": len(cells), **entry}
    manifest.write_text(json.dumps({"datasets": [*known, entry]}))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *cells])
    return folder


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
