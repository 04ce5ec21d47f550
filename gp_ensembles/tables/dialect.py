"""Dialects of text tables: encoding, delimiter, decimal mark, header."""

import codecs
import csv
import io
import re
from collections import Counter
from typing import NamedTuple

from gp_ensembles.tables.numbers import find_decimal, is_missing, number_in
from gp_ensembles.tables.options import TableOptions

_DELIMITERS = (",", ";", "\t", "|")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ROWS = 200  # inspected for the delimiter
_APOSTROPHES = re.compile(r"(?:^|[,;\t|])[ ]*'[^'\n]*'[ ]*(?=[,;\t|]|$)")

BYTE_BY_BYTE = "gp_ensembles.byte_by_byte"  # error handler: bytes that are no UTF-8 are decoded one by one


def _byte_by_byte(error: UnicodeError) -> tuple[str, int]:
    """The byte that stopped a decoder as a character of Windows-1252, or else of Latin-1."""
    assert isinstance(error, UnicodeDecodeError)
    byte = error.object[error.start : error.start + 1]
    try:
        return byte.decode("cp1252"), error.start + 1
    except UnicodeDecodeError:
        return byte.decode("latin-1"), error.start + 1


codecs.register_error(BYTE_BY_BYTE, _byte_by_byte)


class Dialect(NamedTuple):
    """The dialect of a text table.

    Attributes:
        delimiter: The field separator; a blank means any number of blanks.
        decimal: The decimal mark.
        encoding: The character encoding.
        header: Whether the first row holds names.
        skip: Lines before the table: ``sep=;``, remarks, a title.
        quote: The quotation mark.
        num_empty: Empty columns at the end, from separators at the end of lines.
    """

    delimiter: str
    decimal: str
    encoding: str
    header: bool
    skip: int = 0
    quote: str = '"'
    num_empty: int = 0


def find_encoding(start: bytes, is_whole: bool) -> str:
    """The encoding of a text from its first bytes; one byte a character where it is not UTF-8."""
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding
    if start[1:200:2].count(0) > len(start[1:200:2]) / 2:
        return "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def find_dialect(text: str, encoding: str, options: TableOptions) -> Dialect:
    """The dialect of a table from its beginning."""
    lines = list(io.StringIO(text, newline=None))
    skip, delimiter = 0, options.delimiter
    while skip < len(lines) - 1:
        line = lines[skip].strip()
        if line.lower().startswith("sep=") and len(line) <= 5:
            delimiter = delimiter or line[4:] or "\t"
        elif line and not line.startswith("#"):
            break
        skip += 1
    some = lines[skip : skip + _ROWS]
    quote = "'" if '"' not in text and 2 * sum(bool(_APOSTROPHES.search(line)) for line in some) > len(some) else '"'
    delimiter = delimiter or _find_delimiter(some, quote)
    skip += _num_titles(some, delimiter, quote)
    cells = split_rows(lines[skip:], delimiter, quote)
    if skip and lines[skip - 1].startswith("#") and cells:
        names = split_rows([lines[skip - 1].lstrip("# ")], delimiter, quote)
        if names and 1 < len(names[0]) == len(cells[0]):  # names behind a mark for remarks
            skip, cells = skip - 1, [*names, *cells]
    decimal = options.decimal or find_decimal((cell for row in cells for cell in row), delimiter)
    header = options.header if options.header is not None else _has_header(cells, decimal)
    return Dialect(delimiter, decimal, encoding, header, skip, quote, _num_empty(cells))


def split_rows(lines: list[str], delimiter: str, quote: str = '"') -> list[list[str]]:
    """Cells of lines, empty lines left out; a quoted cell may span lines."""
    if delimiter == " ":
        lines = [" ".join(line.split()) if quote not in line else line.strip() for line in lines]
    reader = csv.reader(lines, delimiter=delimiter, quotechar=quote, skipinitialspace=True)
    return [row for row in reader if any(row)]


def _find_delimiter(lines: list[str], quote: str) -> str:
    """The separator that splits most lines into the same number of cells, more than one."""
    best, best_score = ",", (0.0, 0)
    for delimiter in (*_DELIMITERS, " "):
        width, share = _usual_width(split_rows(lines, delimiter, quote))
        # Blanks and commas may be inside cells: other separators that split as evenly go first.
        score = (share if width > 1 else 0.0, width if delimiter in ";\t|" else 0)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _usual_width(rows: list[list[str]]) -> tuple[int, float]:
    """The most frequent number of cells, and its share of the rows."""
    widths = Counter(len(row) for row in rows)
    if not widths:
        return 0, 0.0
    width, count = widths.most_common(1)[0]
    return width, count / sum(widths.values())


def _num_titles(lines: list[str], delimiter: str, quote: str) -> int:
    """Lines above the table: without a delimiter, while nearly all lines below have one."""
    if delimiter == " ":
        return 0
    first = next((place for place, line in enumerate(lines) if delimiter in line), 0)
    below = split_rows(lines[first:], delimiter, quote)
    return first if len(below) > 2 and _usual_width(below)[1] > 0.9 else 0


def _num_empty(rows: list[list[str]]) -> int:
    """Columns at the end that are empty in all rows."""
    width = len(rows[0]) if rows else 0
    held = [place for row in rows for place, cell in enumerate(row[:width]) if cell.strip()]
    return width - 1 - max(held, default=width - 1)


def _has_header(rows: list[list[str]], decimal: str) -> bool:
    """Whether the first row holds names: yes, unless each of its cells is of the type of those below it."""
    if len(rows) < 2:
        return True
    first, below = rows[0], rows[1:20]
    if not any(_kind(cell, decimal) for cell in first):
        return True  # words only, as names are
    for place, cell in enumerate(first):
        kinds = {_kind(row[place], decimal) for row in below if place < len(row) and not is_missing(row[place])}
        if not is_missing(cell) and kinds and _kind(cell, decimal) not in kinds:
            return True
    return False


def _kind(cell: str, decimal: str) -> str:
    """Apparent type of a cell: number, date, or empty for words."""
    if is_missing(cell):
        return ""
    if number_in(cell, decimal) is not None:
        return "number"
    has_date = sum(mark.isdigit() for mark in cell) >= 4 and any(mark in cell for mark in "-/.:")
    return "date" if has_date else ""
