"""The numbers that a change of the code must not change, written to a file and compared with another.

    python -m benchmarks.freeze write before.npz
    python -m benchmarks.freeze compare before.npz after.npz

``write`` takes predictions of every preset on small made-up sets (calls of many rows, of one row, and many series),
a fit of each of the papers' tools, both models for BoTorch, and quick tables of studies. ``compare`` says what is
missing on one side, has another shape, or differs by more than 1e-9 of max(1, the old number), and ends with 1 if
anything does. Both files come from one machine and one environment: optimizers and libraries differ by processor.
A file takes three to five minutes of one core.
"""

import argparse
import json
import platform
import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from benchmarks.freeze.streams import Entry, stream_entries
from benchmarks.freeze.tools import LABELS, SkippedError, study_entries, tool_entries

TOLERANCE = 1e-9
_ABOUT, _SEPARATOR = "about", ":"
_ERROR, _SKIPPED = "error", "skipped"
_MOST_LINES = 40

Frozen = dict[str, NDArray[Any]]


class Comparison(NamedTuple):
    """What differs between two files, and what is only worth a look."""

    differences: list[str]
    remarks: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Write a file or compare two; the exit code."""
    options = _parser().parse_args(argv)
    if options.what == "compare":
        return _report(compare(_read(options.old), _read(options.new), options.only, options.tolerance))
    entries = {**stream_entries(), **tool_entries(), **study_entries(options.studies, options.data)}
    chosen = {name: make for name, make in entries.items() if _is_in(name, options.only)}
    if not chosen:
        print(f"no entry begins with {' or '.join(options.only)}", file=sys.stderr)
        return 2
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    with threadpool_limits(1):
        torch.set_num_threads(1)
        frozen = freeze(chosen, seconds)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("wb") as file:  # a path without .npz stays as it is
        np.savez_compressed(file, **{_ABOUT: np.array(json.dumps(_about()))}, **frozen)
    print(f"{len(frozen)} arrays of {len(chosen)} entries in {time.perf_counter() - started:.0f} s: {options.file}")
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:10]
    print("slowest: " + ", ".join(f"{name} {seconds[name]:.1f} s" for name in slowest))
    for name, value in frozen.items():
        if name.endswith((_SEPARATOR + _ERROR, _SEPARATOR + _SKIPPED)):
            print(f"{name}: {value}")
    return 0


def freeze(chosen: Mapping[str, Entry], seconds: dict[str, float] | None = None) -> Frozen:
    """The arrays of entries, ``ENTRY:ARRAY``; of one that fails or cannot be made, the reason.

    Args:
        chosen: Entries by name.
        seconds: Takes up how long each took.
    """
    frozen: Frozen = {}
    with warnings.catch_warnings(), tqdm(chosen.items(), unit="entry") as bar:
        warnings.simplefilter("ignore")
        for name, make in bar:
            bar.set_postfix_str(name)
            started = time.perf_counter()
            for key, value in _made(make).items():
                frozen[f"{name}{_SEPARATOR}{key}"] = value
            if seconds is not None:
                seconds[name] = time.perf_counter() - started
    return frozen


def compare(old: Frozen, new: Frozen, only: Sequence[str] = (), tolerance: float = TOLERANCE) -> Comparison:
    """What differs between two frozen files.

    Args:
        old: Arrays by name.
        new: Those of the other file.
        only: Beginnings of the names that count; all if there is none.
        tolerance: Largest difference, relative to the old number where that is above 1.
    """
    differences, remarks = [], []
    if (there := str(old.get(_ABOUT, ""))) != (here := str(new.get(_ABOUT, ""))):
        remarks.append(f"made elsewhere: {there} and {here}")
    sides = [{name for name in side if name != _ABOUT and _is_in(name, only)} for side in (old, new)]
    for names, other, where in ((*sides, "missing from NEW"), (*sides[::-1], "missing from OLD")):
        differences += [f"{name} is {where}" for name in _by_entry(sorted(names - other), other)]
    for name in sorted(sides[0] & sides[1]):
        before, after = old[name], new[name]
        if before.dtype.kind == "U" or after.dtype.kind == "U":
            if before.shape != after.shape or (before != after).any():
                remarks.append(f"{name} reads otherwise")
        elif before.shape == after.shape:
            labels = old.get(name + LABELS)
            differences += _difference(name, before, after, labels, tolerance)
        else:
            differences.append(f"{name} has shape {before.shape} in OLD, {after.shape} in NEW")
            both = [table.get(name + LABELS) for table in (old, new)]
            if before.ndim == 2 and both[0] is not None and both[1] is not None:
                differences += _common_rows(name, (before, both[0]), (after, both[1]), tolerance)
    return Comparison(differences, remarks)


def _made(make: Entry) -> Frozen:
    """The arrays of an entry."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (for what draws from it)
    torch.manual_seed(0)
    try:
        return {key: _array(value) for key, value in make().items()}
    except SkippedError as reason:
        return {_SKIPPED: np.array(str(reason))}
    except Exception as error:
        return {_ERROR: np.array(f"{type(error).__name__}: {error}")}


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    return array if array.dtype.kind == "U" else array.astype(np.float64)


