"""Objects as text and tensors for files, and back: like pickle, but limited to the kinds in a closed table.

The text is a list of objects in JSON, each after all that it refers to: its kind, then its fields or parts. Of these,
``[3]`` is the object of that number, all else stands for itself. Nothing that is read can name what the table lacks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gp_ensembles.files.checkpoint import MOST_PARTS, solid

_ITSELF = (bool, int, float, str, type(None))
_LIKE: tuple[tuple[type, Any], ...] = (Integral, int), (Real, float), (str, str)  # as those of numpy
_MOST = 10 * MOST_PARTS  # objects that one stands for, where a shared one counts each time
_IN_MODULES = ("_parameters", "_buffers", "_modules", "_constraints", "_priors")  # of what every module has


class Form(NamedTuple):
    """How an object is written: the fields stored in a file, and the function that rebuilds it from them."""

    fields: Callable[[Any], Mapping[str, Any]]
    make: Callable[..., Any]

    @classmethod
    def of(cls, kind: Any, bases: Sequence[Any] = (nn.Module,)) -> "Form":
        """The form of a class defined by its attributes; ``bases`` make what every module has."""
        if issubclass(kind, tuple):
            return cls(lambda thing: thing._asdict(), kind)
        if is_dataclass(kind):
            names = [field.name for field in fields(kind)]
            return cls(lambda thing: {name: getattr(thing, name) for name in names}, partial(_record, kind, names))
        base = next((base for base in bases if issubclass(kind, base)), object)
        general = vars(base()).keys() - _IN_MODULES if issubclass(kind, nn.Module) else set()

        def attributes(thing: Any) -> dict[str, Any]:
            own = {name: value for name, value in vars(thing).items() if name not in general}
            return {name: value for name, value in own.items() if name not in _IN_MODULES or value}

        def make(**known: Any) -> Any:
            if not all(map(str.isidentifier, known)):
                raise TypeError(f"{kind.__name__} has no attributes {sorted(known)}")
            thing = kind.__new__(kind)
            base.__init__(thing)
            vars(thing).update(known)
            return thing

        return cls(attributes, make)


class Table(NamedTuple):
    """The kinds of objects that files may hold."""

    forms: Mapping[type, Form]  # of their classes, whose names are distinct
    functions: Mapping[str, object]  # what an object may refer to besides, by name

    def with_kinds(self, *kinds: type, special: Mapping[type, Form] | None = None) -> "Table":
        """The same with further kinds, some of them special."""
        return self._replace(forms={**self.forms, **{kind: Form.of(kind) for kind in kinds}, **(special or {})})


def to_plain(thing: Any, table: Table) -> dict[str, Any]:
    """An object as text and copies of its tensors, which :func:`from_plain` reads back.

    What is referred to several times is written once.

    Raises:
        TypeError: If its kind, or that of what it refers to, is not in the table, or it refers to itself.
    """
    objects, tensors, kept, places = list[list[Any]](), list[Tensor](), list[Any](), dict[int, int]()
    names = {id(one): name for name, one in table.functions.items()}

    def value(thing: Any) -> Any:
        if type(thing) in _ITSELF:
            return thing
        for kind, plain in _LIKE:
            if isinstance(thing, kind):
                return plain(thing)
        if id(thing) not in places:
            kept.append(thing)  # so that no other object gets its id
            places[id(thing)] = -1
            objects.append(parts_of(thing))
            places[id(thing)] = len(objects) - 1
        if places[id(thing)] < 0:
            raise TypeError(f"a {type(thing).__name__} that refers to itself cannot be saved")
        return [places[id(thing)]]

    def parts_of(thing: Any) -> list[Any]:
        kind = type(thing)
        if issubclass(kind, Tensor):
            tensors.append(solid(thing.detach()).clone().cpu())
            return ["Parameter" if isinstance(thing, nn.Parameter) else "Tensor", len(tensors) - 1, thing.requires_grad]
        if kind.__name__ in _CONTAINERS and kind.__module__ in ("builtins", "collections", "torch"):
            parts = [part for item in thing.items() for part in item] if issubclass(kind, dict) else thing
            return [kind.__name__, *map(value, parts)]
        if id(thing) in names:
            return [names[id(thing)]]
        if kind not in table.forms:
            raise TypeError(
                f"{getattr(thing, '__name__', kind.__name__)} cannot be saved by save or by a command: store the "
                f"model with pickle.dump(model, file)"
            )
        return [kind.__name__, {name: value(part) for name, part in table.forms[kind].fields(thing).items()}]

    value([thing])
    return {"objects": json.dumps(objects, separators=(",", ":")), "tensors": tensors}


def from_plain(plain: Mapping[str, Any], table: Table, device: torch.device | None = None) -> Any:
    """The object that :func:`to_plain` wrote, in its own memory, on the host by default.

    Raises:
        KeyError: If its kind is not in the table.
        IndexError: If it refers to an object that does not come before it.
        TypeError: If a kind has other fields, or does not accept their values.
        RecursionError: If a few objects expand to very many, as when each refers twice to the one before.
    """
    kinds, found = {kind.__name__: form.make for kind, form in table.forms.items()}, list[Any]()
    tensors: Sequence[Tensor] = plain["tensors"]
    sizes, size = list[int](), 1  # how many objects each stands for

    def value(part: Any) -> Any:
        nonlocal size
        if type(part) is not list:
            return part
        size += _at(sizes, part[0])
        if size > _MOST:
            raise RecursionError("an object in it is nested too deeply or is too large")
        return found[part[0]]

    for name, *parts in json.loads(plain["objects"]):
        size = 1
        if name in _CONTAINERS:
            found.append(_CONTAINERS[name]([value(part) for part in parts]))
        elif name in _TENSORS:
            there = _at(tensors, parts[0]).to("cpu" if device is None else device, copy=True)
            found.append(_TENSORS[name](there, parts[1]))
        elif parts:
            found.append(kinds[name](**{field: value(part) for field, part in parts[0].items()}))
        else:
            found.append(table.functions[name])
        sizes.append(size)
    return found[-1][0]


def _record(kind: Any, names: Sequence[str], **known: Any) -> Any:
    """A record of exactly these fields, which checks them."""
    if known.keys() != set(names):
        raise TypeError(f"{kind.__name__} has the fields {sorted(names)}, not {sorted(known)}")
    try:
        return kind(**known)
    except ValueError as error:
        raise TypeError(f"{kind.__name__}: {error}") from error


def _at(things: Sequence[Any], place: int) -> Any:
    if place < 0:
        raise IndexError(f"there is no object {place}")
    return things[place]


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "Size": torch.Size, "dict": _pairs, "OrderedDict": _pairs,
}  # fmt: skip
_TENSORS: Mapping[str, Callable[[Tensor, bool], Tensor]] = {"Tensor": Tensor.requires_grad_, "Parameter": nn.Parameter}
