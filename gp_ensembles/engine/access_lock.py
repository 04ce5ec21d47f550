"""Threads and one learner: one learns at a time, a second is refused, and readers see it between two calls."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

C = TypeVar("C")


@final
class AccessLock:
    """Who may use an object that learns in place; held for the length of a call.

    Attributes:
        writing: Held by the thread that learns. Nobody waits for it.
        reading: Held by the threads that learn or read, one at a time; hold it around several reads that shall be of
            the same moment, or around a copy: ``with model.access.reading: copy.deepcopy(model)``.
    """

    def __init__(self) -> None:
        self.writing: threading.RLock = threading.RLock()
        self.reading: threading.RLock = threading.RLock()

    def __reduce__(self) -> tuple[type["AccessLock"], tuple[()]]:
        """A copy is nobody's."""
        return AccessLock, ()


def guarded(*, writes: Sequence[str], reads: Sequence[str]) -> Callable[[type[C]], type[C]]:
    """Make methods and properties of a class keep to its ``access``, an attribute of its objects."""

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
                f"{type(self).__name__}.{method.__name__} was called while another thread teaches this object, which "
                f"learns from one thread at a time; take turns with a lock, or give each thread a copy of its own"
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
