"""Faults at one operation on files: a kill, a torn write, a full disk, a power cut."""

import os
import shutil
from errno import ENOSPC
from pathlib import Path
from typing import Final, final

from gp_ensembles.files.operations import Operation

KILLED = 137  # exit code of a process that a fault has ended
_ADDS = ("open", "write", "mkdir", "fsync")  # what a full disk goes on to refuse


@final
class Count:
    """Counts operations on files, by kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, operation: Operation) -> None:
        """Take an operation."""
        self.kinds.append(operation.kind)


@final
class Kill:
    """Ends the process before an operation, or in the middle of a write, at once, as SIGKILL does.

    Args:
        place: Which operation, counted from zero.
        torn: Write half of what is to be written first.
    """

    def __init__(self, place: int, torn: bool = False) -> None:
        self._left = place
        self._torn = torn

    def __call__(self, operation: Operation) -> None:
        """Take an operation."""
        if self._left == 0:
            if self._torn and operation.kind == "write":
                os.write(operation.descriptor, operation.data[: len(operation.data) // 2])
            os._exit(KILLED)
        self._left -= 1


@final
class Full:
    """Refuses an operation and all later ones that need room, as a full disk does; what is removed can be removed.

    Args:
        place: The first operation that is refused, counted from zero.
    """

    def __init__(self, place: int) -> None:
        self._left = place

    def __call__(self, operation: Operation) -> None:
        """Take an operation."""
        if self._left == 0 or (self._left < 0 and operation.kind in _ADDS):
            self._left = -1
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        self._left -= 1


@final
class PowerCut:
    """Ends the process before an operation, with the disk as a machine may find it that lost its power then.

    Of files there is what they held at their last fsync. Of names there is what a folder held at its last fsync, or, in
    the other extreme, all that was done to names until now.

    Args:
        place: Which operation, counted from zero.
        root: A folder that holds all that is written, on the disk as it is now.
        keeps_names: Which of the two.
    """

    def __init__(self, place: int, root: Path, keeps_names: bool = False) -> None:
        self._left = place
        self._root = root
        self._keeps_names = keeps_names
        self._things: Final[dict[int, int]] = {}  # what an inode holds now; it holds another once that is removed
        self._contents: Final[dict[int, bytes]] = {}  # of files, by thing
        self._names: Final[dict[int, dict[str, int]]] = {}  # of folders, by thing
        self._last: Operation | None = None
        self._synced = b""
        for folder, _, files in os.walk(root, topdown=False):
            for name in files:
                path = Path(folder, name)
                self._contents[self._new(path)] = path.read_bytes()
            self._new(Path(folder))
            self._sync_folder(Path(folder))

    def __call__(self, operation: Operation) -> None:
        """Take an operation; what the one before it did is known now."""
        self._settle()
        self._last = operation
        if operation.kind == "fsync" and operation.descriptor >= 0:
            self._synced = operation.path.read_bytes()
        if self._left == 0:
            self._cut()
            os._exit(KILLED)
        self._left -= 1

    def _new(self, path: Path) -> int:
        thing = len(self._contents) + len(self._names)
        self._things[path.stat().st_ino] = thing
        if path.is_dir():
            self._names[thing] = {}
        else:
            self._contents[thing] = b""
        return thing

    def _settle(self) -> None:
        last = self._last
        if last is None or not last.path.exists():
            return
        if last.kind == "mkdir" or (last.kind == "open" and last.path.stat().st_size == 0):
            self._new(last.path)
        elif last.kind == "fsync" and last.descriptor >= 0:
            self._contents[self._things[last.path.stat().st_ino]] = self._synced
        elif last.kind == "fsync":
            self._sync_folder(last.path)

    def _sync_folder(self, folder: Path) -> None:
        names = {entry.name: self._things.get(entry.inode()) for entry in os.scandir(folder)}
        thing = self._things.get(folder.stat().st_ino)
        if thing is not None:  # a folder above all that is watched
            self._names[thing] = {name: inside for name, inside in names.items() if inside is not None}

    def _cut(self) -> None:
        """Rewrite the disk."""
        if self._keeps_names:
            for folder, _, files in os.walk(self._root):
                for name in files:
                    path = Path(folder, name)
                    thing = self._things.get(path.stat().st_ino, -1)  # a lock is opened by ``filelock``, unseen
                    path.unlink()
                    path.write_bytes(self._contents.get(thing, b""))
            return
        root = self._things[self._root.stat().st_ino]
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._lay_out(self._root, root)

    def _lay_out(self, folder: Path, thing: int) -> None:
        for name, inside in self._names[thing].items():
            if inside in self._names:
                (folder / name).mkdir()
                self._lay_out(folder / name, inside)
            else:
                (folder / name).write_bytes(self._contents[inside])
