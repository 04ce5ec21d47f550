"""Records as nested tuples of tensors and plain values, which files hold, and back by their annotations."""

from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints


def to_plain(record: Any) -> Any:
    """A record of records as tuples; what is neither record nor tuple stays as it is."""
    fields = tuple(vars(record).values()) if is_dataclass(record) else record
    return tuple(map(to_plain, fields)) if isinstance(fields, tuple) else fields


def from_plain(kind: Any, plain: Any) -> Any:
    """The record of an annotated kind that :func:`to_plain` wrote; a ``TypeError`` or ``ValueError`` if it is none."""
    if not isinstance(plain, tuple):
        return plain
    parts = [part for part in get_args(kind) if part is not NoneType]
    if isinstance(kind, UnionType):
        return from_plain(parts[0], plain)
    if get_origin(kind) is tuple:
        return tuple(from_plain(parts[0], one) for one in plain)
    return kind(*(from_plain(hint, one) for hint, one in zip(get_type_hints(kind).values(), plain, strict=True)))
