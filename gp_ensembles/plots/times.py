"""An axis of rows that tells times."""

from typing import Any

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

_DATES: Any = dates  # it has no types
_DAY = 86400.0
_MOST_TICKS = 8


def show_times(figure: Figure, rows: ArrayLike, times: ArrayLike, name: str, *, is_date: bool) -> Figure:
    """Name the rows of a figure's horizontal axes by their times; rows stay evenly apart, gaps in time or not.

    Shapes: ``rows`` (R,), ``times`` (R,).
    """
    known_rows, known_times = np.asarray(rows, dtype=np.float64), np.asarray(times, dtype=np.float64)
    for axis in figure.axes:
        first, last = (float(time) for time in np.interp(axis.get_xlim(), known_rows, known_times))
        if is_date:
            locator = _DATES.AutoDateLocator(minticks=3, maxticks=_MOST_TICKS)
            days = locator.tick_values(_DATES.num2date(first / _DAY), _DATES.num2date(last / _DAY))
            days = [day for day in days if first <= day * _DAY <= last]
            labels = _DATES.ConciseDateFormatter(locator, show_offset=False).format_ticks(days)
            places = [day * _DAY for day in days]
        else:
            places = [time for time in MaxNLocator(_MOST_TICKS).tick_values(first, last) if first <= time <= last]
            labels = [f"{place:.10g}" for place in places]
        axis.set_xticks(np.interp(places, known_times, known_rows), labels)
        if axis.get_xlabel():
            axis.set_xlabel(name)
    return figure
