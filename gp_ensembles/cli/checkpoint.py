"""A stream on disk: everything that it needs to go on, as plain tensors and containers."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from gp_ensembles.cli.bad_rows import BadRows
from gp_ensembles.cli.history.record import RunHistory
from gp_ensembles.cli.predictions import pack_coverages, pack_scores, unpack_coverages, unpack_scores
from gp_ensembles.cli.scored_stream import Clock, Progress, ScoredStream, build_baselines
from gp_ensembles.cli.tables import TableName
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.streaming import OnlineModel
from gp_ensembles.streaming.reports import AnomalyCounts
from gp_ensembles.tables import Rows

_KIND = Kind(
    "gp_ensembles stream",
    9,
    "a stream",
    "give the checkpoint.pt that stream or resume wrote",
    ("model/config", "model/warm_X", "model/warm_y"),
)


def save_checkpoint(stream: ScoredStream, path: str | os.PathLike[str]) -> None:
    """Write a stream to a file in one step: a reader finds the old file or the new one, never half of one.

    Raises:
        OSError: If the file cannot be written.
    """
    progress = stream.progress
    content = {
        "model": stream.model.content(),
        "table": stream.table.to_plain(),
        "baselines": dict(stream.baselines.state_dict()),
        "scores": pack_scores(progress.scores),
        "current_scores": pack_scores(stream.scores),
        "coverages": pack_coverages(progress.coverages),
        "current_coverages": pack_coverages(stream.coverages),
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
    """Read a stream that goes on where it was saved.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a checkpoint of a stream, is damaged, or is of another version.
    """
    content = read_checkpoint(Path(path), _KIND)
    try:
        return _rebuild(content, device)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this version of the library ({reason}); start the stream anew"
        ) from error


def _rebuild(content: dict[str, Any], device: str | None) -> ScoredStream:
    model = OnlineModel.from_content(content["model"], device=device)
    baselines = build_baselines(model, is_fitted=False)
    baselines.load_state_dict(content["baselines"])
    scores, coverages = unpack_scores(content["scores"]), unpack_coverages(content["coverages"])
    progress = Progress(content["num_rows"], scores, coverages, Rows(*content["pending"]), content["last_row"])
    clock = Clock(*content["clock"])
    stream = ScoredStream(TableName.from_plain(content["table"]), model, baselines, progress, clock)
    stream.bad_rows, stream.anomaly_counts = BadRows(*content["bad_rows"]), AnomalyCounts(*content["anomaly_counts"])
    stream.scores = unpack_scores(content["current_scores"])
    stream.coverages = unpack_coverages(content["current_coverages"])
    stream.history = None if content["history"] is None else RunHistory.from_plain(content["history"])
    return stream
