"""Checkpoints of streams, as plain tensors and containers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gp_ensembles.calibration.coverage import CoverageState
from gp_ensembles.cli.bad_rows import BadRows
from gp_ensembles.cli.predictions import Coverages, Scores
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.scored_stream import ScoredStream, StreamProgress, Timings, build_baselines
from gp_ensembles.cli.tables import TableName
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.metrics.discrete import ClassScores
from gp_ensembles.metrics.streaming import StreamScores
from gp_ensembles.streaming import OnlineModel
from gp_ensembles.streaming.reports import AnomalyCounts
from gp_ensembles.tables.encoder import TableEncoder
from gp_ensembles.tables.rows import Rows

_KIND = Kind(
    "gp_ensembles stream",
    10,
    "a stream",
    "give the checkpoint.pt that stream or resume wrote",
    ("model/config", "model/warm_X", "model/warm_y"),
)


def save_checkpoint(stream: ScoredStream, path: str | os.PathLike[str]) -> None:
    """Write a stream to a file atomically: a reader finds the old file or the new one."""
    progress = stream.progress
    content = {
        "model": stream.model.content(),
        "table": {"name": stream.table.name, "encoder": stream.table.encoder.to_plain()},
        "baselines": dict(stream.baselines.state_dict()),
        "scores": _packed(progress.scores),
        "current_scores": _packed(stream.scores),
        "coverages": _packed(progress.coverages),
        "current_coverages": _packed(stream.coverages),
        "num_rows": progress.num_rows,
        "pending": [part.clone() if isinstance(part, Tensor) else part for part in progress.pending],
        "last_row": progress.last_row,
        "clock": list(stream.clock),
        "bad_rows": list(stream.bad_rows),
        "anomaly_counts": list(stream.anomaly_counts),
        "history": None if stream.history is None else stream.history.to_plain(),
    }
    write_checkpoint(Path(path), _KIND, content)


def load_checkpoint(path: str | os.PathLike[str], *, device: str | None = None) -> ScoredStream:
    """Read a stream, to continue where it was saved.

    Raises:
        ValueError: If it is not a checkpoint of a stream, is damaged, or is of another version.
    """
    content = read_checkpoint(Path(path), _KIND)
    try:
        return _rebuild(content, device)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this version of the library ({reason}); start the stream again"
        ) from error


def _rebuild(content: dict[str, Any], device: str | None) -> ScoredStream:
    model = OnlineModel.from_content(content["model"], device=device)
    baselines = build_baselines(model, is_fitted=False)
    baselines.load_state_dict(content["baselines"])
    scores, coverages = _scores(content["scores"]), _coverages(content["coverages"])
    progress = StreamProgress(content["num_rows"], scores, coverages, Rows(*content["pending"]), content["last_row"])
    clock = Timings(*content["clock"])
    table = TableName(content["table"]["name"], TableEncoder.from_plain(content["table"]["encoder"]))
    stream = ScoredStream(table, model, baselines, progress, clock)
    stream.bad_rows, stream.anomaly_counts = BadRows(*content["bad_rows"]), AnomalyCounts(*content["anomaly_counts"])
    stream.scores = _scores(content["current_scores"])
    stream.coverages = _coverages(content["current_coverages"])
    stream.history = None if content["history"] is None else RunHistory.from_plain(content["history"])
    return stream


def _packed(states: Mapping[Any, NamedTuple]) -> dict[Any, dict[str, Tensor]]:
    return {key: dict(state._asdict()) for key, state in states.items()}


def _scores(packed: dict[str, dict[str, Tensor]]) -> Scores:
    return {name: (ClassScores if "errors" in state else StreamScores)(**state) for name, state in packed.items()}


def _coverages(packed: dict[float, dict[str, Tensor]]) -> Coverages:
    return {coverage: CoverageState(**state) for coverage, state in packed.items()}
