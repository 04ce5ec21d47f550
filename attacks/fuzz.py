"""Fuzzing of the readers of tables, lines, configs and checkpoints: only what they document may be raised.

``--engine atheris`` is guided by coverage and needs that package (``pip install atheris``, not among the dependencies);
``--engine mutations`` changes files of ``attacks/corpus/`` at random from a seed and needs nothing.
"""

import random
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from attacks.guided import run_guided
from attacks.readers import CORPUS, READERS, try_input
from attacks.telling import Table, Telling

ENGINES = ("atheris", "mutations")
_LONGEST = 100_000  # bytes of an input
_MOST_CHANGES = 8


class Finding(NamedTuple):
    """An input for which a reader did what it does not document.

    Attributes:
        reader: Its name.
        what: The exception and the line that raised it, or how slow it was.
        file: Where the input was put.
    """

    reader: str
    what: str
    file: str


class Tally(NamedTuple):
    """What became of inputs."""

    inputs: int
    refused: int
    read: int
    findings: tuple[Finding, ...]


def mutated(data: bytes, others: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> bytes:
    """A file changed in a few places.

    Example:
        >>> mutated(b"a,b", [b"c"], [b";"], random.Random(1)) != b"a,b"
        True
    """
    changed = bytearray(data)
    for _ in range(draw.randint(1, _MOST_CHANGES)):
        place = draw.randint(0, len(changed))
        end = min(len(changed), place + draw.choice((1, 2, 4, 16, 200)))
        match draw.randrange(7):
            case 0 if changed:
                changed[min(place, len(changed) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                changed[place:place] = draw.choice(words)
            case 2:
                changed[place:end] = draw.choice(words)
            case 3:
                del changed[place:end]
            case 4:
                changed[place:place] = changed[place:end] * draw.choice((1, 2, 50))
            case 5:
                other = draw.choice(others)
                start = draw.randint(0, len(other))
                changed[place:end] = other[start : start + draw.choice((4, 40, 400))]
            case _:
                changed[place:end] = draw.randbytes(end - place)
    return bytes(changed[:_LONGEST])


def with_checksums(data: bytes, draw: random.Random, words: Sequence[bytes]) -> bytes:
    """An archive with one part changed and checksums that are right, which bytes changed at random never have."""
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as out:
        names = archive.namelist()
        chosen = draw.choice([*names, *(name for name in names if name.endswith("data.pkl"))])
        for name in names:
            part = archive.read(name)
            out.writestr(name, mutated(part, [part], words, draw) if name == chosen else part)
    return made.getvalue()


def run_mutations(name: str, seconds: float, seed: int, crashes: Path) -> Tally:
    """Feed a reader with its corpus, and then with changed files of it, for so many seconds."""
    reader, draw = READERS[name], random.Random(f"{name} {seed}")
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    inputs = refused = 0
    found: dict[str, Finding] = {}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{reader.suffix}"
        while inputs < len(corpus) or time.monotonic() < end:
            if inputs < len(corpus):
                data = corpus[inputs]
            elif name == "checkpoints" and draw.random() < 0.5:
                data = with_checksums(draw.choice(corpus), draw, reader.words)
            else:
                data = mutated(draw.choice(corpus), corpus, reader.words, draw)
            path.write_bytes(data)
            is_refused, what = try_input(reader, path)
            inputs += 1
            refused += is_refused
            if what is not None and what not in found:
                kept = crashes / f"{name}-{len(found)}{reader.suffix}"
                kept.write_bytes(data)
                found[what] = Finding(name, what, str(kept))
    return Tally(inputs, refused, inputs - refused - len(found), tuple(found.values()))


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0 if nothing was found, 1 if something was."""
    telling = Telling("fuzz", __doc__)
    options = telling.options
    options.add_argument("--seconds", type=float, default=60, help="in all, shared by the readers")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--engine", choices=ENGINES, default=None, help="atheris where it is installed, by default")
    options.add_argument("--readers", nargs="+", choices=sorted(READERS), default=list(READERS))
    options.add_argument("--crashes", type=Path, default=None, help="a folder for inputs that are findings")
    values = telling.read(argv)
    engine = values.engine or ("atheris" if find_spec("atheris") else "mutations")
    if engine == "atheris" and not find_spec("atheris"):
        print(
            "attacks fuzz: atheris is not installed: pip install atheris, or take --engine mutations", file=sys.stderr
        )
        return 2
    crashes = Path(tempfile.mkdtemp(prefix="fuzz-")) if values.crashes is None else values.crashes
    crashes.mkdir(parents=True, exist_ok=True)
    each = values.seconds / len(values.readers)
    tallies: dict[str, Tally] = {}
    for name in values.readers:
        if engine == "mutations":
            tallies[name] = run_mutations(name, each, values.seed, crashes)
        else:
            (inputs, refused, read), found = run_guided(name, each, values.seed, crashes)
            tallies[name] = Tally(inputs, refused, read, tuple(Finding(name, what, file) for what, file in found))
    columns = ["reader", "inputs", "refused in a sentence", "read", "anything else"]
    rows = [[name, t.inputs, t.refused, t.read, len(t.findings)] for name, t in tallies.items()]
    findings = [finding for tally in tallies.values() for finding in tally.findings]
    tables = [Table(f"{values.seconds:.0f} seconds of {engine}", columns, rows)]
    if findings:
        tables.append(Table("What was found", Finding._fields, findings))
    telling.tell(*tables)
    return 1 if findings else 0
