"""Damaged and foreign checkpoints of every kind: each is refused in a sentence, or gives the same numbers.

``python -m attacks damage`` writes a small file of each kind, damages it in several ways, and reads it by the functions
that users call. A file that is read must give the numbers that the intact one gives.
"""

import io
import random
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from attacks.recipes import RECIPES, sample
from attacks.telling import Table, Telling

_STRETCH = 64  # bytes, at most
_REFUSED, _HARMLESS = "refused", "harmless"


class Finding(NamedTuple):
    """A harmed file that was neither refused nor harmless."""

    kind: str
    harm: str
    what: str


def _flipped(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _stretch(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data))
    return start, min(len(data), start + draw.randint(1, _STRETCH))


def _zeroed(data: bytes, draw: random.Random) -> bytes:
    start, end = _stretch(data, draw)
    return data[:start] + b"\x00" * (end - start) + data[end:]


def _doubled(data: bytes, draw: random.Random) -> bytes:
    start, end = _stretch(data, draw)
    return data[:end] + data[start:]


def _left_out(data: bytes, draw: random.Random) -> bytes:
    start, end = _stretch(data, draw)
    return data[:start] + data[end:]


def _with_checksums(data: bytes, draw: random.Random) -> bytes:
    """A byte of one part changed, in an archive whose checksums are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice([name for name, part in parts.items() if part])
    place = draw.randrange(len(parts[name]))
    parts[name] = parts[name][:place] + bytes([draw.randrange(256)]) + parts[name][place + 1 :]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return made.getvalue()


HARMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit flipped": _flipped,
    "cut short": _cut,
    "zeros in it": _zeroed,
    "bytes doubled": _doubled,
    "bytes lost": _left_out,
    "changed with its checksums": _with_checksums,
}


def verdict(kind: str, path: Path, wanted: Sequence[float]) -> str:
    """``refused``, ``harmless``, or what else became of a file of a kind that should give these numbers."""
    try:
        found = RECIPES[kind].numbers(path)
    except ValueError as error:
        return _REFUSED if path.name in str(error) else f"refused without its name: {error}"
    except Exception as error:  # whatever is not documented
        return f"{type(error).__name__}: {error}"
    is_same = len(found) == len(wanted) and np.allclose(found, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
    return _HARMLESS if is_same else "it is read, and says something else"


def attempts(kind: str, number: int, seed: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Harm the file of a kind in every way so many times, and give its door the other kinds' files."""
    data, wanted = sample(kind)
    path, draw = folder / "harmed.pt", random.Random(f"{kind} {seed}")
    for harm, change in HARMS.items():
        for _ in range(number):
            path.write_bytes(change(data, draw))
            yield harm, verdict(kind, path, wanted)
    for other in RECIPES:
        if other != kind:
            path.write_bytes(sample(other).data)
            yield "of another kind", verdict(kind, path, wanted)


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0 if every file was refused or harmless, 1 if one was not."""
    telling = Telling("damage", __doc__)
    telling.options.add_argument("--number", type=int, default=200, help="of each harm to each kind")
    telling.options.add_argument("--seed", type=int, default=0)
    values = telling.read(argv)
    tried: Counter[tuple[str, str]] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    findings: Counter[Finding] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind in RECIPES:
            for harm, end in tqdm(attempts(kind, values.number, values.seed, Path(folder)), kind):
                tried[kind, harm] += 1
                ends[kind, end] += 1
                if end not in (_REFUSED, _HARMLESS):
                    findings[Finding(kind, harm, end.replace(folder, ""))] += 1
    harms = [*HARMS, "of another kind"]
    rows = []
    for kind in RECIPES:
        numbers, good = [tried[kind, harm] for harm in harms], [ends[kind, _REFUSED], ends[kind, _HARMLESS]]
        rows.append([kind, *numbers, *good, sum(numbers) - sum(good)])
    columns = ["checkpoint of", *harms, "refused in a sentence", "harmless", "anything else"]
    tables = [Table("Damaged checkpoints, by kind", columns, rows)]
    if findings:
        found: list[list[object]] = [[*finding, times] for finding, times in findings.most_common()]
        tables.append(Table("What was found", [*Finding._fields, "times"], found))
    telling.tell(*tables)
    return 1 if findings else 0
