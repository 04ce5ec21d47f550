"""A model on a stream with its baselines and scores: what a command feeds, saves and resumes bit for bit."""

import copy
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration.coverage import init_coverage
from gp_ensembles.cli.bad_rows import BadRows
from gp_ensembles.cli.baselines import Baselines, DiscreteBaselines
from gp_ensembles.cli.predictions import (
    Chunk,
    Coverages,
    Scores,
    count_intervals,
    empty_scores,
    interval_columns,
    score_block,
    score_discrete_block,
)
from gp_ensembles.cli.tables import check_table
from gp_ensembles.data import Table
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.streaming import OnlineModel, StreamConfig

_CHUNK_ROWS = 256  # about as many rows are predicted, scored and handed out at once


class Clock(NamedTuple):
    """Seconds spent so far.

    Attributes:
        fit: Building, fitting and conditioning on the warm-up rows.
        stream: Predicting and learning after them; scores, baselines and files are not counted.
    """

    fit: float
    stream: float


class Progress(NamedTuple):
    """Where a stream stands: the last boundary that every run of it passes, and the rows read since.

    Rows are learned in chunks that are counted from the first row after the warm-up, so that a stream that was
    cut anywhere meets the same blocks as one that was not, and predicts with the same bits. The length of a chunk does
    not matter to them, as long as it is a number of whole blocks; sums of scores know it in their last digits.

    Attributes:
        num_rows: Rows learned for good, warm-up included.
        scores: Scores up to there.
        coverages: What adaptive intervals have kept up to there.
        pending_X: Rows read since, shape (K, D), in the user's units.
        pending_y: Their targets, shape (K,).
        last_row: The last row read, inputs and target, shape (D + 1,); a file can be checked against it.
    """

    num_rows: int
    scores: Scores
    coverages: Coverages
    pending_X: Tensor
    pending_y: Tensor
    last_row: Tensor


