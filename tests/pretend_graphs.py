"""CUDA graphs on the stand-in device: operators of a block are written down once and run again on the same memory.

What a stream that is captured refuses is refused: a number that the host reads, a copy between devices, a shape that
depends on numbers. Unlike a true capture this one computes, too.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.pretend_device import OnDevice, pretend_device

_aten = torch.ops.aten
_WAITING = {_aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.equal, _aten.unique_consecutive}
_COPIES = {_aten.copy_, _aten._to_copy}


class Graph:
    """A graph: its operators with their arguments and what they gave, and how often it ran."""

    def __init__(self) -> None:
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0
        self.refused: str | None = None
        self.stream: object = None  # that it was recorded on; without one torch takes the current device's

    def replay(self) -> None:
        """Run all again, into the same memory."""
        self.num_replays += 1
        for func, args, kwargs, given in self.operators:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(given), _tensors(again), strict=True):
                if old is not new:
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    """Writes down operators that launch something."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = func(*args, **kwargs)
        packet, used = func.overloadpacket, _tensors((args, kwargs, given))
        is_masked = packet is _aten.index and any(one is not None and one.dtype == torch.bool for one in args[1])
        if (
            packet in _WAITING
            or is_masked
            or (packet in _COPIES and len({isinstance(one, OnDevice) for one in used}) > 1)
        ):
            self._graph.refused = f"operation not permitted when stream is capturing: {func}"
            raise RuntimeError(self._graph.refused)
        is_view = any(part.alias_info is not None and not part.alias_info.is_write for part in func._schema.returns)
        if not is_view and any(isinstance(one, OnDevice) for one in used):
            self._graph.operators.append((func, args, kwargs, given))
        return given


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


@contextmanager
def _graph(graph: Graph, stream: object = None) -> Iterator[None]:
    graph.stream = stream
    with _Recorder(graph):
        yield
    if graph.refused is not None:  # and somebody has caught it
        raise RuntimeError(f"operation failed due to a previous error during capture: {graph.refused}")


@contextmanager
def pretend_graphs() -> Iterator[list[Graph]]:
    """Inside of it, and of :func:`~tests.pretend_device.pretend_device`, graphs can be recorded; gives all of them."""
    graphs = list[Graph]()

    def make() -> Graph:
        graphs.append(Graph())
        return graphs[-1]

    with ExitStack() as stack:
        for name, value in {
            "CUDAGraph": make,
            "graph": _graph,
            "Stream": mock.MagicMock(),
            "current_stream": mock.MagicMock(),
            "stream": lambda stream: nullcontext(),
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        yield graphs


@contextmanager
def pretend_gpu(free_bytes: int = 2**33) -> Iterator[list[Graph]]:
    """The stand-in device with its graphs: what commands and models meet on a GPU; gives all graphs."""
    with pretend_device(free_bytes), pretend_graphs() as graphs:
        yield graphs
