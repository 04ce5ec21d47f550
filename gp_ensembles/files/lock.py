"""One owner of a folder at a time: a file in it names the process, and the kernel knows whether that still lives.

The owner holds a lock of the kernel on the file (``flock``), which goes with the process, however it ends. So a file
that another process of this machine left behind is recognized by being free, whatever became of its number since,
also across containers. Where the file system has no such locks, the number and the start of the process are looked up.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.files.operations import OpenFile, make_folder, remove_if_possible
from gp_ensembles.files.replacing import PARTIAL

if sys.platform != "win32":
    import fcntl

LOCK = "run.lock"
_LONGEST = 4096  # bytes of a lock file


class FolderInUseError(OSError):
    """Another process writes into the folder."""


class Owner(NamedTuple):
    """Who writes into a folder.

    Attributes:
        pid: Number of its process.
        host: Name of its machine.
        boot: What names the time since its machine was started; empty where that is not known.
        born: When its process was started, in ticks of that time; empty where that is not known.
        since: When it took the folder, in local time.
    """

    pid: int
    host: str
    boot: str
    born: str
    since: str

    @classmethod
    def here(cls) -> "Owner":
        """This process."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(os.getpid(), socket.gethostname(), _boot(), _born(os.getpid()), since)

    @property
    def lives(self) -> bool:
        """Whether a process of that number and start runs on this machine."""
        if sys.platform == "win32":
            return True  # looking for it would end it
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            pass
        return not self.born or _born(self.pid) in ("", self.born)


def _boot() -> str:
    return _line(Path("/proc/sys/kernel/random/boot_id"))


def _born(pid: int) -> str:
    """Start of a process: the 22nd field of its status, counted after its name, which may hold anything."""
    fields = _line(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Inside, this process is the only one that writes into a folder.

    The folder is made if need be. Partial files that processes left which are no more are removed.

    Args:
        folder: The folder.

    Raises:
        FolderInUseError: If another process writes into it, or one of another machine did and may still.
        OSError: If it cannot be made or written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     with owned(folder):
        ...         print(sorted(path.name for path in folder.iterdir()))
        ...     print(sorted(path.name for path in folder.iterdir()))
        ['run.lock']
        []
    """
    make_folder(folder)
    path = folder / LOCK
    file = _take(path)
    try:
        for partial in folder.glob(f".*{PARTIAL}"):
            if _is_left_over(partial):
                remove_if_possible(partial)
        yield
    finally:
        if _is_at(file, path):
            remove_if_possible(path)
        file.close()


def _take(path: Path) -> OpenFile:
    """The open lock file, with our name in it."""
    while True:
        file, is_new = _opened(path)
        is_free: bool | None = False
        try:
            is_free = _hold(file)
            if is_free and not _is_at(file, path):  # its owner has just removed it
                file.close()
                continue
            owner = None if is_new else _owner_of(file)
            _refuse(path, owner, is_free)
            _sign(file)
        except BaseException:
            if is_new and is_free is not False:
                remove_if_possible(path)
            file.close()
            raise
        return file


def _opened(path: Path) -> tuple[OpenFile, bool]:
    while True:
        try:
            return OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
        except FileExistsError:
            pass
        try:
            return OpenFile(path, os.O_RDWR), False
        except FileNotFoundError:
            pass  # removed in between


def _hold(file: OpenFile) -> bool | None:
    """Take the kernel's lock: whether it was free; ``None`` where there is no such thing."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (EAGAIN, EACCES) else None
    return True


def _is_at(file: OpenFile, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _owner_of(file: OpenFile) -> Owner | None:
    """Who has signed the file; nobody if its owner died before that."""
    try:
        file.seek(0)
        pid, *texts = json.loads(os.read(file.fileno(), _LONGEST))
        return Owner(int(pid), *map(str, texts))
    except (ValueError, TypeError):
        return None


def _refuse(path: Path, owner: Owner | None, is_free: bool | None) -> None:
    """Raise if the folder has an owner that lives, or may."""
    if owner is None:
        if is_free is False:
            raise FolderInUseError(f"{path.parent} has just been taken by another process; choose another folder")
        return
    here = Owner.here()
    who = f"process {owner.pid} on {owner.host}, since {owner.since}"
    same_boot = owner.boot == here.boot if here.boot else owner.host == here.host
    if is_free is False or (is_free is None and same_boot and owner.lives):
        raise FolderInUseError(
            f"{path.parent} is being written by {who}; wait until it has ended, or choose another folder"
        )
    if not same_boot and owner.host != here.host:
        raise FolderInUseError(
            f"{path.parent} was taken by {who}, another machine, so it cannot be seen from here whether that still "
            f"runs; if it does not, remove {path}"
        )


def _sign(file: OpenFile) -> None:
    file.truncate(0)
    file.seek(0)
    file.write((json.dumps(Owner.here()) + "\n").encode("utf-8"))


def _is_left_over(partial: Path) -> bool:
    """Whether the process that was writing a partial file is no more, or is this one, which writes none yet."""
    number = partial.name.removesuffix(PARTIAL).rpartition(".")[2]
    if not number.isdecimal():
        return False
    return int(number) == os.getpid() or not Owner(int(number), "", "", "", "").lives
