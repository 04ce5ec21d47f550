"""The Laplace step beside the Gaussian one-step filter, its flatness over a long stream, and seven outputs beside one.

OMP_NUM_THREADS=1 python benchmarks/bench_laplace.py [--long]
"""

import argparse
import time
from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.experts import Expert, GaussianExpert, MultiOutputExpert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.latent_update import MomentMatchingUpdate
from gp_ensembles.features import FeatureMap, RandomFourierFeatures
from gp_ensembles.features.stacking import stack_kernels
from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.textbook import textbook_step
from gp_ensembles.likelihoods import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging

NUM_INPUTS = 5


def features(num_experts: int, num_features: int) -> FeatureMap:
    kernels = []
    for m in range(num_experts):
        kernel = ScaleKernel(RBFKernel()).double()
        kernel.base_kernel.lengthscale = 1.0 + m / num_experts
        kernels.append(kernel)
    generator = torch.Generator().manual_seed(0)
    return RandomFourierFeatures.from_kernel(stack_kernels(kernels), NUM_INPUTS, num_features, generator=generator)


def stream(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    X = torch.randn(num_rows, NUM_INPUTS, generator=g, dtype=torch.float64)
    return X, torch.sin(X.sum(-1)) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def textbook(num_experts: int, num_features: int, num_rows: int) -> float:
    """Seconds per row of the Gaussian one-step filter, features given."""
    X, y = stream(num_rows)
    with torch.no_grad():
        Phi = features(num_experts, num_features)(X)
        one = torch.ones(num_experts, dtype=torch.float64)

        def run() -> None:
            state = gaussian_state(one, num_features)
            for t in range(num_rows):
                state, _ = textbook_step(state, Phi[:, t], y[t], one)

        return seconds(run) / num_rows


def shell(expert: Expert, y: torch.Tensor, X: torch.Tensor, rows_at_once: int | None) -> float:
    """Seconds per row of ``OnlineEnsemble.observe``, features, weights and predictions included."""
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(X[:64], y[:64])
    if rows_at_once is None:
        return seconds(lambda: online.observe(X, y)) / X.shape[0]
    pairs = list(zip(X.split(1), y.split(1), strict=True))
    return seconds(lambda: [online.observe(a, b) for a, b in pairs]) / X.shape[0]


def laplace_table() -> None:
    print("microseconds per row for all experts; in brackets the ratio to the Gaussian one-step filter")
    print(
        f"{'M':>4}{'F':>5}{'Gaussian step':>15}{'Laplace, blocks':>20}{'moments, blocks':>20}"
        f"{'Gaussian, a row':>17}{'Laplace, a row':>20}"
    )
    for num_experts, num_features in ((11, 30), (15, 100)):
        X, y = stream(960)
        labels = (y > 0).double()
        map_ = features(num_experts, num_features)
        base = textbook(num_experts, num_features, 960)
        laplace, moments = (
            LaplaceExpert(map_, LogisticLikelihood()),
            LaplaceExpert(map_, LogisticLikelihood(), latent_update=MomentMatchingUpdate()),
        )
        blocks = [shell(expert, labels, X, None) for expert in (laplace, moments)]
        gaussian_row = shell(GaussianExpert(map_), y[:300], X[:300], 1)
        laplace_row = shell(laplace, labels[:300], X[:300], 1)
        cells = [f"{1e6 * b:>12.0f} ({b / base:.2f})" for b in blocks]
        print(
            f"{num_experts:>4}{num_features:>5}{1e6 * base:>15.0f}{cells[0]:>20}{cells[1]:>20}"
            f"{1e6 * gaussian_row:>17.0f}{1e6 * laplace_row:>12.0f} ({laplace_row / gaussian_row:.2f})"
        )


def outputs_table() -> None:
    print("\nseven outputs beside one, microseconds per row")
    for num_experts, num_features in ((11, 100), (1, 200)):
        X, y = stream(2400)
        many = torch.stack([y + 0.01 * k for k in range(7)], dim=-1)
        map_ = features(num_experts, num_features)
        one = shell(GaussianExpert(map_), y, X, None)
        seven = shell(MultiOutputExpert(map_, 7), many, X, None)
        print(
            f"M={num_experts} F={num_features}: one {1e6 * one:.0f}, seven {1e6 * seven:.0f}, ratio {seven / one:.2f}"
        )


def flatness() -> None:
    X, y = stream(100_000)
    labels = (y > 0).double()
    online = OnlineEnsemble(Ensemble([LaplaceExpert(features(11, 30), LogisticLikelihood())], BayesianModelAveraging()))
    online.observe(X[:1000], labels[:1000])
    times = []
    for start in range(0, 100_000, 1000):
        began = time.perf_counter()
        online.observe(X[start : start + 1000], labels[start : start + 1000])
        times.append(time.perf_counter() - began)
    print(f"\n100 000 rows, M=11, F=30: the last 1 000 rows cost {sum(times[-5:]) / sum(times[:5]):.2f} of the first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="also stream 100 000 rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    laplace_table()
    outputs_table()
    if arguments.long:
        flatness()


if __name__ == "__main__":
    main()