def _difference(
    name: str, old: NDArray[Any], new: NDArray[Any], labels: NDArray[Any] | None, tolerance: float
) -> Iterator[str]:
    """A line about two arrays of one shape, if they differ."""
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(old - new))
        relative = np.where(same, 0.0, apart / np.maximum(1.0, np.abs(old)))
    relative = np.where(np.isfinite(relative), relative, np.inf)  # NaN or infinite on one side only
    if relative.size and relative.max() > tolerance:
        place = np.unravel_index(relative.argmax(), relative.shape)
        row = "" if labels is None else f" ({labels[place[0]]})"
        yield (
            f"{name} differs in {int((relative > tolerance).sum())} of {relative.size} numbers, by {apart.max():.3g}, "
            f"relatively {relative.max():.3g}, at {[int(part) for part in place]}{row}: "
            f"{old[place]:.17g} in OLD, {new[place]:.17g} in NEW"
        )


def _common_rows(
    name: str, old: tuple[NDArray[Any], NDArray[Any]], new: tuple[NDArray[Any], NDArray[Any]], tolerance: float
) -> Iterator[str]:
    """Lines about those rows of two tables that have one label."""
    before, after = (_numbered(labels) for _, labels in (old, new))
    for names, other, where in ((before, after, "NEW"), (after, before, "OLD")):
        for label in dict.fromkeys(label for label, number in names if (label, number) not in other):
            yield f"{name}, rows {label!r}: some are missing from {where}"
    common = [key for key in before if key in after]
    if old[0].shape[1] == new[0].shape[1] and common:
        rows = [table[[places[key] for key in common]] for (table, _), places in ((old, before), (new, after))]
        yield from _difference(f"{name}, common rows,", *rows, np.array([label for label, _ in common]), tolerance)


def _numbered(labels: NDArray[Any]) -> dict[tuple[str, int], int]:
    """Places of rows by label, and by number among those of one label."""
    places: dict[tuple[str, int], int] = {}
    seen: dict[str, int] = {}
    for place, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        places[label, seen[label]] = place
    return places


def _by_entry(names: Sequence[str], other: set[str]) -> Iterator[str]:
    """Names of arrays, of an entry that the other side has nothing of once."""
    known = {name.partition(_SEPARATOR)[0] for name in other}
    yield from dict.fromkeys(n if (entry := n.partition(_SEPARATOR)[0]) in known else entry for n in names)


def _is_in(name: str, only: Sequence[str]) -> bool:
    return not only or name.startswith(tuple(only))


def _read(path: Path) -> Frozen:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _report(found: Comparison) -> int:
    for title, lines, place in (("remark", found.remarks, sys.stderr), ("DIFFERENCE", found.differences, sys.stdout)):
        for line in lines[:_MOST_LINES]:
            print(f"{title}: {line}", file=place)
        if len(lines) > _MOST_LINES:
            print(f"... and {len(lines) - _MOST_LINES} more", file=place)
    print("equal" if not found.differences else f"{len(found.differences)} differences")
    return 1 if found.differences else 0


def _about() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.freeze", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    write = commands.add_parser("write", help="write a file")
    write.add_argument("file", type=Path)
    length = "by default those of a few seconds, a minute in all; all without --data take seven or eight minutes"
    write.add_argument("--studies", choices=("all", "short", "none"), default="short", help=f"quick tables: {length}")
    data = "a folder with a manifest, for studies of its sets: takes longer, give it for both files or neither"
    write.add_argument("--data", type=Path, help=data)
    both = commands.add_parser("compare", help="compare two files: 0 if they are equal, 1 if not")
    both.add_argument("old", type=Path)
    both.add_argument("new", type=Path)
    both.add_argument("--tolerance", type=float, default=TOLERANCE, help="of max(1, the old number), by default 1e-9")
    for command in (write, both):
        command.add_argument("--only", nargs="+", default=(), metavar="PREFIX", help="entries that begin with these")
    return parser


if __name__ == "__main__":
    sys.exit(main())
