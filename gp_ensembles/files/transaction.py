"""Several files of a folder replaced in one transaction: a journal lists the moves, and the next owner completes them.

The new files are on the disk, next to the old ones, before the journal, and the journal is on the disk before the
first of them is moved. A process that ends before the journal has replaced nothing; one that ends after it leaves a
folder whose next owner calls :func:`complete`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gp_ensembles.files.operations import (
    fsync_folder,
    make_folder,
    remove_folder,
    rename,
    unlink,
)
from gp_ensembles.files.replacing import write_text

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
        raise ValueError(f"{journal} names files of other folders; it was not written by this library, so remove it")
    return moved, removed


def _clear(place: Path) -> None:
    """Remove the staging folder that an earlier process has left; its files are useless without a journal."""
    if place.is_dir():
        with suppress(OSError):
            for path in place.iterdir():
                unlink(path)
            remove_folder(place)
