"""Detection of column types from the cells of the warm-up rows, without the targets."""

import re

import numpy as np

from gp_ensembles.tables.columns import (
    BOOLEAN,
    BooleanColumn,
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    DroppedColumn,
    HashedColumn,
    NumberColumn,
)
from gp_ensembles.tables.dates import ISO, Dates, find_digits, find_format, find_zone, parse
from gp_ensembles.tables.numbers import is_missing, numbers_in
from gp_ensembles.tables.raw import CellError, Cells, texts_of

MAX_LEVELS = 20  # of a category with an indicator for each
_DAY = 86400.0
_WITH_UNIT = re.compile(r"[+-]?\d+(?:[.,]\d+)?\s*([A-Za-z°µμΩ%/²³]{1,8})")
_FEW_UNITS = 3


def fit_column(name: str, cells: Cells, decimal: str, given: str | None = None) -> ColumnEncoder:
    """The encoder of a column.

    Raises:
        CellError: If the cells are of several types, or are text that rarely repeats.
    """
    if given == "drop":
        return DroppedColumn(name)
    if given == "number" or (given is None and cells.dtype.kind == "f"):
        return NumberColumn(name)
    if given == "boolean":
        return BooleanColumn(name)
    if given == "category":
        return _category(name, cells)
    if cells.dtype.kind == "M":
        return _dates(name, parse(cells, ISO), ISO)
    texts = texts_of(cells)
    found = [text for text in texts if not is_missing(text)]
    style = None
    if given == "date" or (found and not _is_numeric(found[:50], decimal)):
        style = find_format(found) or (find_digits(found) if given == "date" else None)
    if style is not None:
        zone = find_zone(texts)
        return _dates(name, parse(cells, style, zone), style, zone)
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


def refuse_text(name: str, cells: Cells) -> None:
    """Raise if a detected category has nearly as many values as rows, so that nothing can be learned from it."""
    levels = {str(cell) for cell in cells if not is_missing(str(cell))}
    units = [found[1] for level in levels if (found := _WITH_UNIT.fullmatch(level.strip())) is not None]
    if len(units) == len(levels) > MAX_LEVELS and len(set(units)) <= _FEW_UNITS:
        raise CellError(0, f"its cells are numbers with a unit ({', '.join(sorted(set(units)))}); write numbers only")
    if len(levels) > max(MAX_LEVELS, len(cells) / 2):
        raise CellError(
            0,
            f"text with {len(levels)} different values in {len(cells)} rows; drop it (--kinds {name}=drop), or "
            f"declare it a category (--kinds {name}=category)",
        )


def _dates(name: str, dates: Dates, style: str, zone: tuple[float, ...] = ()) -> DateColumn:
    """Calendar features with variation in the warm-up rows."""
    wall = dates.wall[~np.isnan(dates.wall)]
    if not len(wall):
        return DateColumn(name, style, 0.0, (), True)
    within_day = np.unique(wall % _DAY)
    days = np.unique(wall // _DAY)
    has_days = wall.max() >= 366 * _DAY or wall.min() >= 366 * _DAY  # times without dates are in 1900 or 1970
    periods = ["day"] if len(within_day) > 1 else []
    if has_days and len(np.unique(days % 7)) > 1 and len(days) >= 7 and _median_step(days) < 7:
        periods.append("week")
    if has_days and days.max() - days.min() >= 60:
        periods.append("year")
    origin = float(np.nanmin(dates.seconds[:1])) if not np.isnan(dates.seconds[0]) else float(np.nanmin(dates.seconds))
    return DateColumn(name, style, origin, tuple(periods), bool(has_days), zone)


def _advice(wrong: int, texts: list[str]) -> str:
    """Advice on the first cell that is no number."""
    if wrong == 0:
        return "remove the row if it holds units, or leave the cell empty"
    return f"fix it, leave the cell empty, or give --missing {texts[wrong].strip()} if that means a missing value"


def _median_step(days: Cells) -> float:
    return float(np.median(np.diff(days))) if len(days) > 1 else 0.0


def _is_numeric(found: list[str], decimal: str, share: float = 0.5) -> bool:
    """Whether more than a share of cells are numbers."""
    values, _ = numbers_in(found, decimal)
    return bool(found) and float((~np.isnan(values)).mean()) > share


def _first_odd(texts: list[str]) -> int:
    """The first cell with which the cells are no dates any more."""
    for place in range(len(texts)):
        if not is_missing(texts[place]) and find_format(texts[: place + 1]) is None:
            return place
    return 0
