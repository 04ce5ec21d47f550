"""A model on a stream: fitted to the warm-up rows, then fed rows in their order, resumable bit for bit."""

import copy
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.baselines import Baselines, DiscreteBaselines
from gp_ensembles.cli.config import StreamConfig
from gp_ensembles.cli.predictions import (
    Chunk,
    Scores,
    Units,
    empty_scores,
    score_block,
    score_discrete_block,
)
from gp_ensembles.cli.preparation import (
    build_baselines,
    build_ensemble,
    check_targets,
    complaint,
    first_illegal,
    fit_standardizer,
    prepare,
    warm_up_rows,
)
from gp_ensembles.data import Table
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.numerics.cholesky import NumericalError

_FARTHEST = 1e6  # warm-up deviations beyond which a number is taken for a mistake
_CHUNK_ROWS = 256  # about as many rows are predicted, scored and handed out at once


class _Complaint(NamedTuple):
    """A row of a chunk that cannot be learned, and why."""

    row: int
    text: str


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
        pending_X: Rows read since, shape (K, D), in the user's units.
        pending_y: Their targets, shape (K,).
        last_row: The last row read, inputs and target, shape (D + 1,); a file can be checked against it.
    """

    num_rows: int
    scores: Scores
    pending_X: Tensor
    pending_y: Tensor
    last_row: Tensor


class Session:
    """An ensemble and its baselines on one stream.

    Args:
        config: The run.
        warm: The warm-up rows, in the user's units.
        online: The ensemble at ``progress.num_rows``.
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
        >>> session = Session.start(StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20), table)
        >>> chunks = list(session.observe(table.X[20:], table.y[20:]))
        >>> chunks[0].first_row, chunks[0].mean.shape, session.num_read
        (21, torch.Size([40]), 60)
    """

    def __init__(
        self,
        config: StreamConfig,
        warm: Table,
        online: OnlineEnsemble,
        baselines: Baselines | DiscreteBaselines,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.config = config
        self.warm = warm
        self.online = online
        self.baselines = baselines
        self.progress = progress
        self.clock = clock
        self.scores = progress.scores
        self.is_whole = True  # False between the moments a chunk changes the ensemble and everything else
        self.standardizer = fit_standardizer(config, warm)
        self.units = Units(float(self.standardizer.y_mean), float(self.standardizer.y_scale))
        block = online.block_size
        self.chunk_rows = block * max(1, _CHUNK_ROWS // block)

    @classmethod
    def start(cls, config: StreamConfig, table: Table, *, progress: bool = False) -> "Session":
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
        warm = warm_up_rows(table, config.warmup)
        check_targets(table, config.ensemble.target)
        config.check_device()
        began = time.perf_counter()
        online = build_ensemble(config, warm, structure_only=False, progress=progress)
        clock = Clock(time.perf_counter() - began, 0.0)
        baselines = build_baselines(config, warm, structure_only=False)
        start = Progress(
            num_rows=config.warmup,
            scores=empty_scores(warm.y, baselines.names, is_class=config.ensemble.target.num_labels is not None),
            pending_X=warm.X[:0],
            pending_y=warm.y[:0],
            last_row=torch.cat([warm.X[-1], warm.y[-1:]]),
        )
        return cls(config, warm, online, baselines, start, clock)

    @property
    def num_read(self) -> int:
        """Rows read, warm-up included."""
        return self.progress.num_rows + self.progress.pending_y.shape[0]

    def observe(self, X: Tensor, y: Tensor, *, repeat_pending: bool = False) -> Iterator[Chunk]:
        """Predict each row, then learn it.

        Chunks come as they are learned; a caller that stops early has learned what it was given.

        Args:
            X: Inputs in the order of time, in the user's units, shape (N, D), float64.
            y: Targets, shape (N,), float64; NaN where missing.
            repeat_pending: Begin with the rows since the last boundary, which have been predicted before: now
                they come with the bits of a stream that was never cut.

        Yields:
            Predictions of consecutive rows.

        Raises:
            ValueError: If a row is not legal, or holds a number out of all proportion (the row, counted from the
                first of the warm-up, and the column are named); the rows before it have been learned and handed out.
            NumericalError: If an expert fails; likewise.
        """
        known = self.progress.pending_y.shape[0]
        skipped = 0 if repeat_pending else known
        X, y = torch.cat([self.progress.pending_X, X]), torch.cat([self.progress.pending_y, y])
        for rows, targets in zip(X.split(self.chunk_rows), y.split(self.chunk_rows), strict=True):
            if targets.shape[0] <= known:
                continue  # nothing new
            complaint = self._complaint(rows, targets)
            if complaint is not None:
                rows, targets = rows[: complaint.row], targets[: complaint.row]
            if targets.shape[0] <= known:
                assert complaint is not None
                raise ValueError(complaint.text)
            last_row = torch.cat([rows[-1], targets[-1:]])
            if targets.shape[0] == self.chunk_rows:
                self.is_whole = False
                chunk, scores = self._learn(self.online, self.baselines, rows, targets)
                num_rows = self.progress.num_rows + self.chunk_rows
                self.progress = Progress(num_rows, scores, rows[:0], targets[:0], last_row)
                self.is_whole = True
            else:
                # The chunk is not full: learn it on copies, and again when the rest of it has come.
                copies = copy.deepcopy(self.online), copy.deepcopy(self.baselines)
                chunk, scores = self._learn(*copies, rows, targets)
                self.progress = self.progress._replace(pending_X=rows, pending_y=targets, last_row=last_row)
            self.scores = scores
            yield chunk.tail(skipped)
            if complaint is not None:  # what came before the row is learned and handed out
                raise ValueError(complaint.text)
            known = skipped = 0

    def _complaint(self, X: Tensor, y: Tensor) -> "_Complaint | None":
        """The first row of a chunk that cannot be learned: an illegal target, a number out of all proportion."""
        kind = self.config.ensemble.target
        error = first_illegal(kind, y)
        wild = self._wild_number(X, y)
        if error is not None and (wild is None or error.row <= wild.row):
            return _Complaint(error.row, complaint(error, kind, self.progress.num_rows + error.row + 1))
        return wild

    def _wild_number(self, X: Tensor, y: Tensor) -> "_Complaint | None":
        inputs, targets = prepare(self.config, self.standardizer, X, y)
        wild = ~(torch.cat([inputs, targets.nan_to_num(0.0).unsqueeze(-1)], dim=-1).abs() < _FARTHEST)
        wild |= ~torch.isfinite(torch.cat([X, y.nan_to_num(0.0).unsqueeze(-1)], dim=-1).to(self.config.torch_dtype))
        if not bool(wild.any()):
            return None
        row, column = divmod(int(wild.flatten().int().argmax()), wild.shape[1])
        number = self.progress.num_rows + row + 1
        if column == X.shape[1]:
            return _Complaint(
                row,
                f"the target of row {number} is {float(y[row]):.6g}, more than {_FARTHEST:g} warm-up deviations from "
                f"the warm-up mean; correct it, or leave it empty (missing)",
            )
        name = self.warm.feature_names[column]
        return _Complaint(
            row,
            f"{name!r} is {float(X[row, column]):.6g} in row {number}, more than {_FARTHEST:g} warm-up deviations from "
            f"the warm-up mean; correct it, or leave the row out",
        )

    def _learn(
        self, online: OnlineEnsemble, baselines: Baselines | DiscreteBaselines, X: Tensor, y: Tensor
    ) -> tuple[Chunk, Scores]:
        first = self.progress.num_rows + 1
        inputs, targets = prepare(self.config, self.standardizer, X, y)
        device, dtype = self.config.torch_device, self.config.torch_dtype
        began = time.perf_counter()
        try:
            predictions = online.observe(inputs.to(device, dtype), targets.to(device, dtype))
        except (ValueError, NumericalError) as error:
            self.is_whole = True  # a rejected block leaves the ensemble as it was
            kind = NumericalError if isinstance(error, NumericalError) else ValueError
            raise kind(f"rows {first} to {first + y.shape[0] - 1} of the stream: {error}") from error
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.clock = self.clock._replace(stream=self.clock.stream + time.perf_counter() - began)
        before = self.progress.scores
        if isinstance(baselines, Baselines):
            normal = baselines.observe(inputs, targets)
            scores, chunk = score_block(before, first, y, predictions, normal, self.units)
        else:
            discrete = baselines.observe(inputs, targets)
            scores, chunk = score_discrete_block(before, first, y, predictions, discrete, online.block_size)
        return chunk, scores
