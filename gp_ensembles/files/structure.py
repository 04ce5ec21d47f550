"""Objects as text and tensors for files, and back: like a pickle, but of the kinds in a closed table only.

The text is a list of objects in JSON, each after all that it refers to: its kind, then its fields or parts. Of these,
``[3]`` is the object of that number, all else stands for itself. Nothing that is read can name what the table lacks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gp_ensembles.files.checkpoint import solid

_ITSELF = (bool, int, float, str, type(None))
_LIKE: tuple[tuple[type, Any], ...] = (Integral, int), (Real, float), (str, str)  # as those of numpy
_IN_MODULES = ("_parameters", "_buffers", "_modules", "_constraints", "_priors")  # of what every module has


class Form(NamedTuple):
    """How an object is written: the fields that stand in a file, and what makes it of them."""

    fields: Callable[[Any], Mapping[str, Any]]
    make: Callable[..., Any]

    @classmethod
    def of(cls, kind: Any, bases: Sequence[Any] = (nn.Module,)) -> "Form":
        """That of a class whose objects are as their attributes say; ``bases`` make what every module has."""
        if issubclass(kind, tuple):
            return cls(lambda thing: thing._asdict(), kind)
        base = next((base for base in bases if issubclass(kind, base)), object)
        general = vars(base()).keys() - _IN_MODULES if issubclass(kind, nn.Module) else set()

        def fields(thing: Any) -> dict[str, Any]:
            own = {name: value for name, value in vars(thing).items() if name not in general}
            return {name: value for name, value in own.items() if name not in _IN_MODULES or value}

        def make(**known: Any) -> Any:
            thing = kind.__new__(kind)
            base.__init__(thing)
            vars(thing).update(known)
            return thing

        return cls(fields, make)


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
        TypeError: If it, or what it refers to, is of no kind in the table, or refers to itself.
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
            raise TypeError(f"a {type(thing).__name__} that refers to itself cannot be in a file")
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
                f"{getattr(thing, '__name__', kind.__name__)} has no name in files, so neither save nor a command can "
                f"keep it: keep the model by pickle.dump(model, file)"
            )
        return [kind.__name__, {name: value(part) for name, part in table.forms[kind].fields(thing).items()}]

    value([thing])
    return {"objects": json.dumps(objects, separators=(",", ":")), "tensors": tensors}


def from_plain(plain: Mapping[str, Any], table: Table) -> Any:
    """The object that :func:`to_plain` wrote, on the host, in memory of its own.

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
        if name in _CONTAINERS:
            found.append(_CONTAINERS[name]([value(part) for part in parts]))
        elif name in _TENSORS:
            found.append(_TENSORS[name](tensors[parts[0]].clone(), parts[1]))
        elif parts:
            found.append(kinds[name](**{field: value(part) for field, part in parts[0].items()}))
        else:
            found.append(table.functions[name])
    return found[-1][0]


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "Size": torch.Size, "dict": _pairs, "OrderedDict": _pairs,
}  # fmt: skip
_TENSORS: Mapping[str, Callable[[Tensor, bool], Tensor]] = {"Tensor": Tensor.requires_grad_, "Parameter": nn.Parameter}
