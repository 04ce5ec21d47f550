"""Cost of a model for each of many series, over reading and writing their states and over a loop over models.

    python -m benchmarks.price_of_fleet [--series 20000] [--rounds 4]
    python -m benchmarks.price_of_fleet --grown 100000

CPU times of one thread. The loop goes over models that together are larger than the caches, as those of a fleet are.
``--grown`` prints only what so many series cost, each, over each of ``--series``, and their memory, in single
precision.
"""

import argparse
import copy
import time
from resource import RUSAGE_SELF, getrusage
from statistics import median

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from benchmarks.measured import keep
from benchmarks.price_of_block import Ratio
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.empirical_bayes import LBFGS, fit_empirical_bayes
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters import RandomWalk
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.fitting import fit_variances
from gp_ensembles.meta_learners import FixedShare

NUM_EXPERTS, NUM_FEATURES, NUM_INPUTS, NUM_ALONE = 4, 64, 3, 1000


def ensemble(dtype: torch.dtype) -> Ensemble:
    """Experts on random features that walk at random, as single precision wants them."""
    kernels = [ScaleKernel(RBFKernel()).to(dtype) for _ in range(NUM_EXPERTS)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 0.5 + 0.5 * number
    stacked, generator = stack_kernels(kernels), torch.Generator().manual_seed(0)
    features = RandomFourierFeatures.from_kernel(stacked, NUM_INPUTS, NUM_FEATURES, generator=generator)
    return Ensemble([GaussianExpert(features, transition=RandomWalk(1e-2))], FixedShare())


class Rounds:
    """Rounds of one row for each of some series."""

    def __init__(self, fleet: EnsembleFleet, names: list[int], dtype: torch.dtype) -> None:
        self._fleet, self._names, self._dtype = fleet, names, dtype
        self._generator = torch.Generator().manual_seed(1)

    def rows(self) -> tuple[Tensor, Tensor]:
        """One row for each."""
        draw = {"generator": self._generator, "dtype": self._dtype}
        return torch.randn(len(self._names), NUM_INPUTS, **draw), torch.randn(len(self._names), **draw)

    def seconds(self) -> float:
        """CPU seconds of one round."""
        X, y = self.rows()
        start = time.thread_time()
        self._fleet.observe(self._names, X, y)
        return time.thread_time() - start


def copying(num_series: int, dtype: torch.dtype) -> float:
    """CPU seconds to read and write the states of so many series once."""
    size = num_series * NUM_EXPERTS * NUM_FEATURES * (NUM_FEATURES + 1)
    source, target = torch.ones(size, dtype=dtype), torch.ones(size, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.thread_time()
        target.copy_(source)
        times.append(time.thread_time() - start)
    return min(times)


def alone(dtype: torch.dtype) -> float:
    """CPU seconds of a row of a model alone, many of them in turn."""
    models, generator = [OnlineEnsemble(ensemble(dtype)) for _ in range(NUM_ALONE)], torch.Generator().manual_seed(2)
    draw = {"generator": generator, "dtype": dtype}
    X, y = torch.randn(NUM_ALONE, NUM_INPUTS, **draw), torch.randn(NUM_ALONE, **draw)
    for _ in range(2):  # the first row of each is slower
        start = time.thread_time()
        for row, model in enumerate(models):
            model.observe(X[row : row + 1], y[row : row + 1])
        took = time.thread_time() - start
    return took / NUM_ALONE


def fitting(num_series: int = 1000, num_rows: int = 300, num_by_one: int = 20) -> Ratio:
    """Noise and prior variances of many series in one batch, over all hyperparameters of each by itself."""
    expert = ensemble(torch.float64).experts[0]
    assert isinstance(expert, GaussianExpert)
    draw = {"generator": torch.Generator().manual_seed(4), "dtype": torch.float64}
    X = torch.randn(num_series, num_rows, NUM_INPUTS, **draw)
    y = X[..., 0].sin() + 0.3 * torch.rand(num_series, 1, **draw) * torch.randn(num_series, num_rows, **draw)
    start = time.thread_time()
    fit_variances(expert, X, y, FitSettings(LBFGS()))
    batched = (time.thread_time() - start) / num_series
    start = time.thread_time()
    for number in range(num_by_one):
        fit_empirical_bayes(copy.deepcopy(expert), X[number], y[number], LBFGS())
    by_one = (time.thread_time() - start) / num_by_one
    return f"variances of {num_series} series of {num_rows} rows at once vs. a fit of each", batched / by_one, 0.05


def flatness(dtype: torch.dtype, num_series: int = 300, num_rounds: int = 1000) -> Ratio:
    """The last hundred of many rounds over the first hundred, of fewer series."""
    fleet = EnsembleFleet(ensemble(dtype), range(num_series))
    rounds = Rounds(fleet, list(range(num_series)), dtype)
    rounds.seconds()  # the first of all is slower
    times = [rounds.seconds() for _ in range(num_rounds)]
    name = (
        f"{num_series} series, {str(dtype).removeprefix('torch.')}: the last 100 of {num_rounds} rounds vs. the first"
    )
    return name, sum(times[-100:]) / sum(times[:100]), 1.1


def grown(num_series: int, few: int, num_rounds: int) -> str:
    """A series' share of a round of many over its share of a round of fewer, by turns, and bytes of the many."""
    before = getrusage(RUSAGE_SELF).ru_maxrss
    numbers = list(range(num_series))
    many = Rounds(EnsembleFleet(ensemble(torch.float32), numbers), numbers, torch.float32)
    size = 1024 * (getrusage(RUSAGE_SELF).ru_maxrss - before) / num_series
    less = Rounds(EnsembleFleet(ensemble(torch.float32), numbers[:few]), numbers[:few], torch.float32)
    times = [(many.seconds() / num_series, less.seconds() / few) for _ in range(num_rounds + 1)][1:]
    large, small = (median(part) for part in zip(*times, strict=True))
    return f"{num_series} series over {few}: {large / small:.2f} a series, {size / 1000:.1f} kB each"


def ratios(num_series: int = 20_000, num_rounds: int = 4) -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    found: list[Ratio] = []
    for dtype in (torch.float32, torch.float64):
        name = f"{num_series} series x {NUM_EXPERTS} experts x F={NUM_FEATURES}, {str(dtype).removeprefix('torch.')}"
        floor, one = 3 * copying(num_series, dtype), alone(dtype)
        fleet = EnsembleFleet(ensemble(dtype), range(num_series))
        whole = Rounds(fleet, list(range(num_series)), dtype)
        times = [whole.seconds() for _ in range(num_rounds + 1)][1:]
        few = torch.randperm(num_series, generator=torch.Generator().manual_seed(3))[: num_series // 10].tolist()
        part = Rounds(fleet, few, dtype)
        tenth = median([part.seconds() for _ in range(num_rounds)])
        cost = median(times)
        found += [
            (f"{name}: a round vs. three passes through memory", cost / floor, 2.0),
            (f"{name}: a round vs. a loop over models", cost / (one * num_series), 0.02),
            (f"{name}: rows of a tenth of the series vs. a round", tenth / cost, 0.2),
            flatness(dtype),
        ]
    return [*found, fitting()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--grown", type=int)
    given = parser.parse_args()
    if given.grown is not None:
        torch.set_num_threads(1)
        print(grown(given.grown, given.series, given.rounds))
        raise SystemExit
    found = ratios(given.series, given.rounds)
    keep("fleet", ["", "goal, at most", "ratio"], [[what, most, ratio] for what, ratio, most in found])
