"""Tensors in files of the safetensors format, which other programs and languages read and map into memory.

Such a file has no checksum: the digest that :func:`write_tensors` returns is kept in a checkpoint and given to
:func:`read_tensors`.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gp_ensembles.files.replacing import replace_file

_LENGTH_BYTES = 8  # in front of the header


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Any) -> str:
    """Write a file in one step: a reader finds the old file or the new one, never half of one.

    Raises:
        OSError: If it cannot be written.
    """
    whole = safetensors.torch.save(dict(tensors), {"about": json.dumps(about)})
    replace_file(path, lambda file: file.write(whole))
    return hashlib.sha256(whole).hexdigest()


def read_tensors(path: Path, digest: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors that :func:`write_tensors` wrote, on the host, and their metadata.

    Raises:
        OSError: If there is no such file or it cannot be read.
        ValueError: If it is not the file of this digest, or not such a file.
    """
    whole = path.read_bytes()
    if hashlib.sha256(whole).hexdigest() != digest:
        raise ValueError(f"{path} is damaged, was changed or belongs to another save: its digest does not match")
    try:
        tensors = safetensors.torch.load(whole)
        end = _LENGTH_BYTES + int.from_bytes(whole[:_LENGTH_BYTES], "little")
        about = json.loads(json.loads(whole[_LENGTH_BYTES:end])["__metadata__"]["about"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of tensors that this library wrote") from error
    return tensors, about
