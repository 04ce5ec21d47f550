"""The time of rows: their order, the usual step between them, duplicates and gaps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.extras import needs_cli
from gp_ensembles.tables.columns import ColumnEncoder, DateColumn, NumberColumn, to_numbers
from gp_ensembles.tables.dates import parse
from gp_ensembles.tables.raw import CellError, Cells

Times = NDArray[np.float64]
_STILL = "all its times in the first rows are equal; choose another time column"
_NEWEST_FIRST = "the newest row comes first; sort the rows by time, the oldest first"
_LONG = 1.5  # usual steps from which on a step is a gap
_DAY = 86400.0
_HOUR = 3600.0
_HOURS_A_DAY = 20  # distinct values at least in a column that counts hours


@dataclass(frozen=True)
class Clock:
    """The time column of a table with its statistics so far; each batch returns a new one."""

    name: str  # the column
    style: str | None  # the format of its dates; ``None`` for numbers
    step: float  # the usual step, the median of the warm-up, in seconds or in the column's unit
    # The calendar frequency of that step in pandas, such as ``MS`` for months, if it has one
    frequency: str | None = None
    last: float = math.nan  # time of the last row; NaN before the first
    num_rows: int = 0  # rows so far
    num_doubled: int = 0  # rows at the same time as the one before
    num_gaps: int = 0  # steps of more than one and a half usual ones
    first_gap: float = math.nan  # time before the first of them
    longest_gap: float = 0.0  # the longest, in usual steps
    zone: tuple[float, ...] = ()  # least and greatest offset from UTC, in seconds; empty without offsets
    hour: str | None = None  # a second column with the time of day, if the first has dates only
    hour_style: str | None = None  # the format of the second; ``None`` if it counts hours

    def __post_init__(self) -> None:
        object.__setattr__(self, "zone", tuple(self.zone))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns."""
        return (self.name,) if self.hour is None else (self.name, self.hour)

    @classmethod
    def fit(cls, name: str, style: str | None, times: Times) -> "Clock":
        """A clock from the times of the warm-up rows."""
        seen = times[~np.isnan(times)]
        moves = np.diff(seen)
        moves = moves[moves > 0]
        if not len(moves):
            is_still = not len(seen) or bool((seen == seen[0]).all())
            raise CellError(0, _STILL if is_still else _NEWEST_FIRST)
        return cls(name, style, float(np.median(moves)), None if style is None else _frequency(seen))

    @property
    def is_date(self) -> bool:
        """Whether times are dates."""
        return self.style is not None

    def read(self, columns: Mapping[str, Cells], decimal: str) -> Times:
        """Times of cells (B,) by column: seconds since 1970, or the column's numbers."""
        cells = columns[self.name]
        times = to_numbers(cells, decimal) if self.style is None else parse(cells, self.style, self.zone).seconds
        if self.hour is not None:
            times = times + _of_day(columns[self.hour], self.hour_style, decimal)
        if np.isnan(times).any():
            raise CellError(int(np.isnan(times).argmax()), "the time is missing; fill it in, or remove the row")
        return times

    def cells(self, times: Times) -> dict[str, Cells]:
        """Cells of its columns at times (B,), as :meth:`read` reads them."""
        if not self.is_date:
            return {self.name: times}
        dates: Cells = (times * 1e9).round().astype("datetime64[ns]")
        if self.hour is None:
            return {self.name: dates}
        of_day: Cells = dates if self.hour_style is not None else (times % _DAY) // _HOUR
        return {self.name: dates.astype("datetime64[D]").astype("datetime64[ns]"), self.hour: of_day}

    def after(self, times: Times) -> tuple["Clock", Times]:
        """The clock after rows at these times (B,), and the usual steps before each, 1 for the very first row."""
        if not len(times):
            return self, times
        before = np.concatenate([[times[0] - self.step if math.isnan(self.last) else self.last], times[:-1]])
        moves = times - before
        if (moves < 0).any():
            place = int((moves < 0).argmax())
            here, there = self.format([times[place]])[0], self.format([before[place]])[0]
            winter = ""
            if self.is_date and not self.zone and -moves[place] <= _HOUR:
                winter = " (or, if the clock was set back here, write times with their UTC offset: 02:00+01:00)"
            raise CellError(
                place, f"the time {here} is before that of the previous row, {there}; sort the rows by time{winter}"
            )
        steps = moves / self.step
        gaps = steps > _LONG
        first_gap = self.first_gap
        if math.isnan(first_gap) and gaps.any():
            first_gap = float(before[int(gaps.argmax())])
        return replace(
            self,
            last=float(times[-1]),
            num_rows=self.num_rows + len(times),
            num_doubled=self.num_doubled + int((steps == 0).sum()),
            num_gaps=self.num_gaps + int(gaps.sum()),
            first_gap=first_gap,
            longest_gap=max(self.longest_gap, float(steps.max()) if gaps.any() else 0.0),
        ), steps

    def ahead(self, num_steps: int) -> Times:
        """The next times at the usual step, shape (H,)."""
        if self.frequency is not None:
            with needs_cli("a calendar"):
                import pandas as pd

            start = pd.Timestamp(self.last, unit="s")
            dates = pd.date_range(start, periods=num_steps + 1, freq=self.frequency)
            if dates[0] == start:
                moments: Times = dates[1:].to_numpy().astype("datetime64[ns]").astype(np.int64) / 1e9
                return moments
        return self.last + self.step * np.arange(1.0, num_steps + 1.0, dtype=np.float64)

    def format(self, times: Sequence[float]) -> list[str]:
        """Times as text: dates in ISO 8601 and UTC; numbers as they are."""
        if self.style is None:
            return [f"{time:.15g}" for time in times]
        return [str(np.datetime64(round(time * 1e3), "ms")).removesuffix(".000") for time in times]

    def report(self) -> dict[str, object]:
        """The statistics, for a summary."""
        described: dict[str, object] = {
            "name": self.name,
            "kind": "date" if self.is_date else "number",
            "usual_step": self.step,
            "last": self.format([self.last])[0],
            "duplicates": self.num_doubled,
            "gaps": self.num_gaps,
        }
        if self.num_gaps:
            described |= {"first_gap_after": self.format([self.first_gap])[0], "longest_gap_steps": self.longest_gap}
        return described

    def describe(self) -> str:
        """The same in a sentence."""
        text = f"{' and '.join(self.names)}: a row every {_duration(self.step) if self.is_date else f'{self.step:.6g}'}"
        if self.num_gaps:
            after, longest = self.format([self.first_gap])[0], self.longest_gap
            if self.num_gaps == 1:
                text += f", 1 gap (after {after}, {longest:.6g} steps)"
            else:
                text += f", {self.num_gaps} gaps (the first after {after}, the longest {longest:.6g} steps)"
        else:
            text += ", no gap"
        doubled = f"{self.num_doubled or 'no'} duplicate{'s' * (self.num_doubled > 1)}"
        return f"{text}, {doubled}"


