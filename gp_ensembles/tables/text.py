"""Text tables: CSV files of any dialect, gzipped or not, and the standard input."""

import codecs
import csv
import gzip
import io
import re
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from gp_ensembles.tables.numbers import find_decimal, is_missing, number_in
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.raw import Cells, RawRows, RawSource, unique_names

PEEK_BYTES = 1 << 16  # bytes inspected before the table is read
BATCH_ROWS = 2048  # rows
_LINES = 20  # lines inspected, however long
_MOST = 1 << 22  # bytes inspected at most
LONGEST = 1 << 24  # characters of a line
_UNREADABLE = (UnicodeDecodeError, UnicodeError, gzip.BadGzipFile, EOFError, zlib.error, csv.Error)
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
    """The dialect of a text table."""

    delimiter: str  # the field separator; a blank means any number of blanks
    decimal: str
    encoding: str
    header: bool  # whether the first row holds names
    skip: int = 0  # lines before the table: ``sep=;``, remarks, a title
    quote: str = '"'
    num_empty: int = 0  # empty columns at the end, from separators at the end of lines


def find_encoding(start: bytes, is_whole: bool) -> str:
    """The encoding of a text from its first bytes; a single-byte encoding if it is not UTF-8."""
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
    above = [line for line in lines[: first + 1] if line.strip()]
    if len(split_rows(above, delimiter, quote)) < len(above):  # the first name has a line break
        return 0
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


def text_source(path: str, options: TableOptions) -> RawSource:
    """A text table, a file or ``-`` for the standard input, read once from start to end."""
    name, place = ("stdin", "the standard input") if path == "-" else (table_name(path), path)
    text = _TextReader(path, place, options)
    is_pipe, decimal = not Path(path).is_file(), text.dialect.decimal
    return RawSource(name, place, text.header, text.rows, notes=text.notes, decimal=decimal, is_pipe=is_pipe)