class ScoredStream:
    """A model and its baselines on one table.

    Args:
        data: Name of the table.
        target_name: Name of its target.
        model: The model at ``progress.num_rows``.
        baselines: The baselines there.
        progress: Where the stream stands.
        clock: Seconds spent so far.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> table = Table(X, X.squeeze(-1).sin(), ("time",), "height", "wave")
        >>> stream = ScoredStream.start(StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20), table)
        >>> chunks = list(stream.chunks(table.X[20:], table.y[20:]))
        >>> chunks[0].first_row, chunks[0].mean.shape, stream.num_read
        (21, torch.Size([40]), 60)
    """

    def __init__(
        self,
        data: str,
        target_name: str,
        model: OnlineModel,
        baselines: Baselines | DiscreteBaselines,
        progress: Progress,
        clock: Clock,
    ) -> None:
        assert model.online is not None
        self.data = data
        self.target_name = target_name
        self.model = model
        self.baselines = baselines
        self.progress = progress
        self.clock = clock
        self.scores, self.coverages = progress.scores, progress.coverages
        self.notable, self.newest = model.notable, model  # the rows since the last boundary included
        self.bad_rows = BadRows()
        self.is_whole = True  # False between the moments a chunk changes the model and everything else
        self.target_scale = float(model.scales.y_scale)
        block = model.online.block_size
        self.chunk_rows = block * max(1, _CHUNK_ROWS // block)

    @classmethod
    def start(cls, config: StreamConfig, table: Table, *, progress: bool = False) -> "ScoredStream":
        """Fit a model to the first ``config.warmup`` rows of a table.

        Args:
            config: The run.
            table: The stream; of what comes after the warm-up only the legality of the targets is looked at.
            progress: Show a progress bar while hyperparameters are fitted.

        Raises:
            ValueError: If rows are too few, a column or the target is constant in the warm-up, too few targets
                are observed there, or a target anywhere is not of the kind that the model predicts.
            NumericalError: If the model cannot be computed on these rows.
        """
        check_table(table, config)
        X, y = table.X[: config.warmup], table.y[: config.warmup]
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "all labels of the warm-up are")  # the summary says it
            model = OnlineModel(config, table.feature_names).fit(X, y, progress=progress)
        clock = Clock(time.perf_counter() - began, 0.0)
        baselines = build_baselines(model, is_fitted=True)
        is_class = config.ensemble.target.num_labels is not None
        scores = empty_scores(y, baselines.names, is_class=is_class)
        coverages = {coverage: init_coverage(y) for coverage in config.coverages} if model.has_intervals else {}
        where = Progress(config.warmup, scores, coverages, X[:0], y[:0], torch.cat([X[-1], y[-1:]]))
        return cls(table.name, table.target_name, model, baselines, where, clock)

    @property
    def num_read(self) -> int:
        """Rows read, warm-up included."""
        return self.progress.num_rows + self.progress.pending_y.shape[0]

    @property
    def further_columns(self) -> tuple[str, ...]:
        """Names of the columns of intervals of other coverages than 90 %."""
        others = [coverage for coverage in self.coverages if coverage != 0.9]
        return tuple(name for coverage in others for name in interval_columns(coverage))

    def chunks(self, X: Tensor, y: Tensor, *, repeat_pending: bool = False) -> Iterator[Chunk]:
        """Predict each row, then learn it, a chunk at a time; a caller that stops early has learned what it was given.

        Args:
            X: Inputs in the order of time, in the user's units, shape (N, D), float64.
            y: Targets, shape (N,), float64; NaN where missing.
            repeat_pending: Begin with the rows since the last boundary, which have been predicted before: now
                they come with the bits of a stream that was never cut.

        Yields:
            Predictions of consecutive rows.

        Raises:
            ValueError: If a row is not legal, or holds a number out of all proportion, and ``bad_rows`` says to stop
                (the row, counted from the first of the warm-up, and the column are named); the rows before it have been
                learned and handed out.
            NumericalError: If an expert fails; likewise.
        """
        known = self.progress.pending_y.shape[0]
        skipped = 0 if repeat_pending else known
        X, y = torch.cat([self.progress.pending_X, X]), torch.cat([self.progress.pending_y, y])
        for rows, targets in zip(X.split(self.chunk_rows), y.split(self.chunk_rows), strict=True):
            if targets.shape[0] <= known:
                continue  # nothing new
            last_row = torch.cat([rows[-1], targets[-1:]])
            bad_rows, rows, targets = self.bad_rows.mend(self.model, rows, targets, self.progress.num_rows + 1)
            wrong = self.model.first_illegal(rows, targets)
            if wrong is not None:
                message = wrong.message(self.progress.num_rows + 1, self.model.feature_names or ())
                rows, targets = rows[: wrong.row], targets[: wrong.row]
                if targets.shape[0] <= known:
                    raise ValueError(message)
                last_row = torch.cat([rows[-1], targets[-1:]])
            if targets.shape[0] == self.chunk_rows:
                self.is_whole = False
                learned = self.model
                chunk, scores, coverages = self._learn(learned, self.baselines, rows, targets)
                num_rows = self.progress.num_rows + self.chunk_rows
                self.progress = Progress(num_rows, scores, coverages, rows[:0], targets[:0], last_row)
                self.is_whole = True
            else:
                # The chunk is not full: learn it on copies, and again when the rest of it has come.
                learned = copy.deepcopy(self.model)
                chunk, scores, coverages = self._learn(learned, copy.deepcopy(self.baselines), rows, targets)
                self.progress = self.progress._replace(pending_X=rows, pending_y=targets, last_row=last_row)
            self.scores, self.coverages, self.bad_rows = scores, coverages, bad_rows
            self.notable, self.newest = learned.notable, learned
            yield chunk.tail(skipped)
            if wrong is not None:  # what came before the row is learned and handed out
                raise ValueError(message)
            known = skipped = 0

    def _learn(
        self, model: OnlineModel, baselines: Baselines | DiscreteBaselines, X: Tensor, y: Tensor
    ) -> tuple[Chunk, Scores, Coverages]:
        first = self.progress.num_rows + 1
        inputs, targets = model.inputs(X.to(model.device)).cpu(), model.targets(y.to(model.device)).cpu()
        assert model.online is not None
        num_seen = int(model.online.state.meta.num_seen)
        began = time.perf_counter()
        try:
            predictions = model.observe(X, y)
        except (ValueError, NumericalError) as error:
            self.is_whole = True  # a rejected block leaves the model as it was
            kind = NumericalError if isinstance(error, NumericalError) else ValueError
            raise kind(f"rows {first} to {first + y.shape[0] - 1} of the stream: {error}") from error
        except BaseException:  # an interruption: the model is as it was, unless it had just learned the rows
            self.is_whole = self.is_whole or int(model.online.state.meta.num_seen) == num_seen
            raise
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        self.clock = self.clock._replace(stream=self.clock.stream + time.perf_counter() - began)
        before = self.progress.scores
        if isinstance(baselines, Baselines):
            normal = baselines.observe(inputs, targets)
            scores, chunk = score_block(before, first, y, predictions, normal, model.scales)
        else:
            discrete = baselines.observe(inputs, targets)
            block_size = model.online.block_size
            scores, chunk = score_discrete_block(before, first, y, predictions, discrete, block_size)
        return chunk, scores, count_intervals(self.progress.coverages, chunk, predictions)


def build_baselines(model: OnlineModel, *, is_fitted: bool) -> Baselines | DiscreteBaselines:
    """The baselines for the warm-up rows of a fitted model, with their own fit or to load a state into."""
    assert model.warm_X is not None
    assert model.warm_y is not None
    X, y = model.inputs(model.warm_X).cpu(), model.targets(model.warm_y).cpu()
    target = model.config.ensemble.target
    if target.is_real:
        return Baselines(X, y, structure_only=not is_fitted)
    return DiscreteBaselines(X, y, target, structure_only=not is_fitted)
