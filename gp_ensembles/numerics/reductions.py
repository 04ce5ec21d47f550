"""Sums over experts whose bits do not depend on the other rows of a block, and flags that may be unreadable.

On a CPU, torch sums the columns of a contiguous matrix several at a time, and those that fill no vector register in
another order: the last bit of a column's sum depends on where it stands and on how many there are. Summing
each row by itself avoids that, so the bits of what a stream writes to files are the same however many rows are
predicted at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_ASKED: ContextVar[list[Tensor] | None] = ContextVar("asked", default=None)


def sum_over_experts(values: Tensor) -> Tensor:
    r"""Sum over the last axis but one, shape (\*batch, M, N) to (\*batch, N), column by column."""
    return values.mT.contiguous().sum(-1)


def logsumexp_over_experts(values: Tensor) -> Tensor:
    r"""Logarithm of the summed exponentials over the last axis but one, (\*batch, M, N) to (\*batch, N)."""
    return values.mT.contiguous().logsumexp(-1)


@contextmanager
def assuming() -> Iterator[list[Tensor]]:
    """Within it, :func:`readable_all` assumes that flags are set, and collects each as a tensor ()."""
    asked: list[Tensor] = []
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def readable_all(flags: Tensor) -> bool:
    """Whether all flags are set; False where values cannot be read, inside ``vmap`` and on the meta device."""
    asked = _ASKED.get()
    if asked is not None:
        asked.append(flags.all())
        return True
    try:
        return bool(flags.all())
    except RuntimeError:
        return False


def readable_flags(flags: Tensor) -> list[bool] | None:
    """Flags (B,) as plain values; ``None`` where values cannot be read, inside ``vmap`` and on the meta device."""
    try:
        if not flags.is_cpu:
            bool(flags.all())  # inside vmap it fails at once, where ``tolist`` copies from the device first
        return [bool(flag) for flag in flags.tolist()]
    except (RuntimeError, NotImplementedError):
        return None
