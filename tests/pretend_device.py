"""A device that replaces a GPU where there is none: tensors that say ``cuda:0`` and hold numbers of the host.

Inside of :func:`pretend_device` ``cuda`` can be asked for as ever, results are right numbers, and what an NVIDIA GPU
refuses is refused: an operator on tensors of both devices (single numbers of the host are let through where CUDA lets
them, and so are indices), a generator of the host for draws on the device, ``numpy()``. What it cannot show is what
depends on time or on the device's own round-off. Where code asks for the meta device it gets this one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")
# What torch itself takes it for: a device that every build has. Modules, autograd and factories inside of operators
# need no driver for it, and nothing else is on it here.
_WITHIN = torch.device("meta")
_aten = torch.ops.aten
_COPIES = {_aten.copy_, _aten._to_copy, _aten.copy}
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index}
# Take a single number of the host without being pointwise.
_WITH_NUMBER = {_aten.fill, _aten.fill_, _aten.masked_fill, _aten.masked_fill_, _aten.index_fill, _aten.index_fill_}


class OnDevice(Tensor):
    """A tensor on the stand-in device; ``held`` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=_WITHIN,
            requires_grad=False,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.ndim == 0 else repr(self), spec)

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone()
            if self.requires_grad:
                copied.requires_grad_()
            copied.__dict__.update({name: value for name, value in self.__dict__.items() if name != "held"})
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().held.__reduce_ex__(protocol)  # as files are read: onto the host


class Reads:
    """How often the host asked the device for numbers.

    Attributes:
        single: Single ones, by ``item``, ``bool``, ``int`` and ``float``.
        lists: Whole tensors, by ``tolist``.
        copies: Whole tensors, by ``cpu`` or ``to``.
    """

    def __init__(self) -> None:
        self.single = self.lists = self.copies = 0


_reads = Reads()  # those of the innermost pretend_device


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator gives, on the device where its tensors are or which it names."""
    leaves = list[Tensor]()
    _mapped(lambda value: leaves.append(value) if isinstance(value, Tensor) else None, (args, kwargs))
    there = [leaf for leaf in leaves if isinstance(leaf, OnDevice)]
    named = kwargs.get("device")
    if there:
        _check(func, args, leaves)
    is_there = bool(there) if named is None else torch.device(named) == _WITHIN
    if is_there and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu', in {func}")
    if there and func is _aten._local_scalar_dense.default:
        _reads.single += 1
        return args[0].held.item()
    if there and not is_there:
        _reads.copies += 1
    if named is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func.overloadpacket is _aten.copy_:  # across devices into what is there
        is_there = isinstance(args[0], OnDevice)
        _reads.copies += not is_there
    plain_args, plain_kwargs = _mapped(_held, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if func is _aten._to_copy.default and is_there and any(result is part for part in plain_args):
        result = result.clone()
    changed = {id(leaf.held): leaf for leaf in there}  # in place: the same object comes back
    if not is_there:
        plain = {id(leaf): leaf for leaf in leaves}
        return _mapped(lambda value: plain.get(id(value), value), result)
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the outer tensor takes the new shape
            func(*args, **kwargs)
    return _mapped(lambda value: _wrapped(value, changed), result)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A nest of plain containers with all else changed; torch's own is slow for so many operators."""
    if type(value) in (tuple, list):
        return type(value)([_mapped(change, part) for part in value])
    if type(value) is dict:
        return {name: _mapped(change, part) for name, part in value.items()}
    return change(value)


def _wrapped(value: Any, changed: dict[int, Tensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return changed[id(value)] if id(value) in changed else OnDevice(value)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _check(func: Any, args: Any, leaves: Sequence[Tensor]) -> None:
    """Raise where CUDA would: an operator that mixes devices."""
    packet = func.overloadpacket
    if packet in _COPIES:
        return
    if packet in _INDEXED:
        if not isinstance(args[0], OnDevice):
            raise RuntimeError(f"indices should be on the host where the tensor is, in {func}")
        leaves = [leaf for leaf in [args[0], *args[2:3]] if isinstance(leaf, Tensor)]
    may_be_number = packet in _WITH_NUMBER or packet in _INDEXED or torch.Tag.pointwise in func.tags
    for leaf in leaves:
        is_first = leaf is args[0] and func._schema.is_mutable
        if not isinstance(leaf, OnDevice) and (leaf.ndim > 0 or is_first or not may_be_number):
            shapes = [f"{'cuda' if isinstance(each, OnDevice) else 'cpu'} {tuple(each.shape)}" for each in leaves]
            raise RuntimeError(f"Expected all tensors to be on the same device, {func} got {', '.join(shapes)}")


class _Operators(TorchDispatchMode):
    """Sees operators without tensors of the device among their arguments: factories and transfers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Calls by name, before torch reads their arguments: the device ``cuda``, lists, and what reads memory itself."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func in _SAID:  # also of what wraps a tensor of the device, as inside of vmap
            if _DEVICE(first) != _WITHIN:
                return func(first)
            return DEVICE if func == _DEVICE else func == _IS_CUDA
        if func is Tensor.cuda:
            func, args = Tensor.to, (first, DEVICE)
        if isinstance(first, OnDevice):
            if func == _SET_DATA and isinstance(args[1], OnDevice):
                first.held = args[1].held
            if func is Tensor.tolist:
                _reads.lists += 1
                return first.detach().held.tolist()
            if func in (Tensor.numpy, Tensor.__array__):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                args = (first, _index(args[1]), *args[2:])
        if func is torch.device:
            return func(*args, **kwargs)
        args, kwargs = _mapped(_within, (args, kwargs))
        if func in _FROM_NUMBERS and kwargs.get("device") == _WITHIN:
            return func(*args, **{**kwargs, "device": "cpu"}).to(_WITHIN)
        if func is Tensor.new_tensor and isinstance(first, OnDevice) and "device" not in kwargs:
            return func(first.held, *args[1:], **kwargs).to(_WITHIN)
        return func(*args, **kwargs)


_SET_DATA = Tensor.data.__set__
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__
_SAID = (_DEVICE, _IS_CUDA, Tensor.is_meta.__get__, Tensor.is_cpu.__get__)
_FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)


def _within(value: Any) -> Any:
    is_named = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
    return _WITHIN if is_named and torch.device(value).type == DEVICE.type else value


def _index(index: Any) -> Any:
    """An index whose lists of numbers are tensors on the device."""
    if isinstance(index, tuple):
        return tuple(_index(part) for part in index)
    if not isinstance(index, list):
        return index
    return (torch.tensor(index) if index else torch.zeros(0, dtype=torch.int64)).to(_WITHIN)


@contextmanager
def pretend_device(free_bytes: int = 2**33, all_bytes: int = 2**34) -> Iterator[Reads]:
    """Inside of it there is a device ``cuda:0``; gives the count of what the host reads.

    Args:
        free_bytes: Memory that the device says is free.
        all_bytes: Memory that it says it has.
    """
    global _reads
    outer, _reads = _reads, Reads()
    with ExitStack() as stack:
        for name, value in {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_name": lambda device=None: "a stand-in",
            "mem_get_info": lambda device=None: (free_bytes, all_bytes),
            "memory_reserved": lambda device=None: 0,
            "memory_allocated": lambda device=None: 0,
            "synchronize": lambda device=None: None,
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(_Operators())
        stack.enter_context(_Calls())
        try:
            yield _reads
        finally:
            _reads = outer
