"""Numbers that pages of the site show: ``benchmarks/numbers/NAME.json``, which a command writes and no hand does.

A page says ``{measured} NAME`` where the table belongs; command, day and processor come from the file, too.
"""

import datetime
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from gp_ensembles.files.replacing import write_text

FOLDER = Path(__file__).with_name("numbers")

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Cell: TypeAlias = str | float | None


class Table(NamedTuple):
    """What a command found.

    Attributes:
        command: What writes it again; ``FOLDER`` stands for a folder of data.
        date: The day, ISO.
        processor: What it ran on, one thread of it unless a column says otherwise.
        torch: The version.
        columns: The heading of each.
        rows: A cell for each column; ``None`` where there is nothing to say.
        device: What it ran on in addition to the processor, such as a GPU.
    """

    command: str
    date: str
    processor: str
    torch: str
    columns: list[str]
    rows: list[list[Cell]]
    device: str = ""


def processor() -> str:
    """Its name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def this_command() -> str:
    """The command that this process runs, with ``FOLDER`` for what follows ``--data``."""
    words = list(sys.argv[1:])
    for place, word in enumerate(words[:-1]):
        if word == "--data":
            words[place + 1] = "FOLDER"
    return " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *words])


def keep(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], device: str = "") -> Table:
    """Write what this process found today on this machine, in place of what was found before, and print it.

    Raises:
        ValueError: If a row has not a cell for each column.
    """
    return write(name, _found(columns, rows, device))


def show(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], device: str = "") -> Table:
    """Print what :func:`keep` would write."""
    table = _found(columns, rows, device)
    print(f"{name}\n\n{markdown(table)}")
    return table


def _found(columns: Sequence[str], rows: Sequence[Sequence[Cell]], device: str) -> Table:
    today = datetime.date.today().isoformat()
    cells = [[round(cell, 4) if isinstance(cell, float) else cell for cell in row] for row in rows]
    return Table(this_command(), today, processor(), torch.__version__, list(columns), cells, device)


def write(name: str, table: Table) -> Table:
    """Write a table in place of the one before, and print it.

    Raises:
        ValueError: If a row has not a cell for each column.
    """
    columns = table.columns
    if any(len(row) != len(columns) for row in table.rows):
        raise ValueError(f"rows of {name} need {len(columns)} cells, one for each of {', '.join(columns)}")
    content = {field: value for field, value in table._asdict().items() if (field, value) != ("device", "")}
    write_text(FOLDER / f"{name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(markdown(table))
    return table


def read(name: str, folder: Path = FOLDER) -> Table:
    """What is kept under a name.

    Raises:
        OSError: If nothing is.
    """
    return Table(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def markdown(table: Table) -> str:
    """The table, and under it where it comes from."""
    aligned = [_is_number(column, table) for column in range(len(table.columns))]
    lines = [
        "| " + " | ".join(table.columns) + " |",
        "|" + "|".join("---:" if right else "---" for right in aligned) + "|",
        *("| " + " | ".join(shown(cell) for cell in row) + " |" for row in table.rows),
    ]
    where = f"an {table.device} in a machine with" if table.device else "one thread of"
    source = f"`{table.command}`, {table.date}, {where} an {table.processor}, torch {table.torch}"
    return "\n".join(lines) + f"\n\n{source}.\n"


def shown(cell: Cell) -> str:
    """Three digits of a number, thousands apart; of very large ones the power of ten."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if abs(cell) >= 1e7:
        digits, power = f"{cell:.2e}".split("e")
        return f"{digits} · 10{str(int(power)).translate(_RAISED)}"
    if abs(cell) >= 100:
        return f"{cell:,.0f}".replace(",", "\N{NO-BREAK SPACE}")
    return f"{cell:.3g}" if abs(cell) >= 1 else f"{cell:.3f}".rstrip("0").rstrip(".")


def _is_number(column: int, table: Table) -> bool:
    return not any(isinstance(row[column], str) for row in table.rows)
