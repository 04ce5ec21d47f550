"""A stream on disk: everything a session needs to go on, as plain tensors and containers."""

import os
from pathlib import Path
from typing import Any

from gp_ensembles.cli.config import from_plain, to_plain
from gp_ensembles.cli.predictions import pack_scores, unpack_scores
from gp_ensembles.cli.preparation import build_baselines, build_ensemble
from gp_ensembles.cli.session import Clock, Progress, Session
from gp_ensembles.cli.torch_files import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.data import Table

FORMAT = "gp_ensembles stream"
FORMAT_VERSION = 1
_KIND = Kind(FORMAT, FORMAT_VERSION, "a stream", "give the checkpoint.pt that stream or resume wrote")


def save_checkpoint(session: Session, path: str | os.PathLike[str]) -> None:
    """Write a session to a file in one step: a reader finds the old file or the new one, never half of one.

    The file loads with ``torch.load(path, weights_only=True)``.

    Args:
        session: The session; it may be in the middle of a stream.
        path: Where; its folder must exist.

    Raises:
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.cli.config import StreamConfig
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> table = Table(X, X.squeeze(-1).sin(), ("time",), "height", "wave")
        >>> session = Session.start(StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20), table)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(session, Path(folder) / "checkpoint.pt")
        ...     load_checkpoint(Path(folder) / "checkpoint.pt").num_read
        20
    """
    progress, warm = session.progress, session.warm
    content = {
        "config": to_plain(session.config),
        "table": {
            "X": warm.X.clone(),
            "y": warm.y.clone(),
            "feature_names": list(warm.feature_names),
            "target_name": warm.target_name,
            "name": warm.name,
        },
        "ensemble": dict(session.online.state_dict()),
        "expert_names": list(session.online.names),
        "baselines": dict(session.baselines.state_dict()),
        "scores": pack_scores(progress.scores),
        "current_scores": pack_scores(session.scores),
        "num_rows": progress.num_rows,
        "pending_X": progress.pending_X.clone(),
        "pending_y": progress.pending_y.clone(),
        "last_row": progress.last_row,
        "block_size": session.online.block_size,
        "clock": list(session.clock),
    }
    write_checkpoint(Path(path), _KIND, content)


def load_checkpoint(path: str | os.PathLike[str], *, device: str | None = None) -> Session:
    """Read a session that goes on where it was saved.

    Args:
        path: The file.
        device: Where to go on; where the stream was by default.

    Returns:
        The session.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a checkpoint of a stream, is damaged, or is of another version.

    Example:
        >>> load_checkpoint("nowhere.pt")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    content = read_checkpoint(Path(path), _KIND)
    try:
        return _rebuild(content, device)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this version of the library ({reason}); start the stream anew"
        ) from error


def _rebuild(content: dict[str, Any], device: str | None) -> Session:
    config = from_plain(content["config"] if device is None else {**content["config"], "device": device})
    config.check_device()
    table = content["table"]
    warm = Table(table["X"], table["y"], tuple(table["feature_names"]), table["target_name"], table["name"])
    online = build_ensemble(config, warm, structure_only=True)
    online.load_state_dict(content["ensemble"])
    online.block_size = content["block_size"]
    baselines = build_baselines(config, warm, structure_only=True)
    baselines.load_state_dict(content["baselines"])
    progress = Progress(
        content["num_rows"],
        unpack_scores(content["scores"]),
        content["pending_X"],
        content["pending_y"],
        content["last_row"],
    )
    session = Session(config, warm, online, baselines, progress, Clock(*content["clock"]))
    session.scores = unpack_scores(content["current_scores"])
    return session
