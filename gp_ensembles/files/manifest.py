"""Manifests of checkpoints: names, shapes and dtypes of tensors, digests, versions."""

import hashlib
import platform
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

_LIBRARIES = ("gp_ensembles", "torch", "gpytorch", "numpy")
_NUMBERS = frozenset({bool, int, float})
_PLAIN = (str, bool, int, float, type(None))
_DEEPEST = 100  # containers within containers
MOST_PARTS = 1_000_000  # things in a checkpoint, however they are shared; a list of numbers is one thing


def manifest_of(content: Mapping[str, Any], parts: Sequence[str] = ()) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        ValueError: If something is neither a tensor nor plain, contains itself, or a view repeats what it holds.
    """
    tensors = {
        name: [list(value.shape), str(value.dtype).removeprefix("torch.")]
        for name, value in _walk(content)
        if isinstance(value, Tensor)
    }
    found = {part: _part(content, part) for part in parts}
    return {
        "digest": digest(content),
        "digests": {part: digest(value) for part, value in found.items() if value is not None},
        "tensors": tensors,
        "libraries": {name: _version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
    }


def digest(content: Any) -> str:
    """SHA-256 over names, kinds, shapes and bytes of tensors and plain containers, in their order.

    Raises:
        ValueError: If something is neither a tensor nor plain, contains itself, or a view repeats what it holds.
    """
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
            raise ValueError(f"{name} is nested too deeply or holds too much")
        if isinstance(value, Tensor):
            _check_tensor(name, value)
        inner: list[tuple[Any, Any]] = []
        if isinstance(value, Mapping):
            if not all(isinstance(key, _PLAIN) for key in value):
                raise ValueError(f"{name} has keys that are not plain")
            inner = list(value.items())
        elif isinstance(value, list | tuple):
            inner = [] if _is_of_numbers(value) else list(enumerate(value))
        elif not isinstance(value, (Tensor, *_PLAIN)):
            raise ValueError(f"{name} is a {type(value).__name__}, neither a tensor nor plain")
        yield name, value
        waiting.extend((f"{name}/{key}" if name else str(key), part, depth + 1) for key, part in reversed(inner))


def _check_tensor(name: str, value: Tensor) -> None:
    if value.layout != torch.strided or not _is_whole(value):
        raise ValueError(f"{name} claims more than it holds")


def _is_whole(value: Tensor) -> bool:
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_of_numbers(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a container counts as one thing: long ones of numbers would cost more than all else."""
    return all(type(part) in _NUMBERS for part in value)


def _part(content: Any, name: str) -> Any:
    for key in name.split("/"):
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
