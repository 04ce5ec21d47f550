"""Where lines come from: the standard input, or a file that grows."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

_POLL = 0.1  # seconds between looks at a file that has not grown


class Stop:
    """Whether a stream is to end: a signal says so between lines, or while the next one is waited for.

    Example:
        >>> with Stop().listening() as stop:
        ...     stop.is_asked
        False
    """

    is_asked: bool

    def __init__(self) -> None:
        self.is_asked = False
        self._is_waiting = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """SIGTERM, SIGINT and, where there is one, SIGHUP ask for the end inside."""
        kinds = [kind for kind in signal.Signals if kind.name in ("SIGTERM", "SIGINT", "SIGHUP")]
        before = {kind: signal.signal(kind, self._ask) for kind in kinds}
        try:
            yield self
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal inside ends the wait at once."""
        self._is_waiting = True
        try:
            if self.is_asked:
                raise EndOfWait
            yield
        finally:
            self._is_waiting = False

    def _ask(self, number: int, frame: FrameType | None) -> Any:
        self.is_asked = True
        if self._is_waiting:
            raise EndOfWait


class EndOfWait(BaseException):
    """A signal came while a line was waited for."""


def lines_of(file: IO[str], stop: Stop) -> Iterator[str]:
    """Lines as they come, until the end of the input or a signal; empty ones are left out."""
    while not stop.is_asked:
        try:
            with stop.waiting():
                text = file.readline()
        except EndOfWait:
            return
        if not text:
            return
        if text.strip():
            yield text


def followed_lines(path: Path, stop: Stop, *, poll: float = _POLL) -> Iterator[str]:
    """Whole lines of a file as it grows, until a signal; one that was moved away or cut is begun anew.

    Args:
        path: The file; it may appear later.
        stop: Ends it.
        poll: Seconds between looks.
    """
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
                if rest.endswith("\n"):  # a line that is being written has no end yet
                    if rest.strip():
                        yield rest
                    rest = ""
                continue
            if file is not None and _is_gone(path, file, place):
                file.close()
                file = None
                continue
            try:
                with stop.waiting():
                    time.sleep(poll)
            except EndOfWait:
                return
    finally:
        if file is not None:
            file.close()


def _is_gone(path: Path, file: IO[str], place: int) -> bool:
    """Whether a name now stands for another file, or for less of it."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False  # it may come back
    return now.st_ino != place or now.st_size < file.tell()
