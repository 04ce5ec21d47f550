"""The readers of what comes from outside, each with what it may raise: what the attack ``fuzz`` feeds."""

import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.bayesian_quadrature.search import load_search
from gp_ensembles.cli.checkpoint import load_checkpoint
from gp_ensembles.cli.config import load_config
from gp_ensembles.cli.lines.protocol import LineError, read_line
from gp_ensembles.cli.lines.session import LineSession
from gp_ensembles.files.checkpoint import Kind, read_checkpoint
from gp_ensembles.streaming import OnlineModel
from gp_ensembles.tables import open_rows

CORPUS = Path(__file__).parent / "corpus"
_KIND = Kind("example", 1, "an example", "give another")
_LINES = 50


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
    refusal = None
    for line in islice(path.read_bytes().split(b"\n"), _LINES):
        try:
            read_line(line.decode("utf-8", "replace"), "load", "id")
        except LineError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def _checkpoint(path: Path) -> None:
    doors: tuple[Callable[[], object], ...] = (
        lambda: OnlineModel.load(path),
        lambda: load_checkpoint(path),
        lambda: LineSession.load(path),
        lambda: load_search(path, ""),
        lambda: read_checkpoint(path, _KIND),
    )
    refusal = None
    for door in doors:
        try:
            door()
        except ValueError as error:
            refusal = error
    if refusal is not None:
        raise refusal


READERS = {
    "tables": Reader(
        _table,
        (ValueError,),
        ".csv",
        (b",", b";", b"\t", b'"', b"'", b"\n", b"\r\n", b"y", b"1e308", b"-1e-320", b"nan", b"inf", b"NA", b"1.234,5")
        + (b"2024-02-30", b"2024-01-01T00:00:00+14:00", b"31.12.99", b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"#", b"\xe9")
        + (b"9" * 400, b"0x1F", b"true", b"1_000", b"\x1f\x8b\x08", b"\xe2\x80\xa8", b"24:00", b"99999999999"),
    ),
    "lines": Reader(
        _lines,
        (LineError,),
        ".jsonl",
        (b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"true", b"NaN", b"-Infinity", b"1e999", b'"id"', b'"load"')
        + (b"\\ud800", b"\\u0000", b"9" * 5000, b"[" * 2000, b"-0", b"1E400", b"\n"),
    ),
    "configs": Reader(
        lambda path: load_config(path).to_plain(),
        (ValueError,),
        ".yaml",
        (b"ensemble:", b"like:", b"bases:", b"[", b"]", b"{", b"}", b": ", b"- ", b"\n", b"  ", b"&a ", b"*a", b"!!python/")
        + (b"!!binary ", b"<<: ", b"null", b"~", b".nan", b".inf", b"-.inf", b"1e400", b"2024-01-01", b"0x10", b"1:30")
        + (b"LinearBasis", b"HilbertBasis", b"RandomFeatureBasis", b"warmup:", b"dtype:", b"coverages:", b"'", b'"', b"\t")
        + (b"---\n", b"? ", b"100000000000", b"-1", b"0", b"more:", b"rule:", b"\x00", b"\xff"),
    ),
    "checkpoints": Reader(
        _checkpoint,
        (ValueError,),
        ".pt",
        (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"ctorch\n", b"q\x00", b"\x85R", b"}", b"(", b"t", b"\x8a\x08")
        + (b"\xff" * 8, b"data.pkl", b"cos\nsystem\n", b"format", b"K\x01", b"M\xff\xff", b"]", b"e", b"."),
    ),
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
