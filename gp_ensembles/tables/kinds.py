"""Detection of column types from the cells of the warm-up rows, and notes for users on suspicious numbers there."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.tables.columns import (
    BOOLEAN,
    BooleanColumn,
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    DroppedColumn,
    HashedColumn,
    NumberColumn,
    to_numbers,
)
from gp_ensembles.tables.dates import ISO, UNIX, Dates, find_digits, find_format, find_zone, is_ambiguous, parse, to_utc
from gp_ensembles.tables.numbers import is_missing, may_be_decimal, number_in, numbers_in
from gp_ensembles.tables.raw import CellError, Cells, as_option, texts_of

MAX_LEVELS = 20  # of a category with an indicator for each
_DAY = 86400.0
_DAYS_OF_TIMES = (-25567.0, 0.0)  # 1900-01-01 and 1970-01-01, where times without a date are
_WITH_UNIT = re.compile(r"[+-]?\d+(?:[.,]\d+)?\s*([A-Za-z°µμΩ%/²³]{1,8})")
_FEW_UNITS = 3
_ALL_DIFFERENT = 10  # cells without a level that comes twice
_LIKE_A_DATE = re.compile(r"\d[-/.]\d+[-/.]\d|\d:\d\d|\d{4}\W?[QW]\d|\b[QW]\d\W?\d{4}")
_FEW = range(3, 13)  # distinct whole values of a possible category
_ENOUGH = 100  # rows needed for a note on few values
_MARKS = (-200.0, *(sign * (10.0**digits - 1) for sign in (-1, 1) for digits in range(2, 7)))  # -99, ..., 999999
_SHARE = 0.005


def fit_column(
    name: str, cells: Cells, decimal: str, given: str | None = None, timezone: str | None = None
) -> ColumnEncoder:
    """The encoder of a column; dates without a UTC offset are read in this zone."""
    if given == "drop":
        return DroppedColumn(name)
    if given == "number" or (given is None and cells.dtype.kind == "f"):
        return NumberColumn(name)
    if given == "boolean":
        return BooleanColumn(name)
    if given == "category":
        return _category(name, cells)
    if cells.dtype.kind == "M":
        return _dates(name, parse(cells, ISO), ISO, (), timezone)
    texts = texts_of(cells)
    found = [text for text in texts if not is_missing(text)]
    style = None
    if given == "date" or (found and not _is_numeric(found[:50], decimal)):
        style = find_format(found) or (find_digits(found) if given == "date" else None)
    if style is not None:
        zone = find_zone(texts)
        return _dates(name, parse(cells, style, zone), style, zone, None if zone or style in UNIX else timezone)
    if given == "date":
        raise CellError(
            _first_odd(texts), "no date format fits all cells of the first rows; write them as 2024-01-31 13:00"
        )
    _, wrong = numbers_in(texts, decimal)
    if wrong is None:
        return NumberColumn(name)
    if {text.lower() for text in found} <= set(BOOLEAN):
        return BooleanColumn(name)
    if _is_numeric(found, decimal, 0.9):
        problem = f"{texts[wrong]!r} is not a number, unlike nearly all others; {_advice(wrong, texts)}"
        raise CellError(wrong, problem, is_odd=True)
    return _category(name, cells)


def _category(name: str, cells: Cells) -> ColumnEncoder:
    levels = {text for text in texts_of(cells) if not is_missing(text)}
    if len(levels) <= MAX_LEVELS:
        return CategoryColumn(name, tuple(sorted(levels)))
    return HashedColumn(name)


def refuse_text(name: str, cells: Cells, decimal: str = ".") -> None:
    """Raise if a detected category has nearly as many values as rows, so that nothing can be learned from it."""
    given = [text for text in texts_of(cells) if not is_missing(text)]
    levels = set(given)
    units = [found[1] for level in levels if (found := _WITH_UNIT.fullmatch(level.strip())) is not None]
    if len(units) == len(levels) > MAX_LEVELS and len(set(units)) <= _FEW_UNITS:
        raise CellError(0, f"its cells are numbers with a unit ({', '.join(sorted(set(units)))}); write numbers only")
    if len(levels) > max(MAX_LEVELS, len(cells) / 2) or len(levels) == len(cells) >= _ALL_DIFFERENT:
        drop = as_option(f"{name}=drop")
        if word := _word_among_numbers(given, decimal):
            place = texts_of(cells).index(word)
            raise CellError(place, f"it contains numbers and text such as {word!r}; fix it, {_advice_on_missing(word)}")
        if all(_LIKE_A_DATE.search(level) for level in levels):
            place = _first_odd(given)
            raise CellError(
                texts_of(cells).index(given[place]),
                f"{given[place]!r} looks like a date in an unknown format; write its cells as 2024-01-31 "
                f"13:00, drop it (--kinds {drop}), or declare it a category (--kinds {as_option(f'{name}=category')})",
            )
        raise CellError(
            0,
            f"text with {len(levels)} different values in {len(cells)} rows; drop it (--kinds {drop}), or "
            f"declare it a category (--kinds {as_option(f'{name}=category')})",
        )


def _dates(name: str, dates: Dates, style: str, zone: tuple[float, ...], timezone: str | None) -> DateColumn:
    """Calendar features with variation in the warm-up rows."""
    wall = dates.wall[~np.isnan(dates.wall)]
    if not len(wall):
        return DateColumn(name, style, 0.0, (), True)
    within_day = np.unique(wall % _DAY)
    days = np.unique(wall // _DAY)
    has_days = not np.isin(days, _DAYS_OF_TIMES).all()
    periods = ["day"] if len(within_day) > 1 else []
    if has_days and len(np.unique(days % 7)) > 1 and len(days) >= 7 and np.median(np.diff(days)) < 7:
        periods.append("week")
    if has_days and days.max() - days.min() >= 60:
        periods.append("year")
    timezone = timezone if has_days else None
    seconds = to_utc(dates.seconds, timezone)
    origin = float(np.nanmin(seconds) if np.isnan(seconds[0]) else seconds[0])
    return DateColumn(name, style, origin, tuple(periods), has_days, zone, timezone)


def _advice(wrong: int, texts: list[str]) -> str:
    """Advice on the first cell that is not a number."""
    if wrong == 0:
        return "remove the row if it holds units, or leave the cell empty"
    return f"fix it, {_advice_on_missing(texts[wrong].strip())}"


def _advice_on_missing(word: str) -> str:
    return f"leave the cell empty, or give --missing {as_option(word)} if that means a missing value"


def _word_among_numbers(found: list[str], decimal: str) -> str:
    """The commonest text among cells that are mostly numbers; empty where they are not, or there is none."""
    words = Counter(text for text in found if number_in(text, decimal) is None)
    return words.most_common(1)[0][0] if words and _is_numeric(found, decimal) else ""


def _is_numeric(found: list[str], decimal: str, share: float = 0.5) -> bool:
    """Whether more than a share of cells are numbers."""
    values, _ = numbers_in(found, decimal)
    return bool(found) and float((~np.isnan(values)).mean()) > share


def _first_odd(texts: list[str]) -> int:
    """The first cell with which the cells are no longer dates."""
    for place in range(len(texts)):
        if not is_missing(texts[place]) and find_format(texts[: place + 1]) is None:
            return place
    return 0


def notes_of(columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str) -> tuple[str, ...]:
    """Notes on possible categories, ambiguous decimal marks, and numbers that may mean "missing"."""
    few, marked = [], []
    for column in columns:
        if isinstance(column, DateColumn) and is_ambiguous(cells[column.name], column.style):
            marked.append(
                f"dates of {column.name} are read day first, but the first rows could also be month first; inspect "
                f"more rows (--warmup), or write dates as 2024-11-30"
            )
        if isinstance(column, HashedColumn | CategoryColumn):
            found = [text for text in texts_of(cells[column.name]) if not is_missing(text)]
            if word := _word_among_numbers(found, decimal):
                marked.append(
                    f"{column.name} contains numbers and text such as {word!r}, so it is treated as a category; if "
                    f"that means missing, give --missing {as_option(word)}"
                )
        if not isinstance(column, NumberColumn):
            continue
        marked += _thousands(column.name, cells[column.name], decimal)
        values = to_numbers(cells[column.name], decimal)
        values = values[np.isfinite(values)]
        levels = np.unique(values)
        if len(values) >= _ENOUGH and len(levels) in _FEW and bool((levels % 1 == 0).all()):
            few.append(column.name)
        marked += _marks(column.name, values)
    if few:
        verb = "have" if len(few) > 1 else "has"
        marked.append(
            f"{', '.join(few)} {verb} few distinct whole numbers, treated as quantities; --kinds "
            f"{as_option(f'{few[0]}=category')} makes {few[0]} a category"
        )
    return tuple(marked)


def notes_of_target(name: str, y: NDArray[np.float64]) -> tuple[str, ...]:
    """Notes on a target of two values, possibly classes, and on numbers that may mean "missing"."""
    values = y[np.isfinite(y)]
    levels = np.unique(values)
    notes = []
    if len(levels) == 2 and len(values) >= _ENOUGH:
        one, two = (f"{level:g}" for level in levels)
        notes.append(
            f"{name} has two values, {one} and {two}, treated as quantities; --classes {one},{two} makes them classes"
        )
    return (*notes, *_marks(name, values))


def _marks(name: str, values: NDArray[np.float64]) -> list[str]:
    """A note on each frequent number far from all others, which may mark missing values."""
    levels = np.unique(values)
    return [
        f"{name} is {mark:g} in {100 * share:.3g} % of the first rows, far from all others; if it means missing, give "
        f"--missing {mark:g}"
        for mark in _MARKS
        if (share := float((values == mark).mean()) if len(values) else 0.0) > _SHARE and _is_far(mark, levels)
    ]


def _thousands(name: str, cells: Cells, decimal: str) -> list[str]:
    """A note if all thousands separators may be decimal marks."""
    other = "," if decimal == "." else "."
    texts = [text for text in texts_of(cells) if other in text] if cells.dtype.kind == "O" else []
    if not texts or not all(may_be_decimal(text, decimal) for text in texts):
        return []
    return [
        f"{name}: {texts[0].strip()} is read as {texts[0].strip().replace(other, '')}; if it is a decimal "
        f"mark, give --decimal {other}"
    ]


def _is_far(mark: float, levels: Cells) -> bool:
    """Whether a value is further from all others than these are from one another."""
    others = levels[levels != mark]
    if len(others) < 3:
        return False
    return bool(np.abs(others - mark).min() > others.max() - others.min())
