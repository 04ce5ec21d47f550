"""Checks of arguments: objects of a class, devices, and what is to fit into their memory."""

import os
from contextlib import suppress
from pathlib import Path

import torch

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_made(argument: str, value: object, kind: type, example: str) -> None:
    """Raise unless an argument is an instance of a class, with a hint if it is the class itself."""
    if not isinstance(value, kind):
        raise TypeError(f"{argument} must be an object such as {example}, got {describe_argument(value)}")


def describe_argument(value: object) -> str:
    """Text of an argument for messages, with a hint if it is a class instead of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}: instantiate it"
    shape = getattr(value, "shape", ())  # of tensors, arrays and frames
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else repr(value)


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name, if torch can use it on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {str(name)!r} is unknown; use cpu, cuda or cuda:0") from None
    except TypeError:
        raise TypeError(f"device must be a name such as 'cpu' or a torch.device, got {name!r}") from None
    if device.type == "cpu" and device.index is not None:
        raise ValueError(f"device {str(name)!r} is unknown; there is one cpu, so use cpu and --num-threads")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {str(name)!r} was requested, but torch finds no such GPU; use cpu (--device cpu)")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {str(name)!r} is not supported; use cpu or cuda")
    return device


def memory_of(device: torch.device) -> int:
    """Bytes of memory that this process may have of the host, or that are free for it on a GPU."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # kept by torch
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # not available on every system
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in _CGROUPS:
        with suppress(OSError, ValueError):  # "max", where there is no limit
            limits.append(int(Path(name).read_text(encoding="ascii")))
    return min(limits, default=1 << 62)


def check_memory(num_bytes: float, device: torch.device, what: str, fix: str) -> None:
    """Raise if something cannot fit into memory."""
    limit = memory_of(device)
    if num_bytes > limit:
        where = "" if device.type == "cpu" else f" of {device}"
        needed, free, short = (f"{size / 1e9:.3g} GB" for size in (num_bytes, limit, num_bytes - limit))
        raise ValueError(
            f"{what} would take {needed} of memory{where}, but only {free} is available, {short} too little; {fix}"
        )
