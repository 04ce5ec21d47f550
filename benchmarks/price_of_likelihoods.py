"""Cost of likelihoods that are not Gaussian: over Gaussian experts on the same features, and for more classes.

    python -m benchmarks.price_of_likelihoods

CPU times of one thread of the whole of ``OnlineEnsemble.observe``; what is compared takes turns. ``--keep`` writes the
table of the site: the start of an ensemble for two and for more classes, and a row in blocks, of four inputs and a
warm-up of 300 rows.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from benchmarks.measured import Cell, keep
from benchmarks.price_of_block import Ratio, best_of
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.features import FeatureMap, RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters.sites import MomentMatchingUpdate
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.streaming import OnlineModel, StreamConfig

NUM_INPUTS, NUM_CLASSES, BLOCK_ROWS, SINGLE_ROWS = 5, 3, 480, 60
WARMUP, ROWS = 1000, 1000


def features(num_experts: int, num_features: int) -> FeatureMap:
    """Random features of kernels with other length scales."""
    kernels = []
    for m in range(num_experts):
        kernel = ScaleKernel(RBFKernel()).double()
        kernel.base_kernel.lengthscale = 1.0 + m / num_experts
        kernels.append(kernel)
    generator = torch.Generator().manual_seed(0)
    return RandomFourierFeatures.from_kernel(stack_kernels(kernels), NUM_INPUTS, num_features, generator=generator)


def stream(num_rows: int) -> tuple[Tensor, Tensor]:
    """A made stream."""
    g = torch.Generator().manual_seed(1)
    X = torch.randn(num_rows, NUM_INPUTS, generator=g, dtype=torch.float64)
    return X, torch.sin(X.sum(-1)) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)


def run(expert: Expert, X: Tensor, y: Tensor, rows_at_once: int) -> Callable[[], object]:
    """An ensemble that has begun, and what it does with further rows."""
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(X[:64], y[:64])
    parts = list(zip(X.split(rows_at_once), y.split(rows_at_once), strict=True))
    return lambda: [online.observe(rows, targets) for rows, targets in parts]


def ratios() -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    found: list[Ratio] = []
    for num_experts, num_features in ((11, 30), (15, 100)):
        name, map_ = f"M={num_experts}, F={num_features}", features(num_experts, num_features)
        X, y = stream(BLOCK_ROWS)
        labels, classes = (y > 0).double(), torch.bucketize(y, torch.tensor([-0.5, 0.5], dtype=torch.float64)).double()
        logistic = LaplaceExpert(map_, LogisticLikelihood())
        moments = LaplaceExpert(map_, LogisticLikelihood(), latent_update=MomentMatchingUpdate())
        softmax = LaplaceExpert(map_, MulticlassLikelihood(NUM_CLASSES))
        for rows, how, most in ((BLOCK_ROWS, "in blocks", 3.0), (1, "one row at a time", 4.0)):
            few = BLOCK_ROWS if rows > 1 else SINGLE_ROWS
            experts = ((GaussianExpert(map_), y), (logistic, labels), (moments, labels), (softmax, classes))
            cost = best_of([run(expert, X[:few], target[:few], rows) for expert, target in experts], 5)
            binary, matched, classed = (one / cost[0] for one in cost[1:])
            found += [
                (f"{name}, {how}: two classes by Laplace vs. Gaussian", binary, most),
                (f"{name}, {how}: two classes by moment matching vs. Gaussian", matched, 2 * most),
                (f"{name}, {how}: {NUM_CLASSES} classes by Laplace, each, vs. Gaussian", classed / NUM_CLASSES, most),
            ]
    return found


def price(spec: EnsembleSpec, num_classes: int) -> tuple[float, float]:
    """Seconds of the start, and milliseconds per row after it."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(WARMUP + ROWS, 20, generator=generator, dtype=torch.float64)
    level = X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    edges = level.quantile(torch.arange(1.0, num_classes, dtype=torch.float64) / num_classes)
    y = torch.bucketize(level, edges).double()
    started = time.process_time()
    model = OnlineModel(StreamConfig(spec, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    fitted = time.process_time()
    model.observe(X[WARMUP:], y[WARMUP:])
    return fitted - started, 1e3 * (time.process_time() - fitted) / ROWS


def keep_classes() -> None:
    """Measure and write the table of the site."""
    fewer = (FourierBasis(num_features=20),)
    specs: dict[str, tuple[EnsembleSpec, int]] = {
        "2 (`BinaryTarget`)": (auto_for(BinaryTarget()), 2),
        "3": (auto_for(ClassTarget(3)), 3),
        "10": (auto_for(ClassTarget(10)), 10),
        "10, without trees: `extra_experts=()`": (replace(auto_for(ClassTarget(10)), extra_experts=()), 10),
        "10, `bases=(FourierBasis(num_features=20),)` alone": (
            replace(auto_for(ClassTarget(10)), bases=fewer, extra_experts=()),
            10,
        ),
    }
    rows: list[list[Cell]] = []
    for name, (spec, num_classes) in specs.items():
        rows.append([name, *price(spec, num_classes)])
        print(rows[-1], flush=True)
    columns = ["classes", "start, seconds", "milliseconds per row, in blocks"]
    keep("classes", columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="classes only, and write their table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.keep:
        keep_classes()
        return
    for what, ratio, most in ratios():
        print(f"{ratio:8.2f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")


if __name__ == "__main__":
    main()
