"""Threads and one learner: one learns at a time, a second is refused, and readers see it between two calls."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

C = TypeVar("C")


@final
class Turns:
    """Who may use an object that learns in place; held for the length of a call.

    Attributes:
        learning: Held by the thread that learns. Nobody waits for it.
        reading: Held by the threads that learn or read, one at a time; hold it around several reads that shall be of
            the same moment, or around a copy: ``with model.turns.reading: copy.deepcopy(model)``.

    Example:
        >>> turns = Turns()
        >>> with turns.reading:
        ...     turns.learning.acquire(blocking=False)
        True
    """

    def __init__(self) -> None:
        self.learning: threading.RLock = threading.RLock()
        self.reading: threading.RLock = threading.RLock()

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        """A copy is nobody's."""
        return Turns, ()


def in_turns(*, learning: Sequence[str], reading: Sequence[str]) -> Callable[[type[C]], type[C]]:
    """Make methods and properties of a class keep to its ``turns``, an attribute of its objects.

    Args:
        learning: Names of those that learn: while another thread is in one of them, they raise.
        reading: Names of those that read: while another thread learns or reads, they wait.

    Returns:
        A decorator of the class.

    Example:
        >>> @in_turns(learning=["add"], reading=["total"])
        ... class Sum:
        ...     def __init__(self):
        ...         self.turns, self.parts = Turns(), []
        ...     def add(self, part):
        ...         self.parts.append(part)
        ...     @property
        ...     def total(self):
        ...         return sum(self.parts)
        >>> one = Sum()
        >>> one.add(2)
        >>> one.total
        2
    """

    def decorate(cls: type[C]) -> type[C]:
        for names, wrap in ((learning, _learns), (reading, _reads)):
            for name in names:
                member: Any = vars(cls)[name]
                is_property = isinstance(member, property)
                setattr(cls, name, property(wrap(member.fget)) if is_property else wrap(member))
        return cls

    return decorate


def _learns(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        turns = self.turns
        if not turns.learning.acquire(blocking=False):
            raise RuntimeError(
                f"{type(self).__name__}.{method.__name__} was called while another thread teaches this object, which "
                f"learns from one thread at a time; take turns with a lock, or give each thread a copy of its own"
            )
        try:
            with turns.reading:
                return method(self, *given, **named)
        finally:
            turns.learning.release()

    return guarded


def _reads(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        with self.turns.reading:
            return method(self, *given, **named)

    return guarded
