"""Numbers from text: missing values, decimal commas, thousands separators."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "na", "<na>", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?", "missing"})
_MARKS = {".": ",'\u00a0\u202f ", ",": ".'\u00a0\u202f "}  # between thousands, by the decimal mark
_GROUPS = {
    decimal: re.compile(rf"[+-]?\d{{1,3}}(?:[{marks}]\d{{3}})+(?:[{decimal}]\d+)?$")
    for decimal, marks in _MARKS.items()
}
_UNITS = "%$€£¥ "  # ignored around a number
_WITH_COMMA = re.compile(r"[+-]?\d+,(\d+)(?:[eE][+-]?\d+)?$")
_WITH_POINT = re.compile(r"[+-]?\d*\.(\d+)(?:[eE][+-]?\d+)?$")


def is_missing(text: str) -> bool:
    """Whether a cell is missing."""
    return text.strip().lower() in MISSING


def number_in(text: str, decimal: str = ".") -> float | None:
    """The number in a cell, NaN where it is missing, ``None`` where there is other text."""
    if is_missing(text):
        return float("nan")
    stripped = _bare(text)
    if _GROUPS[decimal].match(stripped):
        for mark in _MARKS[decimal]:
            stripped = stripped.replace(mark, "")
    elif decimal == "," and "." in stripped:
        return None  # a point although the mark is a comma: a date, or another dialect
    if decimal == ",":
        stripped = stripped.replace(",", ".")
    # Python reads 2024_05 as 202405, which is not what a table means.
    if "_" in stripped:
        return None
    try:
        return float(stripped)
    except ValueError:
        return None


def numbers_in(cells: Sequence[str], decimal: str = ".") -> tuple[NDArray[np.float64], int | None]:
    """Cells as numbers, and the place of the first that holds other text, if there is one."""
    if decimal == ".":
        try:
            values = np.asarray(cells, dtype=object).astype(np.float64)
        except ValueError:
            pass
        else:
            if not any("_" in cell for cell in cells):
                return values, None
    found = np.full(len(cells), np.nan)
    wrong = None
    for place, cell in enumerate(cells):
        value = number_in(cell, decimal)
        if value is not None:
            found[place] = value
        elif wrong is None:
            wrong = place
    return found, wrong


def may_be_decimal(text: str, decimal: str = ".") -> bool:
    """Whether the one thousands separator of a number may as well be a decimal mark."""
    mark = _MARKS[decimal][0]
    whole, _, behind = _bare(text).lstrip("+-").partition(mark)
    return len(behind) == 3 and behind.isdigit() and whole.isdigit() and len(whole) <= 3 and not whole.startswith("0")


def find_decimal(cells: Iterable[str], delimiter: str) -> str:
    """The decimal mark, from cells of a table."""
    comma = point = unclear = 0
    for cell in cells:
        stripped = _bare(cell)
        if (behind := _WITH_COMMA.match(stripped)) is not None:
            if len(behind[1]) == 3 and not stripped.lstrip("+-").startswith("0"):
                unclear += 1
            else:
                comma += 1
        elif (behind := _WITH_POINT.match(stripped)) is not None:
            point += len(behind[1]) != 3 or stripped.lstrip("+-").startswith(("0", "."))
        elif _GROUPS[","].match(stripped) and "," in stripped:
            comma += 1
        elif _GROUPS["."].match(stripped) and "." in stripped:
            point += 1
    if comma != point:
        return "," if comma > point else "."
    if delimiter == ",":  # commas in quotes separate thousands rather than decimals
        return "."
    return "," if unclear and not point else "."


def _bare(cell: str) -> str:
    """A number without blanks and units around it."""
    bare = cell.strip()
    return bare if bare.isascii() and bare[-1:].isdigit() and bare[0] != "$" else bare.replace("−", "-").strip(_UNITS)
