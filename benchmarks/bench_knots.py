"""Knots of sparse Gaussian processes: seconds and objectives of the selections, and of one evaluation.

OMP_NUM_THREADS=1 python benchmarks/bench_knots.py [--parts boston sgpr greedy large]
OMP_NUM_THREADS=1 python benchmarks/bench_knots.py --parts ccpp --data FOLDER
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.sparse import (
    BayesianOptimization,
    EnoughKnots,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    SparseGP,
    kmeans_knots,
    select_knots,
)
from gp_ensembles.sparse.fitting import Coordinates
from gp_ensembles.sparse.initialization import greedy_variance_rows
from gp_ensembles.sparse.strategies import Strategy

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"


def start(y: Tensor) -> tuple[ScaleKernel, GaussianLikelihood]:
    """Half of the targets' variance for the function and for the noise each, and a lengthscale of one."""
    kernel, likelihood = ScaleKernel(RBFKernel()).to(y), GaussianLikelihood().to(y)
    kernel.base_kernel.lengthscale = 1.0
    kernel.outputscale = likelihood.noise = float(y.var() / 2.0)
    return kernel, likelihood


def seeded(seed: int = 0) -> torch.Generator:
    """A source of randomness."""
    return torch.Generator().manual_seed(seed)


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Processor seconds of one call: other work on the machine counts less than by the wall clock."""
    begin = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - begin) / repeats


def boston_split() -> tuple[Tensor, Tensor]:
    """The training rows of Boston's first published split, as the repository's tests have them."""
    with np.load(GOLDEN / "knots_fixed_boston.npz") as file:
        return torch.as_tensor(file["X"]), torch.as_tensor(file["y"])


def selections(X: Tensor, y: Tensor, strategies: dict[str, Strategy]) -> float:
    """A line for each strategy, and the processor seconds of the last."""
    cpu = 0.0
    for name, strategy in strategies.items():
        kernel, likelihood = start(y)
        begin, cpu = time.perf_counter(), time.process_time()
        found = select_knots(X, y, kernel, likelihood, strategy=strategy, generator=seeded())
        cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
        last = found.history[-1]
        print(
            f"{name:24} {last.num_knots:4} knots  objective {last.objective:12.3f}  "
            f"at most {last.upper_bound:12.3f}  {cpu:7.2f} s of processor, {wall:7.2f} s"
        )
    return cpu


def boston(_: argparse.Namespace) -> None:
    """The default, greedy blocks, and one knot at a time with L-BFGS."""
    X, y = boston_split()
    strategies: dict[str, Strategy] = {
        "default": EnoughKnots(),
        "greedy blocks": GreedyBlocks(),
        "one at a time, subset": OneAtATime(RandomSubset()),
        "one at a time, BO": OneAtATime(BayesianOptimization()),
    }
    selections(X, y, strategies)


def ccpp(arguments: argparse.Namespace) -> None:
    """Half of the rows of the power plant, at random."""
    data = load_folder(arguments.data, "ccpp")
    X, y = torch.as_tensor(data.X).double(), torch.as_tensor(data.y).double().reshape(-1)
    rows = torch.randperm(len(y), generator=seeded())[: len(y) // 2]
    X, y = X[rows], y[rows]
    selections((X - X.mean(0)) / X.std(0), y, {"default": EnoughKnots(), "greedy blocks": GreedyBlocks()})


def large(_: argparse.Namespace) -> None:
    """A hundred thousand rows and two hundred knots, and how many evaluations of the bound that takes."""
    X = 4.0 * torch.rand(100_000, 4, dtype=torch.float64, generator=seeded()) - 2.0
    y = torch.sin(3.0 * X[:, 0]) * torch.cos(2.0 * X[:, 1]) + 0.3 * torch.sin(4.0 * X[:, 2]) + 0.2 * X[:, 3] ** 2
    y = y + 0.1 * torch.randn(len(y), dtype=torch.float64, generator=seeded(1))
    coordinates = Coordinates(SparseGP(X, y, X[:200], *start(y)), slice(None))
    place = coordinates.read()
    once = seconds(lambda: coordinates.evaluate(place), 3)
    whole = selections(X, y, {"default, 100 000 rows": EnoughKnots(max_knots=200)})
    print(
        f"an evaluation of the bound of all rows with all gradients: {once:.2f} s, the default {whole / once:.0f} times"
    )


def greedy(_: argparse.Namespace) -> None:
    """Greedy variance alone."""
    X = torch.rand(100_000, 4, dtype=torch.float64, generator=seeded())
    kernel = ScaleKernel(RBFKernel()).to(X)
    print(f"greedy variance, 100 of 100 000 rows: {seconds(lambda: greedy_variance_rows(X, 100, kernel)):.2f} s")


class _GPyTorchSparse(ExactGP):  # type: ignore[misc]  # GPyTorch is untyped
    """GPyTorch's sparse regression."""

    def __init__(self, X: Tensor, y: Tensor, knots: Tensor) -> None:
        kernel, likelihood = start(y)
        super().__init__(X, y, likelihood)
        self.mean_module = ConstantMean().to(X)
        self.covar_module = InducingPointKernel(kernel, knots.clone(), likelihood)

    def forward(self, X: Tensor) -> object:
        """Prior at rows."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def sgpr(_: argparse.Namespace) -> None:
    """One evaluation with its gradient in all knots and hyperparameters, beside GPyTorch's."""
    X, y = boston_split()
    for rows, knots, repeats in ((len(y), 80, 20), (5000, 80, 3)):
        points = X[torch.randint(len(y), (rows,), generator=seeded())]
        points = points + 0.01 * torch.randn(points.shape, dtype=X.dtype, generator=seeded())
        targets = torch.sin(points.sum(-1))
        places = kmeans_knots(points, knots, generator=seeded())
        theirs = _GPyTorchSparse(points, targets, places)
        evidence = ExactMarginalLogLikelihood(theirs.likelihood, theirs)
        ours = SparseGP(points, targets, places, *start(targets))
        coordinates = Coordinates(ours, slice(None))
        place = coordinates.read()

        def step(model: ExactGP = theirs, objective: ExactMarginalLogLikelihood = evidence) -> None:
            model.zero_grad()
            # BoTorch's import turns GPyTorch's use of the low rank off.
            with gpytorch.settings.fast_computations(True, True, True):
                (-objective(model(*model.train_inputs), model.train_targets)).backward()

        def evaluate(where: Coordinates = coordinates, at: Tensor = place) -> None:
            where.evaluate(at)

        step()
        evaluate()
        turns = [(seconds(step, repeats), seconds(evaluate, repeats)) for _ in range(5)]
        slow, fast = (sorted(times)[2] for times in zip(*turns, strict=True))
        print(
            f"N = {rows}, K = {knots}: GPyTorch {1e3 * slow:.2f} ms, here {1e3 * fast:.2f} ms, ratio {fast / slow:.2f}"
        )


QUICK = ["boston", "sgpr", "greedy"]  # the others want a folder, or ten minutes
PARTS = {
    "boston": boston,
    "sgpr": sgpr,
    "greedy": greedy,
    "ccpp": ccpp,
    "large": large,
}


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of data sets with a manifest (for ccpp)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=QUICK)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for part in arguments.parts:
        PARTS[part](arguments)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
