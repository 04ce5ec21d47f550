"""Encoder of a table: all columns together, fitted on its warm-up rows; a summary of how each is encoded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from gp_ensembles.tables.clock import Clock, Times, clock_of, find_clock, refuse_newest_first
from gp_ensembles.tables.columns import ColumnEncoder, DroppedColumn, TargetColumn
from gp_ensembles.tables.kinds import fit_column, notes_of, notes_of_target, refuse_text
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.raw import CellError, Cells, RawRows, blank, texts_of, without
from gp_ensembles.tables.rows import Rows


class TableError(ValueError):
    """A malformed cell, or columns that cannot be encoded; the message names the file, the line and the column."""

    def __init__(
        self, message: str, row: int | None = None, *, is_odd: bool = False, names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.row = row  # number of the data row, counted from 1; ``None`` where it is not about a cell
        self.is_odd = is_odd  # whether the column is valid without that row
        self.names = names  # of the columns that cannot be encoded

    @classmethod
    def of_columns(cls, refused: Mapping[str, "TableError"]) -> "TableError":
        """That of the first column, naming the others; the row is the first without which its column is valid."""
        first, *others = refused
        rest = f"; likewise {', '.join(others)}" if others else ""
        row = next((error.row for error in refused.values() if error.is_odd), None)
        return cls(f"{refused[first]}{rest}", row, is_odd=row is not None, names=tuple(refused))


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as inputs, a target and times."""

    columns: tuple[ColumnEncoder, ...]  # of the inputs
    target: TargetColumn
    clock: Clock | None  # the time column with its statistics; ``None`` without one
    missing: dict[str, float]  # share of missing warm-up cells, by column
    notes: tuple[str, ...] = ()  # remarks for users
    words: tuple[str, ...] = ()  # values treated as missing
    series: str | None = None  # the column with the series of each row; ``None`` for a single series
    skips: bool = True  # whether rows at wrong times are skipped

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the D inputs."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of the table that are read for inputs, time and series."""
        names = [column.name for column in self.columns if not isinstance(column, DroppedColumn)]
        owners = () if self.series is None else (self.series,)
        return tuple(dict.fromkeys((*names, *(() if self.clock is None else self.clock.names), *owners)))

    @classmethod
    def fit(
        cls, raw: RawRows, features: Sequence[str], target: str, options: TableOptions, decimal: str, path: str
    ) -> "TableEncoder":
        """From the warm-up rows."""
        raw = without(raw, options.missing)
        columns, missing, refused = list[ColumnEncoder](), dict[str, float](), dict[str, TableError]()
        for name in features:
            given = options.kinds.get(name)
            try:
                with _named(path, name, raw):
                    column = fit_column(name, raw.columns[name], decimal, given, options.timezone)
                    if given is None and column.kind in ("category", "hashed"):
                        refuse_text(name, raw.columns[name], decimal)
                    missing[name] = _share_missing(column, raw, decimal)
            except TableError as error:
                refused[name] = error
            else:
                columns.append(column)
        if refused:
            raise TableError.of_columns(refused)
        noted = [column for column in columns if options.kinds.get(column.name) != "category"]
        with _named(path, target, raw):
            target_column = TargetColumn.fit(target, raw.columns[target], decimal, options.classes)
        if options.series is not None:
            if options.time is not None:
                raise TableError(
                    f"{path}: rows of several series have no common order; leave out --time {options.time}"
                )
            notes = notes_of(noted, raw.columns, decimal)
            return cls(tuple(columns), target_column, None, missing, notes, options.missing, options.series)
        skips = options.on_bad_time == "skip"
        clock, notes = find_clock(columns, raw.columns, decimal, skips=skips)
        if options.time == target:
            raise TableError(f"{path}: the column {target} is the target, and cannot also be the time column")
        if clock is None and options.time is None:
            for column in columns:
                with _named(path, column.name, raw):
                    refuse_newest_first(column, raw.columns[column.name])
        if options.time is not None:
            known = {column.name: column for column in columns if not isinstance(column, DroppedColumn)}
            with _named(path, options.time, raw):
                cells = raw.columns[options.time]
                own = known.get(options.time) or fit_column(options.time, cells, decimal, None, options.timezone)
                clock, notes = clock_of(own, columns, raw.columns, decimal), ()
        notes += notes_of(noted, raw.columns, decimal)
        if target_column.classes is None:
            with _named(path, target, raw):
                y = target_column.encode(raw.columns[target], decimal)
            notes += notes_of_target(target, y)
        return cls(tuple(columns), target_column, clock, missing, notes, options.missing, skips=skips)

    def encode(
        self, raw: RawRows, decimal: str, path: str, first_row: int, following: RawRows | None = None
    ) -> tuple["TableEncoder", Rows]:
        """Rows as numbers, and the encoder after them; ``following`` rows tell which times are too late."""
        raw = without(raw, self.words)
        clock, times, steps, skipped = self.clock, None, None, None
        if clock is not None and (read := self.times(raw, decimal, path, first_row)) is not None:
            with _named(path, clock.name, raw, first_row):
                later = None
                if following is not None and following.num_rows:
                    with suppress(CellError):  # of a row that comes later
                        later = clock.read(without(following, self.words).columns, decimal, skips=True)
                clock, (times, steps, skipped) = clock.after(read, skips=self.skips, following=later)
            raw = raw if skipped is None else blank(raw, clock.names, skipped)
        parts = []
        for column in self.columns if raw.num_rows else ():
            if not isinstance(column, DroppedColumn):
                with _named(path, column.name, raw, first_row):
                    parts.append(column.encode(raw.columns[column.name], decimal))
        X = np.concatenate(parts, axis=1) if parts else np.zeros((raw.num_rows, len(self.feature_names)))
        if np.isinf(X).any():
            row, place = np.argwhere(np.isinf(X))[0]
            owners = [column.name for column in self.columns for _ in column.names]
            with _named(path, owners[place], raw, first_row):
                raise CellError(int(row), "the input is infinite; leave the cell empty", is_odd=True)
        y = np.full(raw.num_rows, np.nan)
        if self.target.name in raw.columns:
            with _named(path, self.target.name, raw, first_row):
                y = self.target.encode(raw.columns[self.target.name], decimal)
        y = y if skipped is None else np.where(skipped, np.nan, y)
        arrays = (times, steps, raw.lines, skipped)
        when, since, lines, mask = (None if part is None else torch.from_numpy(part) for part in arrays)
        series = _series_of(self.series, raw, path, first_row)
        rows = Rows(torch.from_numpy(X), torch.from_numpy(y), when, since, first_row, lines, series, mask)
        return replace(self, clock=clock), rows

    def times(self, raw: RawRows, decimal: str, path: str, first_row: int) -> Times | None:
        """Times of rows (B,), NaN to be skipped, ``None`` without a clock; arguments as for :meth:`encode`."""
        if self.clock is None:
            return None
        with _named(path, self.clock.name, raw, first_row):
            return self.clock.read(raw.columns, decimal, skips=self.skips)

    def passed(self, rows: Rows) -> "TableEncoder":
        """The encoder after some rows, as :meth:`encode` leaves it."""
        if self.clock is None or rows.time is None:
            return self
        times = rows.time if rows.is_skipped is None else rows.time.masked_fill(rows.is_skipped, torch.nan)
        return replace(self, clock=self.clock.after(times.numpy(), skips=True)[0])

    def ahead(self, num_steps: int) -> dict[str, Cells]:
        """Cells of the next rows as far as known: times at the usual step, all else missing."""
        cells: dict[str, Cells] = dict.fromkeys(self.input_columns, np.full(num_steps, np.nan))
        return cells if self.clock is None else cells | self.clock.cells(self.clock.ahead(num_steps))


