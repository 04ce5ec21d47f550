"""Marginalization over kernels: seconds of likelihoods and of learning, and the accuracy of the policies.

OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py
OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py --data FOLDER [--sets airline co2] [--seeds 10]
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature import (
    Budget,
    InformationPolicy,
    PriorPolicy,
    RecombinationPolicy,
    RegressionProblem,
    Search,
    UncertaintyPolicy,
    marginalize,
)
from gp_ensembles.bayesian_quadrature.marginalization import Marginalization
from gp_ensembles.bayesian_quadrature.policies import Policy
from gp_ensembles.bayesian_quadrature.prior import draw_stratified
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.data import airline_passengers, load_folder

POLICIES: dict[str, Policy] = {
    "I": InformationPolicy(),
    "R": PriorPolicy(),
    "U": UncertaintyPolicy(),
    "K": RecombinationPolicy(),
}
SETS = {"airline": "airline_passengers", "co2": "co2_global_monthly"}
LAST_YEAR_OF_CO2 = 2020.6  # the series as it stood when the paper was written


class Split(NamedTuple):
    """Rows to learn from and to predict, targets standardized by the former."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor


def split(X: Tensor, y: Tensor, seed: int) -> Split:
    """Nine tenths of the rows at random, and the rest."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    count = math.floor(0.9 * len(y))
    some, rest = order[:count].sort().values, order[count:].sort().values
    mean, deviation = y[some].mean(), y[some].std(unbiased=False)
    return Split(X[some], (y[some] - mean) / deviation, X[rest], (y[rest] - mean) / deviation)


def monthly() -> tuple[Tensor, Tensor]:
    """144 months with a trend and a season that grows: river's airline passengers, or a series like them without it."""
    X = 1949.0 + torch.arange(144, dtype=torch.float64).unsqueeze(-1) / 12.0
    try:
        table = airline_passengers()
    except ImportError:
        t = X.squeeze(-1) - 1949.0
        wiggle = torch.randn(144, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return X, 120.0 + 30.0 * t + (15.0 + 6.0 * t) * torch.sin(2.0 * math.pi * t) + 8.0 * wiggle
    return X, torch.cat([table.X[:12, table.feature_names.index("lag_12")], table.y])  # the first year is history there


def series(folder: str, name: str) -> tuple[Tensor, Tensor]:
    table = load_folder(folder, SETS[name])
    X, y = table.X, table.y
    if name != "co2":
        return X, y
    early = X[:, 0] < LAST_YEAR_OF_CO2
    return X[early][1:], y[early].diff()


def seconds(run: Callable[[], object], repeats: int) -> float:
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def one_by_one(problem: RegressionProblem, mixtures: SpectralMixtures, noise: Tensor) -> Tensor:
    """Log marginal likelihoods by a GPyTorch model for each kernel, as one would write them."""
    values = []
    for k in range(len(noise)):
        kernel = mixtures.take(k).trim()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = noise[k]
        module = gpytorch.kernels.SpectralMixtureKernel(num_mixtures=kernel.weights.shape[-1]).double()
        module.mixture_weights = kernel.weights
        module.mixture_means = kernel.means.unsqueeze(-2)
        module.mixture_scales = kernel.scales.unsqueeze(-2)
        model = _Exact(problem, likelihood, module)
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        values.append(marginal(model(problem.X), problem.y) * len(problem.y))
    return torch.stack(values)


class _Exact(gpytorch.models.ExactGP):  # type: ignore[misc]  # GPyTorch has no types
    def __init__(
        self,
        problem: RegressionProblem,
        likelihood: gpytorch.likelihoods.GaussianLikelihood,
        kernel: gpytorch.kernels.Kernel,
    ) -> None:
        super().__init__(problem.X, problem.y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def likelihood_table(problem: RegressionProblem) -> None:
    generator = torch.Generator().manual_seed(0)
    cube = draw_stratified(problem.prior, 1000, generator=generator)
    ours = seconds(lambda: problem.evaluate(cube), 5)

    few = cube[:: len(cube) // 60]
    mixtures, scale, noise = problem.prior.hyperparameters(few)
    mixtures = mixtures._replace(weights=scale.unsqueeze(-1) * mixtures.weights)
    with torch.no_grad(), warnings.catch_warnings(), gpytorch.settings.fast_computations(False, False, False):
        warnings.simplefilter("ignore")
        theirs = seconds(lambda: one_by_one(problem, mixtures, noise), 3) / len(few)
        gap = (one_by_one(problem, mixtures, noise) - problem.evaluate(few)).abs().max()
    print(
        f"{len(problem.y)} rows on a grid with gaps, kernels of 1 to 5 components (largest gap {float(gap):.0e} nats)"
    )
    print(f"{'1000 log-likelihoods':44}{ours:>10.3f} s")
    print(f"{'one GPyTorch model for each, for 1000':44}{1000 * theirs:>10.3f} s   ratio {1000 * theirs / ours:.1f}")


def learning_table(problem: RegressionProblem, evaluations: int, seeds: int) -> None:
    print(f"\n{evaluations} evaluations, seconds (mean of {seeds} seeds)")
    print(f"{'policy':10}{'likelihoods':>12}{'ascents':>10}{'surrogate':>11}{'policy':>9}{'all but likelihoods':>21}")
    for name, policy in POLICIES.items():
        spent = dict.fromkeys(("likelihoods", "ascents", "surrogate", "policy"), 0.0)
        rest = 0.0
        for seed in range(seeds):
            start = time.perf_counter()
            found = run(problem, evaluations, policy, seed)
            rest += (time.perf_counter() - start - found.seconds["likelihoods"] - found.seconds["ascents"]) / seeds
            for part, value in found.seconds.items():
                spent[part] += value / seeds
        print(
            f"{name:10}{spent['likelihoods']:>12.2f}{spent['ascents']:>10.2f}{spent['surrogate']:>11.2f}"
            f"{spent['policy']:>9.2f}{rest:>21.2f}"
        )


def run(problem: RegressionProblem, evaluations: int, policy: Policy, seed: int) -> Marginalization:
    generator = torch.Generator().manual_seed(seed)
    return marginalize(problem, Budget(evaluations), Search(policy), generator=generator)


def accuracy_table(folder: str, sets: list[str], evaluations: int, seeds: int) -> None:
    print(f"\n{evaluations} evaluations, 90/10, {seeds} seeds: mean ± standard error, targets standardized")
    print(f"{'set':10}{'policy':8}{'RMSE':>16}{'log density/row':>20}{'log evidence':>18}{'seconds':>9}")
    for name in sets:
        X, y = series(folder, name)
        for letter, policy in POLICIES.items():
            rows = []
            for seed in range(seeds):
                part = split(X, y, seed)
                start = time.perf_counter()
                found = run(RegressionProblem(part.X, part.y), evaluations, policy, seed)
                predicted = found.predict(part.X_test)
                posterior = found.model().posterior(part.X_test.unsqueeze(-2), observation_noise=True)
                assert isinstance(posterior, MixturePosterior)
                elapsed = time.perf_counter() - start
                score = posterior.log_prob(part.y_test.reshape(-1, 1, 1)).mean()
                error = (predicted.mean - part.y_test).square().mean().sqrt()
                rows.append(
                    torch.stack([error, score, error.new_tensor(found.log_evidence), error.new_tensor(elapsed)])
                )
            mean = torch.stack(rows).mean(0).tolist()
            error_of = (torch.stack(rows).std(0, unbiased=False) / max(seeds - 1, 1) ** 0.5).tolist()
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(mean[:3], error_of[:3], strict=True)]
            print(f"{name:10}{letter:8}{cells[0]:>16}{cells[1]:>20}{cells[2]:>18}{mean[3]:>9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with a manifest.json: also the accuracy of the policies")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=10, help="random splits for the accuracy")
    parser.add_argument("--evaluations", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part = split(*monthly(), 0)
    problem = RegressionProblem(part.X, part.y)
    likelihood_table(problem)
    learning_table(problem, arguments.evaluations, 1 if arguments.data is None else 2)
    if arguments.data is not None:
        accuracy_table(arguments.data, arguments.sets, arguments.evaluations, arguments.seeds)


if __name__ == "__main__":
    main()
