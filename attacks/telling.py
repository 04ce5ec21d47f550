"""Output of attacks: a table on the screen, and JSON that ``python -m attacks page`` puts on its page."""

import argparse
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

_PLACES = re.compile(r" --(out|crashes|reach|known|junit) \S+")  # options that name places of one machine


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        title: What it shows.
        columns: Their names.
        rows: Cells, as they are to be read.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __str__(self) -> str:
        cells = [[str(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join([self.title, *(line.rstrip() for line in lines)])


@final
class Telling:
    """The options of an attack, its clock, and where its numbers go.

    Args:
        name: The attack.
        description: What it does.

    Attributes:
        options: To be given further options before :meth:`read`.
    """

    def __init__(self, name: str, description: str | None) -> None:
        self.name = name
        self.options = argparse.ArgumentParser(f"python -m attacks {name}", description=description)
        self.options.add_argument("--out", type=Path, default=None, help="a JSON file for the numbers")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Read the options and start the clock."""
        values = self.options.parse_args(list(argv))
        self._command = _PLACES.sub("", " ".join([f"python -m attacks {self.name}", *argv]))
        self._out: Path | None = values.out
        self._began = time.perf_counter()
        return values

    @property
    def seconds(self) -> float:
        """Since the options were read."""
        return round(time.perf_counter() - self._began, 1)

    def tell(self, *tables: Table, **kept: Any) -> None:
        """Print tables and write them, with whatever else is to be kept."""
        print("\n\n".join(map(str, tables)))
        if self._out is not None:
            head = {"attack": self.name, "command": self._command, "seconds": self.seconds}
            content = head | {"tables": [table._asdict() for table in tables]} | kept
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
