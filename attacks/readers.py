"""The readers of what comes from outside, each with what it may raise: what the attack ``fuzz`` feeds."""

import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli.config import load_config
from gp_ensembles.cli.line_session import LineSession, read_line
from gp_ensembles.cli.scored_stream import load_checkpoint
from gp_ensembles.files.checkpoint import Kind, read_checkpoint
from gp_ensembles.papers.quadrature import RegressionProblem, Search
from gp_ensembles.papers.quadrature.marginalization import load_search
from gp_ensembles.streaming import OnlineModel
from gp_ensembles.tables import open_rows

CORPUS = Path(__file__).parent / "corpus"
_KIND = Kind("example", 1, "an example", "give another")
_MOST_LINES = 50
_SLOW = 20.0  # seconds after which an input is a finding
_INPUTS = torch.linspace(0.0, 1.0, 5, dtype=torch.float64).unsqueeze(-1)
_SEARCHED = RegressionProblem(_INPUTS, _INPUTS.squeeze(-1)), Search()  # files are of no such search


class Reader(NamedTuple):
    """A reader.

    Attributes:
        read: Reads a file; what it returns does not matter.
        refusals: What it says it raises for a file that it cannot read.
        suffix: How its files are called.
        words: What stands in its files, for mutations.
    """

    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...]
    suffix: str
    words: tuple[bytes, ...]


def _table(path: Path) -> None:
    rows = open_rows(path, "y", num_warm_up=10)
    rows.take(10)
    rows.take(10)


def _lines(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")[:_MOST_LINES]
    _each([partial(read_line, line.decode("utf-8", "replace"), "load", "id") for line in lines], ValueError)


def _checkpoint(path: Path) -> None:
    doors: list[Callable[[], object]] = [
        lambda: OnlineModel.load(path),
        lambda: load_checkpoint(path),
        lambda: LineSession.load(path),
        lambda: load_search(path, *_SEARCHED),
        lambda: read_checkpoint(path, _KIND),
    ]
    _each(doors, ValueError)


def _each(doors: Sequence[Callable[[], object]], refusal: type[Exception]) -> None:
    """Go through all doors; raise what the last one said if none of them has read it."""
    refusals = []
    for door in doors:
        try:
            door()
        except refusal as error:
            refusals.append(error)
    if len(refusals) == len(doors):
        raise refusals[-1]


_IN_TABLES = (
    *b""", ; \" ' \r\n y 1e308 -1e-320 nan inf NA 1.234,5 2024-02-30 2024-01-01T00:00:00+14:00 31.12.99 #
    true 24:00 1_000
    0x1F 99999999999""".split(),
    *(b"\n", b"\t", b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\xe9", b"\x1f\x8b\x08", b"\xe2\x80\xa8", b"9" * 400),
)
_IN_LINES = (
    *b"""{ } [ ] : , \" null true NaN -Infinity 1e999 -0 1E400 \"id\" \"load\" \\ud800 \\u0000""".split(),
    *(b"\n", b"9" * 5000, b"[" * 2000),
)
_IN_CONFIGS = (
    *b"""ensemble: like: bases: warmup: dtype: coverages: more: rule: LinearBasis HilbertBasis [ ] { } &a *a ' \" null
    ~ .nan     .inf -.inf 1e400 2024-01-01 0x10 1:30 100000000000 -1 0 !!python/ !!binary""".split(),
    *(b": ", b"- ", b"? ", b"<<: ", b"---\n", b"\n", b"  ", b"\t", b"\x00", b"\xff"),
)
_IN_CHECKPOINTS = (
    *b"""data.pkl format torch collections bytearray } ( t ] e . R""".split(),
    *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"ctorch\n", b"cos\nsystem\n", b"q\x00", b"\x85R", b"\x8a\x08"),
    *(b"\xff" * 8, b"K\x01", b"M\xff\xff"),
)
READERS = {
    "tables": Reader(_table, (ValueError,), ".csv", _IN_TABLES),
    "lines": Reader(_lines, (ValueError,), ".jsonl", _IN_LINES),
    "configs": Reader(lambda path: load_config(path).to_plain(), (ValueError,), ".yaml", _IN_CONFIGS),
    "checkpoints": Reader(_checkpoint, (ValueError,), ".pt", _IN_CHECKPOINTS),
}


def refusal_of(reader: Reader, path: Path) -> Exception | None:
    """What a reader says of a file; ``None`` if it reads it.

    Raises:
        Exception: Whatever the reader raises besides its refusals: that is a finding.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader.read(path)
        except reader.refusals as error:
            return error
    return None


def what_of(error: BaseException) -> str:
    """An exception with the innermost line of the library that it came through."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "gp_ensembles" in frame.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "outside"
    return f"{type(error).__name__} at {where}"


def try_input(reader: Reader, path: Path) -> tuple[bool, str | None]:
    """Feed a reader with a file.

    Returns:
        Whether it was refused, and what else it did that it does not document.
    """
    began = time.perf_counter()
    try:
        refusal = refusal_of(reader, path)
    except Exception as error:  # whatever is not documented
        return False, what_of(error)
    seconds = time.perf_counter() - began
    if seconds > _SLOW:
        return refusal is not None, f"slow: {seconds:.0f} s"
    if refusal is not None and not str(refusal).strip():
        return True, f"{type(refusal).__name__} without a word"
    return refusal is not None, None