@contextmanager
def _named(path: str, column: str, raw: RawRows, first_row: int = 1) -> Iterator[None]:
    """Errors of cells of a column as messages that name file, line and column."""
    try:
        yield
    except CellError as error:
        line = "" if raw.lines is None else f" (line {int(raw.lines[error.place])})"
        row = first_row + error.place
        message = f"{path}, data row {row}{line}, column {column}: {error.problem}"
        raise TableError(message, row, is_odd=error.is_odd) from None


def _share_missing(column: ColumnEncoder, raw: RawRows, decimal: str) -> float:
    if not column.names or not raw.num_rows:
        return 0.0
    return float(np.isnan(column.encode(raw.columns[column.name], decimal)[:, 0]).mean())


def _series_of(column: str | None, raw: RawRows, path: str, first_row: int) -> tuple[str, ...] | None:
    """The name of the series of each row, if there is a column of them."""
    if column is None:
        return None
    names = tuple(texts_of(raw.columns[column]))
    if "" in names:
        with _named(path, column, raw, first_row):
            raise CellError(
                names.index(""), "the series of the row is missing; fill it in, or remove the row", is_odd=True
            )
    return names


class ColumnSummary(NamedTuple):
    """The encoding of a column."""

    name: str
    role: str  # ``input``, ``target``, ``time`` or ``time and input``
    kind: str
    made: str  # the encoding in words
    num_inputs: int
    missing: float  # share of the warm-up cells


