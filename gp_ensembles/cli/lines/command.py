"""Options and execution of ``stream`` and ``resume`` for lines."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from gp_ensembles.cli.lines.run import LineOutput, closing_line, run_lines
from gp_ensembles.cli.lines.session import WINDOW, LineSession
from gp_ensembles.cli.lines.sources import Stop, followed_lines, lines_of, records_of_csv
from gp_ensembles.cli.tables import TableRequest

Format = Literal["table", "jsonl", "csv"]
_FORMAT = "table for a whole table; jsonl or csv for lines, answered one by one as JSON on the standard output"
_WINDOW = f"with lines: most rows pending without a target; older ones are learned as missing; {WINDOW} by default"


def add_line_options(command: ArgumentParser) -> None:
    """Add the options of streams of lines to a parser."""
    add = command.add_argument
    add("--format", type=Format, default="table", help=_FORMAT)
    add("--follow", type=bool, default=False, help="wait for more lines at the end of the file")
    add("--window", type=int | None, default=None, help=_WINDOW)
    add("--id", type=str, default="id", help="with lines: name of the id that links a later target to its row")


def answer_lines(session: LineSession, table: TableRequest, form: Format, output: LineOutput, *, follow: bool) -> int:
    """Answer lines until they end, or a signal ends them.

    Raises:
        FileNotFoundError: If there is no such file, and it is not followed.
    """
    path = Path(table.data)
    if table.data == "-" and follow:
        raise ValueError("--follow is for files; leave it out with the standard input")
    if table.data != "-" and not follow and (path.is_dir() or not path.exists()):
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'missing; --follow waits for it'}")
    output = replace(output, from_start=path.is_file() or follow)
    with Stop().listening() as stop:
        lines = _lines(table.data, stop, follow)
        if form == "csv":
            lines = records_of_csv(lines, table.options)
        summary = run_lines(session, lines, sys.stdout, output)
    print(f"gp-ensembles: {closing_line(summary, output)}", file=sys.stderr)
    if not summary["answers_were_read"]:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("gp-ensembles: the reader of the answers has closed the pipe", file=sys.stderr)
        return 1
    return 0


def _lines(data: str, stop: Stop, follow: bool) -> Iterator[str]:
    if follow:
        yield from followed_lines(Path(data), stop)
    elif data == "-":
        yield from lines_of(sys.stdin, stop)
    else:
        with Path(data).open(encoding="utf-8", errors="replace") as file:
            yield from lines_of(file, stop)
