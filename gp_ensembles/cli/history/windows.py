"""Windows of consecutive targets of a run: the share covered, and the mean log score."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.calibration.coverage import WINDOW

Array = NDArray[np.float64]
COVERAGE = 0.9
_MOST = 2048  # a million targets


class Window(NamedTuple):
    """Consecutive targets, ``WINDOW`` for each window.

    Attributes:
        first_row: Row of its first target.
        last_row: Row of its last one.
        first_time: Time of its first target, NaN if there is none.
        last_time: Time of its last one.
        share: Share of targets in their intervals, NaN without intervals; of merged windows that furthest from nominal.
        log_score: Mean log score; of merged windows the least.
        num_broken: Windows whose share of misses is off by more than half.
        num_windows: Windows that were merged.
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
    """The completed windows of a run, in constant memory: beyond ``most``, they are merged in pairs."""

    completed: list[Window]

    def __init__(self, most: int = _MOST) -> None:
        self.completed = []
        self._most, self._size = most, 1  # windows, and how many are merged in each but the last
        self._rows: list[list[float]] = []  # row, time, hit and log score of targets of the window under way

    @property
    def num_broken(self) -> int:
        """Windows off their nominal coverage."""
        return sum(window.num_broken for window in self.completed)

    def add(self, rows: Array, times: Array, hits: Array, log_prob: Array) -> None:
        """Add observed targets, each (B,)."""
        self._rows += np.stack([rows, times, hits, log_prob], axis=1).tolist()
        while len(self._rows) >= WINDOW:
            self._complete(self._rows[:WINDOW])
            del self._rows[:WINDOW]

    def _complete(self, targets: list[list[float]]) -> None:
        rows, times, hits, scores = zip(*targets, strict=True)
        share = sum(hits) / WINDOW
        is_broken = abs(share - COVERAGE) > (1 - COVERAGE) / 2 + 1e-12
        new = Window(int(rows[0]), int(rows[-1]), times[0], times[-1], share, sum(scores) / WINDOW, int(is_broken))
        if self.completed and self.completed[-1].num_windows < self._size:
            new = _merged(self.completed.pop(), new)
        self.completed.append(new)
        if len(self.completed) >= self._most and new.num_windows == self._size:
            self.completed = [_merged(*self.completed[k : k + 2]) for k in range(0, len(self.completed), 2)]
            self._size *= 2

    def to_plain(self) -> dict[str, Any]:
        """Plain containers."""
        windows = [list(window) for window in self.completed]
        return {"most": self._most, "size": self._size, "completed": windows, "rows": [list(row) for row in self._rows]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Windows":
        """What :meth:`to_plain` wrote."""
        windows = cls(plain["most"])
        windows.completed, windows._size = [Window(*window) for window in plain["completed"]], plain["size"]
        windows._rows = [list(row) for row in plain["rows"]]
        return windows


def _merged(first: Window, last: Window) -> Window:
    worst = max(first, last, key=lambda window: abs(window.share - COVERAGE))
    return first._replace(
        last_row=last.last_row, last_time=last.last_time, share=worst.share,
        log_score=min(first.log_score, last.log_score), num_broken=first.num_broken + last.num_broken,
        num_windows=first.num_windows + last.num_windows,
    )  # fmt: skip
