"""Commands with their options by name, and what they leave in a folder."""

import json
from pathlib import Path
from typing import Any

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.tables import source_of
from gp_ensembles.tables import open_rows

_ALL = ("report", "progress")
_SWITCHES = {"stream": _ALL, "resume": _ALL, "demo": _ALL, "compare": ("progress",), "forecast": ("pictures",)}
FIT = "fit_settings: {method: {LBFGS: {max_iterations: 5}}, num_samples: 1}"
LINEAR = f"ensemble: {{like: oebe, bases: [LinearBasis], {FIT}}}\n"


def run(command: str, *words: object, **options: object) -> int:
    """The exit status of a command, without pictures, report and progress unless these are asked for."""
    options = dict.fromkeys(_SWITCHES[command], False) | options
    given = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    return main([command, *given, *map(str, words)])


def stream(place: Path, data: str, out: str = "out", *words: object, **options: object) -> int:
    """Stream a table of a folder with the config ``small.yaml`` of that folder."""
    usual = {"target": "y", "warmup": 60, "config": place / "small.yaml", "out": place / out}
    return run("stream", data if data == "-" else place / data, *words, **usual | options)


def resume(place: Path, data: str, out: str = "out", *words: object, **options: object) -> int:
    """Go on from a folder of results, in the same folder unless another one is named."""
    usual = {"checkpoint": place / out / "checkpoint.pt", "out": place / out}
    return run("resume", place / data, *words, **usual | options)


def summary_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def tables_of(out: Path) -> list[bytes]:
    """Predictions and weights, to the bit."""
    return [(out / name).read_bytes() for name in ("predictions.csv", "weights.csv")]


def open_table(table, num_warm_up=None):
    """Rows of a table of numbers, from the first."""
    return open_rows(source_of(table), table.target_name, num_warm_up=num_warm_up)


class InMemoryRows:
    """Rows in memory, with what a stream of chunks asks of a table."""

    def __init__(self, rows):
        self._rows = rows

    def take(self, num_rows):
        taken, self._rows = self._rows.part(slice(0, num_rows)), self._rows.part(slice(num_rows, None))
        return taken

    def where(self, rows, place, column):
        return f"row {rows.first_row + place}, column {column}"
