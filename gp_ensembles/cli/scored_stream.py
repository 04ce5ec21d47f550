"""A model on a stream with its baselines and scores, saved and resumed bit for bit."""

import copy
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.calibration.levels import CoverageState, init_coverage
from gp_ensembles.cli.baselines import Baselines, DiscreteBaselines
from gp_ensembles.cli.predictions import MODEL, Chunk, Coverages, Scores, count_intervals, interval_columns, score_block
from gp_ensembles.cli.report.history import Bins, RunHistory
from gp_ensembles.cli.tables import TABLES, check_table, check_warm_up_rows
from gp_ensembles.files.checkpoint import Kind, rebuilt, write_checkpoint
from gp_ensembles.files.structure import Form, Table, from_plain, to_plain
from gp_ensembles.metrics.discrete import ClassScores, init_class_scores
from gp_ensembles.metrics.streaming import StreamScores, init_scores
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.checks import clean_arrivals, illegal_target
from gp_ensembles.tables import RowStream
from gp_ensembles.tables.encoder import TableEncoder
from gp_ensembles.tables.rows import Rows

_FIRST_ROWS, _FEWEST_ROWS = 1000, 100  # whose speed is compared; few rows are mostly overhead
CHUNK_ROWS = 256  # rows predicted, scored and returned at once, about
_KIND = Kind("gp_ensembles stream", 14, "a stream", "give the checkpoint.pt that stream or resume wrote")


class Timings(NamedTuple):
    """Seconds spent so far."""

    fit: float  # building, fitting and conditioning on the warm-up rows
    stream: float  # predicting and learning after them; scores, baselines and files are not counted
    first: float = 0.0  # the same of the first thousand rows or slightly more
    first_rows: int = 0  # how many these are
    last: float = 0.0  # the same of the last block of rows
    last_rows: int = 0  # how many these are

    def after(self, seconds: float, num_rows: int) -> "Timings":
        """The timings after rows that took this many seconds."""
        is_early = self.first_rows < _FIRST_ROWS
        first, first_rows = self.first + seconds * is_early, self.first_rows + num_rows * is_early
        return Timings(self.fit, self.stream + seconds, first, first_rows, seconds, num_rows)

    @property
    def slowdown(self) -> float | None:
        """Time per row of the last block over that of the first thousand rows; ``None`` where either has too few."""
        if self.first_rows < _FIRST_ROWS or self.last_rows < _FEWEST_ROWS or self.first <= 0:
            return None
        return (self.last / self.last_rows) / (self.first / self.first_rows)


class StreamProgress(NamedTuple):
    """Position of a stream: the last chunk boundary, and the rows read since."""

    num_rows: int  # rows learned, warm-up included
    scores: Scores  # up to there
    coverages: Coverages  # of adaptive intervals, up to there
    pending: Rows  # rows read since, in the user's units
    last_row: Tensor  # inputs and target of the last row read, shape (D + 1,), which a file can be compared with


