"""Checkpoints as files: written in one step, and read only if they are whole and of the right kind.

A checkpoint is an archive that ``torch.load(path, weights_only=True)`` reads too: one file, without a further library.
Besides its content it holds ``format``, ``format_version`` and a ``manifest``, see
:func:`~gp_ensembles.files.manifest.manifest_of`. The digest covers what is read, not how it lies in the file.
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.files.archive import read_archive
from gp_ensembles.files.manifest import digest, manifest_of, solid
from gp_ensembles.files.replacing import replace_file

_HEAD = ("format", "format_version", "manifest")


class Kind(NamedTuple):
    """A kind of checkpoint.

    Attributes:
        format: Its mark in the file.
        version: The version that is written, and the only one that is read.
        name: Its name in messages, as in "a stream".
        advice: What to do instead, at the end of a message.
        parts: Names of parts that get digests of their own in the manifest, as in ``model/config``.
    """

    format: str
    version: int
    name: str
    advice: str
    parts: tuple[str, ...] = ()


def write_checkpoint(path: Path, kind: Kind, content: dict[str, Any]) -> None:
    """Write a file in one step: a reader finds the old file or the new one, never half of one.

    Raises:
        OSError: If it cannot be written.
        ValueError: If the content is neither tensors nor plain.
    """
    content = solid(content)
    head = {"format": kind.format, "format_version": kind.version, "manifest": manifest_of(content, kind.parts)}
    whole = {**head, **content}
    replace_file(path, lambda file: torch.save(whole, file))


def read_checkpoint(path: Path, kind: Kind) -> dict[str, Any]:
    """The content that :func:`write_checkpoint` has written.

    Raises:
        OSError: If there is no such file or it cannot be read.
        ValueError: If it is a folder, damaged, or of another kind or version.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the checkpoint.pt in it")
    with path.open("rb") as file:
        try:
            content = read_archive(file)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a readable checkpoint: it is damaged, truncated or another file"
            ) from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise ValueError(f"{path} is not a checkpoint of {kind.name}; {kind.advice}")
    version, manifest = content.get("format_version"), content.get("manifest")
    if type(version) is not int or version != kind.version:
        raise ValueError(
            f"{path} has checkpoint format {version}, this version of the library reads {kind.version}; resume with "
            "the version that wrote it"
        )
    found: dict[str, Any] = {name: value for name, value in content.items() if name not in _HEAD}
    try:
        is_whole = isinstance(manifest, dict) and manifest["digest"] == digest(found)
    except (KeyError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{path} is damaged or was changed: its content does not match its manifest; use an earlier one"
        )
    return found


def fingerprint(*tensors: Tensor) -> str:
    """A checksum of the values of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
