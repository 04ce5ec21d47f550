"""Learning one more observation, and suggesting the next point, beside BoTorch's SingleTaskGP as the data grow.

OMP_NUM_THREADS=1 python benchmarks/bench_conditioning.py [--num_features 256] [--repeats 15]

An ensemble learns a row in O(F^2), whatever the number n of rows before. GPyTorch extends the factor of its n x n
covariance with a QR factorization, O(n^3). "Cold" counts what comes before as well: a model of the n rows and one
prediction, which BoTorch asks for. Hyperparameters are those that models start with: fitting them is the last table's
matter, where exact processes with three kernels are fitted anew, as SingleTaskGP is, and both suggest a point; a second
fit starts from the hyperparameters of the first as well. --part chooses the tables.
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.utils.warnings import GPInputWarning

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel, WeightedAcquisition, kernel_ensemble

Surrogate = EnsembleModel | ExactEnsembleModel | SingleTaskGP
NUM_INPUTS, SIZES, FITTED_SIZES = 6, (100, 500, 2000), (15, 50, 100, 200, 400, 600)


def observations(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    X = torch.rand(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    return X, (3 * X).sin().sum(-1, keepdim=True) + 0.05 * noise


def ensemble_model(X: torch.Tensor, Y: torch.Tensor, num_features: int) -> EnsembleModel:
    generator = torch.Generator().manual_seed(0)
    return EnsembleModel(X, Y, ensemble=kernel_ensemble(X, num_features=num_features, generator=generator))


def improvement(model: Surrogate, best: torch.Tensor) -> AcquisitionFunction:
    if not isinstance(model, SingleTaskGP):
        return WeightedAcquisition(model, lambda experts: LogExpectedImprovement(experts, best_f=best))
    return LogExpectedImprovement(model, best_f=best)


def suggest(model: Surrogate, best: torch.Tensor) -> torch.Tensor:
    bounds = torch.stack([best.new_zeros(NUM_INPUTS), best.new_ones(NUM_INPUTS)])
    options: dict[str, bool | float | int | str] = {"maxiter": 50, "seed": 0}
    return optimize_acqf(improvement(model, best), bounds, q=1, num_restarts=4, raw_samples=128, options=options)[0]


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def warm(model: Surrogate, x: torch.Tensor) -> Surrogate:
    """The model after a prediction, which BoTorch asks for before it conditions."""
    with torch.no_grad():
        model.posterior(x)
    return model


def learn(model: Surrogate, x: torch.Tensor, y: torch.Tensor) -> Surrogate:
    with torch.no_grad():
        return cast(Surrogate, model.condition_on_observations(x, y))


def conditioning(num_rows: int, num_features: int, repeats: int) -> str:
    """A line of the first table."""
    X, Y = observations(num_rows + 1)
    before, row = (X[:-1], Y[:-1]), (X[-1:], Y[-1:])
    ensemble, exact = warm(ensemble_model(*before, num_features), row[0]), warm(SingleTaskGP(*before), row[0])
    own = median_seconds(lambda: learn(ensemble, *row), repeats)
    other = median_seconds(lambda: learn(exact, *row), repeats)
    few = min(repeats, 5)
    own_cold = median_seconds(lambda: learn(warm(ensemble_model(*before, num_features), row[0]), *row), few)
    other_cold = median_seconds(lambda: learn(warm(SingleTaskGP(*before), row[0]), *row), few)
    cells = (1e3 * own, 1e3 * other, other / own, 1e3 * own_cold, 1e3 * other_cold, other_cold / own_cold)
    return f"{num_rows:>6}" + "".join(f"{cell:>14.2f}" for cell in cells)


def suggesting(num_rows: int, num_features: int, repeats: int) -> str:
    """A line of the second table."""
    X, Y = observations(num_rows + 1)
    before, row, best = (X[:-1], Y[:-1]), (X[-1:], Y[-1:]), Y.max()
    ensemble, exact = warm(ensemble_model(*before, num_features), row[0]), warm(SingleTaskGP(*before), row[0])
    own = median_seconds(lambda: suggest(ensemble, best), repeats)
    other = median_seconds(lambda: suggest(exact, best), repeats)
    own_both = median_seconds(lambda: suggest(learn(ensemble, *row), best), repeats)
    other_both = median_seconds(lambda: suggest(learn(exact, *row), best), repeats)
    cells = (own, other, other / own, own_both, other_both, other_both / own_both)
    return f"{num_rows:>6}" + "".join(f"{cell:>14.3f}" for cell in cells)


def fitting(num_rows: int, repeats: int) -> str:
    """A line of the third table: kinds take turns, so that what else the machine does is the same for all."""
    X, Y = observations(num_rows)
    best, times = Y.max(), []
    for _ in range(repeats):
        marks = [time.perf_counter()]
        own = ExactEnsembleModel(X, Y).fit()
        marks.append(time.perf_counter())
        suggest(own, best)
        marks.append(time.perf_counter())
        ExactEnsembleModel(X, Y).fit(own.hyperparameters)
        marks.append(time.perf_counter())
        other = SingleTaskGP(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(other.likelihood, other))
        marks.append(time.perf_counter())
        suggest(other, best)
        marks.append(time.perf_counter())
        times.append([after - before for before, after in itertools.pairwise(marks)])
    fit, acquire, again, their_fit, their_acquire = (statistics.median(column) for column in zip(*times, strict=True))
    whole = (fit + acquire) / (their_fit + their_acquire)
    cells = (fit, again, their_fit, acquire, their_acquire, whole)
    return f"{num_rows:>6}" + "".join(f"{cell:>14.3f}" for cell in cells)


def header(*names: str) -> str:
    return f"{'n':>6}" + "".join(f"{name:>14}" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_features", type=int, default=256, help="of each expert")
    parser.add_argument("--repeats", type=int, default=15, help="of conditioning; suggestions take a third")
    parser.add_argument("--part", choices=("learning", "fitting", "all"), default="all", help="which tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", GPInputWarning)
    features, repeats = arguments.num_features, arguments.repeats
    few = max(1, repeats // 3)
    if arguments.part != "fitting":
        print(f"learning one more row, milliseconds (medians of {repeats}, cold of {min(repeats, 5)});", end=" ")
        print(f"{NUM_INPUTS} inputs, three kernels of {features} features")
        print(header("ensemble", "GP", "GP / ens.", "ens., cold", "GP, cold", "GP / ens."))
        for num_rows in SIZES:
            print(conditioning(num_rows, features, repeats), flush=True)
        print(f"\na suggestion by log expected improvement (4 restarts, 128 raw samples), seconds (medians of {few})")
        print(header("ensemble", "GP", "GP / ens.", "ens., learn+", "GP, learn+", "GP / ens."))
        for num_rows in SIZES:
            print(suggesting(num_rows, features, few), flush=True)
    if arguments.part != "learning":
        print(f"\nhyperparameters fitted, then a suggestion, seconds (medians of {few})")
        print(header("fit", "fit again", "GP, fit", "suggestion", "GP, sugg.", "whole, ratio"))
        for num_rows in FITTED_SIZES:
            print(fitting(num_rows, few), flush=True)


if __name__ == "__main__":
    main()
