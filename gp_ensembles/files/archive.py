"""Archives of tensors from untrusted sources: nothing in them is run or allocates more than the file holds."""

import pickletools
import zipfile
from typing import Any, BinaryIO

import torch

_CALLED = frozenset({"torch._utils _rebuild_tensor_v2", "collections OrderedDict"})


def read_archive(file: BinaryIO) -> Any:
    """Tensors and plain containers from an archive that ``torch.save`` wrote, on the host.

    Raises:
        ValueError: If it is no such archive, has wrong checksums, is compressed, claims more than it holds, or names
            anything but tensors and plain containers.
    """
    size = file.seek(0, 2)
    try:
        with zipfile.ZipFile(file) as archive:
            _check_parts(archive, size)
            _check_names(archive)
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile, pickletools and torch raise a dozen kinds for damaged files
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise ValueError(f"it is no sound archive of tensors: {reason}") from error
    return content


def _check_parts(archive: zipfile.ZipFile, size: int) -> None:
    """Check that parts are stored as they are: a compressed or overlapping one could be a thousand times as large."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("a part of it is compressed")
    if sum(part.file_size for part in parts) > size:
        raise ValueError("its parts are larger than the file")
    if archive.testzip() is not None:  # torch reads past wrong checksums
        raise ValueError("a checksum is wrong")


def _check_names(archive: zipfile.ZipFile) -> None:
    """Check the names in the pickle: fewer than torch allows, none of which allocates memory by itself."""
    for name in archive.namelist():
        if name.endswith("/data.pkl"):
            for operation, text, _ in pickletools.genops(archive.read(name)):
                if operation.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
                    raise ValueError(f"it holds an operation {operation.name}")
                if operation.name == "GLOBAL" and text not in _CALLED and not _is_storage(str(text)):
                    raise ValueError(f"it names {text}")


def _is_storage(name: str) -> bool:
    module, _, kind = name.partition(" ")
    return module == "torch" and kind.endswith("Storage") and kind.isidentifier()