class ScoredStream:
    """A model and its baselines on one table, at the position of the stream."""

    def __init__(
        self,
        name: str,
        encoder: TableEncoder,
        model: OnlineModel,
        baselines: Baselines | DiscreteBaselines,
        progress: StreamProgress,
        clock: Timings,
    ) -> None:
        assert model.online is not None
        self.name = name
        self.encoder = encoder  # of the columns; its clock is at the last row read
        self.model = model
        self.baselines = baselines
        self.progress = progress
        self.clock = clock
        self.scores, self.coverages = progress.scores, progress.coverages
        self.anomaly_counts, self.newest = model.anomaly_counts, model  # with the rows since the last boundary
        self.history: RunHistory | None = None  # of the current run, for its report
        self.is_whole = True  # False while a chunk has changed the model and nothing else yet
        self.target_scale: float = float(model.scales.y_scale)
        block = model.online.block_size
        self.chunk_rows: int = block * max(1, CHUNK_ROWS // block)

    @classmethod
    def start(
        cls, config: StreamConfig, rows: RowStream, warm: Rows | None = None, *, progress: bool = False
    ) -> "ScoredStream":
        """Fit a model to the first rows of a table, which are taken from it if :func:`take_warm_up` has not yet."""
        warm = take_warm_up(config, rows) if warm is None else warm
        X, y = warm.X, warm.y
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "all labels of the warm-up are")  # the summary says it
            model = OnlineModel(config, rows.feature_names).fit(X, y, progress=progress)
        clock = Timings(time.perf_counter() - began, 0.0)
        baselines = build_baselines(model)
        is_class = config.ensemble.target.num_labels is not None
        scores: Scores = {
            name: init_class_scores(y) if is_class else init_scores(y) for name in (MODEL, *baselines.names)
        }
        coverages = {coverage: init_coverage(y) for coverage in config.coverages} if model.has_intervals else {}
        none = warm.part(slice(warm.num_rows, None))._replace(lines=None)
        where = StreamProgress(config.warmup, scores, coverages, none, torch.cat([X[-1], y[-1:]]))
        return cls(rows.name, rows.encoder, model, baselines, where, clock)

    @property
    def target_name(self) -> str:
        """Name of the target."""
        return self.encoder.target.name

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, their numbers where they have none; ``None`` for numbers."""
        num = self.model.config.ensemble.target.num_labels
        known = self.encoder.target.classes
        return known or (None if num is None else tuple(str(number) for number in range(num)))

    @property
    def num_read(self) -> int:
        """Rows read, warm-up included."""
        return self.progress.num_rows + self.progress.pending.num_rows

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns of intervals of other coverages than 90 %."""
        others = [coverage for coverage in self.coverages if coverage != 0.9]
        return tuple(name for coverage in others for name in interval_columns(coverage))

    def chunks(self, rows: RowStream | None, *, repeat_pending: bool = False) -> Iterator[Chunk]:
        """Predict each row, then learn it, a chunk at a time; all chunks that were returned are learned.

        The rows since the last boundary are read again if ``repeat_pending``, and alone where ``rows`` is ``None``.
        """
        is_first, problem = True, None
        while problem is None:
            pending = self.progress.pending
            known = pending.num_rows
            taken = pending.part(slice(0, 0)) if rows is None else rows.take(self.chunk_rows - known % self.chunk_rows)
            if not taken.num_rows and not (is_first and repeat_pending and known):
                return
            new, problem = (taken, None) if rows is None else self._legal(taken, rows)
            if problem is not None and not new.num_rows:
                break
            block = Rows.join([pending, new]) if new.num_rows else pending
            last_row = torch.cat([block.X[-1], block.y[-1:]]) if new.num_rows else self.progress.last_row
            first_row = self.progress.num_rows + 1
            wrong = self.model.cleaned(block.X, block.y).refused
            if wrong is not None:
                problem = wrong.message(first_row, self.model.feature_names)
                if wrong.row <= known:
                    break
                last_row = torch.cat([block.X[wrong.row - 1], block.y[wrong.row - 1 : wrong.row]])
                block = block.part(slice(0, wrong.row))
            encoder = self.encoder.passed(block.part(slice(known, None)))
            skipped = 0 if repeat_pending and is_first else known
            yield self._advance(block, last_row, encoder).tail(skipped)
            is_first = False
        raise ValueError(problem)  # the rows before are learned and returned

    def _legal(self, taken: Rows, rows: RowStream) -> tuple[Rows, str | None]:
        """Rows before the first target of another kind, and what is wrong with it."""
        wrong = illegal_target(self.model.config.ensemble.target, taken.y)
        if wrong is None:
            return taken, None
        where = rows.where(taken, wrong.row, self.target_name)
        return taken.part(slice(0, wrong.row)), f"{where}: the target is {wrong.problem}"

    def _advance(self, block: Rows, last_row: Tensor, encoder: TableEncoder) -> Chunk:
        """Learn the rows since the last boundary, permanently if they reach the next one."""
        is_memory_full = block.num_rows % self.chunk_rows == 0
        none = block.part(slice(block.num_rows, None))._replace(lines=None)
        if is_memory_full:
            self.is_whole = False
            learned = self.model
            chunk, scores, coverages = self._learn(learned, self.baselines, block)
            num_rows = self.progress.num_rows + block.num_rows
            self.progress = StreamProgress(num_rows, scores, coverages, none, last_row)
            self.encoder = encoder
            self.is_whole = True
        else:
            # The chunk is not full: learn it on copies, and again when the rest of it has come.
            learned = copy.deepcopy(self.model)
            chunk, scores, coverages = self._learn(learned, copy.deepcopy(self.baselines), block)
            pending = block._replace(lines=None)
            self.progress, self.encoder = self.progress._replace(pending=pending, last_row=last_row), encoder
        self.scores, self.coverages = scores, coverages
        self.anomaly_counts, self.newest = learned.anomaly_counts, learned
        return chunk

    def _learn(
        self, model: OnlineModel, baselines: Baselines | DiscreteBaselines, rows: Rows
    ) -> tuple[Chunk, Scores, Coverages]:
        clean = model.cleaned(rows.X, rows.y)
        first, y = self.progress.num_rows + 1, clean.y.to(rows.y.device)
        inputs, targets = model.inputs(clean.X).cpu(), model.targets(y).cpu()
        assert model.online is not None
        num_seen = int(model.online.state.meta.num_seen)
        began = time.perf_counter()
        try:
            predictions = model.observe(rows.X, rows.y, rows.steps)
        except (ValueError, NumericalError) as error:
            self.is_whole = True  # a rejected block leaves the model as it was
            kind = NumericalError if isinstance(error, NumericalError) else ValueError
            raise kind(f"rows {first} to {first + y.shape[0] - 1} of the stream: {error}") from error
        except BaseException:  # an interruption: the model is as it was, unless it had just learned the rows
            self.is_whole = self.is_whole or int(model.online.state.meta.num_seen) == num_seen
            raise
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        self.clock = self.clock.after(time.perf_counter() - began, y.shape[0])
        simple, size = baselines.observe(inputs, targets, y, model.scales), model.online.block_size
        scores, chunk = score_block(self.progress.scores, first, y, predictions, simple, self.target_scale, size)
        chunk = chunk._replace(time=rows.time)
        return chunk, scores, count_intervals(self.progress.coverages, chunk, predictions)


