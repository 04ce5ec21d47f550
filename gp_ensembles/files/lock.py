"""Locks of folders, one owner at a time: a lock file, locked with ``filelock``, holds the name of the process.

The kernel releases the lock when the process ends in any way: the file that a killed process has left behind is free.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, SoftFileLock, Timeout

from gp_ensembles.files.operations import OpenFile, make_folder, remove_if_possible
from gp_ensembles.files.replacing import PARTIAL

LOCK = "run.lock"


class FolderInUseError(OSError):
    """Another process writes into the folder."""


class Owner(NamedTuple):
    """The owner of a folder."""

    pid: int  # number of its process
    host: str  # name of its machine
    boot: str  # identifier of the running system, the same in all containers of a machine; empty where there is none
    since: str  # when it took the folder, in local time

    @classmethod
    def here(cls) -> "Owner":
        """This process."""
        boot = ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return cls(os.getpid(), socket.gethostname(), boot, time.strftime("%Y-%m-%d %H:%M:%S"))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Create a folder if needed and be its only writer inside; partial files of ended processes are removed."""
    make_folder(folder)
    path = folder / LOCK
    _refuse_other_machines(path)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = _owner_of(path)
        what = "has just been taken by another process" if owner is None else f"is being written by {owner}"
        raise FolderInUseError(f"{folder} {what}; wait until it has ended, or choose another folder") from None
    is_soft = isinstance(lock, SoftFileLock)  # its class, where the file system has no locks: the file is the lock
    try:
        if not is_soft:
            _sign(path)
        for partial in folder.glob(f".*{PARTIAL}"):
            if _is_left_over(partial):
                remove_if_possible(partial)
        yield
    finally:
        if not is_soft:
            remove_if_possible(path)  # while it is locked: afterwards it may be another's
        lock.release()


def _owner_of(path: Path) -> Owner | None:
    """Who has signed the file; nobody if there is none or its owner died before that."""
    try:
        pid, *texts = json.loads(path.read_text(encoding="utf-8"))
        return Owner(int(pid), *map(str, texts))
    except (OSError, ValueError, TypeError):
        return None


def _refuse_other_machines(path: Path) -> None:
    """Locks of some network file systems do not reach beyond a machine, so a file signed on another one is refused."""
    owner, here = _owner_of(path), Owner.here()
    if owner is not None and owner.host != here.host and (owner.boot != here.boot or not here.boot):
        raise FolderInUseError(
            f"{path.parent} was taken by {owner}, another machine, and whether that still runs cannot be "
            f"checked from here; if it does not, remove {path}"
        )


def _sign(path: Path) -> None:
    # Windows lets nobody write into a locked file.
    with suppress(PermissionError), OpenFile(path, os.O_WRONLY | os.O_TRUNC) as file:
        file.write((json.dumps(Owner.here()) + "\n").encode("utf-8"))


def _is_left_over(partial: Path) -> bool:
    """Whether the process that was writing a partial file has ended, or is this one, which writes none yet."""
    number = partial.name.removesuffix(PARTIAL).rpartition(".")[2]
    if not number.isdecimal() or int(number) == os.getpid():
        return number.isdecimal()
    if sys.platform == "win32":
        return False  # looking for a process would end it
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False
