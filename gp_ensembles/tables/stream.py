"""Streams of rows: any source of a table as tensors, in batches."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gp_ensembles.tables.clock import MOST_KNOWN, Times
from gp_ensembles.tables.encoder import ColumnSummary, TableEncoder, TableError, column_summaries
from gp_ensembles.tables.frames import (
    array_source,
    cells_of_records,
    frame_source,
    is_parquet,
    parquet_source,
    with_index,
)
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.raw import Cells, RawRows, RawSource, join
from gp_ensembles.tables.rows import Rows
from gp_ensembles.tables.text import text_source

USUAL_WARM_UP = 1000
LEAST_WARM_UP = 10
_BATCH = 2048  # rows


class RowStream:
    """Rows of a table in batches; the whole table is never in memory.

    Made by :func:`open_rows` and :func:`reopen_rows`.

    Attributes:
        name: Name of the table.
        path: Name of the table in messages.
        encoder: Encoder of its columns; its clock is at the last row taken.
        num_warm_up: Rows at the start that the encoder was fitted to.
        num_rows: Number of all rows, if known.
        num_given: Rows taken or skipped so far.

    Example:
        >>> rows = open_rows(
        ...     [{"hour": k, "load": 2.0 * k} for k in range(5)], "load", num_warm_up=3
        ... )
        >>> rows.take(3).y.tolist(), [batch.y.tolist() for batch in rows], rows.num_rows
        ([0.0, 2.0, 4.0], [[6.0, 8.0]], 5)
    """

    name: str
    path: str
    encoder: TableEncoder
    num_given: int

    def __init__(
        self,
        source: RawSource,
        encoder: TableEncoder,
        ready: Sequence[RawRows],
        rest: Iterator[RawRows],
        num_warm_up: int,
        num_rows: int | None,
    ) -> None:
        self.name, self.path = source.name, source.path
        self.encoder = encoder
        self.num_warm_up = num_warm_up
        self.num_rows: int | None = num_rows
        self._source = source
        self._ready = [part for part in ready if part.num_rows]
        self._rest = rest
        self.num_given = 0
        self._problem: ValueError | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the D inputs."""
        return self.encoder.feature_names

    @property
    def target_name(self) -> str:
        """Name of the target."""
        return self.encoder.target.name

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes 0, 1, ... if the target has classes."""
        return self.encoder.target.classes

    @property
    def has_target(self) -> bool:
        """Whether the table has a target column."""
        return self.target_name in self._source.header

    @property
    def columns(self) -> tuple[ColumnSummary, ...]:
        """Reports on the encoding of each column."""
        return column_summaries(self.encoder, self._source.header, self._source.notes)

    @property
    def is_at_end(self) -> bool:
        """Whether no row is left, not even a malformed one."""
        self._fill(1)
        return not self._ready and self._problem is None

    def look_ahead(self) -> None:
        """Read one more batch, so that the number of rows of a short table is known."""
        self._fill(1 + sum(part.num_rows for part in self._ready))

    def take(self, num_rows: int) -> Rows:
        """The next rows, up to this many: fewer at the end or before a malformed row, none after the end.

        Raises:
            ValueError: If the next row has a malformed cell, is earlier than the previous one, or cannot be read; it
                is not taken.
        """
        self._fill(num_rows + (0 if self.encoder.clock is None or self._source.is_pipe else MOST_KNOWN))
        if not self._ready and self._problem is not None:
            raise self._problem
        whole = join(self._ready) if self._ready else self._empty()
        encoder, rows = self._encode_sound(whole, num_rows)
        rest = whole.part(slice(rows.num_rows, None))
        self._ready = [rest] if rest.num_rows else []
        self.encoder, self.num_given = encoder, self.num_given + rows.num_rows
        return rows

    def peek(self, num_rows: int) -> Rows:
        """The next rows, up to this many, without taking them; times are left out.

        Raises:
            ValueError: If a cell is malformed.
        """
        self._fill(num_rows)
        whole = join(self._ready) if self._ready else self._empty()
        return self._without_clock(whole.part(slice(0, num_rows)))

    @property
    def first_time(self) -> float | None:
        """Time of the next row, which is not taken; ``None`` without a time column or a row.

        Raises:
            ValueError: If it is malformed, or if none of several next times can be read.
        """
        self._fill(1)
        if not self._ready:
            return None
        part = self._ready[0].part(slice(0, LEAST_WARM_UP))
        wanted = self._source.decimal, self.path, self.num_given + 1
        times = replace(self.encoder, skips=True).times(part, *wanted)
        if times is not None and len(times) > 1 and np.isnan(times).all():  # another format rather than mistakes
            replace(self.encoder, skips=False).times(part, *wanted)
        times = self._times(part.part(slice(0, 1)))
        return None if times is None else float(times[0])

    def skip_until(self, time: float) -> None:
        """Skip the rows up to and including a time; the clock does not change.

        Raises:
            ValueError: If the time of one of them is malformed.
        """
        while not self.is_at_end and self._ready:
            part = self._ready.pop(0)
            times = self._times(part)
            later = np.ones(part.num_rows, dtype=bool) if times is None else times > time
            num_passed = int(later.argmax()) if later.any() else part.num_rows
            self.num_given += num_passed
            if num_passed < part.num_rows:
                self._ready.insert(0, part.part(slice(num_passed, None)))
                return

    def skip(self, num_rows: int) -> Rows:
        """Skip rows that were read before, and return the last of them; the clock does not change.

        Args:
            num_rows: Number of rows; if there are fewer, all are skipped and no row is returned.
        """
        last, left = self._empty(), num_rows
        while left:
            self._fill(1)
            if not self._ready:
                return self._without_clock(self._empty())
            part = self._ready.pop(0)
            last = part.part(slice(min(left, part.num_rows) - 1, left))
            rest = part.part(slice(left, None))
            self._ready = [rest, *self._ready] if rest.num_rows else self._ready
            self.num_given += part.num_rows - rest.num_rows
            left -= part.num_rows - rest.num_rows
        return self._without_clock(last)

    def __iter__(self) -> Iterator[Rows]:
        """The remaining rows, in batches."""
        while not self.is_at_end:
            yield self.take(min(self._ready[0].num_rows, _BATCH) if self._ready else 1)

    def where(self, rows: Rows, place: int, column: str) -> str:
        """Position of a cell of rows that were taken, for a message: file, row counted from 1, line and column."""
        line = "" if rows.lines is None else f" (line {int(rows.lines[place])})"
        return f"{self.path}, data row {rows.first_row + place}{line}, column {column}"

    def _fill(self, num_rows: int) -> None:
        """Read until this many rows are ready, the end, or a row that cannot be read."""
        while self._problem is None and sum(part.num_rows for part in self._ready) < num_rows:
            try:
                part = next(self._rest, None)
            except ValueError as problem:
                self._problem = problem
                return
            if part is None:
                self.num_rows = self.num_given + sum(waiting.num_rows for waiting in self._ready)
                return
            self._ready += [part] if part.num_rows else []

    def _encode_sound(self, raw: RawRows, num_rows: int) -> tuple[TableEncoder, Rows]:
        """At most this many rows, before the first malformed one; an error where that is the first of all."""
        while True:
            part, following = raw.part(slice(0, num_rows)), raw.part(slice(num_rows, num_rows + MOST_KNOWN))
            try:
                return self.encoder.encode(part, self._source.decimal, self.path, self.num_given + 1, following)
            except TableError as error:
                num_sound = 0 if error.row is None else error.row - self.num_given - 1
                if not num_sound:
                    raise
                num_rows = num_sound  # other columns may have an earlier one

    def _times(self, raw: RawRows) -> Times | None:
        return self.encoder.times(raw, self._source.decimal, self.path, self.num_given + 1)

    def _without_clock(self, raw: RawRows) -> Rows:
        plain = replace(self.encoder, clock=None)
        return plain.encode(raw, self._source.decimal, self.path, max(1, self.num_given))[1]

    def _empty(self) -> RawRows:
        nothing: Cells = np.zeros(0)
        return RawRows(dict.fromkeys((*self.encoder.input_columns, self.encoder.target.name), nothing), None)


def open_rows(
    source: Any, target: str, options: TableOptions | None = None, *, num_warm_up: int | None = None
) -> RowStream:
    """Open a table and detect its column types on the warm-up rows alone.

    Args:
        source: A path of a CSV or Parquet file, gzipped or not; ``-`` for the standard input; a frame of pandas,
            polars or pyarrow; a sequence of dictionaries; or one of :mod:`~gp_ensembles.tables.frames`.
        target: Name of the target.
        options: Dialect and columns of the table; detected by default.
        num_warm_up: Rows to inspect; by default 1000, or a third of a table shorter than 3000.

    Raises:
        OSError: If a file cannot be read.
        TypeError: If the source is of another type.
        ValueError: If the table is malformed or empty, or a column does not exist or has no type.

    Example:
        >>> records = [
        ...     {"on": "yes", "load": 1.5},
        ...     {"on": "no", "load": None},
        ...     {"on": "yes", "load": 2.5},
        ... ]
        >>> rows = open_rows(records, "load", num_warm_up=3)
        >>> rows.feature_names, rows.take(2).X.tolist()
        (('on',), [[1.0], [0.0]])
    """
    options = TableOptions() if options is None else options
    raw_source = _open(source, options)
    options = replace(options, kinds={**raw_source.kinds, **options.kinds})
    known = raw_source.header
    features = options.features
    if features is None:
        features = tuple(name for name in known if name not in (target, options.series))
    else:
        features = tuple(dict.fromkeys((*features, *options.gaps)))
    others = [name for name in (options.time, options.series) if name is not None]
    named = (target, *features, *options.kinds, *others)
    _check_names(raw_source, named)
    if target in features:
        raise ValueError(f"the target {target} is also listed in the features; remove it there")
    kept = [name for name in features if options.kinds.get(name) != "drop"]
    if not kept:
        raise ValueError(f"{raw_source.path} has no input column besides the target {target}")
    if options.series is not None and options.series in (target, *features):
        raise ValueError(f"the column {options.series} is the series column; it cannot also be the target or an input")
    wanted = list(dict.fromkeys((*features, target, *others)))
    rest = raw_source.rows(wanted)
    least = 3 * USUAL_WARM_UP if num_warm_up is None else num_warm_up + 1
    ready, num_ready = list[RawRows](), 0
    while num_ready < least and (part := next(rest, None)) is not None:
        ready.append(part)
        num_ready += part.num_rows
    if not num_ready:
        raise ValueError(f"{raw_source.path} has a header but no data rows")
    total = num_ready if num_ready < least else raw_source.num_rows
    if num_warm_up is None:
        num_warm_up = min(USUAL_WARM_UP, max(num_ready // 3, min(LEAST_WARM_UP, num_ready - 1)), num_ready)
    warm = join(ready).part(slice(0, num_warm_up))
    encoder = TableEncoder.fit(warm, features, target, options, raw_source.decimal, raw_source.path)
    rows = RowStream(raw_source, encoder, ready, rest, num_warm_up, total)
    if not raw_source.is_pipe:
        rows.look_ahead()
    return rows


def reopen_rows(source: Any, encoder: TableEncoder, options: TableOptions | None = None) -> RowStream:
    """Open another table with the encoding of an earlier one; an absent target is missing.

    Args:
        source: As for :func:`open_rows`.
        encoder: That of the earlier rows, ``RowStream.encoder``.
        options: Dialect of the file, detected by default, and more values treated as missing.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the table is malformed, or a column is missing.

    Example:
        >>> first = open_rows(
        ...     [{"on": "yes", "load": 1.5}, {"on": "no", "load": 2.5}],
        ...     "load",
        ...     num_warm_up=2,
        ... )
        >>> reopen_rows([{"on": "no"}], first.encoder).take(5).X.tolist()
        [[0.0]]
    """
    options = TableOptions() if options is None else options
    raw_source = _open(source, options)
    encoder = replace(encoder, words=tuple(dict.fromkeys((*encoder.words, *options.missing))))
    wanted = list(encoder.input_columns)
    _check_names(raw_source, wanted)
    if encoder.target.name in raw_source.header:
        wanted.append(encoder.target.name)
    return RowStream(raw_source, encoder, [], raw_source.rows(wanted), 0, raw_source.num_rows)


def _open(source: Any, options: TableOptions) -> RawSource:
    if isinstance(source, RawSource):
        return source
    if isinstance(source, str | Path):
        path = str(source)
        return parquet_source(path) if path != "-" and is_parquet(path) else text_source(path, options)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        header = list(dict.fromkeys(str(name) for row in source for name in row))
        return array_source(cells_of_records(source, header), "rows")
    try:
        return frame_source(with_index(source))
    except TypeError:
        raise TypeError(
            f"a table must be a path, a pandas, polars or pyarrow frame, or a list of dictionaries, not {source!r}"
        ) from None


def _check_names(source: RawSource, names: Sequence[str]) -> None:
    """Raise if a column does not exist, naming similar ones."""
    for name in names:
        if name not in source.header:
            close = difflib.get_close_matches(name, source.header, n=3)
            hint = f"did you mean {' or '.join(close)}? its " if close else "its "
            raise ValueError(f"{source.path} has no column named {name}; {hint}columns are {', '.join(source.header)}")
