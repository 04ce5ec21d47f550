"""A run on disk: the model's state and what was found so far, as plain tensors and containers."""

from pathlib import Path
from typing import Any

from gp_ensembles.cli.embed.options import build_model
from gp_ensembles.cli.embed.preparation import Prepared
from gp_ensembles.cli.embed.run import EmbedRun, Progress
from gp_ensembles.cli.torch_files import Kind, fingerprint, read_checkpoint, write_checkpoint
from gp_ensembles.gplvm import Embeddings

FORMAT = "gp_ensembles embed"
FORMAT_VERSION = 1
_KIND = Kind(FORMAT, FORMAT_VERSION, "embed", "choose the --out of a run of embed")


def save_run(run: EmbedRun, path: Path) -> None:
    """Write a run in one step; a reader finds the old file or the new one, never half of one.

    The file loads with ``torch.load(path, weights_only=True)``; its ``model`` is the ``state_dict`` of the model that
    ``options`` describe, its ``offset`` what was taken from the columns and ``scale`` what they were divided by.

    Raises:
        OSError: If it cannot be written.
    """
    prepared = run.prepared
    content = {
        "options": prepared.options.plain(),
        "names": list(prepared.rows.names),
        "fingerprint": fingerprint(prepared.rows.Y),
        "offset": prepared.offset,
        "scale": prepared.scale,
        "model": dict(run.model.state_dict()),
        "found": dict(run.found._asdict()),
        "progress": list(run.progress),
    }
    write_checkpoint(path, _KIND, content)


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
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path} to go on from; leave --resume out to start")
    content = read_checkpoint(path, _KIND)
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
