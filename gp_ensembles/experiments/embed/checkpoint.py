"""A run on disk: the model's state and what was found so far, as plain tensors and containers."""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from gp_ensembles.experiments.embed.options import build_model
from gp_ensembles.experiments.embed.preparation import Prepared
from gp_ensembles.experiments.embed.run import EmbedRun, Progress
from gp_ensembles.experiments.reproduce.records import fingerprint
from gp_ensembles.gplvm import Embeddings

FORMAT = "gp_ensembles embed"
FORMAT_VERSION = 1


def save_run(run: EmbedRun, path: Path) -> None:
    """Write a run in one step; a reader finds the old file or the new one, never half of one.

    The file loads with ``torch.load(path, weights_only=True)``; its ``model`` is the ``state_dict`` of the model that
    ``options`` describe, its ``offset`` what was taken from the columns and ``scale`` what they were divided by.

    Raises:
        OSError: If it cannot be written.
    """
    prepared = run.prepared
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "options": prepared.options.plain(),
        "names": list(prepared.rows.names),
        "fingerprint": fingerprint(prepared.rows.Y),
        "offset": prepared.offset,
        "scale": prepared.scale,
        "model": dict(run.model.state_dict()),
        "found": dict(run.found._asdict()),
        "progress": list(run.progress),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except RuntimeError as error:  # torch's own name for a full disk
        raise OSError(f"the checkpoint {path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_run(path: Path, prepared: Prepared) -> EmbedRun:
    """Read a run that goes on where it was saved.

    Args:
        path: The file.
        prepared: The rows and options with which to go on.

    Raises:
        OSError: If the file is not there or cannot be read.
        ValueError: If it is not a checkpoint of ``embed``, is damaged, or was made from other rows or with other
            options.
    """
    content = _read(path)
    try:
        _check_same(content, prepared, path)
        model = build_model(prepared.options, prepared.Y.shape[1], len(prepared.Y))
        model.load_state_dict(content["model"])
        found = Embeddings(**content["found"])
        return EmbedRun(prepared, model, found, Progress(*content["progress"]))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this version of the library ({reason}); start anew without --resume"
        ) from error


def _check_same(content: dict[str, Any], prepared: Prepared, path: Path) -> None:
    before, now = content["options"], prepared.options.plain()
    for name, value in now.items():
        if before[name] != value:
            raise ValueError(
                f"{path} was made with {name} = {before[name]}, not {value}; give the same options, or start anew "
                f"without --resume"
            )
    same = content["names"] == list(prepared.rows.names) and content["fingerprint"] == fingerprint(prepared.rows.Y)
    if not same:
        raise ValueError(
            f"{path} was made from other rows than {prepared.rows.name} holds; give the same file and columns, or "
            f"start anew without --resume"
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path} to go on from; leave --resume out to start")
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:  # torch reads past wrong checksums
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises a dozen kinds for damaged files
            raise ValueError(f"{path} is not a readable checkpoint: it is damaged or cut short") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of embed; choose the --out of a run of embed")
    if content.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has checkpoint format {content.get('format_version')}, this version of the library reads "
            f"{FORMAT_VERSION}; go on with the version that wrote it"
        )
    return content
