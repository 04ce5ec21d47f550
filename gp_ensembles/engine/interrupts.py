"""Changes that an interruption from the keyboard must not tear in two."""

import _signal  # type: ignore[import-not-found]  # signal, less the enumerations it makes of numbers: they cost much
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C until the end of the block; cheap enough for every row."""
    handler = _signal.getsignal(_signal.SIGINT)
    if threading.get_ident() != threading.main_thread().ident or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    _signal.signal(_signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        _signal.signal(_signal.SIGINT, handler)
        if received:
            handler(*received[0])
