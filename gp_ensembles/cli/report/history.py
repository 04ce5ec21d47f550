"""The record of a run for its report and its pictures, in memory that does not grow with the rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.calibration.coverage import WINDOW
from gp_ensembles.cli.predictions import Chunk

Array = NDArray[np.float64]
RECENT = 2000  # rows kept one by one, the last ones
PIT_BINS = 200  # so that central intervals of whole percents end on edges
RELIABILITY_BINS, CONFIDENCE_BINS = 10, 20
_MOST_EVENTS = 256
_SHOWN, _SCORES = ("y", "mean", "lower", "upper"), ("inside", "log_prob", "confidence", "hit")
ROW_COLUMNS = ("row", "time", *_SHOWN, *_SCORES)
_PLAIN = ("model_name", "target_name", "first_row", "is_class", "has_intervals", "counts", "due", "events")
_ARRAYS = ("pit_counts", "reliability", "confidence_counts", "recent_rows")
CAPACITY = 4096  # of bins, an even number
_MERGE = {"sum": np.add, "count": np.add, "least": np.fmin, "greatest": np.fmax}
COVERAGE = 0.9
_MOST_WINDOWS = 2048  # a million targets


class Family(NamedTuple):
    """A family of experts: their kind, and how fast they adapt."""

    kind: str
    speed: str


class EventCounts(NamedTuple):
    """Event counts of a stream by kind, and the next refit of experts, a row, by their name."""

    counts: Mapping[str, int] = {}
    due: Mapping[str, int] = {}


_NONE = EventCounts()


class RunHistory:
    """The record of a run, fed with chunks: series in bins, the last rows one by one, windows and histograms."""

    def __init__(
        self,
        model_name: str,
        target_name: str,
        families: Sequence[Family],
        baselines: Sequence[str],
        before: EventCounts = _NONE,
    ) -> None:
        self.model_name, self.target_name, self.baselines = model_name, target_name, tuple(baselines)
        self.families: tuple[Family, ...] = tuple(dict.fromkeys(families))
        self._places = [self.families.index(family) for family in families]
        sums = [*_SHOWN, "time", *_SCORES, *self._numbered("baseline"), *self._numbered("family")]
        kept = {"sum": sums, "count": (*_SHOWN, "time"), "least": ("y", "lower", "time"), "greatest": ("y", "upper")}
        self.bins: Bins = Bins([f"{kind} {name}" for kind, names in kept.items() for name in names])
        self.windows: TargetWindows = TargetWindows()
        self.first_row: int | None = None
        self.is_class, self.has_intervals = False, False
        self.pit_counts = np.zeros(PIT_BINS)
        self.reliability = np.zeros((3, RELIABILITY_BINS))  # pairs, their probabilities summed, those that came true
        self.confidence_counts = np.zeros(CONFIDENCE_BINS)
        self.counts, self.due = dict(before.counts), dict(before.due)
        self.events: dict[str, list[list[float]]] = {}  # row, time and number of events, by kind
        self.recent_rows = np.zeros((len(ROW_COLUMNS), 0))

    def _numbered(self, kind: str) -> list[str]:
        return [f"{kind} {k}" for k in range(len(self.baselines if kind == "baseline" else self.families))]

    @property
    def num_rows(self) -> int:
        """Rows recorded."""
        return self.bins.num_rows

    @property
    def last_row(self) -> int:
        """Number of the last row recorded; zero before any."""
        return 0 if self.first_row is None else self.first_row + self.num_rows - 1

    def add(self, chunk: Chunk, events: EventCounts = _NONE) -> None:
        """Record a chunk and event counts, new events at its first row; known rows are skipped."""
        if self.first_row is not None:
            chunk = chunk.tail(max(0, self.last_row + 1 - chunk.first_row))
        if not chunk.y.shape[0]:
            return
        if self.first_row is None:
            self.first_row = chunk.first_row
        rows = self._rows_of(chunk)
        seen = np.isfinite(rows["y"])
        self._record_events(events, rows["row"], rows["time"])
        series = {**rows, **{name: np.where(seen, rows[name], np.nan) for name in _SCORES}}
        for name, baseline in zip(self._numbered("baseline"), self.baselines, strict=True):
            series[name] = np.where(seen, _array(chunk.baselines[baseline]), np.nan)
        weights = np.zeros((len(self.families), len(seen)))
        np.add.at(weights, self._places, _array(chunk.log_weights.exp()))
        self.bins.add(series | dict(zip(self._numbered("family"), weights, strict=True)))
        self.windows.add(*(rows[name][seen] for name in ("row", "time", "inside", "log_prob")))
        self._count_calibration(chunk, seen)
        self.recent_rows = np.concatenate([self.recent_rows, np.stack(list(rows.values()))], axis=1)[:, -RECENT:]

    def recent(self) -> dict[str, Array]:
        """The last rows one by one, by ``ROW_COLUMNS``, each (R,)."""
        return dict(zip(ROW_COLUMNS, self.recent_rows, strict=True))

    def mean(self, name: str) -> Array:
        """Means by bin of a series of predictions or of scores of the targets; NaN where nothing was counted."""
        return _ratio(self.bins[f"sum {name}"], self.bins[f"count {name if name in _SHOWN else 'y'}"])

    def baseline_sums(self, name: str) -> Array:
        """Sums by bin of a baseline's log scores."""
        return self.bins[f"sum baseline {self.baselines.index(name)}"]

    def weights(self) -> dict[Family, Array]:
        """Mean weights by bin of each family, the heaviest first."""
        sizes = self.bins.sizes
        means = {family: self.bins[f"sum family {k}"] / sizes for k, family in enumerate(self.families)}
        return dict(sorted(means.items(), key=lambda pair: -float((pair[1] * sizes).sum())))

    def grouped(self, values: Array, most: int, merge: np.ufunc = np.add) -> Array:
        """Values by bin, merged in at most this many groups of bins."""
        num = len(values)
        groups = np.arange(num) * min(most, num) // max(num, 1)
        merged: Array = merge.reduceat(values, np.flatnonzero(np.diff(groups, prepend=-1)))
        return merged

    def runs(self, most: int) -> dict[str, Any]:
        """The run in at most this many groups of rows, as fields of :class:`~gp_ensembles.plots.stream.Runs`."""
        sizes = self.grouped(self.bins.sizes, most)
        least, lower = (self.grouped(self.bins[f"least {name}"], most, np.fmin) for name in ("y", "lower"))
        greatest, upper = (self.grouped(self.bins[f"greatest {name}"], most, np.fmax) for name in ("y", "upper"))
        mean = _ratio(*(self.grouped(self.bins[f"{kind} mean"], most) for kind in ("sum", "count")))
        rows = self.grouped(self.centers() * self.bins.sizes, most) / sizes
        is_missing = self.grouped(self.bins["count y"], most) < sizes
        return {"rows": rows, "least": least, "greatest": greatest, "mean": mean, "lower": lower, "upper": upper,
                "is_missing": is_missing}  # fmt: skip

    def centers(self) -> Array:
        """Row number at the middle of each bin."""
        starts = (self.first_row or 0) + self.bins.width * np.arange(self.bins.num_bins)
        return starts + (self.bins.sizes - 1) / 2

    def times(self) -> Array | None:
        """Time at the middle of each bin; ``None`` unless every row has one."""
        is_known = self.num_rows > 0 and bool((self.bins["count time"] == self.bins.sizes).all())
        return self.bins["sum time"] / self.bins.sizes if is_known else None

    def _rows_of(self, chunk: Chunk) -> dict[str, Array]:
        """A chunk's ``ROW_COLUMNS``."""
        rows = {name: np.full(chunk.y.shape[0], np.nan) for name in ROW_COLUMNS}
        rows["row"] = chunk.first_row + np.arange(chunk.y.shape[0], dtype=np.float64)
        for name in ("time", *_SHOWN, "inside", "log_prob"):
            if (values := getattr(chunk, name)) is not None:
                rows[name] = _array(values)
        self.has_intervals |= chunk.inside is not None
        if chunk.probabilities is not None:
            confidence, best = chunk.probabilities.max(-1)
            rows["confidence"], rows["hit"], self.is_class = _array(confidence), _array(best == chunk.y), True
        return rows

    def _count_calibration(self, chunk: Chunk, seen: NDArray[np.bool_]) -> None:
        pit = _array(chunk.pit)[seen]
        self.pit_counts += np.histogram(pit[np.isfinite(pit)].clip(0.0, 1.0), bins=PIT_BINS, range=(0.0, 1.0))[0]
        if chunk.probabilities is None:
            return
        shares, labels = _array(chunk.probabilities)[seen], _array(chunk.y)[seen]
        hits = labels[:, None] == np.arange(shares.shape[1])
        number = np.clip((shares * RELIABILITY_BINS).astype(int), 0, RELIABILITY_BINS - 1)
        for place, values in enumerate((np.ones_like(shares), shares, hits.astype(float))):
            np.add.at(self.reliability[place], number, values)
        self.confidence_counts += np.histogram(shares.max(-1), bins=CONFIDENCE_BINS, range=(0.0, 1.0))[0]

    def _record_events(self, found: EventCounts, rows: Array, times: Array) -> None:
        new = [(kind, 0, number - self.counts.get(kind, 0)) for kind, number in found.counts.items()]
        for name, row in found.due.items():
            before = self.due.get(name, row)
            new.append((f"refit {name}", min(max(int(before - rows[0]), 0), len(rows) - 1), int(row > before)))
        for kind, place, number in new:
            if number > 0:
                events = [*self.events.get(kind, []), [float(rows[place]), float(times[place]), float(number)]]
                if len(events) > _MOST_EVENTS:
                    pairs = [events[k : k + 2] for k in range(0, len(events), 2)]
                    events = [[*pair[0][:2], sum(event[2] for event in pair)] for pair in pairs]
                self.events[kind] = events
        self.counts, self.due = dict(found.counts), dict(found.due)

    def to_plain(self) -> dict[str, Any]:
        """Plain containers and tensors, fit for a checkpoint."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in _ARRAYS}
        experts = {"families": [list(self.families[k]) for k in self._places], "baselines": list(self.baselines)}
        parts = {"bins": self.bins.to_plain(), "windows": self.windows.to_plain()}
        return {**{name: getattr(self, name) for name in _PLAIN}, **experts, **arrays, **parts}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RunHistory":
        """What :meth:`to_plain` wrote."""
        families = [Family(*family) for family in plain["families"]]
        history = cls(plain["model_name"], plain["target_name"], families, plain["baselines"])
        for name in _PLAIN:
            setattr(history, name, plain[name])
        for name in _ARRAYS:
            setattr(history, name, plain[name].clone().numpy())
        history.bins, history.windows = Bins.from_plain(plain["bins"]), TargetWindows.from_plain(plain["windows"])
        return history


class Bins:
    """Statistics of series over runs of equally many rows, one row at first, in at most ``capacity`` bins.

    Args:
        series: Statistics to keep, such as "sum y", "count y" (of finite values), "least y" and "greatest y".
        capacity: Most bins, even.
    """

    width: int
    num_rows: int

    def __init__(self, series: Sequence[str], *, capacity: int = CAPACITY) -> None:
        self.width, self.num_rows, self._capacity = 1, 0, capacity
        self._series = {key: np.full(capacity, _empty(key)) for key in series}

    def __getitem__(self, key: str) -> Array:
        """A series by bin; NaN without a least or greatest value."""
        return self._series[key][: self.num_bins]

    @property
    def num_bins(self) -> int:
        """Bins in use; the last may not be full."""
        return -(-self.num_rows // self.width)

    @property
    def sizes(self) -> Array:
        """Rows in each bin."""
        starts = self.width * np.arange(self.num_bins, dtype=np.float64)
        return np.minimum(self.width, self.num_rows - starts)

    def add(self, rows: Mapping[str, Array]) -> None:
        """Add rows, each series (B,); values that are not finite add nothing."""
        num = len(next(iter(rows.values())))
        while self.num_rows + num > self.width * self._capacity:
            self._merge_neighbors()
        places = (self.num_rows + np.arange(num)) // self.width
        for key, held in self._series.items():
            kind, _, name = key.partition(" ")
            is_finite = np.isfinite(rows[name])
            _MERGE[kind].at(
                held, places, is_finite if kind == "count" else np.where(is_finite, rows[name], _empty(key))
            )
        self.num_rows += num

    def _merge_neighbors(self) -> None:
        half = self._capacity // 2
        for key, held in self._series.items():
            held[:half] = _MERGE[key.partition(" ")[0]](held[0::2], held[1::2])
            held[half:] = _empty(key)
        self.width *= 2

    def to_plain(self) -> dict[str, Any]:
        """Plain containers and tensors."""
        series = {key: torch.from_numpy(self[key].copy()) for key in self._series}
        return {"width": self.width, "num_rows": self.num_rows, "capacity": self._capacity, "series": series}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Bins":
        """What :meth:`to_plain` wrote."""
        bins = cls(list(plain["series"]), capacity=plain["capacity"])
        bins.width, bins.num_rows = plain["width"], plain["num_rows"]
        for key, values in plain["series"].items():
            bins[key][:] = values.numpy()
        return bins


class TargetWindow(NamedTuple):
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


class TargetWindows:
    """The completed windows of a run, in constant memory: beyond ``most``, they are merged in pairs."""

    completed: list[TargetWindow]

    def __init__(self, most: int = _MOST_WINDOWS) -> None:
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
        new = TargetWindow(
            int(rows[0]), int(rows[-1]), times[0], times[-1], share, sum(scores) / WINDOW, int(is_broken)
        )
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
    def from_plain(cls, plain: Mapping[str, Any]) -> "TargetWindows":
        """What :meth:`to_plain` wrote."""
        windows = cls(plain["most"])
        windows.completed, windows._size = [TargetWindow(*window) for window in plain["completed"]], plain["size"]
        windows._rows = [list(row) for row in plain["rows"]]
        return windows


def _merged(first: TargetWindow, last: TargetWindow) -> TargetWindow:
    worst = max(first, last, key=lambda window: abs(window.share - COVERAGE))
    return first._replace(
        last_row=last.last_row, last_time=last.last_time, share=worst.share,
        log_score=min(first.log_score, last.log_score), num_broken=first.num_broken + last.num_broken,
        num_windows=first.num_windows + last.num_windows,
    )  # fmt: skip


def _ratio(total: Array, count: Array) -> Array:
    found: Array = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return found


def _array(values: Tensor) -> Array:
    array: Array = values.detach().double().cpu().numpy()
    return array


def _empty(key: str) -> float:
    return np.nan if key.startswith(("least", "greatest")) else 0.0
