"""Dates from text: the format is detected once, on the warm-up rows."""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.extras import needs_cli
from gp_ensembles.tables.numbers import is_missing, numbers_in
from gp_ensembles.tables.raw import CellError, Cells, texts_of

ISO = "ISO8601"
UNIX = {"seconds since 1970": 1.0, "milliseconds since 1970": 1e3}  # numbers declared as dates
_OFFSET = re.compile(r"\s*(?:Z|UTC|GMT|([+-])(\d{2}):?(\d{2})?)$", re.IGNORECASE)
_CLOCK = re.compile(r"\dT\d|:")
_FEW_CHANGES, _ROWS_A_CHANGE = 4, 50  # of the offset, in the first rows
_HOUR = 3600.0
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %H.%M", " %H.%M.%S", " %H")
_DAY_FIRST = tuple(f"%d{mark}%m{mark}{year}" for mark in "./-" for year in ("%Y", "%y"))
_MONTH_FIRST = tuple(f"%m{mark}%d{mark}{year}" for mark in "/.-" for year in ("%Y", "%y"))
_OTHERS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d %B %Y", "%b %d %Y", "%b %d, %Y", "%B %d, %Y",
           "%d-%b-%Y", "%d-%b-%y", "%b %Y", "%B %Y", "%b-%y", "%m/%Y", "%Y/%m")  # fmt: skip
_DIGITS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_TIMES = ("%H:%M", "%H:%M:%S", "%H.%M.%S", "%I:%M %p", "%I:%M:%S %p")


class Dates(NamedTuple):
    """Dates of N rows, NaN where missing."""

    seconds: NDArray[np.float64]  # seconds since 1970 in UTC, shape (N,); times without an offset count as UTC
    wall: NDArray[np.float64]  # the same in local time, for hours and weekdays


def find_digits(cells: Sequence[str]) -> str | None:
    """The format of whole numbers declared as dates: digits of a date, or the time since 1970."""
    given = [cell for cell in cells if not is_missing(cell)]
    lengths = {len(cell.partition(".")[0]) for cell in given}
    styles = [_DIGITS.get(max(lengths, default=0), "")] if len(lengths) == 1 else []
    styles += [style for style, length in zip(UNIX, (10, 13), strict=True) if lengths <= {length - 1, length}]
    return next((style for style in styles if style and given and _parses(given, style)), None)


def find_format(cells: Sequence[str]) -> str | None:
    """The format in which all cells are dates, or ``None``."""
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


def is_ambiguous(cells: Cells, style: str) -> bool:
    """Whether cells that were read day first could also be month first."""
    other = re.sub(r"^%d([./-])%m", r"%m\1%d", style)
    given = [text for text in texts_of(cells) if not is_missing(text)] if other != style else []
    return bool(given) and _parses(given, other) and _unevenness(given, other) == _unevenness(given, style)


def find_zone(cells: Sequence[str]) -> tuple[float, ...]:
    """Least and greatest UTC offset of a column's cells, in seconds; empty without offsets."""
    offsets = [_offset(cell) for cell in cells if not is_missing(cell)]
    known = [offset for offset in offsets if offset is not None]
    zone = (min(known), max(known)) if known else ()
    places = [place for place, cell in enumerate(cells) if not is_missing(cell)]
    _check_zone(offsets, places, zone)
    changes = [place for place, (one, two) in enumerate(itertools.pairwise(known), 1) if one != two]
    if len(changes) > max(_FEW_CHANGES, len(known) / _ROWS_A_CHANGE):  # summer and winter change less often
        raise CellError(places[changes[0]], "its times mix two time zones; write all times of the column in one zone")
    return zone


def parse(
    cells: Cells, style: str, zone: tuple[float, ...] = (), timezone: str | None = None, *, may_be_wrong: bool = False
) -> Dates:
    """Cells as dates in a format, those without an offset in a time zone; NaN for invalid dates if they are allowed."""
    if cells.dtype.kind == "M":
        seconds = seconds_of(cells)
        return Dates(to_utc(seconds, timezone), seconds + min(zone, default=0.0))
    texts = texts_of(cells)
    places = [place for place, text in enumerate(texts) if not is_missing(text)]
    given = [texts[place] for place in places]
    wall = np.full(len(texts), np.nan)
    wall[places], wrong = _walls(given, style)
    if wrong is not None and not may_be_wrong:
        raise CellError(places[wrong], f"{given[wrong]!r} is not a date in the format of the first rows; fix it")
    offsets = [_offset(text) for text in given]
    _check_zone(offsets, places, zone)
    seconds = wall.copy()
    seconds[places] -= [offset or 0.0 for offset in offsets]
    return Dates(to_utc(seconds, timezone), wall)


