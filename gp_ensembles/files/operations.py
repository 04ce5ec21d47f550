"""Primitive operations on files, each in one place, where tests can watch and interrupt them."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOTSUP
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, final

T = TypeVar("T")
_APART = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # not for programs that are started; no line ends


class Operation(NamedTuple):
    """An operation that is about to be done."""

    kind: str  # ``open``, ``write``, ``truncate``, ``fsync``, ``rename``, ``unlink``, ``mkdir`` or ``rmdir``
    path: Path  # the file or folder
    data: bytes | memoryview = b""  # what is to be written
    descriptor: int = -1  # the open file that it is written to


Watcher = Callable[[Operation], object]
_watchers: Final[list[Watcher]] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` before every operation inside; an exception that it raises replaces the operation."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _do(operation: Operation, act: Callable[[], T]) -> T:
    """Do it; an OSError names the file."""
    try:
        for watcher in _watchers:
            watcher(operation)
        return act()
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(operation.path)) from error


@final
class OpenFile(io.RawIOBase):
    """A file that is written to without a buffer."""

    def __init__(self, path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> None:
        super().__init__()
        self.path = path
        self.failure: OSError | None = None  # the last error: who writes through C++ makes another of it
        self._descriptor = -1  # what could not be opened is closed all the same, when it is collected
        self._descriptor = _do(Operation("open", path), lambda: os.open(path, flags | _APART, 0o666))

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def readable(self) -> bool:
        """It can be read by its descriptor only."""
        return False

    def writable(self) -> bool:
        """It can be written."""
        return True

    def seekable(self) -> bool:
        """It can be positioned."""
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # other buffers are never given
        """Write all of it; returns how much that is."""
        view = memoryview(data).cast("B")

        def put() -> int:
            done = 0
            while done < len(view):
                done += os.write(self._descriptor, view[done:])
            return done

        try:
            return _do(Operation("write", self.path, view, self._descriptor), put)
        except OSError as error:
            self.failure = error
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        """The current position."""
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        """Truncate it to a size, by default to the current position."""
        length = self.tell() if size is None else size
        _do(Operation("truncate", self.path), lambda: os.ftruncate(self._descriptor, length))
        return length

    def fsync(self) -> None:
        """Sync it to the disk."""
        _do(Operation("fsync", self.path, descriptor=self._descriptor), lambda: os.fsync(self._descriptor))

    def close(self) -> None:
        """Close it; what was written is with the operating system."""
        if not self.closed and self._descriptor >= 0:
            os.close(self._descriptor)
        super().close()


def rename(source: Path, goal: Path) -> None:
    """Rename a file, replacing another one of that name."""
    _do(Operation("rename", goal), lambda: os.replace(source, goal))


def unlink(path: Path) -> None:
    """Remove a file, if it exists."""
    _do(Operation("unlink", path), lambda: path.unlink(missing_ok=True))


def make_folder(path: Path) -> None:
    """Make a folder with its parents, where they do not exist."""
    missing = []
    for place in (path, *path.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        _do(Operation("mkdir", place), partial(place.mkdir, exist_ok=True))
        fsync_folder(place.parent)


def remove_folder(path: Path) -> None:
    """Remove an empty folder."""
    _do(Operation("rmdir", path), path.rmdir)


def fsync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk, where the system supports it."""
    if sys.platform == "win32":
        return

    def sync() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (EINVAL, ENOTSUP):  # a file system that knows no such thing
                raise
        finally:
            os.close(descriptor)

    _do(Operation("fsync", path), sync)


def remove_if_possible(path: Path) -> None:
    """Remove a file, ignoring errors."""
    with suppress(OSError):
        unlink(path)
