"""A model that answers line by line: the protocol, a warm-up on the first rows, then a prediction for each row."""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gp_ensembles.cli.tables import TABLES
from gp_ensembles.distributions import LatentMixture
from gp_ensembles.files.checkpoint import Kind, rebuilt, write_checkpoint
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.late import LateTargets
from gp_ensembles.streaming.predictions import StreamDistribution
from gp_ensembles.tables import TableOptions, open_rows
from gp_ensembles.tables.columns import TargetColumn
from gp_ensembles.tables.encoder import TableEncoder, TableError
from gp_ensembles.tables.frames import cells_of_records
from gp_ensembles.tables.raw import RawRows

_KIND = Kind("gp_ensembles lines", 8, "a stream of lines", "give the checkpoint.pt that a stream of lines wrote")
_FARTHEST = 1e100
WINDOW = 100  # most rows pending without a target
PATIENCE = 5  # later rows with targets after which a pending row is dropped
_REMEMBERED = 2  # times the window: ids of learned rows, which may not be used again
_ODD = 0.1  # largest share of warm-up rows that may be left out as malformed
_LARGEST = 10**300
Identity = str | int | float  # whole numbers are whole: 7.0 is 7


class Line(NamedTuple):
    """The content of a line."""

    identity: Identity | None  # the id of its row; ``None`` without one
    record: dict[str, Any]  # inputs by column, if it has any
    target: Any  # the target as written; ``None`` without one
    is_lost: bool = False  # whether it says that the target of an earlier row will never arrive


def read_line(text: str, target: str, identity: str, features: Sequence[str] | None = None) -> Line:
    """Read a line of JSON; ValueError if it cannot be used."""
    try:
        found = json.loads(text.lstrip("\ufeff"))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError:  # Python limits the number of digits
        raise ValueError("not usable JSON: a number has thousands of digits") from None
    except RecursionError:
        raise ValueError("not usable JSON: it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f'not a JSON object such as {{"{identity}": 1, ...}}, but {type(found).__name__}')
    for name, value in found.items():
        if isinstance(value, list | dict):
            raise ValueError(f"{name} is a {type(value).__name__}; values are numbers, text, true, false or null")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"{name} is a whole number larger than 1e300")
    own = found.pop(identity, None)
    if isinstance(own, bool):
        raise ValueError(f"the {identity} is {own}; it must be a number or text")
    if isinstance(own, float):
        if not math.isfinite(own):
            raise ValueError(f"the {identity} is {own}; it must be a number or text")
        own = int(own) if own.is_integer() else own
    has_target = target in found
    value = found.pop(target, None)
    record = found if features is None else {name: found[name] for name in features if name in found}
    if not record and (own is None or not has_target):
        raise ValueError(f"the line needs inputs, or an {identity} and a {target}")
    return Line(own, record, value, is_lost=not record and value is None)


class _WarmRow(NamedTuple):
    """A row of the warm-up: its inputs, its target, and whether that has arrived or never will."""

    record: dict[str, Any]
    target: Any = None
    is_settled: bool = False


@dataclass
class Tally:
    """Counts so far."""

    num_rows: int = 0  # rows that were predicted
    num_scored: int = 0  # targets that arrived for them after the warm-up
    log_prob: float = 0.0  # sum of their log densities under their predictions, in nats
    num_covered: int = 0  # how many lay between ``q05`` and ``q95``
    num_malformed: int = 0  # lines that could not be used
    seconds: float = 0.0  # time spent on answering
    num_lines: int = 0  # lines read from the current source
    first_line: str = ""  # a checksum of the first of them


_OTHERS = ("_late", "problem", "has_just_started")  # what is not in the file, or apart
_LINES = TABLES.with_kinds(Tally, TableOptions, _WarmRow)


