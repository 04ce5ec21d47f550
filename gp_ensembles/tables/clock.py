"""The time of rows: their order, the usual step between them, duplicates and gaps."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.extras import needs_cli
from gp_ensembles.tables.columns import ColumnEncoder, DateColumn, NumberColumn, to_numbers
from gp_ensembles.tables.dates import dates_of, parse, seconds_of, to_utc, to_wall
from gp_ensembles.tables.raw import CellError, Cells, as_option

Times = NDArray[np.float64]
_STILL = "all its times in the first rows are equal; choose another time column"
_NEWEST_FIRST = "the newest row comes first; sort the rows by time, the oldest first"
_LONG = 1.5  # usual steps from which on a step is a gap
_DAY = 86400.0
_HOUR = 3600.0
_NIGHT = (3600.0, 5 * 3600.0)  # clocks are put back between 23 and 4
_SEASON = 100 * 86400.0  # at most once in so many seconds
_JUMP = 5.0  # usual steps from which on a step may prove to be a mistyped time
_MOST_AHEAD = 1000  # rows after it
MOST_KNOWN = 64  # rows that are looked at, with those after them, to tell
_FEW_WRONG = 0.05  # share of the first rows that may be skipped
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
    timezone: str | None = None  # the zone of dates without an offset, if it is known
    num_skipped: int = 0  # rows whose time was missing, unreadable, before that of the row before or ahead of the next
    first_skipped: float = math.nan  # time before the first of them
    num_put_back: int = 0  # ends of daylight saving time, in times without an offset or a zone
    put_back_at: float = math.nan  # when it was, the last time
    jumped_from: float = math.nan  # time before the last long step, which may prove to be a mistake
    num_since: int = 0  # rows since then
    num_ahead: int = 0  # rows that were taken, and proved to be ahead of the time

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

    def read(self, columns: Mapping[str, Cells], decimal: str, *, skips: bool = False) -> Times:
        """Times of cells (B,) by column: seconds since 1970, or the column's numbers; NaN to be skipped, if it may."""
        cells = columns[self.name]
        if self.style is None:
            times = to_numbers(cells, decimal, may_be_wrong=skips)
        else:
            times = parse(cells, self.style, self.zone, may_be_wrong=skips).seconds
        if self.hour is not None:
            times = times + _of_day(columns[self.hour], self.hour_style, decimal, skips)
        if np.isnan(times).any() and not skips:
            raise CellError(int(np.isnan(times).argmax()), "the time is missing; fill it in, or remove the row")
        return self._in_utc(times)

    def _in_utc(self, wall: Times) -> Times:
        """Times (B,) of the zone in UTC; in a repeated hour, each is the first one after the previous time."""
        times, second = to_utc(wall, self.timezone), to_utc(wall, self.timezone, is_second=True)
        if not (second > times).any():
            return times
        last = self.last
        for place in range(len(times)):
            if times[place] <= last < second[place] or (times[place] <= last == second[place]):
                times[place] = second[place]
            last = last if math.isnan(times[place]) else times[place]
        return times

    def cells(self, times: Times) -> dict[str, Cells]:
        """Cells of its columns at times (B,), as :meth:`read` reads them."""
        if not self.is_date:
            return {self.name: times}
        times = to_wall(times, self.timezone)
        dates = dates_of(times)
        if self.hour is None:
            return {self.name: dates}
        of_day: Cells = dates if self.hour_style is not None else (times % _DAY) // _HOUR
        return {self.name: dates.astype("datetime64[D]").astype(dates.dtype), self.hour: of_day}

    def after(
        self, times: Times, *, skips: bool = False, following: Times | None = None
    ) -> tuple["Clock", tuple[Times, Times, NDArray[np.bool_] | None]]:
        """The clock after rows at these times (B,), NaN where there is none; rows at wrong times are skipped, or raise.

        ``following`` are the times of rows behind them that are known already. Besides the clock times, of skipped rows
        those of the rows before; the usual steps before each, 1 for the very first row and 0 for skipped ones; and
        which were skipped, ``None`` for none.
        """
        clock, last, jumped_from, num_since = self, self.last, self.jumped_from, self.num_since
        known = times if following is None else np.concatenate([times, following])
        found, before, skipped = times.copy(), np.full_like(times, np.nan), np.zeros(len(times), dtype=bool)
        for place, time in enumerate(times.tolist()):
            start, is_wrong = time - self.step if math.isnan(last) else last, False
            num_since += 1
            if time - start > _JUMP * self.step:
                is_wrong = _is_taken_back(known[place : place + MOST_KNOWN], start)
                jumped_from, num_since = (jumped_from, num_since) if is_wrong else (start, 0)
            elif not time >= start:  # it may be right all the same
                if clock._is_put_back(time, start):
                    clock = replace(clock, num_put_back=clock.num_put_back + 1, put_back_at=time)
                    start -= _HOUR
                elif time >= jumped_from and num_since <= _MOST_AHEAD:  # the long step was to a wrong time
                    clock = replace(clock, num_ahead=clock.num_ahead + num_since)
                    start, jumped_from = jumped_from, math.nan
                else:
                    is_wrong = True
            if is_wrong and not skips:
                raise CellError(place, self._out_of_order(time, start))
            if is_wrong:
                found[place], skipped[place] = last, True
                first = clock.first_skipped if clock.num_skipped else last
                clock = replace(clock, num_skipped=clock.num_skipped + 1, first_skipped=first)
                continue
            before[place], last = start, time
        steps = np.where(skipped, 0.0, (found - before) / self.step)
        gaps = steps > _LONG
        first_gap = self.first_gap
        if math.isnan(first_gap) and gaps.any():
            first_gap = float(before[int(gaps.argmax())])
        clock = replace(
            clock,
            last=last,
            jumped_from=jumped_from,
            num_since=num_since,
            num_rows=self.num_rows + len(times),
            num_doubled=self.num_doubled + int((steps[~skipped] == 0).sum()),
            num_gaps=self.num_gaps + int(gaps.sum()),
            first_gap=first_gap,
            longest_gap=max(self.longest_gap, float(steps.max()) if gaps.any() else 0.0),
        )
        return clock, (found, steps, skipped if skipped.any() else None)

    def _is_put_back(self, time: float, before: float) -> bool:
        """Whether a step back is the end of daylight saving time, in times without a zone."""
        if not self.is_date or self.zone or self.timezone is not None or self.step > _HOUR:
            return False
        is_at_night = (time + _NIGHT[0]) % _DAY < _NIGHT[1]
        is_usual = abs(time + _HOUR - before - self.step) < (_LONG - 1) * self.step
        return is_at_night and is_usual and not time - self.put_back_at < _SEASON

    def _out_of_order(self, time: float, before: float) -> str:
        here, there = self.format([time, before])
        if time > before:
            return f"the time {here} is later than those of the next rows, which continue from {there}; correct it"
        winter = ""
        if self.is_date and not self.zone and before - time <= _HOUR:
            winter = (
                " (or, if the clock was set back here, give --timezone, or write times with their UTC offset: "
                "02:00+01:00)"
            )
        return f"the time {here} is before that of the previous row, {there}; sort the rows by time{winter}"

    def ahead(self, num_steps: int) -> Times:
        """The next times at the usual step, shape (H,)."""
        if self.frequency is not None:
            with needs_cli("a calendar"):
                import pandas as pd

            start = pd.Timestamp(dates_of(to_wall(np.array([self.last]), self.timezone))[0])
            dates = pd.date_range(start, periods=num_steps + 1, freq=self.frequency)
            if dates[0] == start:
                return to_utc(seconds_of(dates[1:].to_numpy()), self.timezone)
        moments = self.last + self.step * np.arange(1.0, num_steps + 1.0, dtype=np.float64)
        if self.timezone is None or self.step % _DAY:
            return moments
        return to_utc(to_wall(np.array([self.last]), self.timezone) + (moments - self.last), self.timezone)

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
            "timezone": self.timezone,
            "put_back": self.num_put_back,
            "skipped": self.num_skipped,
            "ahead": self.num_ahead,
        }
        if self.num_skipped:
            described["first_skipped_after"] = self.format([self.first_skipped])[0]
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
        return ", ".join([text, doubled, *self.remarks()])

    def remarks(self) -> list[str]:
        """How times out of order were handled."""
        after = self.format([self.first_skipped])[0] if self.num_skipped else ""
        numbers = {
            "end(s) of daylight saving time detected": self.num_put_back,
            f"row(s) skipped because the time was missing or out of order (the first after {after})":
                self.num_skipped,
            "row(s) learned at a time that later rows showed to be too far ahead": self.num_ahead,
        }  # fmt: skip
        return [f"{number} {text}" for text, number in numbers.items() if number]


