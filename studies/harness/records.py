"""Finished runs in files, so that a second call does not run them again."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.writing import write_json


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
