"""``stream`` and ``resume`` for lines: their options, and what runs them."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from gp_ensembles.cli.lines.run import LineOutput, run_lines, told
from gp_ensembles.cli.lines.session import WINDOW, LineSession
from gp_ensembles.cli.lines.sources import Stop, followed_lines, lines_of
from gp_ensembles.cli.lines.written import records_of_csv
from gp_ensembles.tables import TableOptions

Format = Literal["table", "jsonl", "csv"]
_FORMAT = (
    "table for a whole table; jsonl or csv for lines that are answered one by one, as JSON, on the standard output"
)
_WINDOW = f"rows that wait for their targets, in lines; older ones are learned without; {WINDOW} by default"


@dataclass(frozen=True)
class LineInput:
    """Where lines come from and how they are written.

    Attributes:
        data: A file, or ``-`` for the standard input.
        form: ``jsonl`` or ``csv``.
        follow: Whether the file goes on growing.
        options: How cells are parted.
    """

    data: str
    form: Format
    follow: bool
    options: TableOptions


def add_line_options(command: ArgumentParser) -> None:
    """Give a parser the options of streams of lines."""
    command.add_argument("--format", type=Format, default="table", help=_FORMAT)
    command.add_argument("--follow", type=bool, default=False, help="wait for further lines at the end of the file")
    command.add_argument("--window", type=int | None, default=None, help=_WINDOW)
    command.add_argument("--id", type=str, default="id", help="name of the id by which a target comes later, in lines")


def answer_lines(session: LineSession, given: LineInput, output: LineOutput) -> int:
    """Answer lines until they end, or a signal ends them.

    Raises:
        FileNotFoundError: If there is no such file, and it is not followed.
    """
    path = Path(given.data)
    if given.data == "-" and given.follow:
        raise ValueError("the standard input ends by itself; leave --follow out")
    if given.data != "-" and not given.follow and (path.is_dir() or not path.exists()):
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'not there; --follow waits for it'}")
    output = replace(output, from_start=path.is_file() or given.follow)
    with Stop().listening() as stop:
        lines = _lines(given, path, stop)
        if given.form == "csv":
            lines = records_of_csv(lines, given.options)
        summary = run_lines(session, lines, sys.stdout, output)
    print(f"gp-ensembles: {told(summary, output)}", file=sys.stderr)
    if not summary["answers_were_read"]:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("gp-ensembles: nobody reads the answers any more", file=sys.stderr)
        return 1
    return 0


def _lines(given: LineInput, path: Path, stop: Stop) -> Iterator[str]:
    if given.follow:
        yield from followed_lines(path, stop)
    elif given.data == "-":
        yield from lines_of(sys.stdin, stop)
    else:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from lines_of(file, stop)
