"""Tables as CSV text, safe to open in a spreadsheet."""

from collections.abc import Sequence

_BLANK = "\t\r\n"
_FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", *_BLANK)  # also as wide characters


def as_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as CSV; NaN and ``None`` are empty cells."""
    return "".join(map(csv_line, (header, *rows)))


def csv_line(cells: Sequence[object]) -> str:
    """A line of CSV."""
    return ",".join(map(_csv_cell, cells)) + "\n"


def not_a_formula(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe goes before what looks like one."""
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return f"'{text}" if text[0] in _BLANK else text


def quoted(name: str) -> str:
    """A name as a cell of a CSV table."""
    text = not_a_formula(name)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


def _csv_cell(cell: object) -> str:
    if isinstance(cell, str):
        return quoted(cell)
    return "" if cell is None or cell != cell else str(cell)  # NaN