def column_summaries(encoder: TableEncoder, header: Sequence[str], notes: Sequence[str]) -> tuple[ColumnSummary, ...]:
    """Summaries of all columns of a table that are read, in its order."""
    found, clock, target = dict[str, ColumnSummary](), encoder.clock, encoder.target
    if clock is not None:
        kind = "date" if clock.is_date else "number"
        found[clock.name] = ColumnSummary(clock.name, "time", kind, "orders the rows", 0, 0.0)
    for column in encoder.columns:
        role, missing = "time and input" if column.name in found else "input", encoder.missing.get(column.name, 0.0)
        made = column.describe()
        found[column.name] = ColumnSummary(column.name, role, column.kind, made, len(column.names), missing)
    kind, made = "number", "unchanged"
    if target.classes:
        kind, made = "classes", f"classes 0 to {len(target.classes) - 1}: {', '.join(target.classes)}"
    found[target.name] = ColumnSummary(target.name, "target", kind, made, 0, 0.0)
    reports = []
    for name in header:
        if name in found:
            renamed = [note for note in notes if note.endswith(f" is renamed {name}")]
            reports.append(found[name]._replace(made="; ".join([found[name].made, *renamed])))
    return tuple(reports)


def explain(encoder: TableEncoder, reports: Sequence[ColumnSummary]) -> str:
    """The summaries as an aligned table, with a line on the time.

    Args:
        encoder: The encoding of the columns.
        reports: The summaries.

    Example:
        >>> from gp_ensembles.tables import open_rows
        >>> rows = open_rows([{"on": "yes", "load": 1.5}, {"on": "no", "load": 2.5}], "load", num_warm_up=2)
        >>> print(explain(rows.encoder, rows.columns))
        column   role     kind      inputs   missing   encoding
        on       input    boolean   1        -         1 for true, 0 for false
        load     target   number    -        -         unchanged
    """
    lines = [("column", "role", "kind", "inputs", "missing", "encoding")]
    for report in reports:
        missing = f"{100 * report.missing:.3g} %" if report.missing else "-"
        lines.append((report.name, report.role, report.kind, str(report.num_inputs or "-"), missing, report.made))
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    table = ["   ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[5]]) for line in lines]
    notes = [*([] if encoder.clock is None else [encoder.clock.describe()]), *encoder.notes]
    return "\n".join([*table, *([""] if notes else []), *notes])
