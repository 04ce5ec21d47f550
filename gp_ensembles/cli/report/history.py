"""What is kept of a run for its pictures and its report, in room that does not grow with the rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.cli.predictions import Chunk
from gp_ensembles.cli.report.bins import CAPACITY, Bins
from gp_ensembles.cli.report.families import Family
from gp_ensembles.cli.report.windows import Windows

Array = NDArray[np.float64]
RECENT = 2000  # rows kept one by one, the last ones
PIT_BINS = 200  # so that central intervals of whole percents end on edges
RELIABILITY_BINS, CONFIDENCE_BINS = 10, 20
_MOST_EVENTS = 256
_SHOWN = ("y", "mean", "lower", "upper")
ROW_COLUMNS = ("row", "time", *_SHOWN, "inside", "log_prob", "confidence", "hit")


class Runs(NamedTuple):
    """Runs of rows that follow one another, each array (R,).

    Attributes:
        rows: Row number at the middle.
        times: Time there; ``None`` unless every row has one.
        least: Least target; NaN where none was observed.
        greatest: Greatest target.
        mean: Mean of the predictive means.
        lower: Lowest end of the intervals.
        upper: Highest end.
        is_missing: Whether a target is missing.
    """

    rows: Array
    times: Array | None
    least: Array
    greatest: Array
    mean: Array
    lower: Array
    upper: Array
    is_missing: NDArray[np.bool_]


class Happened(NamedTuple):
    """What has happened since a stream began, see :func:`~gp_ensembles.cli.report.events.happened`.

    Attributes:
        counts: How often, by kind.
        due: Row at which experts are refitted next, by their name.
    """

    counts: Mapping[str, int] = {}
    due: Mapping[str, int] = {}


_NOTHING = Happened()


class RunHistory:
    """A record of a run, fed with chunks: series in bins, the last rows one by one, windows and histograms.

    However long the run is, it holds at most ``CAPACITY`` values of each series and ``RECENT`` rows.

    Args:
        model_name: What the model is called.
        target_name: What the target is called.
        families: Family of each expert.
        baselines: Names of the baselines.
        before: What has happened before the first row that it will record.

    Example:
        >>> history = RunHistory("two", "load", [Family("linear", "fixed weights")] * 2, ())
        >>> y = torch.zeros(3, dtype=torch.float64)
        >>> log_weights = torch.full((2, 3), 0.5, dtype=torch.float64).log()
        >>> history.add(Chunk(11, y, y, y + 1, y - 1, y + 1, y - 2, y + 0.5, log_weights, {}, inside=y + 1))
        >>> history.num_rows, history.last_row, history.weights()[Family("linear", "fixed weights")].tolist()
        (3, 13, [1.0, 1.0, 1.0])
    """

    model_name: str
    target_name: str
    has_intervals: bool
    is_class: bool
    pit_counts: NDArray[np.float64]
    confidence_counts: NDArray[np.float64]

    def __init__(
        self,
        model_name: str,
        target_name: str,
        families: Sequence[Family],
        baselines: Sequence[str],
        before: Happened = _NOTHING,
    ) -> None:
        self.model_name, self.target_name = model_name, target_name
        self.baselines: tuple[str, ...] = tuple(baselines)
        self.families: tuple[Family, ...] = tuple(dict.fromkeys(families))
        self._places = [self.families.index(family) for family in families]
        sums = ["targets", "rows", "times", "has_time", *_SHOWN, *(f"has_{name}" for name in _SHOWN)]
        sums += ["inside", "log_prob", "confidence", "hit"]
        sums += [f"baseline {k}" for k in range(len(self.baselines))]
        sums += [f"family {k}" for k in range(len(self.families))]
        self.bins: Bins = Bins(sums, ["y", "lower", "upper", "time"], capacity=CAPACITY)
        self.windows: Windows = Windows()
        self.first_row: int | None = None
        self.is_class, self.has_intervals = False, False
        self.pit_counts = np.zeros(PIT_BINS)
        self.reliability: NDArray[np.float64] = np.zeros(
            (3, RELIABILITY_BINS)
        )  # pairs, their probabilities summed, those that came true
        self.confidence_counts = np.zeros(CONFIDENCE_BINS)
        self._counts, self._due = dict(before.counts), dict(before.due)
        self.events: dict[str, list[list[float]]] = {}  # kind -> [row, time, number] of what happened
        self._recent = np.zeros((len(ROW_COLUMNS), 0))

    @property
    def num_rows(self) -> int:
        """Rows recorded."""
        return self.bins.num_rows

    @property
    def last_row(self) -> int:
        """Number of the last row recorded; zero before any."""
        return 0 if self.first_row is None else self.first_row + self.num_rows - 1

    def add(self, chunk: Chunk, happened: Happened = _NOTHING) -> None:
        """Record a chunk that follows the last one; rows that were recorded before are skipped.

        Args:
            chunk: Predictions and targets of rows.
            happened: What has happened since the stream began. What is new is recorded at the first of the rows.
        """
        if self.first_row is not None:
            chunk = chunk.tail(max(0, self.last_row + 1 - chunk.first_row))
        if not chunk.y.shape[0]:
            return
        if self.first_row is None:
            self.first_row = chunk.first_row
        columns = self._columns(chunk)
        seen = np.isfinite(columns["y"])
        self._count_events(happened, columns["row"], columns["time"])
        sums = {name: np.where(seen, columns[name], np.nan) for name in ("inside", "log_prob", "confidence", "hit")}
        sums |= {"targets": seen.astype(float), "rows": columns["row"], "times": columns["time"]}
        sums["has_time"] = np.isfinite(columns["time"]).astype(float)
        for name in _SHOWN:
            sums |= {name: columns[name], f"has_{name}": np.isfinite(columns[name]).astype(float)}
        for k, name in enumerate(self.baselines):
            sums[f"baseline {k}"] = np.where(seen, _array(chunk.baselines[name]), np.nan)
        weights = np.zeros((len(self.families), len(seen)))
        np.add.at(weights, self._places, _array(chunk.log_weights.exp()))
        sums |= {f"family {k}": values for k, values in enumerate(weights)}
        self.bins.add(sums, {name: columns[name] for name in ("y", "lower", "upper", "time")})
        window = [columns[name][seen] for name in ("row", "time", "inside", "log_prob")]
        self.windows.add(*window)
        self._count_calibration(chunk, seen)
        self._recent = np.concatenate([self._recent, np.stack([columns[n] for n in ROW_COLUMNS])], axis=1)[:, -RECENT:]

    def recent(self) -> dict[str, Array]:
        """The last rows one by one, by ``ROW_COLUMNS``, each (R,)."""
        return dict(zip(ROW_COLUMNS, self._recent, strict=True))

    def mean(self, name: str) -> Array:
        """Means by bin of a series: of ``y``, ``mean``, ``lower``, ``upper``, or of scores of the targets."""
        count = self.bins.sum(f"has_{name}" if name in _SHOWN else "targets")
        return _ratio(self.bins.sum(name), count)

    def baseline_sums(self, name: str) -> Array:
        """Sums by bin of a baseline's log scores."""
        return self.bins.sum(f"baseline {self.baselines.index(name)}")

    def weights(self) -> dict[Family, Array]:
        """Mean weights by bin of each family, the heaviest first."""
        sizes = self.bins.sizes
        means = {family: self.bins.sum(f"family {k}") / sizes for k, family in enumerate(self.families)}
        return dict(sorted(means.items(), key=lambda pair: -float((pair[1] * sizes).sum())))

    def groups(self, most: int) -> NDArray[np.intp]:
        """Number of the group of each bin, where bins are put into at most so many."""
        num = self.bins.num_bins
        return (np.arange(num) * min(most, num) // max(num, 1)).astype(np.intp)

    def runs(self, most: int) -> Runs:
        """The whole run in at most so many runs of rows."""
        groups, bins = self.groups(most), self.bins
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        least, lower = (np.fmin.reduceat(bins.least(name), starts) for name in ("y", "lower"))
        greatest, upper = (np.fmax.reduceat(bins.greatest(name), starts) for name in ("y", "upper"))

        def total(name: str) -> Array:
            return np.add.reduceat(bins.sum(name), starts)

        sizes = np.add.reduceat(bins.sizes, starts)
        times = None if self.times() is None else total("times") / sizes
        mean = _ratio(total("mean"), total("has_mean"))
        return Runs(total("rows") / sizes, times, least, greatest, mean, lower, upper, total("targets") < sizes)

    def centers(self) -> Array:
        """Row number at the middle of each bin."""
        return self.bins.sum("rows") / self.bins.sizes

    def times(self) -> Array | None:
        """Time at the middle of each bin; ``None`` unless every row has one."""
        known = self.bins.sum("has_time")
        if not self.num_rows or bool((known < self.bins.sizes).any()):
            return None
        return self.bins.sum("times") / self.bins.sizes

    def _columns(self, chunk: Chunk) -> dict[str, Array]:
        """A chunk's ``ROW_COLUMNS``."""
        num = chunk.y.shape[0]
        columns = {name: np.full(num, np.nan) for name in ROW_COLUMNS}
        columns["row"] = chunk.first_row + np.arange(num, dtype=np.float64)
        if chunk.time is not None:
            columns["time"] = _array(chunk.time)
        for name in (*_SHOWN, "log_prob"):
            columns[name] = _array(getattr(chunk, name))
        if chunk.inside is not None:
            columns["inside"], self.has_intervals = _array(chunk.inside), True
        if chunk.probabilities is not None:
            confidence, best = chunk.probabilities.max(-1)
            columns["confidence"], columns["hit"] = _array(confidence), _array(best == chunk.y)
            self.is_class = True
        return columns

    def _count_calibration(self, chunk: Chunk, seen: NDArray[np.bool_]) -> None:
        pit = _array(chunk.pit)[seen]
        pit = pit[np.isfinite(pit)].clip(0.0, 1.0)
        self.pit_counts += np.histogram(pit, bins=PIT_BINS, range=(0.0, 1.0))[0]
        if chunk.probabilities is None:
            return
        shares, labels = _array(chunk.probabilities)[seen], _array(chunk.y)[seen]
        hits = labels[:, None] == np.arange(shares.shape[1])
        number = np.clip((shares * RELIABILITY_BINS).astype(int), 0, RELIABILITY_BINS - 1)
        for place, values in enumerate((np.ones_like(shares), shares, hits.astype(float))):
            np.add.at(self.reliability[place], number, values)
        self.confidence_counts += np.histogram(shares.max(-1), bins=CONFIDENCE_BINS, range=(0.0, 1.0))[0]

    def _count_events(self, happened: Happened, rows: Array, times: Array) -> None:
        for kind, number in happened.counts.items():
            self._happened(kind, rows[0], times[0], number - self._counts.get(kind, 0))
        for name, row in happened.due.items():
            before = self._due.get(name, row)
            place = min(max(int(before - rows[0]), 0), len(rows) - 1)
            self._happened(f"refit {name}", rows[place], times[place], int(row > before))
        self._counts, self._due = dict(happened.counts), dict(happened.due)

    def _happened(self, kind: str, row: float, time: float, number: int) -> None:
        if number <= 0:
            return
        events = self.events.setdefault(kind, [])
        events.append([float(row), float(time), float(number)])
        if len(events) > _MOST_EVENTS:
            pairs = [events[k : k + 2] for k in range(0, len(events), 2)]
            self.events[kind] = [[*pair[0][:2], sum(event[2] for event in pair)] for pair in pairs]

    def to_plain(self) -> dict[str, Any]:
        """Plain containers and tensors, fit for a checkpoint."""
        return {
            "model_name": self.model_name,
            "target_name": self.target_name,
            "families": [list(self.families[place]) for place in self._places],
            "baselines": list(self.baselines),
            "first_row": self.first_row,
            "is_class": self.is_class,
            "has_intervals": self.has_intervals,
            "bins": self.bins.to_plain(),
            "windows": self.windows.to_plain(),
            "pit_counts": torch.from_numpy(self.pit_counts.copy()),
            "reliability": torch.from_numpy(self.reliability.copy()),
            "confidence_counts": torch.from_numpy(self.confidence_counts.copy()),
            "counts": self._counts,
            "due": self._due,
            "events": {kind: [list(event) for event in events] for kind, events in self.events.items()},
            "recent": torch.from_numpy(self._recent.copy()),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RunHistory":
        """What :meth:`to_plain` wrote."""
        families = [Family(*family) for family in plain["families"]]
        before = Happened(plain["counts"], plain["due"])
        history = cls(plain["model_name"], plain["target_name"], families, plain["baselines"], before)
        history.first_row = plain["first_row"]
        history.is_class, history.has_intervals = plain["is_class"], plain["has_intervals"]
        history.bins, history.windows = Bins.from_plain(plain["bins"]), Windows.from_plain(plain["windows"])
        history.pit_counts = plain["pit_counts"].clone().numpy()
        history.reliability = plain["reliability"].clone().numpy()
        history.confidence_counts = plain["confidence_counts"].clone().numpy()
        history.events = {kind: [list(event) for event in events] for kind, events in plain["events"].items()}
        history._recent = plain["recent"].clone().numpy()
        return history


def _array(values: Tensor) -> Array:
    array: Array = values.detach().double().cpu().numpy()
    return array


def _ratio(total: Array, count: Array) -> Array:
    """Means; NaN where nothing was counted."""
    means: Array = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return means