def find_clock(
    columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str
) -> tuple[Clock | None, tuple[str, ...]]:
    """The first date column that never decreases in the warm-up rows, as a clock, and notes on others."""
    notes = []
    for column in columns:
        if not isinstance(column, DateColumn) or not column.has_elapsed:
            continue
        times = parse(cells[column.name], column.style, column.zone).seconds
        moves = np.diff(times)
        if np.isnan(times).any():
            notes.append(f"{column.name} does not order the rows: times are missing in the first rows")
        elif (moves < 0).any():
            place = int((moves < 0).argmax()) + 2
            notes.append(f"{column.name} does not order the rows: it decreases at row {place}")
        elif times[-1] > times[0]:
            return clock_of(column, columns, cells, decimal), tuple(notes)
    return None, tuple(notes)


def refuse_newest_first(column: ColumnEncoder, cells: Cells) -> None:
    """Raise if the newest row comes first according to a date column."""
    if isinstance(column, DateColumn) and column.has_elapsed:
        moves = np.diff(parse(cells, column.style, column.zone).seconds)
        if len(moves) > 1 and (moves <= 0).all() and (moves < 0).any():
            raise CellError(0, f"{_NEWEST_FIRST}, or leave the times out (--kinds {column.name}=drop)")


def clock_of(
    column: ColumnEncoder, columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str
) -> Clock:
    """A clock of a column, with the column of its times of day if there is one."""
    if isinstance(column, NumberColumn):
        return Clock.fit(column.name, None, to_numbers(cells[column.name], decimal))
    if not isinstance(column, DateColumn):
        raise CellError(0, "it holds neither dates nor numbers, so it cannot be the time")
    times = parse(cells[column.name], column.style, column.zone).seconds
    if "day" not in column.periods and (np.diff(times) == 0).any():
        for other in columns:
            if isinstance(other, DateColumn) and not other.has_elapsed:
                style: str | None = other.style
            elif isinstance(other, NumberColumn) and _counts_hours(to_numbers(cells[other.name], decimal), times):
                style = None
            else:
                continue
            whole = times + _of_day(cells[other.name], style, decimal)
            if not (np.diff(whole) < 0).any():
                clock = Clock.fit(column.name, column.style, whole)
                return replace(clock, zone=column.zone, hour=other.name, hour_style=style)
    return replace(Clock.fit(column.name, column.style, times), zone=column.zone)


def _of_day(cells: Cells, style: str | None, decimal: str) -> Times:
    """Seconds since midnight, from text of a format or from hours."""
    return to_numbers(cells, decimal) * _HOUR if style is None else parse(cells, style).wall % _DAY


def _counts_hours(values: Times, dates: Times) -> bool:
    """Whether numbers count the hours of dates: 0 to 23, all of them, and rising within each day."""
    hours = np.unique(values)
    whole = len(hours) >= _HOURS_A_DAY and bool(((hours % 1 == 0) & (hours >= 0) & (hours <= 23)).all())
    return whole and bool((np.diff(dates + values * _HOUR) > 0).all())


def _frequency(times: Times) -> str | None:
    """The calendar frequency of steps of unequal length, such as months or business days."""
    with needs_cli("a column of dates"):
        import pandas as pd

    dates = pd.DatetimeIndex((times * 1e9).astype("datetime64[ns]")).unique()
    if len(dates) < 3 or len(set(np.diff(times).round(3))) == 1:
        return None
    found = pd.infer_freq(dates[:1000])
    return None if found is None else str(found)


def _duration(seconds: float) -> str:
    for name, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            number = seconds / length
            return name if number == 1 else f"{number:.6g} {name}s"
    return "second" if seconds == 1 else f"{seconds:.6g} seconds"
