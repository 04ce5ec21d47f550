"""Windows of a run: so many targets that follow one another, and what was kept and scored in them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.calibration.coverage import WINDOW

Array = NDArray[np.float64]
COVERAGE = 0.9
_MOST = 2048  # a million targets


class Window(NamedTuple):
    """Targets that follow one another, ``WINDOW`` for each window.

    Attributes:
        first_row: Row of its first target.
        last_row: Row of its last one.
        first_time: Time of its first target, NaN if there is none.
        last_time: Time of its last one.
        share: Share of targets within their intervals; of joined windows that furthest from what was promised. NaN
            where there are no intervals.
        log_score: Mean log score; of joined windows the least.
        num_broken: Windows that did not keep within half of the share of misses.
        num_windows: Windows that were joined.
    """

    first_row: int
    last_row: int
    first_time: float
    last_time: float
    share: float
    log_score: float
    num_broken: int = 0
    num_windows: int = 1


class Windows:
    """The windows of a run, in constant room: from ``most`` on they join in pairs.

    Args:
        most: Most windows.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.whole: list[Window] = []
        self._size = 1  # windows in each that is whole
        self._open: list[Window] = []  # at most one: joined with the ones to come until it is of that size
        self._rows: list[tuple[float, ...]] = []  # row, time, hit and log score of targets of a window that is not over

    def add(self, rows: Array, times: Array, hits: Array, log_prob: Array) -> None:
        """Add observed targets, each (B,)."""
        for row in zip(rows.tolist(), times.tolist(), hits.tolist(), log_prob.tolist(), strict=True):
            self._rows.append(row)
            if len(self._rows) == WINDOW:
                self._close()

    def all(self) -> list[Window]:
        """Windows that are over."""
        return [*self.whole, *self._open]

    @property
    def num_broken(self) -> int:
        """Windows that did not keep the promise."""
        return sum(window.num_broken for window in self.all())

    @property
    def num_windows(self) -> int:
        """Windows that are over."""
        return sum(window.num_windows for window in self.all())

    def _close(self) -> None:
        rows, times, hits, scores = zip(*self._rows, strict=True)
        share = sum(hits) / WINDOW
        is_broken = abs(share - COVERAGE) > (1 - COVERAGE) / 2 + 1e-12
        new = Window(int(rows[0]), int(rows[-1]), times[0], times[-1], share, sum(scores) / WINDOW, int(is_broken))
        self._rows = []
        joined = _joined([*self._open, new])
        self._open = [joined]
        if joined.num_windows == self._size:
            self.whole.append(joined)
            self._open = []
        if len(self.whole) >= self._most:
            self.whole = [_joined(self.whole[k : k + 2]) for k in range(0, len(self.whole), 2)]
            self._size *= 2

    def to_plain(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "most": self._most,
            "whole": [list(window) for window in self.whole],
            "size": self._size,
            "open": [list(window) for window in self._open],
            "rows": [list(row) for row in self._rows],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Windows":
        """What :meth:`to_plain` wrote."""
        windows = cls(plain["most"])
        windows.whole = [Window(*window) for window in plain["whole"]]
        windows._size = plain["size"]
        windows._open = [Window(*window) for window in plain["open"]]
        windows._rows = [tuple(row) for row in plain["rows"]]
        return windows


def _joined(windows: list[Window]) -> Window:
    """One in place of windows that follow one another."""
    first, last = windows[0], windows[-1]
    worst = max(windows, key=lambda window: abs(window.share - COVERAGE))
    return first._replace(
        last_row=last.last_row,
        last_time=last.last_time,
        share=worst.share,
        log_score=min(window.log_score for window in windows),
        num_broken=sum(window.num_broken for window in windows),
        num_windows=sum(window.num_windows for window in windows),
    )
