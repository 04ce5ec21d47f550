"""How much memory a likelihood takes, before it is taken."""

import os
from pathlib import Path

import torch
from torch import Tensor

_MATRICES = 12  # covariance, its factor, inverse and slope, and the parts of the component being differentiated
_SHARE = 0.8


def check_memory(X: Tensor, available: int | None = None) -> int:
    """Bytes that a likelihood with gradients takes; refuses what does not fit.

    Args:
        X: Inputs, shape (N, D).
        available: Bytes there are; asked of the machine if ``None``.

    Returns:
        The estimate, in bytes.

    Raises:
        MemoryError: If the estimate is above four fifths of the memory there is.

    Example:
        >>> import torch
        >>> check_memory(torch.zeros(1000, 1, dtype=torch.float64), available=10**9)
        96000000
    """
    needed = _MATRICES * X.shape[0] ** 2 * X.element_size()
    there = _available(X.device) if available is None else available
    if there is not None and needed > _SHARE * there:
        most = int((_SHARE * there / (_MATRICES * X.element_size())) ** 0.5)
        raise MemoryError(
            f"a likelihood of {X.shape[0]} rows takes about {needed / 2**30:.1f} GiB and there are "
            f"{there / 2**30:.1f}; use at most {most} rows, for instance every {-(-X.shape[0] // max(most, 1))}th"
        )
    return needed


def _available(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no such question on this system
        return None