class LineSession:
    """Reads lines and answers rows, of which ``window`` may be pending; older ones are learned as missing."""

    def __init__(
        self, config: StreamConfig, target: str | None, options: TableOptions | None = None, window: int = WINDOW
    ) -> None:
        if target is None:
            raise ValueError("name the value to predict with --target")
        kind = config.ensemble.target
        if kind.num_outputs is not None or not (kind.is_real or kind.num_labels is not None):
            raise ValueError(f"a stream of lines predicts one number or classes, not {kind}")
        config.to_plain()  # what cannot be saved is refused
        self.config = config
        self.target = target
        self.options: TableOptions = TableOptions() if options is None else options
        self.tally = Tally()
        self.encoder: TableEncoder | None = None
        self._warm: dict[str, _WarmRow] = {}
        self._late: LateTargets | None = None
        self.set_window(window)
        self.problem: str | None = None  # why the warm-up continues
        self.has_just_started = False  # reset by its reader
        self._next_fit = config.warmup  # rows with targets at which a fit is tried
        self._intervals: dict[str, tuple[float, float]] = {}
        self._known: dict[str, None] = {}  # keys of the last rows, in their order

    def set_window(self, window: int) -> None:
        """Change the largest number of pending rows, at least one."""
        if window < 1:
            raise ValueError(f"--window must be at least one row, got {window}")
        self.window = window
        if self._late is not None:
            self._late.window = window

    @property
    def model(self) -> OnlineModel | None:
        """The model; ``None`` during the warm-up."""
        return None if self._late is None else self._late.model

    @property
    def num_waiting(self) -> int:
        """Rows pending without a target."""
        if self._late is None:
            return sum(not row.is_settled for row in self._warm.values())
        return len(self._late.waiting)

    def take(self, line: Line) -> dict[str, Any] | None:
        """Process a line; returns the answer to a row, ``None`` to a target alone; ValueError if it cannot be used."""
        began = time.perf_counter()
        answer = None
        row = f"row {self.tally.num_rows + 1}"
        key = row if line.identity is None else f"id {json.dumps(line.identity)}"
        try:
            if line.record:
                answer = self._predict(key, line)
                self.tally.num_rows += 1
            elif not self._is_waiting(key):
                raise ValueError(f"no row {line.identity!r} is pending")
            if line.target is not None:
                self._learn(key, line.target)
        except (ValueError, OverflowError) as error:
            problem = " ".join(str(error).split())
            if answer is None:
                raise ValueError(problem) from None
            answer["refused"] = problem  # the row was answered, its target cannot be used
            self.tally.num_malformed += 1
        if line.is_lost or (line.identity is None and self._is_waiting(key)):
            self._give_up(key)
        self.tally.seconds += time.perf_counter() - began
        return answer

    def open_source(self, first_line: str) -> int:
        """Begin a source with this first line; returns how many of its lines were read before."""
        checksum = hashlib.sha256(first_line.strip().encode()).hexdigest()
        seen = self.tally.num_lines if checksum == self.tally.first_line else 0
        self.tally.num_lines, self.tally.first_line = seen, checksum
        return seen

    def summary(self) -> dict[str, object]:
        """Results so far, as plain containers."""
        tally, num_scored = self.tally, max(self.tally.num_scored, 1)
        return {
            "rows": tally.num_rows,
            "rows_scored": tally.num_scored,
            "rows_waiting": self.num_waiting,
            "rows_given_up": 0 if self._late is None else self._late.num_given_up,
            "lines_malformed": tally.num_malformed,
            "bad_rows": 0 if self.model is None else self.model.anomaly_counts.bad_rows,
            "log_score": tally.log_prob / num_scored if tally.num_scored else None,
            "coverage_90": tally.num_covered / num_scored if tally.num_scored and not self._has_classes else None,
            "microseconds_per_row": 1e6 * tally.seconds / tally.num_rows if tally.num_rows else None,
            "time": None if self.encoder is None or self.encoder.clock is None else self.encoder.clock.report(),
            "warm_up_is_over": self.model is not None,
            "problem": self.problem,
            "config": self.config.to_plain(),
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        late, own = self._late, {name: value for name, value in vars(self).items() if name not in _OTHERS}
        parts = {} if late is None else {"model": late.model.content(), "late": late.content()}
        write_checkpoint(path, _KIND, {"session": to_plain(own, _LINES), **parts})

    @classmethod
    def load(cls, path: Path) -> "LineSession":
        """Read a session, to continue where it was saved."""
        return rebuilt(path, _KIND, cls._read, "start the stream again")

    @classmethod
    def _read(cls, content: dict[str, Any]) -> "LineSession":
        known = from_plain(content["session"], _LINES)
        session = cls(known["config"], known["target"])
        vars(session).update(known)
        if "late" in content:
            session._late = LateTargets.restore(OnlineModel.from_content(content["model"]), content["late"])
        return session

    @property
    def _has_classes(self) -> bool:
        return self.config.ensemble.target.num_labels is not None

    def _is_waiting(self, key: str) -> bool:
        """Whether a row is pending."""
        if self._late is None:
            return key in self._warm and not self._warm[key].is_settled
        return self._late.is_waiting(key)

    def _predict(self, key: str, line: Line) -> dict[str, Any]:
        if key in self._known:
            raise ValueError(f"row {line.identity!r} was already read; give each row a unique id")
        answer: dict[str, Any] = {"id": line.identity, "row": self.tally.num_rows + 1}
        if self._late is None or self.encoder is None:
            self._warm[key] = _WarmRow(dict(line.record))
            self._remember(key)
            answer |= {"warm_up": True, **self._so_far()}
            self._end_warm_up()
            return answer
        encoder, X, steps = self._encoded(self.encoder, line.record)
        predicted = self._late.predict(key, X, steps=steps)
        self._remember(key)
        self.encoder = encoder
        if encoder.clock is not None:
            answer["time"] = encoder.clock.format([encoder.clock.last])[0]
        answer |= self._answer(predicted)
        if "q05" in answer:
            self._intervals[key] = (answer["q05"], answer["q95"])
        if len(self._intervals) > 2 * self.window:  # some are of rows that were given up
            waiting = set(self._late.waiting)
            self._intervals = {row: ends for row, ends in self._intervals.items() if row in waiting}
        return answer

    def _learn(self, key: str, target: Any) -> None:
        if self._late is None or self.encoder is None:
            y = self._number(TargetColumn(self.target, self.options.classes), target)
            self._warm[key] = _WarmRow(self._warm[key].record, target, is_settled=True)
            self._end_warm_up()
            return
        y = self._number(self.encoder.target, target)
        scored = self._late.observe(key, y)
        ends = self._intervals.pop(key, None)
        if not math.isnan(scored.log_prob):
            inside = ends is not None and ends[0] <= y <= ends[1]
            self.tally.num_scored += 1
            self.tally.log_prob += scored.log_prob
            self.tally.num_covered += inside

    def _number(self, column: TargetColumn, target: Any) -> float:
        """A target as a number; NaN if missing."""
        if isinstance(target, bool) and column.classes is None:
            raise ValueError(f"the target is {target!r}, not a number; name classes with --classes")
        cells = np.array([str(target).lower() if isinstance(target, bool) else str(target)], dtype=object)
        if column.classes is None and not isinstance(target, str):
            cells = np.array([target], dtype=np.float64)
        return float(column.encode(cells, ".")[0])

    def _remember(self, key: str) -> None:
        """Keep the id of a row for some time."""
        self._known[key] = None
        if len(self._known) > _REMEMBERED * self.window + len(self._warm):
            del self._known[next(iter(self._known))]

    def _give_up(self, key: str) -> None:
        """Learn a row as missing, as its target will never arrive."""
        if self._late is None:
            self._warm[key] = self._warm[key]._replace(is_settled=True)
            self._end_warm_up()
        else:
            self._late.observe(key, math.nan)
            self._intervals.pop(key, None)

    def _encoded(self, encoder: TableEncoder, record: Mapping[str, Any]) -> tuple[TableEncoder, torch.Tensor, float]:
        raw = RawRows(cells_of_records([record], encoder.input_columns), None)
        encoder, rows = encoder.encode(raw, ".", "the lines", self.tally.num_rows + 1)
        return encoder, rows.X[0], 1.0 if rows.steps is None else float(rows.steps[0])

    def _end_warm_up(self) -> None:
        """Fit to the first rows once enough of them are settled or dropped."""
        rows = list(self._warm.items())
        given_up = max(len(rows) - self.window, self._num_dropped())
        settled = (row.is_settled for _, row in rows[given_up:])
        num_ready = next((place for place, known in enumerate(settled, given_up) if not known), len(rows))
        if num_ready < self._next_fit:
            return
        try:
            self._fit_most(rows, num_ready)
        except ValueError as error:  # a constant target, a column of notes: more rows may help
            warmup = self.config.warmup
            self._next_fit = num_ready + warmup
            if num_ready >= 2 * warmup:
                self._warm = dict(rows[warmup:])
                self._next_fit = num_ready
            self.problem = " ".join(str(error).split())
        else:
            self.problem = None
            self.has_just_started = True

    def _num_dropped(self) -> int:
        """Warm-up rows up to the last one after which enough rows have targets."""
        settled, num_reported = [row.is_settled for row in self._warm.values()], 0
        for place in range(len(settled) - 1, -1, -1):
            num_reported += settled[place]
            if num_reported >= PATIENCE:
                return place
        return 0

    def _fit_most(self, rows: list[tuple[str, _WarmRow]], num_warm: int) -> None:
        """Fit on the first rows; malformed ones are left out and counted."""
        left, most = list(rows), max(1, int(_ODD * num_warm))
        while True:
            try:
                return self._fit(left, num_warm)
            except TableError as error:
                place = error.row - 1 if error.row is not None and error.is_odd else None
                if place is None or len(rows) - len(left) >= most:
                    raise
                self.problem = " ".join(str(error).split())
                self.tally.num_malformed += 1
                num_warm -= place < num_warm
                del left[place]

    def _fit(self, rows: list[tuple[str, _WarmRow]], num_warm: int) -> None:
        """Detect column types and fit the model on the first rows; the others are pending."""
        records = [{**row.record, self.target: row.target} for _, row in rows]
        options = replace(self.options, on_bad_time="refuse")  # the answer says so
        table = open_rows(records, self.target, options, num_warm_up=num_warm)
        warm = table.take(num_warm)
        if warm.num_rows < num_warm:  # the next row has a malformed cell
            try:
                table.take(1)
            except TableError as error:
                raise TableError(str(error), warm.num_rows + 1, is_odd=True) from None
        model = OnlineModel(self.config, table.feature_names).fit(warm.X, warm.y)
        self._late, self.encoder, self._warm = LateTargets(model, self.window, PATIENCE), table.encoder, {}
        for key, row in rows[num_warm:]:
            encoder, X, steps = self._encoded(self.encoder, row.record)
            self._late.predict(key, X, steps=steps)
            self.encoder = encoder
            if row.target is not None:
                self._learn(key, row.target)
            elif row.is_settled:
                self._give_up(key)

    def _so_far(self) -> dict[str, Any]:
        """Mean and standard deviation of the warm-up targets."""
        targets = [row.target for row in self._warm.values() if isinstance(row.target, int | float)]
        targets = [value for value in targets if abs(value) < _FARTHEST]
        if self._has_classes or len(targets) < 2:
            return {}
        return {"mean": float(np.mean(targets)), "std": float(np.std(targets, ddof=1))}

    def _answer(self, predicted: StreamDistribution) -> dict[str, Any]:
        """A prediction as plain numbers."""
        if isinstance(predicted, LatentMixture) and self._has_classes:
            probabilities = predicted.class_probabilities[0].tolist()
            assert self.encoder is not None
            names: Sequence[str] = self.encoder.target.classes or [str(place) for place in range(len(probabilities))]
            best = max(range(len(names)), key=probabilities.__getitem__)
            return {"label": names[best], "probabilities": dict(zip(names, probabilities, strict=True))}
        mean, variance = predicted.moments()
        if self.model is not None and 0.9 in self.model.config.coverages:
            lower, upper = self.model.interval_of(predicted)
        else:
            lower, upper = predicted.quantile(mean.new_tensor([[0.05], [0.95]]))
        return {"mean": float(mean[0]), "std": math.sqrt(float(variance[0])), "q05": float(lower), "q95": float(upper)}
