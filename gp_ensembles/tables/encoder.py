"""Encoder of a table: all columns together, fitted on its warm-up rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from gp_ensembles.tables.clock import Clock, Times, clock_of, find_clock, refuse_newest_first
from gp_ensembles.tables.columns import ColumnEncoder, DroppedColumn, TargetColumn, column_from_plain
from gp_ensembles.tables.kinds import fit_column, notes_of, notes_of_target, refuse_text
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.raw import CellError, Cells, RawRows, texts_of, without
from gp_ensembles.tables.rows import Rows


class TableError(ValueError):
    """A malformed cell of a table; the message names the file, the line and the column.

    Attributes:
        odd_row: The number of its data row, counted from 1, if the column is valid without it; else ``None``.
    """

    def __init__(self, message: str, odd_row: int | None = None) -> None:
        super().__init__(message)
        self.odd_row = odd_row


class ColumnsError(ValueError):
    """Columns that cannot be encoded; the message is that of the first, and names the others.

    Attributes:
        names: The columns.
        odd_row: The number of the first data row, counted from 1, without which its column is valid.
    """

    def __init__(self, refused: Mapping[str, TableError]) -> None:
        first, *others = refused
        rest = f"; likewise {', '.join(others)}" if others else ""
        super().__init__(f"{refused[first]}{rest}")
        self.names: tuple[str, ...] = tuple(refused)
        self.odd_row: int | None = next(
            (error.odd_row for error in refused.values() if error.odd_row is not None), None
        )


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as inputs, a target and times.

    Attributes:
        columns: Encoders of the input columns.
        target: The target.
        clock: The time column with its statistics; ``None`` without one.
        missing: Share of missing warm-up cells, by column.
        notes: Remarks for users.
        words: Values treated as missing.
        series: The column with the series of each row; ``None`` for a single series.
    """

    columns: tuple[ColumnEncoder, ...]
    target: TargetColumn
    clock: Clock | None
    missing: dict[str, float]
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    series: str | None = None

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
        """From the warm-up rows.

        Raises:
            TableError: If a column has no type, or a cell is malformed.
        """
        raw = without(raw, options.missing)
        columns, missing, refused = list[ColumnEncoder](), dict[str, float](), dict[str, TableError]()
        for name in features:
            given, of_column = options.kinds.get(name), _Named(path, name, raw)
            try:
                column = of_column.run(fit_column, name, raw.columns[name], decimal, given)
                if given is None and column.kind in ("category", "hashed"):
                    of_column.run(refuse_text, name, raw.columns[name])
                missing[name] = of_column.run(_share_missing, column, raw, decimal)
            except TableError as error:
                refused[name] = error
            else:
                columns.append(column)
        if refused:
            raise ColumnsError(refused)
        target_column = _Named(path, target, raw).run(
            TargetColumn.fit, target, raw.columns[target], decimal, options.classes
        )
        if options.series is not None:
            if options.time is not None:
                raise TableError(
                    f"{path}: rows of several series have no common order; leave out --time {options.time}"
                )
            notes = notes_of(columns, raw.columns, decimal)
            return cls(tuple(columns), target_column, None, missing, notes, options.missing, options.series)
        clock, notes = find_clock(columns, raw.columns, decimal)
        if options.time == target:
            raise TableError(f"{path}: the column {target} is the target, and cannot order the rows as well")
        if clock is None and options.time is None:
            for column in columns:
                _Named(path, column.name, raw).run(refuse_newest_first, column, raw.columns[column.name])
        if options.time is not None:
            of_time = _Named(path, options.time, raw)
            known = {column.name: column for column in columns}
            column = known.get(options.time)
            if column is None or isinstance(column, DroppedColumn):
                column = of_time.run(fit_column, options.time, raw.columns[options.time], decimal)
            clock, notes = of_time.run(clock_of, column, columns, raw.columns, decimal), ()
        notes += notes_of(columns, raw.columns, decimal)
        if target_column.classes is None:
            y = _Named(path, target, raw).run(target_column.encode, raw.columns[target], decimal)
            notes += notes_of_target(target, y)
        return cls(tuple(columns), target_column, clock, missing, notes, options.missing)

    def encode(self, raw: RawRows, decimal: str, path: str, first_row: int) -> tuple["TableEncoder", Rows]:
        """Rows as numbers, and the encoder after them.

        Raises:
            TableError: If a cell is malformed, or times decrease.
        """
        raw = without(raw, self.words)
        clock, times, steps = self.clock, None, None
        parts = [
            _Named(path, column.name, raw, first_row).run(column.encode, raw.columns[column.name], decimal)
            for column in self.columns
            if raw.num_rows and not isinstance(column, DroppedColumn)
        ]
        X = np.concatenate(parts, axis=1) if parts else np.zeros((raw.num_rows, len(self.feature_names)))
        if np.isinf(X).any():
            row, place = np.argwhere(np.isinf(X))[0]
            name = self._column_of(int(place))
            raise _Named(path, name, raw, first_row).error(int(row), "the input is infinite; leave the cell empty")
        y = np.full(raw.num_rows, np.nan)
        if self.target.name in raw.columns:
            of_target = _Named(path, self.target.name, raw, first_row)
            y = of_target.run(self.target.encode, raw.columns[self.target.name], decimal)
        if clock is not None:
            times = self.times(raw, decimal, path, first_row)
            clock, steps = _Named(path, clock.name, raw, first_row).run(clock.after, times)
        when, since, lines = (None if part is None else torch.from_numpy(part) for part in (times, steps, raw.lines))
        series = _series_of(self.series, raw, path, first_row)
        rows = Rows(torch.from_numpy(X), torch.from_numpy(y), when, since, first_row, lines, series)
        return replace(self, clock=clock), rows

    def times(self, raw: RawRows, decimal: str, path: str, first_row: int) -> Times | None:
        """Times of rows (B,), ``None`` without a clock; arguments as for :meth:`encode`.

        Raises:
            TableError: If one is missing or malformed.
        """
        if self.clock is None:
            return None
        times: Times = _Named(path, self.clock.name, raw, first_row).run(self.clock.read, raw.columns, decimal)
        return times

    def passed(self, times: torch.Tensor | None) -> "TableEncoder":
        """The encoder after rows at these times (B,), as :meth:`encode` leaves it."""
        if self.clock is None or times is None:
            return self
        return replace(self, clock=self.clock.after(times.numpy())[0])

    def ahead(self, num_steps: int) -> tuple[dict[str, Cells], Times | None]:
        """Cells of the next rows as far as known: times at the usual step, all else missing."""
        empty = np.full(num_steps, np.nan)
        cells: dict[str, Cells] = dict.fromkeys(self.input_columns, empty)
        if self.clock is None:
            return cells, None
        times = self.clock.ahead(num_steps)
        return cells | self.clock.cells(times), times

    def to_plain(self) -> dict[str, Any]:
        """Plain containers, which :meth:`from_plain` reads back."""
        return {
            "columns": [column.to_plain() for column in self.columns],
            "target": asdict(self.target),
            "clock": None if self.clock is None else asdict(self.clock),
            "missing": dict(self.missing),
            "notes": list(self.notes),
            "words": list(self.words),
            "series": self.series,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "TableEncoder":
        """The encoder that :meth:`to_plain` wrote."""
        clock = plain["clock"]
        return cls(
            tuple(column_from_plain(column) for column in plain["columns"]),
            TargetColumn(**plain["target"]),
            None if clock is None else Clock(**clock),
            dict(plain["missing"]),
            tuple(plain["notes"]),
            tuple(plain["words"]),
            plain["series"],
        )

    def _column_of(self, place: int) -> str:
        """The column of an input."""
        for column in self.columns:
            if place < len(column.names):
                return column.name
            place -= len(column.names)
        raise IndexError(place)


class _Named:
    """Runs functions on a column; errors of cells become messages that name file, line and column."""

    def __init__(self, path: str, column: str, raw: RawRows, first_row: int = 1) -> None:
        self._path = path
        self._column = column
        self._raw = raw
        self._first_row = first_row

    def run(self, function: Any, *arguments: Any) -> Any:
        """The function's result, or its error with the position of the cell."""
        try:
            return function(*arguments)
        except CellError as error:
            raise self.error(error.place, error.problem, is_odd=error.is_odd) from None

    def error(self, place: int, problem: str, *, is_odd: bool = True) -> TableError:
        """The error of a cell, counted from 0 in these rows."""
        line = "" if self._raw.lines is None else f" (line {int(self._raw.lines[place])})"
        row = self._first_row + place
        message = f"{self._path}, data row {row}{line}, column {self._column}: {problem}"
        return TableError(message, row if is_odd else None)


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
        problem = "the series of the row is missing; fill it in, or remove the row"
        raise _Named(path, column, raw, first_row).error(names.index(""), problem)
    return names
