"""Cost of a suggestion with our exact model over one with ``SingleTaskGP``: fit and maximized acquisition function.

    python -m benchmarks.price_of_suggestion

CPU times of one thread; both models take turns on the same rows of Hartmann's function of six inputs, for two outputs
on its negative too, seeds as repetitions. Medians of the ratios of each pair, and their range.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

import gp_ensembles as gpe

SIZES = (20, 60, 150)
NUM_INPUTS, NUM_SAMPLES = 6, 64


def ours(X: Tensor, Y: Tensor) -> Any:
    """Our exact model, fitted."""
    return gpe.ExactEnsembleModel(X, Y).fit()


def theirs(X: Tensor, Y: Tensor) -> Any:
    """BoTorch's default model, fitted as its documentation says."""
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def log_ei(model: Any, X: Tensor, Y: Tensor) -> AcquisitionFunction:
    """Of the best value."""
    return LogExpectedImprovement(model, best_f=Y.max())


def noisy(model: Any, X: Tensor, Y: Tensor) -> AcquisitionFunction:
    """Over the rows that are known."""
    sampler = SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=0)
    return qLogNoisyExpectedImprovement(model, X, sampler=sampler, prune_baseline=True)


def hypervolume(model: Any, X: Tensor, Y: Tensor) -> AcquisitionFunction:
    """Of two outputs over the rows that are known."""
    sampler = SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=0)
    reference = Y.amin(0).tolist()
    return qLogNoisyExpectedHypervolumeImprovement(model, reference, X, sampler=sampler, prune_baseline=True)


KINDS: dict[str, tuple[int, Callable[[Any, Tensor, Tensor], AcquisitionFunction]]] = {
    "LogEI": (1, log_ei),
    "qLogNEI": (1, noisy),
    "qLogNEHVI, two outputs": (2, hypervolume),
}


def price(name: str, make: Callable[[Tensor, Tensor], Any], num_rows: int, seed: int) -> float:
    """Seconds of the processor for one suggestion after so many rows."""
    num_outputs, acquisition = KINDS[name]
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    function = Hartmann(negate=True, dtype=torch.float64)
    Y = torch.stack([function(X), function(1 - X)][:num_outputs], dim=-1)
    torch.manual_seed(seed)
    start = time.process_time()
    bounds = X.new_tensor([[0.0] * NUM_INPUTS, [1.0] * NUM_INPUTS])
    optimize_acqf(acquisition(make(X, Y), X, Y), bounds, q=1, num_restarts=4, raw_samples=128)
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| acquisition function | rows | ours over SingleTaskGP | range |\n|---|---:|---:|---:|")
    for name in KINDS:
        price(name, ours, 10, 0), price(name, theirs, 10, 0)
        for num_rows in SIZES:
            ratios = [price(name, ours, num_rows, seed) / price(name, theirs, num_rows, seed) for seed in seeds]
            middle = statistics.median(ratios)
            print(f"| {name} | {num_rows} | {middle:.2f} | {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    main()
