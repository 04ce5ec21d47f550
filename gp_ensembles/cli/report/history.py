"""The record of a run for its report, in memory that does not grow with the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.calibration.levels import WINDOW
from gp_ensembles.cli.predictions import Chunk

Array = NDArray[np.float64]
RECENT = 2000  # rows kept one by one, the last ones
PIT_BINS = 200  # so that central intervals of whole percents end on edges
RELIABILITY_BINS = 10
CAPACITY, MOST_WINDOWS = 4096, 2048  # of bins; so many windows are a million targets
COVERAGE = 0.9
_COUNTED = ("row", "time", "y", "mean", "lower", "upper", "inside")  # the others are counted by target
ROW_COLUMNS = (*_COUNTED, "log_prob", "confidence", "hit")
WINDOW_SERIES = ("least first", "greatest last", "least share", "greatest share", "least log_prob", "sum broken")
_MERGE = {"sum": np.add, "count": np.add, "least": np.fmin, "greatest": np.fmax}


class Bins:
    """Series such as "sum y", "count y" (of finite values) and "least y" over runs of equally many rows.

    A bin is one row at first, and twice as many whenever there would be more than ``capacity``, an even number.
    """

    def __init__(self, series: Sequence[str], *, capacity: int = CAPACITY) -> None:
        self.width: int = 1
        self.num_rows: int = 0
        self.capacity = capacity
        self.series = {key: np.zeros(0) for key in series}

    def __getitem__(self, key: str) -> Array:
        """A series by bin; NaN without a least or greatest value."""
        return self.series[key]

    def grouped(self, key: str, most: int) -> Array:
        """A series in at most this many groups of bins."""
        groups = np.arange(len(self[key])) * min(most, len(self[key])) // max(len(self[key]), 1)
        return _merged(key, self[key], np.flatnonzero(np.diff(groups, prepend=-1)))

    def add(self, rows: Mapping[str, Array]) -> None:
        """Add rows, each series (B,); values that are not finite add nothing."""
        num = len(next(iter(rows.values())))
        while self.num_rows + num > self.width * self.capacity:
            merged = {key: _merged(key, held, np.arange(0, len(held), 2)) for key, held in self.series.items()}
            self.series, self.width = merged, 2 * self.width
        places, num_bins = (self.num_rows + np.arange(num)) // self.width, -(-(self.num_rows + num) // self.width)
        series = {}
        for key, held in self.series.items():
            (kind, _, name), empty = key.partition(" "), np.nan if key.startswith(("least", "greatest")) else 0.0
            known, series[key] = np.isfinite(rows[name]), np.full(num_bins, empty)
            series[key][: len(held)] = held
            _MERGE[kind].at(series[key], places, known if kind == "count" else np.where(known, rows[name], empty))
        self.series, self.num_rows = series, self.num_rows + num  # together, whenever the run is interrupted


def _merged(key: str, values: Array, starts: NDArray[np.int64]) -> Array:
    """A series of bins in groups that start at some of them."""
    return np.asarray(_MERGE[key.partition(" ")[0]].reduceat(values, starts))


class RunHistory:
    """The record of a run, fed with chunks: series in bins, the last rows one by one, windows and histograms."""

    def __init__(
        self,
        model_name: str,
        target_name: str,
        families: Sequence[str],
        baselines: Sequence[str],
        counts: Mapping[str, int] = {},
    ) -> None:
        self.model_name, self.target_name, self.baselines = model_name, target_name, tuple(baselines)
        self.families: tuple[str, ...] = tuple(families)  # of each expert
        self.counts = dict(counts)  # of events so far, by kind
        more = {"baseline": baselines, "family": families, "event": counts}
        sums = (*ROW_COLUMNS, *(f"{kind} {name}" for kind, names in more.items() for name in names))
        kept = {"sum": sums, "count": _COUNTED, "least": ("y", "lower"), "greatest": ("y", "upper")}
        self.bins: Bins = Bins([f"{kind} {name}" for kind, names in kept.items() for name in names])
        self.window_bins: Bins = Bins(WINDOW_SERIES, capacity=MOST_WINDOWS)  # a row of it is a window of targets
        self.open_window = self.recent_rows = np.zeros((len(ROW_COLUMNS), 0))
        self.first_row: int | None = None
        self.is_class = False
        self.pit_counts = np.zeros(PIT_BINS)
        self.reliability = np.zeros((3, RELIABILITY_BINS))  # pairs, their probabilities summed, those that came true

    @property
    def num_rows(self) -> int:
        """Rows recorded."""
        return self.bins.num_rows

    @property
    def last_row(self) -> int:
        """Number of the last row recorded; zero before any."""
        return 0 if self.first_row is None else self.first_row + self.num_rows - 1

    @property
    def window_shares(self) -> Array:
        """Share of targets in their intervals by window; of merged windows that furthest from the nominal coverage."""
        low, high = self.window_bins["least share"], self.window_bins["greatest share"]
        return np.where(COVERAGE - low >= high - COVERAGE, low, high)

    @property
    def events(self) -> dict[str, Array]:
        """Number of events by bin, of each kind that happened."""
        found = {kind: self.bins[f"sum event {kind}"] for kind in self.counts}
        return {kind: numbers for kind, numbers in found.items() if numbers.any()}

    def add(self, chunk: Chunk, counts: Mapping[str, int] = {}) -> None:
        """Record a chunk and event counts, new events at its first row; known rows are skipped."""
        if self.first_row is not None:
            chunk = chunk.tail(max(0, self.last_row + 1 - chunk.first_row))
        if not chunk.y.shape[0]:
            return
        self.first_row = chunk.first_row if self.first_row is None else self.first_row
        rows = self._rows_of(chunk)
        seen = np.isfinite(rows["y"])
        baselines = {f"baseline {name}": _array(chunk.baselines[name]) for name in self.baselines}
        weights = {f"family {name}": np.zeros(len(seen)) for name in self.families}
        for name, weight in zip(self.families, _array(chunk.log_weights.exp()), strict=True):
            weights[f"family {name}"] += weight
        after = {kind: counts.get(kind, before) for kind, before in self.counts.items()}
        is_first = rows["row"] == rows["row"][0]
        events = {f"event {kind}": is_first * max(after[kind] - before, 0) for kind, before in self.counts.items()}
        self.bins.add({**rows, **baselines, **weights, **events})
        self.counts = after
        targets = np.stack(list(rows.values()))
        self.recent_rows = np.concatenate([self.recent_rows, targets], axis=1)[:, -RECENT:]
        self._close_windows(targets[:, seen])
        self._count_calibration(chunk, seen)

    def recent(self) -> dict[str, Array]:
        """The last rows one by one, by ``ROW_COLUMNS``, each (R,)."""
        return dict(zip(ROW_COLUMNS, self.recent_rows, strict=True))

    def mean(self, name: str, most: int = CAPACITY) -> Array:
        """Means of a series in at most this many groups of bins, scores by target; NaN where nothing was counted."""
        counted = name if name in _COUNTED else "row" if name.startswith("family ") else "y"
        total, count = self.bins.grouped(f"sum {name}", most), self.bins.grouped(f"count {counted}", most)
        return np.asarray(np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0))

    def weights(self, most: int = CAPACITY) -> dict[str, Array]:
        """Mean weights of each family in at most this many groups of bins, the heaviest first."""
        order = sorted(dict.fromkeys(self.families), key=lambda name: -float(self.bins[f"sum family {name}"].sum()))
        return {name: self.mean(f"family {name}", most) for name in order}

    def runs(self, most: int) -> dict[str, Any]:
        """The run in at most this many groups of rows."""
        ends = {"least": "least y", "greatest": "greatest y", "lower": "least lower", "upper": "greatest upper"}
        is_missing = self.bins.grouped("count y", most) < self.bins.grouped("count row", most)
        means = {"rows": self.mean("row", most), "mean": self.mean("mean", most)}
        return {**means, **{name: self.bins.grouped(key, most) for name, key in ends.items()}, "is_missing": is_missing}

    @property
    def has_times(self) -> bool:
        """Whether every row has a time."""
        return self.num_rows > 0 and bool((self.bins["count time"] == self.bins["count row"]).all())

    def _rows_of(self, chunk: Chunk) -> dict[str, Array]:
        """A chunk's ``ROW_COLUMNS``."""
        rows = {name: np.full(chunk.y.shape[0], np.nan) for name in ROW_COLUMNS}
        rows["row"] = chunk.first_row + np.arange(chunk.y.shape[0], dtype=np.float64)
        if chunk.time is not None:
            rows["time"] = _array(chunk.time)
        rows["y"] = _array(chunk.y)
        for name in ("mean", "lower", "upper", "inside", "log_prob"):
            rows[name] = _array(getattr(chunk.rows, name))
        if chunk.rows.probabilities.shape[1]:
            confidence, best = chunk.rows.probabilities.max(-1)
            scores, self.is_class = torch.stack([confidence, (best == chunk.y).to(confidence)]), True
            rows["confidence"], rows["hit"] = _array(scores.masked_fill(chunk.y.isnan(), torch.nan))
        return rows

    def _close_windows(self, targets: Array) -> None:
        """Add observed targets; what is left after the last whole window waits for more."""
        targets = np.concatenate([self.open_window, targets], axis=1)
        whole = targets.shape[1] // WINDOW * WINDOW
        self.open_window = targets[:, whole:]
        windows = dict(zip(ROW_COLUMNS, targets[:, :whole].reshape(len(targets), -1, WINDOW), strict=True))
        share = windows["inside"].mean(1)
        is_broken = np.abs(share - COVERAGE) > (1 - COVERAGE) / 2 + 1e-12  # a share of misses off by more than half
        means = {"share": share, "broken": is_broken, "log_prob": windows["log_prob"].mean(1)}
        self.window_bins.add({"first": windows["row"][:, 0], "last": windows["row"][:, -1], **means})

    def _count_calibration(self, chunk: Chunk, seen: NDArray[np.bool_]) -> None:
        pit = _array(chunk.rows.pit)[seen]
        self.pit_counts += np.histogram(pit[np.isfinite(pit)].clip(0.0, 1.0), bins=PIT_BINS, range=(0.0, 1.0))[0]
        shares, labels = _array(chunk.rows.probabilities)[seen], _array(chunk.y)[seen]
        hits = labels[:, None] == np.arange(shares.shape[1])
        number = np.clip((shares * RELIABILITY_BINS).astype(int), 0, RELIABILITY_BINS - 1)
        for place, values in enumerate((np.ones_like(shares), shares, hits.astype(float))):
            np.add.at(self.reliability[place], number, values)


def _array(values: Tensor) -> Array:
    return np.asarray(values.detach().double().cpu())
