"""The GPUs that tests run on: a stand-in everywhere, and a true one where there is one."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

from tests.pretend_graphs import pretend_gpu

CACHED = type(functools.cache(len))


class Gpu(NamedTuple):
    """A GPU that a test runs on.

    Attributes:
        here: Inside of it ``cuda`` is this GPU; gives the graphs that are recorded there, which count ``num_replays``.
        name: What commands call it.
        round_off: How far numbers may be from the host's by the GPU's own round-off.
        draws: Whether its random numbers are not the host's.
    """

    here: Callable[[], AbstractContextManager[list[Any]]]
    name: str
    round_off: float
    draws: bool

    def close(self, **given: Any) -> dict[str, Any]:
        """Tolerances that are given, or the GPU's own where they are finer."""
        return {**given, **{name: max(given.get(name, 0), self.round_off) for name in ("rtol", "atol")}}


@contextmanager
def true_gpu() -> Iterator[list[Any]]:
    """The GPU of this machine; gives the graphs that are recorded inside."""
    _forget()  # tensors of a stand-in
    graphs = list[Any]()

    class Counted(torch.cuda.CUDAGraph):
        """A graph that counts."""

        num_replays: int

        def __new__(cls, *args: Any, **kwargs: Any) -> "Counted":
            made = super().__new__(cls, *args, **kwargs)
            made.num_replays = 0
            graphs.append(made)
            return made

        def replay(self) -> None:
            self.num_replays += 1
            super().replay()

    try:
        with mock.patch.object(torch.cuda, "CUDAGraph", Counted):
            yield graphs
        torch.cuda.synchronize()
    finally:
        _forget()


def _forget() -> None:
    """Empty what the library keeps for each device: the stand-in and a true GPU have the same name."""
    for kept in gc.get_objects():
        if isinstance(kept, CACHED) and str(kept.__module__).startswith("gp_ensembles"):
            kept.cache_clear()


GPUS = {"stand-in": Gpu(pretend_gpu, "cuda (a stand-in)", 0.0, draws=False)}
if torch.cuda.is_available():
    torch.cuda.init()  # before a stand-in says that it has been
    GPUS["gpu"] = Gpu(true_gpu, f"cuda ({torch.cuda.get_device_name()})", 1e-7, draws=True)
