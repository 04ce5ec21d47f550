"""Checkpoints as files: written in one step, and read only if they are whole and of the right kind."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.files.replacing import replace_file


class Kind(NamedTuple):
    """What a checkpoint is of.

    Attributes:
        format: Its mark in the file.
        version: The version that is written and read.
        name: What a message calls it, as in "a stream".
        advice: What to do instead, at the end of a message.
    """

    format: str
    version: int
    name: str
    advice: str


def write_checkpoint(path: Path, kind: Kind, content: dict[str, Any]) -> None:
    """Write a file in one step: a reader finds the old file or the new one, never half of one.

    Args:
        path: Where; its folder must exist.
        kind: What it is of.
        content: Tensors and plain containers.

    Raises:
        OSError: If it cannot be written.

    Example:
        >>> import tempfile
        >>> kind = Kind("example", 1, "an example", "give another")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(Path(folder) / "one.pt", kind, {"x": torch.ones(2)})
        ...     read_checkpoint(Path(folder) / "one.pt", kind)["x"]
        tensor([1., 1.])
    """
    whole = {"format": kind.format, "format_version": kind.version, **content}
    replace_file(path, lambda file: torch.save(whole, file))


def read_checkpoint(path: Path, kind: Kind) -> dict[str, Any]:
    """What :func:`write_checkpoint` has written.

    Raises:
        OSError: If there is no such file or it cannot be read.
        ValueError: If it is a folder, damaged, or of another kind or version.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the checkpoint.pt in it")
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:  # torch reads past wrong checksums
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises a dozen kinds for damaged files
            raise ValueError(
                f"{path} is not a readable checkpoint: it is damaged, cut short or another file"
            ) from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise ValueError(f"{path} is not a checkpoint of {kind.name}; {kind.advice}")
    if content.get("format_version") != kind.version:
        raise ValueError(
            f"{path} has checkpoint format {content.get('format_version')}, this version of the library reads "
            f"{kind.version}; resume with the version that wrote it"
        )
    return content


def fingerprint(*tensors: Tensor) -> str:
    """A checksum of the values of tensors.

    Example:
        >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(3))
        False
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
