"""Finished runs in files, so that a second call does not run them again; tables for the eye and for CSV."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.experiments.writing import write_json


class Record(NamedTuple):
    """A finished run.

    Attributes:
        settings: What it was made with; a record made with other settings is not read back.
        scores: Its scores by name.
        curves: Its curves by name.
    """

    settings: dict[str, object]
    scores: dict[str, float]
    curves: dict[str, list[float]]


def kept_record(path: Path, settings: dict[str, object]) -> Record | None:
    """The run in a file; ``None`` if there is none, it cannot be read, or it was made with other settings.

    Example:
        >>> kept_record(Path("no such file"), {}) is None
        True
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            return None
        scores = {name: float(value) for name, value in content["scores"].items()}
        curves = {name: numbers(values) for name, values in content["curves"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Record(settings, scores, curves)


def numbers(values: Sequence[float | str]) -> list[float]:
    """Numbers from JSON, in which NaN and infinity are strings."""
    return [float(value) for value in values]


def fingerprint(*tensors: Tensor) -> str:
    """A checksum of the values of tensors.

    Example:
        >>> import torch
        >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(3))
        False
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def kept_or_made(path: Path, settings: dict[str, object], make: Callable[[], Record]) -> Record:
    """The run in a file, or if there is none that fits, one that is made and written there.

    Args:
        path: The file.
        settings: What it must have been made with.
        make: Makes it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.json"
        >>> _ = kept_or_made(path, {"seed": 0}, lambda: Record({"seed": 0}, {"error": 0.5}, {}))
        >>> kept_or_made(path, {"seed": 0}, lambda: 1 / 0).scores
        {'error': 0.5}
    """
    record = kept_record(path, settings)
    if record is None:
        record = make()
        write_json(path, record._asdict())
    return record


def make_folder(path: Path) -> None:
    """Make a folder for results.

    Raises:
        OSError: If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be made: {error.strerror}; choose another --out") from error


def as_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    r"""A table as CSV; NaN is an empty cell.

    Example:
        >>> as_csv(["a", "b"], [[1, math.nan]])
        'a,b\n1,\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row])
    return text.getvalue()


def aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for the eye: text on the left, numbers with four digits on the right.

    Example:
        >>> print(aligned(["name", "score"], [["a", 0.25], ["b", math.nan]]))
        name  score
        a      0.25
        b         -
    """
    cells = [list(header), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    is_text = [all(isinstance(row[column], str) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if text else f"{cell:>{width}}"
            for cell, width, text in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
