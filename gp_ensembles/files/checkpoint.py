"""Checkpoints as files: written in one step, and read only if they are whole and of the right kind.

A checkpoint is an archive that ``torch.load(path, weights_only=True)`` reads too: one file, without another library.
Besides its content it holds ``format``, ``format_version`` and a ``manifest``. The digest covers what is read, not
its layout in the file. Tensors of fleets are in files of the safetensors format, which other programs read and
map into memory; such a file has no checksum, so its digest is kept in a checkpoint.
"""

import hashlib
import json
import pickletools
import platform
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from gp_ensembles.files.replacing import replace_file

Built = TypeVar("Built")
_HEAD = ("format", "format_version", "manifest")
_CALLED = frozenset({"torch._utils _rebuild_tensor_v2", "collections OrderedDict"})
_LIBRARIES = ("gp_ensembles", "torch", "gpytorch", "numpy")
_NUMBERS = frozenset({bool, int, float})
_PLAIN = (str, bool, int, float, type(None))
_DEEPEST = 100  # containers within containers
MOST_PARTS = 1_000_000  # things in a checkpoint, however they are shared; a list of numbers is one thing
_LENGTH_BYTES = 8  # in front of the header


class Kind(NamedTuple):
    """A kind of checkpoint."""

    format: str  # its mark in the file
    version: int  # the version that is written, and the only one that is read
    name: str  # its name in messages, as in "a stream"
    advice: str  # what to do instead, at the end of a message


def write_checkpoint(path: Path, kind: Kind, content: dict[str, Any]) -> None:
    """Write a file in one step: a reader finds the old file or the new one, never half of one."""
    content = solid(content)
    head = {"format": kind.format, "format_version": kind.version, "manifest": manifest_of(content)}
    whole = {**head, **content}
    replace_file(path, lambda file: torch.save(whole, file))


def read_checkpoint(path: Path, kind: Kind) -> dict[str, Any]:
    """The content that :func:`write_checkpoint` has written."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; {kind.advice}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; {kind.advice}")
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


def rebuilt(path: Path, kind: Kind, build: Callable[[dict[str, Any]], Built], remedy: str) -> Built:
    """Apply a function to the content of a file; ValueError, with a remedy, if it does not fit this version."""
    content = read_checkpoint(path, kind)
    with fitting(path, remedy):
        return build(content)


@contextmanager
def fitting(path: Path, remedy: str) -> Iterator[None]:
    """While an object is built from a file inside: ValueError, with a remedy, if it does not fit this version."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, RuntimeError, json.JSONDecodeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ValueError(f"{path} does not fit this version of the library ({reason}); {remedy}") from error


def fingerprint(*tensors: Tensor) -> str:
    """A checksum of the values of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def manifest_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a checkpoint."""
    tensors = {
        name: [list(value.shape), str(value.dtype).removeprefix("torch.")]
        for name, value in _walk(content)
        if isinstance(value, Tensor)
    }
    return {
        "digest": digest(content),
        "tensors": tensors,
        "libraries": {name: _version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
    }


def digest(content: Any) -> str:
    """SHA-256 over names, kinds, shapes and bytes of tensors and plain containers, in their order."""
    found = hashlib.sha256()
    for name, value in _walk(content):
        if isinstance(value, Tensor):
            text = f"tensor {value.dtype} {list(value.shape)}"
        elif isinstance(value, Mapping):
            text = f"dict {list(value)!r}"
        elif isinstance(value, list | tuple) and not _is_of_numbers(value):
            text = f"{type(value).__name__} {len(value)}"
        else:
            text = repr(value)
        for part in (name, text):
            encoded = part.encode("utf-8", "surrogatepass")
            found.update(struct.pack("<Q", len(encoded)) + encoded)
        if isinstance(value, Tensor):
            _update(found.update, value)
    return found.hexdigest()


def solid(content: Any) -> Any:
    """The same with expanded views of tensors copied to contiguous memory."""
    if isinstance(content, Tensor):
        return content if _is_whole(content) else content.clone(memory_format=torch.contiguous_format)
    if isinstance(content, Mapping):
        return {key: solid(value) for key, value in content.items()}
    return type(content)(map(solid, content)) if type(content) in (list, tuple) else content


def _update(update: Callable[[Any], None], value: Tensor) -> None:
    flat = value.detach().cpu().contiguous().flatten()
    if flat.numel():
        one_by_one = flat.as_strided(flat.shape, (1,))  # a single number may have any stride
        update(one_by_one.view(torch.uint8).numpy())


def _walk(content: Any) -> Iterator[tuple[str, Any]]:
    """Everything in its order, with names such as ``model/inputs/0``."""
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    num_seen = 0
    while waiting:
        name, value, depth = waiting.pop()
        num_seen += 1
        if depth > _DEEPEST or num_seen > MOST_PARTS:
            raise ValueError(f"{name} is nested too deeply or is too large")
        if isinstance(value, Tensor) and (value.layout != torch.strided or not _is_whole(value)):
            raise ValueError(f"{name} declares more data than it contains")
        inner: list[tuple[Any, Any]] = []
        if isinstance(value, Mapping):
            if not all(isinstance(key, _PLAIN) for key in value):
                raise ValueError(f"{name} has keys of an unsupported type")
            inner = list(value.items())
        elif isinstance(value, list | tuple):
            inner = [] if _is_of_numbers(value) else list(enumerate(value))
        elif not isinstance(value, (Tensor, *_PLAIN)):
            raise ValueError(f"{name} is a {type(value).__name__}, neither a tensor nor plain")
        yield name, value
        waiting.extend((f"{name}/{key}" if name else str(key), part, depth + 1) for key, part in reversed(inner))


def _is_whole(value: Tensor) -> bool:
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_of_numbers(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a container counts as one thing: long ones of numbers would cost more than all else."""
    return all(type(part) in _NUMBERS for part in value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def read_archive(file: BinaryIO) -> Any:
    """Tensors and plain containers from an archive that ``torch.save`` wrote, on the host."""
    size = file.seek(0, 2)
    try:
        with zipfile.ZipFile(file) as archive:
            _check_parts(archive, size)
            _check_names(archive)
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile, pickletools and torch raise a dozen kinds for damaged files
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise ValueError(f"it is not a valid tensor archive: {reason}") from error
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Any) -> str:
    """Write a file in one step: a reader finds the old file or the new one, never half of one."""
    whole = safetensors.torch.save(dict(tensors), {"about": json.dumps(about)})
    replace_file(path, lambda file: file.write(whole))
    return hashlib.sha256(whole).hexdigest()


def read_tensors(path: Path, digest: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors that :func:`write_tensors` wrote, on the host, and their metadata."""
    whole = path.read_bytes()
    if hashlib.sha256(whole).hexdigest() != digest:
        raise ValueError(f"{path} is damaged, was changed or belongs to another save: its digest does not match")
    try:
        tensors = safetensors.torch.load(whole)
        end = _LENGTH_BYTES + int.from_bytes(whole[:_LENGTH_BYTES], "little")
        about = json.loads(json.loads(whole[_LENGTH_BYTES:end])["__metadata__"]["about"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a tensor file written by this library") from error
    return tensors, about
