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
        self._contents: Final[dict[int, bytes]] = {}  # by inode
        self._names: Final[dict[Path, dict[str, int]]] = {}  # by folder
        self._is_folder: Final[dict[int, Path]] = {}
        self._last: Operation | None = None
        self._synced = 0, b""
        for folder, _, files in os.walk(root):
            self._sync_folder(Path(folder))
            for name in files:
                path = Path(folder, name)
                self._contents[path.stat().st_ino] = path.read_bytes()

    def __call__(self, operation: Operation) -> None:
        """Take an operation; what the one before it did is known now."""
        self._settle()
        self._last = operation
        if operation.kind == "fsync" and operation.descriptor >= 0:
            self._synced = os.fstat(operation.descriptor).st_ino, operation.path.read_bytes()
        if self._left == 0:
            self._cut()
            os._exit(KILLED)
        self._left -= 1

    def _settle(self) -> None:
        last = self._last
        if last is None:
            return
        if last.kind == "open" and last.path.exists():
            status = last.path.stat()
            self._is_folder.pop(status.st_ino, None)  # a removed one had this inode
            if status.st_size == 0:
                self._contents[status.st_ino] = b""
        elif last.kind == "mkdir":
            self._names[last.path] = {}
            self._is_folder[last.path.stat().st_ino] = last.path
        elif last.kind == "fsync" and last.descriptor >= 0:
            inode, content = self._synced
            self._contents[inode] = content
        elif last.kind == "fsync":
            self._sync_folder(last.path)

    def _sync_folder(self, folder: Path) -> None:
        self._names[folder] = {}
        for entry in os.scandir(folder):
            self._names[folder][entry.name] = entry.inode()
            if entry.is_dir():
                self._is_folder[entry.inode()] = Path(entry.path)

    def _cut(self) -> None:
        """Rewrite the disk."""
        if self._keeps_names:
            for folder, _, files in os.walk(self._root):
                for name in files:
                    path = Path(folder, name)
                    content = self._contents.get(path.stat().st_ino, b"")
                    path.unlink()
                    path.write_bytes(content)
            return
        image = self._image(self._root)
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, held in image.items():
            if held is None:
                path.mkdir()
            else:
                path.write_bytes(held)

    def _image(self, folder: Path) -> dict[Path, bytes | None]:
        found: dict[Path, bytes | None] = {}
        for name, inode in self._names.get(folder, {}).items():
            if inode in self._is_folder:
                found[folder / name] = None
                found |= self._image(folder / name)
            else:
                found[folder / name] = self._contents.get(inode, b"")
        return found
