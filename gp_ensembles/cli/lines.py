"""Streams of lines: rows arrive one at a time on a pipe or in a growing file, and are answered at once."""

import codecs
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.line_session import WINDOW, LineSession, read_line
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.tables import TableRequest
from gp_ensembles.cli.writing import CHECKPOINT, SUMMARY
from gp_ensembles.files.replacing import write_json
from gp_ensembles.tables import TableOptions
from gp_ensembles.tables.numbers import is_missing, number_in
from gp_ensembles.tables.raw import unique_names
from gp_ensembles.tables.text import find_dialect, split_rows

Format = Literal["table", "jsonl", "csv"]
_FORMAT = "table for a whole table; jsonl or csv for lines, answered one by one as JSON on the standard output"
_WINDOW = f"with lines: most rows pending without a target; older ones are learned as missing; {WINDOW} by default"
_REPORTED = 5  # unusable lines that are reported one by one
_POLL = 0.1  # seconds between looks at a file that has not grown
_CHUNK = 8192  # bytes that are read at once


def add_line_options(command: ArgumentParser) -> None:
    """Add the options of streams of lines to a parser."""
    add = command.add_argument
    add("--format", type=Format, default="table", help=_FORMAT)
    add("--follow", type=bool, default=False, help="wait for more lines at the end of the file")
    add("--window", type=int | None, default=None, help=_WINDOW)
    add("--id", type=str, default="id", help="with lines: name of the id that links a later target to its row")


def answer_lines(session: LineSession, table: TableRequest, values: Namespace) -> int:
    """Answer lines until they end, or a signal ends them; returns the exit code."""
    path = Path(table.data)
    if table.data == "-" and values.follow:
        raise ValueError("--follow is for files; leave it out with the standard input")
    if table.data != "-" and not values.follow and (path.is_dir() or not path.exists()):
        raise FileNotFoundError(f"{path} {'is a folder' if path.is_dir() else 'does not exist; --follow waits for it'}")
    settings = {"identity": values.id, "checkpoint_seconds": values.checkpoint_seconds}
    with Stop().listening() as stop:
        lines = _read_lines(table.data, stop, values.follow)
        if values.format == "csv":
            lines = records_of_csv(lines, table.options)
        from_start = path.is_file() or values.follow
        summary = run_lines(session, lines, sys.stdout, values.out, from_start=from_start, **settings)
    print(f"gp-ensembles: {_closing_line(summary)}; resume from {values.out / CHECKPOINT}", file=sys.stderr)
    if not summary["answers_were_read"]:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("gp-ensembles: standard output was closed", file=sys.stderr)
        return 1
    return 0


def run_lines(
    session: LineSession,
    lines: Iterable[str],
    answers: IO[str],
    out: Path,
    *,
    identity: str = "id",
    checkpoint_seconds: float = 30.0,
    from_start: bool = False,
) -> dict[str, object]:
    """Answer lines until they end, and save what was learned; ``from_start``: they may have been read before."""
    make_writable(out)
    saved, reported, is_heard = time.monotonic(), None, True
    names = session.options.features
    if names is not None and session.options.time is not None:
        names = tuple(dict.fromkeys((*names, session.options.time)))
    try:
        for number, text in _unread(session, lines, from_start):
            session.tally.num_lines += 1
            try:
                answer = session.take(read_line(text, session.target, identity, names))
            except ValueError as error:
                session.tally.num_malformed += 1
                _report(session.tally.num_malformed, number, str(error))
                continue
            if session.problem not in (None, reported):
                print(f"gp-ensembles: line {number}: the warm-up continues: {session.problem}", file=sys.stderr)
            reported = session.problem
            if answer is not None:
                if "refused" in answer:
                    _report(session.tally.num_malformed, number, answer["refused"])
                answers.write(json.dumps(answer, allow_nan=False) + "\n")
                answers.flush()
            if session.has_just_started or time.monotonic() - saved >= checkpoint_seconds:
                session.has_just_started = False
                session.save(out / CHECKPOINT)
                saved = time.monotonic()
    except BrokenPipeError:
        is_heard = False
    finally:
        session.save(out / CHECKPOINT)
        summary = {**session.summary(), "answers_were_read": is_heard}
        write_json(out / SUMMARY, summary)
    return summary