def take_warm_up(config: StreamConfig, rows: RowStream) -> Rows:
    """The warm-up rows of a table, which a model can be fitted to; nothing is fitted."""
    check_table(rows, config)
    parts = list[Rows]()
    while left := config.warmup - sum(part.num_rows for part in parts):
        parts.append(rows.take(left))  # a malformed row raises
        if not parts[-1].num_rows:
            raise ValueError(f"{rows.name} ends during the warm-up; choose a smaller --warmup")
    warm = Rows.join(parts)
    clean = clean_arrivals(warm.X, warm.y, config)
    if clean.refused is not None and clean.refused.column is None:
        where = rows.where(warm, clean.refused.row, rows.target_name)
        raise ValueError(f"{where}: the target is {clean.refused.problem}")
    check_warm_up_rows(warm._replace(X=clean.X, y=clean.y), rows, config)
    return warm


def build_baselines(model: OnlineModel) -> Baselines | DiscreteBaselines:
    """The baselines for the warm-up rows of a fitted model, with their own fit."""
    assert model.warm_X is not None
    assert model.warm_y is not None
    X, y = model.inputs(model.warm_X).cpu(), model.targets(model.warm_y).cpu()
    target = model.config.ensemble.target
    return Baselines(X, y) if target.is_real else DiscreteBaselines(X, y, target)


SCORED: Table = TABLES.with_kinds(
    Timings, StreamProgress, Rows, Baselines, DiscreteBaselines, StreamScores, ClassScores, CoverageState, RunHistory,
    Bins,
    special={np.ndarray: Form(lambda array: {"values": torch.from_numpy(array)}, lambda values: values.numpy())},
)  # fmt: skip
_GIVEN = ("name", "encoder", "baselines", "progress", "clock")
_KEPT = (*_GIVEN, "scores", "coverages", "anomaly_counts", "history")


def save_checkpoint(stream: ScoredStream, path: str | os.PathLike[str]) -> None:
    """Write a stream to a file atomically: a reader finds the old file or the new one."""
    own = to_plain({name: getattr(stream, name) for name in _KEPT}, SCORED)
    write_checkpoint(Path(path), _KIND, {"model": stream.model.content(), "stream": own})


def load_checkpoint(path: str | os.PathLike[str], *, device: str | None = None) -> ScoredStream:
    """Read a stream, to continue where it was saved."""
    return rebuilt(Path(path), _KIND, partial(_rebuild, device=device), "start the stream again")


def _rebuild(content: dict[str, Any], device: str | None) -> ScoredStream:
    model = OnlineModel.from_content(content["model"], device=device)
    known = from_plain(content["stream"], SCORED)
    stream = ScoredStream(model=model, **{name: known[name] for name in _GIVEN})
    vars(stream).update(known)
    return stream
