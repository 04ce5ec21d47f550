"""What a second process gains: a large ensemble, its experts over two processes on two cores.

    python -m benchmarks.price_of_ranks [--experts 256] [--features 200] [--rows 512]

Wall-clock times of the same rows, each process with one thread; they take turns so that both are alone on the machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from gpytorch.kernels import RBFKernel, ScaleKernel

from benchmarks.price_of_block import Ratio
from gp_ensembles.distributed import DistributedEnsemble
from gp_ensembles.ensembles import Ensemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.stacking import stack_kernels
from gp_ensembles.meta_learners import FixedShare

NUM_INPUTS, ROUNDS = 5, 3


def ensemble(num_experts: int, num_features: int) -> Ensemble:
    """Experts on random features."""
    kernels = [ScaleKernel(RBFKernel()).double() for _ in range(num_experts)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 0.3 + 0.02 * number
    generator = torch.Generator().manual_seed(0)
    features = RandomFourierFeatures.from_kernel(stack_kernels(kernels), NUM_INPUTS, num_features, generator=generator)
    return Ensemble([GaussianExpert(features)], FixedShare())


def work(rank: int, size: int, folder: Path, num_experts: int, num_features: int, num_rows: int) -> None:
    """What one process does: the quickest of some rounds is written down by the first of them."""
    torch.set_num_threads(1)
    if size > 1:
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(minutes=5))
    online = DistributedEnsemble(ensemble(num_experts, num_features))
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    y = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    times = []
    for _ in range(ROUNDS):
        online.ranks.wait()
        start = time.monotonic()
        online.observe(X, y)
        times.append(time.monotonic() - start)
    if rank == 0:
        (folder / "seconds").write_text(repr(min(times)))


def seconds(size: int, numbers: list[str]) -> float:
    """Wall-clock seconds of so many processes."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.price_of_ranks", "--folder", name, "--size", str(size), *numbers]
        workers = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(size)]
        for worker in workers:
            worker.wait()
        return float((Path(name) / "seconds").read_text())


def ratios(num_experts: int = 256, num_features: int = 200, num_rows: int = 512) -> list[Ratio]:
    """The table's rows."""
    numbers = ["--experts", str(num_experts), "--features", str(num_features), "--rows", str(num_rows)]
    ratio = seconds(2, numbers) / seconds(1, numbers)
    return [(f"M={num_experts}, F={num_features}: two processes over one, wall clock", ratio, 1 / 1.6)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        work(given.rank, given.size, given.folder, given.experts, given.features, given.rows)
    else:
        for what, ratio, most in ratios(given.experts, given.features, given.rows):
            print(f"{ratio:8.3f} {'' if most is None else f'(at most {most:.3f})':16s} {what}")