class _TextReader:
    """Rows of a text table, which is ``place`` in messages."""

    def __init__(self, path: str, place: str, options: TableOptions) -> None:
        self.path = place
        binary = open_binary(path)
        weakref.finalize(self, binary.close)
        try:
            start = binary.read(PEEK_BYTES)
            while len(start) % PEEK_BYTES == 0 and len(start) < _MOST and 0 < start.count(b"\n") + 1 < _LINES:
                more = binary.read(PEEK_BYTES)
                if not more:
                    break
                start += more
            encoding = options.encoding or find_encoding(start, len(start) < PEEK_BYTES)
            text = start.decode(encoding, errors="ignore")
        except _UNREADABLE as error:
            raise ValueError(f"{self.path} is not a text table: {error}") from None
        except LookupError:
            raise ValueError(f"{options.encoding!r} is not an encoding known to Python; try utf-8 or latin-1") from None
        if len(start) >= PEEK_BYTES:  # the last line is incomplete
            text = text[: text.rfind("\n") + 1] or text[: text.rfind("\r") + 1] or text
        if start.startswith(b"PK\x03\x04"):
            raise ValueError(f"{self.path} is a workbook or an archive, not a text table; save the table as CSV")
        if "\0" in text:
            raise ValueError(f"{self.path} is not a text table: it holds binary data")
        self.dialect: Dialect = find_dialect(text, encoding, options)
        binary = _rejoined(start, binary)
        errors = BYTE_BY_BYTE if options.encoding is None and (start.isascii() or encoding == "cp1252") else "strict"
        self._line = 0  # the number of the last line read
        self._lines = self._numbered(io.TextIOWrapper(binary, encoding=encoding, errors=errors, newline=""))
        self._cells: Iterator[tuple[int, list[str]]] = self._read(self.dialect)
        first = self._next()
        if first is None:
            raise ValueError(f"{self.path} is empty; a header row and data rows are needed")
        names = first[1]
        if not self.dialect.header:
            names = [f"column {place + 1}" for place in range(len(first[1]))]
            self._cells = chain([first], self._cells)
        self._width, self._num_read = len(names), 0
        names = [names[0].lstrip("# "), *names[1:]]
        self.header, self.notes = unique_names(names[: len(names) - self.dialect.num_empty])

    def rows(self, columns: Sequence[str]) -> Iterator[RawRows]:
        """All rows of some columns, in batches."""
        places = [self.header.index(name) for name in columns]
        while True:
            batch, problem = self._next_batch()
            if batch:
                by_column: dict[str, Cells] = {}
                for name, place in zip(columns, places, strict=True):
                    column = np.empty(len(batch), dtype=object)
                    column[:] = [cells[place].strip() for _, cells in batch]
                    by_column[name] = column
                yield RawRows(by_column, np.array([line for line, _ in batch], dtype=np.int64))
            if problem is not None:
                raise problem
            if not batch:
                return

    def _next_batch(self) -> tuple[list[tuple[int, list[str]]], ValueError | None]:
        """The next rows, up to the end of a batch or to the first malformed one, and its error."""
        batch = list[tuple[int, list[str]]]()
        while len(batch) < BATCH_ROWS:
            try:
                found = self._next()
            except ValueError as problem:
                return batch, problem
            if found is None:
                break
            line, cells = found
            is_whole = len(cells) >= len(self.header) and not any(cell.strip() for cell in cells[len(self.header) :])
            if not is_whole and cells[0].lstrip().startswith("#"):
                continue  # a remark
            self._num_read += 1
            if not is_whole:
                return batch, ValueError(
                    f"{self.path}, data row {self._num_read} (line {line}): {len(cells)} cells but {self._width} "
                    f"column names; fix the row, or give the field separator (--delimiter)"
                )
            batch.append(found)
        return batch, None

    def _numbered(self, file: IO[str]) -> Iterator[str]:
        while line := file.readline(LONGEST):
            self._line += 1
            if len(line) == LONGEST:
                raise csv.Error(f"line {self._line} has more than {LONGEST - 1} characters")
            yield line

    def _read(self, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
        for _ in range(dialect.skip):
            next(self._lines, None)
        if dialect.delimiter == " ":
            for line in self._lines:
                for cells in split_rows([line], " ", dialect.quote):  # one, or none in a line of separators
                    yield self._line, cells
            return
        reader = csv.reader(self._lines, delimiter=dialect.delimiter, quotechar=dialect.quote, skipinitialspace=True)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield self._line, cells

    def _next(self) -> tuple[int, list[str]] | None:
        try:
            return next(self._cells, None)
        except csv.Error as error:
            why = str(error)
            if "field limit" in why:
                why = "a cell is too long: check for an unclosed quotation mark"
            raise ValueError(f"{self.path}, after line {self._line}: not a text table: {why}") from None
        except _UNREADABLE as error:
            raise ValueError(f"{self.path}, after line {self._line}: not a text table: {error}") from None


class _Rejoined(io.RawIOBase):
    """Bytes that were read already, and those after them: a pipe cannot be rewound."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = start
        self._rest = rest

    def readable(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Close the underlying file, but not the standard input."""
        if not self.closed and self._rest is not sys.stdin.buffer:
            self._rest.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the bytes available."""
        if self._start:
            part, self._start = self._start[: len(buffer)], self._start[len(buffer) :]
        else:
            part = self._rest.read1(len(buffer)) if isinstance(self._rest, io.BufferedReader) else self._rest.read(
                len(buffer))  # fmt: skip
        buffer[: len(part)] = part
        return len(part)


def open_binary(path: str) -> BinaryIO:
    """The bytes of a file or of the standard input, decompressed if they are gzipped, whatever the name."""
    if path == "-":
        raw: BinaryIO = sys.stdin.buffer
    else:
        file = Path(path)
        if not file.is_file() and not file.is_fifo():
            problem = "is a folder, not a file" if file.is_dir() else "does not exist"
            raise FileNotFoundError(f"{path} {problem}")
        raw = file.open("rb")
    start = raw.read(2)
    raw = _rejoined(start, raw)
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if start == b"\x1f\x8b" else raw


def table_name(path: str) -> str:
    """Name of a table: its file without endings."""
    name = Path(path).name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def _rejoined(start: bytes, rest: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_Rejoined(start, rest))
