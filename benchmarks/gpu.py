"""Speed on a GPU: how near it comes to its roofs, and rows per second compared with the CPU of the same machine.

    python -m benchmarks.gpu [--keep]

Seconds are those of the clock between two waits for the device, the median of some runs. On a machine without a GPU the
same code runs on the processor in small sizes, which shows that it runs and tells nothing about a GPU.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from benchmarks import measured
from benchmarks.price_of_row import stream
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters import RandomWalk, gaussian_state
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare
from gp_ensembles.streaming import OnlineModel, StreamConfig

NUM_INPUTS = 3
_Result = TypeVar("_Result")


class Sizes(NamedTuple):
    """How large everything is."""

    product: int
    copied: int
    large: tuple[int, int]
    many: tuple[int, int]
    num_rows: int
    num_series: int
    compared: tuple[tuple[int, int], ...]


FULL = Sizes(
    8192, 2**29, (1024, 256), (56, 100), 8192, 100_000, ((8, 50), (56, 100), (56, 400), (256, 256), (1024, 256))
)
SMALL = Sizes(512, 2**22, (32, 64), (14, 30), 256, 500, ((4, 20), (14, 30)))


class Line(NamedTuple):
    """A line of the table: what, how much, in which unit, and the share of a roof or of another way that it is."""

    what: str
    value: float
    unit: str
    share: str = ""


def seconds(work: Callable[[], object], device: torch.device, runs: int = 5) -> float:
    """The clock's seconds of a piece of work, after one run that warms up."""
    times = []
    for _ in range(runs + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a product of square matrices."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / seconds(lambda: left @ right, device)


def memory_rate(num: int, device: torch.device) -> float:
    """Bytes a second that are read and written together when memory is copied."""
    source = torch.ones(num, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 8 * num / seconds(lambda: target.copy_(source), device)


def ensemble(size: tuple[int, int], dtype: torch.dtype, device: torch.device, *, layered: bool = False) -> Ensemble:
    """Experts that walk at random, half of them where there are layers: innovation models and a switching rule."""
    num_experts, num_features = size
    kernels = [ScaleKernel(RBFKernel()).to(dtype) for _ in range(num_experts // 2 if layered else num_experts)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 0.3 + 2 * number / num_experts
    stacked, generator = stack_kernels(kernels), torch.Generator().manual_seed(0)
    features = RandomFourierFeatures.from_kernel(stacked, NUM_INPUTS, num_features, generator=generator)
    walking = GaussianExpert(features, transition=RandomWalk(1e-3), initial_state=gaussian_state)
    if not layered:
        return Ensemble([walking], BayesianModelAveraging()).to(device)
    static = GaussianExpert(features, initial_state=gaussian_state)
    models = (InnovationModel(rate=0.05), InnovationModel(degrees_of_freedom=4))
    return Ensemble([static, walking], FixedShare(), innovations=models).to(device)


def rows(num: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and smooth targets."""
    X = torch.randn(num, NUM_INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = X[:, 0].sin() + 0.1 * torch.randn(num, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return X.to(device, dtype), y.to(device, dtype)


def large(sizes: Sizes, dtype: torch.dtype, device: torch.device, roof: float) -> list[Line]:
    """A large ensemble: blocks of 64 rows, of 4 F^2 operations a row and expert."""
    num_experts, num_features = sizes.large
    online = OnlineEnsemble(ensemble(sizes.large, dtype, device), block_size=64)
    X, y = rows(sizes.num_rows, dtype, device)
    took = seconds(lambda: online.observe(X, y), device, runs=3)
    rate = 4 * num_features**2 * num_experts * len(y) / took
    name = f"{num_experts} experts x F={num_features}, {str(dtype)[6:]}, blocks of 64, CUDA graph"
    return [
        Line(name, rate / 1e12, "TFLOP/s", f"{rate / roof:.2f} of the matrix product"),
        Line(name, len(y) / took, "rows/s"),
    ]


def small_experts(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Line]:
    """An ensemble with innovation models, from a graph and eagerly."""
    made = ensemble(sizes.many, dtype, device, layered=True)
    X, y = rows(sizes.num_rows, dtype, device)
    recorded, online = OnlineEnsemble(made, block_size=64), OnlineEnsemble(made)
    online.records = False  # operation by operation
    replayed = seconds(lambda: recorded.observe(X, y), device, runs=3)
    eager = seconds(lambda: online.observe(X, y), device, runs=3)
    name = f"{sizes.many[0]} experts x F={sizes.many[1]} with innovation models, {str(dtype)[6:]}"
    return [
        Line(f"{name}, CUDA graph", len(y) / replayed, "rows/s", f"{eager / replayed:.1f} times eager speed"),
        Line(f"{name}, eager", len(y) / eager, "rows/s"),
    ]


def fleet(sizes: Sizes, device: torch.device, roof: float) -> list[Line]:
    """One row of each of many series of four experts, F = 64."""
    dtype, num_features = torch.float32, 64
    series = EnsembleFleet(ensemble((4, num_features), dtype, device), range(sizes.num_series))
    X, y = rows(sizes.num_series, dtype, device)
    names = list(range(sizes.num_series))
    took = seconds(lambda: series.observe(names, X, y), device, runs=3)
    floor = 3 * 4 * 4 * num_features * (num_features + 1) * sizes.num_series / roof
    name = f"{sizes.num_series} series x 4 experts x F={num_features}, float32, one row each"
    return [Line(name, sizes.num_series / took, "rows/s", f"{took / floor:.2f} times three passes through memory")]


def table(device: torch.device, sizes: Sizes) -> list[Line]:
    """All lines."""
    bandwidth = memory_rate(sizes.copied, device)
    lines = [Line("memory bandwidth, read and write", bandwidth / 1e9, "GB/s")]
    for dtype in (torch.float32, torch.float64):
        roof = product_rate(sizes.product, dtype, device)
        lines.append(Line(f"matrix product, {str(dtype)[6:]}", roof / 1e12, "TFLOP/s"))
        lines += large(sizes, dtype, device, roof)
    for dtype in (torch.float32, torch.float64):
        lines += small_experts(sizes, dtype, device)
    return lines + fleet(sizes, device, bandwidth)


def on_threads(num: int, work: Callable[[], _Result]) -> _Result:
    """What some work gives while the processor may use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        return work()
    finally:
        torch.set_num_threads(before)


def rows_a_second(size: tuple[int, int], dtype: torch.dtype, device: torch.device, num_rows: int) -> float:
    """Rows that an ensemble learns in blocks, in a second."""
    online = OnlineEnsemble(ensemble(size, dtype, device))
    X, y = rows(num_rows, dtype, device)
    return num_rows / seconds(lambda: online.observe(X, y), device, runs=3)


def beside_the_host(sizes: Sizes, device: torch.device) -> list[list[measured.Cell]]:
    """Experts, features, and rows per second: on the device in both precisions, on one thread and on all."""
    host, found = torch.device("cpu"), []
    for size in sizes.compared:
        work = 4 * size[0] * size[1] ** 2
        few = max(64, min(sizes.num_rows, 64 * int(5e9 / work / 64)))  # about a second of a thread
        there = [rows_a_second(size, dtype, device, sizes.num_rows) for dtype in (torch.float64, torch.float32)]
        here = [
            on_threads(num, lambda size=size, few=few: rows_a_second(size, torch.float64, host, few))
            for num in (1, os.cpu_count() or 1)
        ]
        found.append([*map(str, size), *there, *here])
    return found


def of_models(device: torch.device, num_rows: int) -> list[list[measured.Cell]]:
    """Of presets: seconds of a start on a thousand rows, then rows per second in blocks, there and on a thread."""
    X, y = stream(1000 + num_rows)
    found: list[list[measured.Cell]] = []
    for name in ("light", "forecaster"):
        cells: list[float] = []
        for place in (device, torch.device("cpu")):
            config = StreamConfig(PRESETS[name], warmup=1000, device=str(place))
            cells += on_threads(1, lambda config=config, place=place: _of_model(config, X, y, place))
        found.append([name, cells[0], cells[2], cells[1], cells[3]])
    return found


def _of_model(config: StreamConfig, X: Tensor, y: Tensor, device: torch.device) -> list[float]:
    """Seconds of a start on a thousand rows, and rows per second of those behind the next two hundred."""
    OnlineModel(config).fit(X[:1000], y[:1000])  # warms up
    start = time.perf_counter()
    model = OnlineModel(config).fit(X[:1000], y[:1000])
    _wait(device)
    fitted = time.perf_counter() - start
    model.observe(X[1000:1200], y[1000:1200])
    start = time.perf_counter()
    model.observe(X[1200:], y[1200:])
    _wait(device)
    return [fitted, len(y[1200:]) / (time.perf_counter() - start)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--keep", action="store_true", help="write the tables that the site shows")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    on_gpu = device.type == "cuda"
    if given.keep and not on_gpu:
        parser.error("only what a GPU gave is kept; leave --keep out")
    sizes = FULL if on_gpu else SMALL
    name = torch.cuda.get_device_name(device) if on_gpu else ""
    keep = measured.keep if given.keep else measured.show
    lines = [[line.what, line.value, line.unit, line.share] for line in table(device, sizes)]
    keep("gpu_roofs", ["", "measured", "unit", "share"], lines, device=name)
    columns = ["experts", "features", "GPU, float64", "GPU, float32", "one thread", f"{os.cpu_count()} threads"]
    keep("gpu_rows", columns, beside_the_host(sizes, device), device=name)
    columns = ["", "start on GPU, s", "start on one thread, s", "rows/s on GPU", "rows/s on one thread"]
    keep("gpu_models", columns, of_models(device, sizes.num_rows if on_gpu else 600), device=name)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
