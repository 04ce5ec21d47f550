"""Thread safety, one writer and many readers, and changes of a state that Ctrl-C must not interrupt."""

import _signal  # type: ignore[import-not-found]  # signal, less the enumerations it makes of numbers: they cost much
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar, final

C = TypeVar("C")


@final
class AccessLock:
    """Locks of an object that learns in place, held for the length of a call.

    Attributes:
        writing: Held by the thread that learns; a second one raises instead of waiting.
        reading: Held by one thread at a time that learns or reads; hold it around several reads that must see the same
            state, or around a copy: ``with model.access.reading: copy.deepcopy(model)``.
    """

    def __init__(self) -> None:
        self.writing: threading.RLock = threading.RLock()
        self.reading: threading.RLock = threading.RLock()

    def __reduce__(self) -> tuple[type["AccessLock"], tuple[()]]:
        """A copy is not locked."""
        return AccessLock, ()


def guarded(*, writes: Sequence[str], reads: Sequence[str]) -> Callable[[type[C]], type[C]]:
    """Class decorator: methods and properties that hold the locks of ``access``, an attribute of the objects."""

    def decorate(cls: type[C]) -> type[C]:
        for names, wrap in ((writes, _learns), (reads, _reads)):
            for name in names:
                member: Any = vars(cls)[name]
                is_property = isinstance(member, property)
                setattr(cls, name, property(wrap(member.fget)) if is_property else wrap(member))
        return cls

    return decorate


def _learns(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        access = self.access
        if not access.writing.acquire(blocking=False):
            raise RuntimeError(
                f"{type(self).__name__}.{method.__name__} was called while another thread was learning; only "
                f"one thread may learn at a time: use a lock, or a copy for each thread"
            )
        try:
            with access.reading:
                return method(self, *given, **named)
        finally:
            access.writing.release()

    return guarded


def _reads(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        with self.access.reading:
            return method(self, *given, **named)

    return guarded


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; cheap enough for every row."""
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
