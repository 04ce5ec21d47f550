"""Objects as text and tensors for files, and back: like a pickle, but of the kinds in a closed table only.

The text is a list of objects in JSON, each after all that it refers to: its kind, then its fields or parts. Of these,
``[3]`` is the object of that number, all else stands for itself. Nothing that is read can name what the table lacks.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from gp_ensembles.files.checkpoint import solid

T = TypeVar("T")
_ITSELF = (bool, int, float, str, type(None))
_LIKE: tuple[tuple[type, Any], ...] = (Integral, int), (Real, float), (str, str)  # as those of numpy
_IN_MODULES = ("_parameters", "_buffers", "_modules", "_constraints", "_priors")  # of what every module has


class Form(NamedTuple):
    """How an object is written: the fields that stand in a file, and what makes it of them."""

    fields: Callable[[Any], Mapping[str, Any]]
    make: Callable[..., Any]


class Table(NamedTuple):
    """The kinds of objects that files may hold."""

    forms: Mapping[type, Form]  # of their classes, whose names are distinct
    functions: Mapping[str, object]  # what an object may refer to besides, by name

    @classmethod
    def of(
        cls,
        kinds: Sequence[type],
        bases: Sequence[type] = (nn.Module,),
        special: Mapping[type, Form] | None = None,
        functions: Mapping[str, object] | None = None,
    ) -> "Table":
        """Kinds that are as their attributes say, and special ones.

        Of a module, what every module has is made anew by the first of ``bases`` that its class comes from.
        """
        return cls({kind: _form(kind, bases) for kind in kinds} | dict(special or {}), functions or {})

    def with_kinds(self, *kinds: type, special: Mapping[type, Form] | None = None) -> "Table":
        """The same with further kinds."""
        return Table({**self.forms, **Table.of(kinds, special=special).forms}, self.functions)


def _form(kind: type, bases: Sequence[type]) -> Form:
    if issubclass(kind, tuple):
        return Form(lambda thing: thing._asdict(), kind)
    if not issubclass(kind, nn.Module):
        return Form(vars, partial(_filled, kind, object.__init__))
    base: Any = next(base for base in bases if issubclass(kind, base))
    general = vars(base()).keys() - _IN_MODULES

    def fields(thing: nn.Module) -> dict[str, Any]:
        own = {name: value for name, value in vars(thing).items() if name not in general}
        return {name: value for name, value in own.items() if name not in _IN_MODULES or value}

    return Form(fields, partial(_filled, kind, base.__init__))


def _filled(kind: Any, begin: Callable[[Any], None], **fields: Any) -> Any:
    thing = kind.__new__(kind)
    begin(thing)
    vars(thing).update(fields)
    return thing


def to_plain(thing: Any, table: Table) -> dict[str, Any]:
    """An object as text and copies of its tensors, which :func:`from_plain` reads back.

    Raises:
        TypeError: If it, or what it refers to, is of no kind in the table, or refers to itself.
    """
    writer = _Writer(table)
    writer.value([thing])
    return {"objects": json.dumps(writer.objects, separators=(",", ":")), "tensors": writer.tensors}


class _Writer:
    """Objects with their numbers; those that are referred to several times are written once."""

    def __init__(self, table: Table) -> None:
        self._forms, self._names = table.forms, {id(one): name for name, one in table.functions.items()}
        self._places, self._kept = dict[int, int](), list[Any]()
        self.objects, self.tensors = list[list[Any]](), list[Tensor]()

    def value(self, thing: Any) -> Any:
        if type(thing) in _ITSELF:
            return thing
        for kind, plain in _LIKE:
            if isinstance(thing, kind):
                return plain(thing)
        if id(thing) not in self._places:
            self._kept.append(thing)  # so that no other object gets its id
            self._places[id(thing)] = -1
            self.objects.append(self._parts(thing))
            self._places[id(thing)] = len(self.objects) - 1
        if self._places[id(thing)] < 0:
            raise TypeError(f"a {type(thing).__name__} that refers to itself cannot be in a file")
        return [self._places[id(thing)]]

    def _parts(self, thing: Any) -> list[Any]:
        kind = type(thing)
        if issubclass(kind, Tensor):
            self.tensors.append(solid(thing.detach()).clone().cpu())
            return [kind.__name__, len(self.tensors) - 1, thing.requires_grad]
        if kind in _CONTAINERS:
            parts = [part for item in thing.items() for part in item] if issubclass(kind, dict) else thing
            return [kind.__name__, *map(self.value, parts)]
        if id(thing) in self._names:
            return [self._names[id(thing)]]
        if kind not in self._forms:
            raise TypeError(
                f"{spelled(thing)} has no name in files, so neither save nor a command can keep it: keep the model by "
                f"pickle.dump(model, file)"
            )
        fields = self._forms[kind].fields(thing)
        return [kind.__name__, {name: self.value(value) for name, value in fields.items()}]


def spelled(thing: object) -> str:
    """The class of an object, or the name of a function."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def from_plain(plain: Mapping[str, Any], table: Table) -> Any:
    """The object that :func:`to_plain` wrote, on the host, with the tensors that it holds.

    Raises:
        KeyError: If it is of no kind in the table.
        IndexError: If it refers to what does not come before it.
        TypeError: If a kind has other fields.
    """
    kinds, found = {kind.__name__: form.make for kind, form in table.forms.items()}, list[Any]()
    tensors: Sequence[Tensor] = plain["tensors"]

    def value(part: Any) -> Any:
        return found[part[0]] if type(part) is list else part

    for name, *parts in json.loads(plain["objects"]):
        if name in _CONTAINERS_BY_NAME:
            found.append(_CONTAINERS_BY_NAME[name]([value(part) for part in parts]))
        elif name in _TENSORS:
            found.append(_TENSORS[name](tensors[parts[0]], parts[1]))
        elif parts:
            found.append(kinds[name](**{field: value(part) for field, part in parts[0].items()}))
        else:
            found.append(table.functions[name])
    return found[-1][0]


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_CONTAINERS: Mapping[type, Callable[[list[Any]], Any]] = {
    list: list, tuple: tuple, set: set, torch.Size: torch.Size, dict: _pairs, OrderedDict: _pairs,
}  # fmt: skip
_CONTAINERS_BY_NAME = {kind.__name__: make for kind, make in _CONTAINERS.items()}
_TENSORS: Mapping[str, Callable[[Tensor, bool], Tensor]] = {
    "Tensor": Tensor.requires_grad_,
    "Parameter": nn.Parameter,
}
