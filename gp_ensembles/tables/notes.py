"""Notes for users on suspicious numbers in the warm-up rows, which are not changed."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.tables.columns import ColumnEncoder, NumberColumn, to_numbers
from gp_ensembles.tables.numbers import may_be_decimal
from gp_ensembles.tables.raw import Cells, texts_of

_FEW = range(3, 13)  # distinct whole values of a possible category
_ENOUGH = 100  # rows needed for a note on few values
_MARKS = (-200.0, *(sign * (10.0**digits - 1) for sign in (-1, 1) for digits in range(2, 7)))  # -99, ..., 999999
_SHARE = 0.005


def notes_of(columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str) -> tuple[str, ...]:
    """Notes on possible categories, ambiguous decimal marks, and numbers that may mean "missing"."""
    few, marked = [], []
    for column in columns:
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
        verb = "hold" if len(few) > 1 else "holds"
        marked.append(
            f"{', '.join(few)} {verb} few whole numbers, which are treated as quantities; --kinds {few[0]}=category "
            f"makes a category of {few[0]}"
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
            f"{name} holds two values, {one} and {two}, treated as quantities; --classes {one},{two} makes them classes"
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
