"""Text as dates: the format is found once, on the warm-up rows, and kept."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gp_ensembles.tables.numbers import is_missing
from gp_ensembles.tables.raw import Cells

ISO = "ISO8601"
_OFFSET = re.compile(r"(?:Z|[+-]\d{2}:?\d{2})$", re.IGNORECASE)
_HOUR = 3600.0
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %H.%M", " %H.%M.%S", " %H")
_DAY_FIRST = tuple(f"%d{mark}%m{mark}{year}" for mark in "./-" for year in ("%Y", "%y"))
_MONTH_FIRST = tuple(f"%m{mark}%d{mark}{year}" for mark in "/.-" for year in ("%Y", "%y"))
_OTHERS = ("%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d %B %Y", "%b %d %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y",
           "%b %Y", "%B %Y", "%b-%y", "%m/%Y", "%Y/%m")  # fmt: skip
_TIMES = ("%H:%M", "%H:%M:%S", "%H.%M.%S", "%I:%M %p", "%I:%M:%S %p")


class Dates(NamedTuple):
    """Dates of N rows, NaN where missing.

    Attributes:
        seconds: Seconds since 1970 in universal time, shape (N,); clocks without an offset count as universal.
        wall: The same of the clock on the wall, for hours and weekdays.
    """

    seconds: NDArray[np.float64]
    wall: NDArray[np.float64]


def find_format(cells: Sequence[str]) -> str | None:
    """The format in which all cells are dates, or ``None``.

    Where day and month could be either, they are so that dates never run backwards and come as evenly as can be; if
    both ways do, the day comes first.

    Args:
        cells: Text of a column, in order.

    Example:
        >>> find_format(["31.01.2024 13:00", "01.02.2024 14:00"]), find_format(["1/31/24"]), find_format(["a"])
        ('%d.%m.%Y %H:%M', '%m/%d/%y', None)
        >>> find_format(["2024-01-31T13:00:00Z"]), find_format(["01/12/2024", "02/01/2024"])
        ('ISO8601', '%m/%d/%Y')
    """
    given = [cell for cell in cells if not is_missing(cell)]
    if not given or not all(any(mark.isdigit() for mark in cell) for cell in given):
        return None
    few = given[:20]
    if _parses(few, ISO) and all(len(cell) >= 7 and cell[4:5] == "-" for cell in few):
        return ISO if _parses(given, ISO) else None
    fitting = []
    for dates in (_DAY_FIRST, _MONTH_FIRST, _OTHERS, ("",)):
        for date in dates:
            clocks = _TIMES if not date else _CLOCKS
            for clock in clocks:
                for style in (date + clock, date + clock.replace(" ", "T", 1)) if date else (clock,):
                    if style not in fitting and _parses(few, style) and _parses(given, style):
                        fitting.append(style)
    if not fitting:
        return None
    return min(fitting, key=lambda style: (*_unevenness(given, style), fitting.index(style)))


def parse(cells: Cells, style: str) -> tuple[Dates, int | None]:
    """Cells as dates in a format, and the place of the first that is none.

    Args:
        cells: Text, or dates as datetime64.
        style: The format, from :func:`find_format`.

    Example:
        >>> dates, wrong = parse(np.array(["1970-01-01T02:00+02:00", ""], dtype=object), ISO)
        >>> dates.seconds.tolist(), dates.wall.tolist(), wrong
        ([0.0, nan], [7200.0, nan], None)
    """
    if cells.dtype.kind == "M":
        seconds = _seconds(pd.DatetimeIndex(cells))
        return Dates(seconds, seconds), None
    texts = [str(cell) for cell in cells]
    missing = np.array([is_missing(text) for text in texts], dtype=bool)
    given = [text for text, gone in zip(texts, missing, strict=True) if not gone]
    seconds = np.full(len(texts), np.nan)
    wall = seconds.copy()
    offsets = np.array([_offset(text) if style == ISO else 0.0 for text in given])
    naive = [
        _OFFSET.sub("", text) if style == ISO and "T" in text.upper().replace(" ", "T") else text for text in given
    ]
    parsed = pd.to_datetime(pd.Series(naive, dtype=object), format=style, errors="coerce")
    if parsed.isna().any():
        places = np.flatnonzero(~missing)
        return Dates(seconds, wall), int(places[int(parsed.isna().to_numpy().argmax())])
    if given:
        wall[~missing] = _seconds(pd.DatetimeIndex(parsed))
        seconds[~missing] = wall[~missing] - np.nan_to_num(offsets)
    return Dates(seconds, wall), None


def check_zones(cells: Iterable[str]) -> str | None:
    """What is wrong with the time zones of a column's cells, if anything is.

    Offsets an hour apart are summer and winter of one zone.

    Example:
        >>> check_zones(["2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00"])
        >>> check_zones(["2024-03-31T01:00Z", "2024-03-31T01:00"])
        'some of its times have an offset from universal time and others have none'
    """
    offsets = {_offset(cell) for cell in cells if not is_missing(cell) and _has_clock(cell)}
    known = sorted(offset for offset in offsets if offset == offset)
    if known and len(known) < len(offsets):
        return "some of its times have an offset from universal time and others have none"
    if known and known[-1] - known[0] > _HOUR:
        return f"its times are of zones {(known[-1] - known[0]) / _HOUR:g} hours apart"
    return None


def _offset(cell: str) -> float:
    """Seconds of a text's clock ahead of universal time; NaN without an offset."""
    found = _OFFSET.search(cell.strip())
    if found is None or not _has_clock(cell):
        return np.nan
    text = found[0].upper()
    if text == "Z":
        return 0.0
    hours, minutes = int(text[1:3]), int(text[-2:])
    return (-1.0 if text[0] == "-" else 1.0) * (hours * 3600.0 + minutes * 60.0)


def _has_clock(cell: str) -> bool:
    return ":" in cell or "T" in cell.upper()[8:]


def _parses(cells: Sequence[str], style: str) -> bool:
    texts = [_OFFSET.sub("", cell) if style == ISO and _has_clock(cell) else cell for cell in cells]
    return not bool(pd.to_datetime(pd.Series(texts, dtype=object), format=style, errors="coerce").isna().any())


def _unevenness(cells: Sequence[str], style: str) -> tuple[bool, float]:
    """Whether dates run backwards, and their longest step in usual ones."""
    parsed = _seconds(pd.DatetimeIndex(pd.to_datetime(pd.Series(cells, dtype=object), format=style)))
    moves = np.diff(parsed)
    forward = moves[moves > 0]
    longest = float(forward.max() / np.median(forward)) if len(forward) else 0.0
    return bool((moves < 0).any()), round(longest, 3)


def _seconds(dates: pd.DatetimeIndex) -> NDArray[np.float64]:
    whole = dates.to_numpy().astype("datetime64[ns]")
    seconds: NDArray[np.float64] = np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 1e9)
    return seconds