def _is_taken_back(times: Times, before: float) -> bool:
    """Whether the first of some times (B,) is too late: as many as there are of this kind are followed by earlier ones.

    These lie between the time before all of them and the first.
    """
    times = times[~np.isnan(times)]
    is_back = (times >= before) & (times < times[0])
    num_late = int(is_back.argmax())
    return bool(is_back[num_late : 2 * num_late].all()) and num_late > 0


def find_clock(
    columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str, *, skips: bool = False
) -> tuple[Clock | None, tuple[str, ...]]:
    """The first date column that never decreases in the warm-up rows, as a clock, and notes on others.

    If there is none, it is the first that decreases only where daylight saving time ends, or in few rows if those may
    be skipped.
    """
    notes = []
    dates = [column for column in columns if isinstance(column, DateColumn) and column.has_elapsed]
    for column in dates:
        times = column.parse(cells[column.name]).seconds
        moves = np.diff(times)
        if np.isnan(times).any():
            notes.append(f"{column.name} does not order the rows: times are missing in the first rows")
        elif (moves < 0).any():
            place = int((moves < 0).argmax()) + 2
            notes.append(f"{column.name} does not order the rows: it decreases at row {place}")
        elif times[-1] > times[0]:
            return clock_of(column, columns, cells, decimal), tuple(notes)
    for column in dates:
        with suppress(CellError):
            clock = clock_of(column, columns, cells, decimal)
            after, _ = clock.after(clock.read(cells, decimal, skips=skips), skips=skips)
            if after.num_skipped + after.num_ahead <= _FEW_WRONG * after.num_rows:
                return clock, tuple(note for note in notes if not note.startswith(f"{column.name} does not order"))
    return None, tuple(notes)