def to_utc(wall: NDArray[np.float64], timezone: str | None, *, is_second: bool = False) -> NDArray[np.float64]:
    """Local times (N,) as seconds since 1970 in UTC; in a repeated hour the first time, or the second.

    Nonexistent spring times are shifted to the first valid moment. Without a zone nothing changes.
    """
    if timezone is None:
        return wall
    with needs_cli("a time zone"):
        import pandas as pd

    found, known = wall.copy(), ~np.isnan(wall)
    moments = pd.DatetimeIndex(dates_of(wall[known]))
    is_summer = np.full(len(moments), not is_second)
    local = moments.tz_localize(timezone, ambiguous=is_summer, nonexistent="shift_forward")
    found[known] = seconds_of(local.tz_convert("UTC").tz_localize(None).to_numpy())
    return found


def to_wall(seconds: NDArray[np.float64], timezone: str | None) -> NDArray[np.float64]:
    """Seconds since 1970 in UTC (N,) as local times of a zone; as they are without one."""
    if timezone is None:
        return seconds
    with needs_cli("a time zone"):
        import pandas as pd

    moments = pd.DatetimeIndex(dates_of(seconds), tz="UTC")
    return seconds_of(moments.tz_convert(timezone).tz_localize(None).to_numpy())


def seconds_of(dates: Cells) -> NDArray[np.float64]:
    """Dates (N,) as seconds since 1970; NaN for NaT."""
    whole = dates.astype("datetime64[us]")  # nanoseconds end in 1677 and 2262
    seconds: NDArray[np.float64] = np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 1e6)
    return seconds


def dates_of(seconds: NDArray[np.float64]) -> NDArray[np.datetime64]:
    """Seconds since 1970 (N,) as dates."""
    dates: NDArray[np.datetime64] = (seconds * 1e6).round().astype("datetime64[us]")
    return dates


def _check_zone(offsets: Sequence[float | None], places: Sequence[int], zone: tuple[float, ...]) -> None:
    """Raise if an offset does not fit those of the first rows."""
    for place, offset in zip(places, offsets, strict=True):
        if (offset is None) != (not zone):
            problem = "some of its times have a UTC offset and others do not"
        elif offset is not None and (apart := max(offset, *zone) - min(offset, *zone)) > _HOUR:
            problem = f"its times span time zones {apart / _HOUR:g} hours apart"
        else:
            continue
        raise CellError(place, f"{problem}; write all times of the column in one zone")


def _offset_of(text: str) -> re.Match[str] | None:
    """The offset at the end of a text with a clock."""
    tail = text[-6:]
    if tail[-1:].isdigit() and "+" not in tail and "-" not in tail:
        return None
    return _OFFSET.search(text) if _CLOCK.search(text) else None


def _offset(text: str) -> float | None:
    """UTC offset of a text in seconds; ``None`` without one."""
    found = _offset_of(text)
    if found is None:
        return None
    sign, hours, minutes = found.groups()
    return 0.0 if sign is None else (-1.0 if sign == "-" else 1.0) * (int(hours) * _HOUR + int(minutes or 0) * 60.0)


def _walls(texts: Sequence[str], style: str) -> tuple[NDArray[np.float64], int | None]:
    """Local times of texts (N,), seconds since 1970, and the place of the first that is not a date."""
    if style in UNIX:
        numbers, wrong = numbers_in(texts)
        return numbers / UNIX[style], wrong
    with needs_cli("text that may be dates"):
        import pandas as pd

    plain = np.empty(len(texts), dtype=object)
    plain[:] = [text if (found := _offset_of(text)) is None else text[: found.start()] for text in texts]
    parsed = pd.to_datetime(plain, format=style, errors="coerce", utc=True).tz_localize(None)
    lost = parsed.isna()
    return seconds_of(parsed.to_numpy()), int(lost.argmax()) if lost.any() else None


def _parses(cells: Sequence[str], style: str) -> bool:
    return _walls(cells, style)[1] is None


def _unevenness(cells: Sequence[str], style: str) -> tuple[bool, float]:
    """Whether dates decrease, and their longest step in usual steps."""
    moves = np.diff(_walls(cells, style)[0])
    forward = moves[moves > 0]
    longest = float(forward.max() / np.median(forward)) if len(forward) else 0.0
    return bool((moves < 0).any()), round(longest, 3)
