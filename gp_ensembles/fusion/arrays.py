"""Files of arrays with a manifest: read only if they are whole, and only so much as they hold is allocated."""

import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from gp_ensembles.files.manifest import digest, manifest_of
from gp_ensembles.files.replacing import replace_file

Array = npt.NDArray[Any]

_MANIFEST = "manifest"
# What zipfile and NumPy raise for archives and headers that are no such thing; NumPy reads headers as Python.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError, EOFError, OSError),
    *(KeyError, TypeError, OverflowError, NotImplementedError, RuntimeError),
)


def write_arrays(path: Path, content: Mapping[str, Array]) -> None:
    """Write arrays, none of objects, to an ``.npz`` file in one step, with a manifest as JSON.

    Raises:
        OSError: If it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(Path(folder) / "one.npz", {"x": np.arange(3), "name": np.asarray("wave")})
        ...     sorted(read_arrays(Path(folder) / "one.npz"))
        ['name', 'x']
    """
    whole = {**content, _MANIFEST: np.asarray(json.dumps(manifest_of(_plain(content))))}
    replace_file(path, lambda file: np.savez_compressed(file, **whole))  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, Array]:
    """What :func:`write_arrays` has written; a file without a manifest is read as it is.

    Raises:
        OSError: If there is no such file or it cannot be read.
        ValueError: If it is no such file, or damaged.
    """
    file = BytesIO(path.read_bytes())  # places outside of it are errors of its content, not of the disk
    try:
        _check_sizes(file)
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            content: dict[str, Array] = {name: arrays[name] for name in arrays.files}
        manifest = content.pop(_MANIFEST, None)
        is_whole = manifest is None or json.loads(str(manifest))["digest"] == digest(_plain(content))
    except _DAMAGE as error:
        raise ValueError(f"it is no archive of arrays, or damaged: {error}") from error
    if not is_whole:
        raise ValueError("what it holds is not what its manifest says")
    return content


def _check_sizes(file: BinaryIO) -> None:
    """Parts say what they hold, and none is packed more than a thousand times."""
    size = file.seek(0, 2)
    if not zipfile.is_zipfile(file):
        raise zipfile.BadZipFile("it is no .npz file")
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        if any(part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for part in parts):
            raise ValueError("a part of it is packed in another way")
        if sum(part.compress_size for part in parts) > size:
            raise ValueError("its parts are larger than the file")
        for part in parts:
            with archive.open(part) as array:
                version = np.lib.format.read_magic(array)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(array)
            if dtype.hasobject or math.prod(shape) * dtype.itemsize > part.file_size:
                raise ValueError(f"its array {part.filename} says more than it holds")


def _plain(content: Mapping[str, Array]) -> dict[str, Any]:
    """Tensors of numbers, lists of text."""
    return {
        name: array.tolist() if array.dtype.kind == "U" else torch.from_numpy(np.array(array))
        for name, array in content.items()
    }