def refuse_newest_first(column: ColumnEncoder, cells: Cells) -> None:
    """Raise if the newest row comes first according to a date column."""
    if isinstance(column, DateColumn) and column.has_elapsed:
        moves = np.diff(column.parse(cells).seconds)
        if len(moves) > 1 and (moves <= 0).all() and (moves < 0).any():
            raise CellError(0, f"{_NEWEST_FIRST}, or leave the times out (--kinds {as_option(f'{column.name}=drop')})")


def clock_of(
    column: ColumnEncoder, columns: Sequence[ColumnEncoder], cells: Mapping[str, Cells], decimal: str
) -> Clock:
    """A clock of a column, with the column of its times of day if there is one."""
    if isinstance(column, NumberColumn):
        return Clock.fit(column.name, None, to_numbers(cells[column.name], decimal))
    if not isinstance(column, DateColumn):
        raise CellError(0, "it contains neither dates nor numbers, so it cannot be the time column")
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
                clock = replace(clock, hour=other.name, hour_style=style)
                return replace(clock, zone=column.zone, timezone=column.timezone)
    clock = Clock.fit(column.name, column.style, times)
    return replace(clock, zone=column.zone, timezone=column.timezone)


def _of_day(cells: Cells, style: str | None, decimal: str, may_be_wrong: bool = False) -> Times:
    """Seconds since midnight, from text of a format or from hours."""
    if style is None:
        return to_numbers(cells, decimal, may_be_wrong=may_be_wrong) * _HOUR
    return parse(cells, style, may_be_wrong=may_be_wrong).wall % _DAY


def _counts_hours(values: Times, dates: Times) -> bool:
    """Whether numbers count the hours of dates: 0 to 23, all of them, and rising within each day."""
    hours = np.unique(values)
    whole = len(hours) >= _HOURS_A_DAY and bool(((hours % 1 == 0) & (hours >= 0) & (hours <= 23)).all())
    return whole and bool((np.diff(dates + values * _HOUR) > 0).all())


def _frequency(times: Times) -> str | None:
    """The calendar frequency of steps of unequal length, such as months or business days."""
    with needs_cli("a column of dates"):
        import pandas as pd

    dates = pd.DatetimeIndex(dates_of(times)).unique()
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
