"""Files replaced in one step, and tables that rows are appended to.

Of one file a reader finds the old or the new one. Of several files of a folder a journal lists the moves, and the next
owner completes them: the new files are on the disk, next to the old ones, before the journal, and the journal is on the
disk before the first of them is moved. A process that ends before the journal has replaced nothing; one that ends after
it leaves a folder whose next owner calls :func:`complete`.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, final

from gp_ensembles.files.operations import (
    OpenFile,
    fsync_folder,
    make_folder,
    remove_folder,
    remove_if_possible,
    rename,
    unlink,
)

PARTIAL = ".partial"
_AT_ONCE = 1 << 20  # bytes that are handed over together


def replace_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file, sync it, rename it to its goal, and sync the folder."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    raw: OpenFile | None = None
    try:
        with OpenFile(partial) as raw:
            file = BufferedWriter(raw, _AT_ONCE)  # type: ignore[type-var]  # it gives bytes and views only
            fill(file)
            file.flush()
            raw.fsync()
        rename(partial, path)
    except BaseException as error:
        remove_if_possible(partial)
        failure = raw.failure if raw is not None and isinstance(error, RuntimeError) else error  # torch's own error
        if isinstance(failure, OSError) and failure.errno is not None:
            raise about(failure, path) from error
        raise
    fsync_folder(path.parent)


def about(error: OSError, path: Path) -> OSError:
    """The same error about another path, with advice for a full disk."""
    text = os.strerror(error.errno or 0)
    if error.errno in (ENOSPC, EDQUOT):
        text += "; free some space and run it again (the old file is unchanged)"
    return OSError(error.errno, text, str(path))


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step; raises as :func:`replace_file`."""
    replace_file(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file in one step; numbers that JSON does not know become strings."""
    write_text(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def finite(content: object) -> object:
    """Plain containers with numbers that JSON does not know as strings."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def copy_file(source: Path, goal: Path) -> None:
    """Copy a file in one step; raises as :func:`replace_file`."""
    with source.open("rb") as content:
        replace_file(goal, lambda file: shutil.copyfileobj(content, file, _AT_ONCE))


@final
class GrowingTable:
    """An existing text file that is appended to, and is on the disk up to the last :meth:`sync`."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._file = OpenFile(path, os.O_RDWR)
        self._is_safe = True
        if size is not None:
            found = path.stat().st_size
            if found < size:
                self._file.close()
                raise ValueError(
                    f"{path} has {found} bytes, but the checkpoint recorded {size}; it is truncated or from another "
                    f"run, so start again, or continue into another folder"
                )
            self._file.truncate(size)
            self._is_safe = False
        self._file.seek(0, os.SEEK_END)

    def append(self, text: str) -> None:
        """Hand text to the operating system: a process that is killed now loses none of it."""
        self._is_safe = False
        try:
            self._file.write(text.encode("utf-8"))
        except OSError as error:
            raise about(error, self.path) from error

    def sync(self) -> None:
        """Write all of it to the disk: a machine that stops now loses none of it."""
        if not self._is_safe:
            self._file.fsync()
            self._is_safe = True

    def close(self) -> None:
        """Close it without a sync."""
        self._file.close()


JOURNAL = ".replacing.json"
STAGE = ".new"


@contextmanager
def staged(folder: Path, moved: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> Iterator[Path]:
    """A place for new files, which replace those of the same names in a folder together at the end of the block."""
    complete(folder)
    place = folder / STAGE
    make_folder(place)
    try:
        yield place
    except BaseException:
        _clear(place)
        raise
    new = sorted(path.name for path in place.iterdir())
    replace_together(folder, {f"{STAGE}/{name}": name for name in new} | dict(moved or {}), removed)


def replace_together(folder: Path, moved: Mapping[str, str], removed: Sequence[str] = ()) -> None:
    """Give files of a folder new names, all or none of them."""
    gone = [name for name in removed if name not in moved.values()]
    write_text(folder / JOURNAL, json.dumps({"moved": dict(moved), "removed": gone}) + "\n")
    complete(folder)


def complete(folder: Path) -> bool:
    """Complete the moves in the journal of a folder; returns whether there was one."""
    journal = folder / JOURNAL
    if not journal.exists():
        _clear(folder / STAGE)
        return False
    moved, removed = _read(journal)
    for source, goal in moved.items():
        if (folder / source).exists():
            rename(folder / source, folder / goal)
    for name in removed:
        if (folder / name).exists():
            unlink(folder / name)
    fsync_folder(folder)
    unlink(journal)
    fsync_folder(folder)
    _clear(folder / STAGE)
    return True


def _read(journal: Path) -> tuple[dict[str, str], list[str]]:
    try:
        content = json.loads(journal.read_text(encoding="utf-8"))
        moved, removed = dict(content["moved"]), list(content["removed"])
        names = [*(source.removeprefix(f"{STAGE}/") for source in moved), *moved.values(), *removed]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{journal} is damaged; remove it, and run the last command into this folder again") from error
    if any(Path(name).name != name for name in names):
        raise ValueError(f"{journal} names files in other folders; it was not written by this library, so remove it")
    return moved, removed


def _clear(place: Path) -> None:
    """Remove the staging folder that an earlier process has left; its files are useless without a journal."""
    if place.is_dir():
        with suppress(OSError):
            for path in place.iterdir():
                unlink(path)
            remove_folder(place)
