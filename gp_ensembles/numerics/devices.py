"""Devices by name, asked for before anything is put on them."""

import torch


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name, if torch can use it here.

    Raises:
        TypeError: If it is no name.
        ValueError: If it is unknown or absent.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {str(name)!r} is unknown; use cpu, cuda or cuda:0") from None
    except TypeError:
        raise TypeError(f"device must be a name such as 'cpu' or a torch.device, got {name!r}") from None
    if device.type == "cpu" and device.index is not None:
        raise ValueError(f"device {str(name)!r} is unknown; there is one cpu, so use cpu and --num-threads")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {str(name)!r} was asked for, but torch sees no such GPU; use cpu (--device cpu)")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {str(name)!r} is not supported; use cpu or cuda")
    return device