def _unread(session: LineSession, lines: Iterable[str], from_start: bool) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; of a file that is read again, those after the last one read."""
    num_seen = 0
    for number, text in enumerate(lines, start=1):
        if number == 1 and from_start:
            num_seen = session.open_source(text)
            if num_seen:
                print(f"gp-ensembles: the first {num_seen} lines were already read and are skipped", file=sys.stderr)
        if number > num_seen:
            yield number, text


def _closing_line(summary: dict[str, object]) -> str:
    """Text printed at the end on the standard error; the standard output holds answers only."""
    bad = summary["lines_malformed"]
    parts = [
        f"{summary['rows']} rows answered",
        f"{summary['rows_scored']} scored" + (f" ({summary['log_score']:.4f} nats)" if summary["log_score"] else ""),
        f"{summary['rows_waiting']} pending",
        f"{bad} unusable line{'s' * (bad != 1)}",
    ]
    if summary["rows_given_up"]:
        parts.insert(3, f"{summary['rows_given_up']} given up")
    return ", ".join(parts)


def _report(num_malformed: int, number: int, problem: str) -> None:
    if num_malformed <= _REPORTED:
        more = "; later ones are only counted" if num_malformed == _REPORTED else ""
        print(f"gp-ensembles: line {number}: {problem}{more}", file=sys.stderr)


class Stop:
    """A request to end, made by a signal between lines or while waiting for the next one."""

    def __init__(self) -> None:
        self.is_asked = False
        self._wakeup: int | None = None

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take SIGTERM, SIGINT and, if it exists, SIGHUP as requests to end inside."""
        kinds = [kind for kind in signal.Signals if kind.name in ("SIGTERM", "SIGINT", "SIGHUP")]
        with _wakeup_pipe() as self._wakeup:  # before the handlers, or a signal in between would be missed
            before = {kind: signal.signal(kind, self._ask) for kind in kinds}
            try:
                yield self
            finally:
                for kind, handler in before.items():
                    signal.signal(kind, handler)
        self._wakeup = None

    def wait_for(self, descriptor: int) -> None:
        """Wait until a file can be read, or a signal comes."""
        if self._wakeup is not None:
            select.select([descriptor, self._wakeup], [], [])

    def _ask(self, number: int, frame: FrameType | None) -> Any:
        self.is_asked = True


@contextmanager
def _wakeup_pipe() -> Iterator[int | None]:
    """A descriptor that can be read once a signal has come."""
    if os.name == "nt":
        yield None
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        os.close(reading)


def _read_lines(data: str, stop: Stop, follow: bool) -> Iterator[str]:
    if follow:
        yield from followed_lines(Path(data), stop)
    elif data == "-":
        yield from lines_of(sys.stdin, stop)
    else:
        with Path(data).open(encoding="utf-8", errors="replace") as file:
            yield from lines_of(file, stop)


def lines_of(file: IO[str], stop: Stop) -> Iterator[str]:
    """Lines as they arrive, until the end of the input or a signal; empty ones are left out."""
    rest = ""
    for chunk in _chunks(file, stop):
        rest += chunk
        if "\n" not in chunk:
            continue
        *whole, rest = rest.split("\n")
        for text in whole:
            if stop.is_asked:
                return
            if text.strip():
                yield text + "\n"
    if rest.strip() and not stop.is_asked:
        yield rest


def _chunks(file: IO[str], stop: Stop) -> Iterator[str]:
    """Pieces of a text as they arrive, of any length."""
    try:
        descriptor = file.fileno()
    except io.UnsupportedOperation:  # a text in memory
        yield file.read()
        return
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    is_open = True
    while is_open:
        stop.wait_for(descriptor)
        if stop.is_asked:
            return
        chunk = os.read(descriptor, _CHUNK)
        is_open = bool(chunk)
        yield decoder.decode(chunk, final=not chunk)


def followed_lines(path: Path, stop: Stop) -> Iterator[str]:
    """Complete lines of a growing file, until a signal; a replaced or truncated file is read from its start."""
    file: IO[str] | None = None
    rest, place = "", 0
    try:
        while not stop.is_asked:
            if file is None and path.exists():
                file = path.open(encoding="utf-8", errors="replace")
                rest, place = "", os.fstat(file.fileno()).st_ino
            part = "" if file is None else file.readline()
            if part:
                rest += part
                if rest.endswith("\n"):  # a line still being written has no end
                    if rest.strip():
                        yield rest
                    rest = ""
                continue
            if file is not None and _is_gone(path, file, place):
                file.close()
                file = None
                continue
            time.sleep(_POLL)
    finally:
        if file is not None:
            file.close()


def _is_gone(path: Path, file: IO[str], place: int) -> bool:
    """Whether a path now is another file, or the file was truncated."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False  # it may come back
    return now.st_ino != place or now.st_size < file.tell()


def records_of_csv(lines: Iterator[str], options: TableOptions) -> Iterator[str]:
    """The same rows as JSON; the first line holds the names, and a row of another length is left unchanged."""
    head = next(lines, None)
    first = next(lines, None)
    if head is None or first is None:
        return
    dialect = find_dialect(head.rstrip("\n") + "\n" + first, "utf-8", options)
    names, _ = unique_names(split_rows([head.strip().lstrip("\ufeff")], dialect.delimiter)[0])

    def record(line: str) -> str:
        cells = split_rows([line.strip()], dialect.delimiter)
        if len(cells) != 1 or len(cells[0]) != len(names):
            return line
        return json.dumps(dict(zip(names, (_value(cell, dialect.decimal) for cell in cells[0]), strict=True)))

    yield record(first)
    for line in lines:
        yield record(line)


def _value(cell: str, decimal: str) -> float | str | None:
    """The cell as a number, ``None`` if missing, else text."""
    if is_missing(cell):
        return None
    number = number_in(cell, decimal)
    return cell.strip() if number is None else number
