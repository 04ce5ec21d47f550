"""Sources of lines: the standard input, a growing file, and CSV as lines of JSON."""

import codecs
import io
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from gp_ensembles.tables import TableOptions
from gp_ensembles.tables.dialect import find_dialect, split_rows
from gp_ensembles.tables.numbers import is_missing, number_in
from gp_ensembles.tables.raw import unique_names

_POLL = 0.1  # seconds between looks at a file that has not grown
_CHUNK = 8192  # bytes that are read at once


class Stop:
    """A request to end, made by a signal between lines or while waiting for the next one."""

    is_asked: bool

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


def followed_lines(path: Path, stop: Stop, *, poll: float = _POLL) -> Iterator[str]:
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
            time.sleep(poll)
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
