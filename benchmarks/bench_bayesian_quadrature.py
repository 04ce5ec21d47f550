"""Marginalization over kernels: seconds of likelihoods and of learning, and the accuracy of the policies.

OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py
OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py --data FOLDER [--sets airline co2] [--seeds 10]
OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py --data FOLDER --evidence airline --components 3
OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py --data FOLDER --predictions airline --components 5
OMP_NUM_THREADS=1 python benchmarks/bench_bayesian_quadrature.py --likelihoods 1000
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
    RegressionProblem,
    Search,
    UncertaintyPolicy,
    marginalize,
)
from gp_ensembles.bayesian_quadrature.default_priors import default_prior
from gp_ensembles.bayesian_quadrature.likelihoods import DenseLikelihood, Likelihood
from gp_ensembles.bayesian_quadrature.low_rank import FourierLikelihood, SparseLikelihood
from gp_ensembles.bayesian_quadrature.policies import Policy
from gp_ensembles.bayesian_quadrature.prior import EDGE, draw_stratified
from gp_ensembles.bayesian_quadrature.result import Marginalization
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.bayesian_quadrature.toeplitz import ToeplitzLikelihood
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.data import airline_passengers, load_folder

POLICIES: dict[str, Policy] = {
    "I": InformationPolicy(),
    "R": PriorPolicy(),
    "U": UncertaintyPolicy(),
}
SETS = {"airline": "airline_passengers", "co2": "co2_global_monthly"}
EVIDENCE_SETS = {  # and every how many-th row is used
    "airline": ("airline_passengers", 1),
    "mauna_loa": ("co2_mauna_loa_monthly", 4),
    "solar": ("solar_lean2004", 2),
    "yacht": ("yacht", 1),
}
_NEAR, _NEAR_EACH = 0.6, 0.8  # width of where tempering starts, in deviations of the prior; for several inputs
_WIDE = 1.5  # of where mean frequencies of several inputs are first sought, in deviations of the prior
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


def ways_table(rows: int) -> None:
    """Seconds of a likelihood with its gradient, and its distance from the dense one, by every way."""
    ways: dict[str, Callable[[Tensor], Likelihood]] = {
        "dense": lambda X: DenseLikelihood(),
        "Toeplitz": lambda X: ToeplitzLikelihood(),
        "50 knots": lambda X: SparseLikelihood(X[:: len(X) // 50]),
        "200 knots": lambda X: SparseLikelihood(X[:: len(X) // 200]),
        "50 frequencies": lambda X: FourierLikelihood(50),
    }
    generator = torch.Generator().manual_seed(0)
    for title, empty in (("a whole grid", 0.0), ("a tenth of the cells empty", 0.1)):
        keep = torch.rand(rows, generator=generator) >= empty
        X = torch.arange(rows, dtype=torch.float64).unsqueeze(-1)[keep]
        y = torch.sin(0.05 * X.squeeze(-1)) + 0.3 * torch.randn(len(X), generator=generator, dtype=torch.float64)
        prior = default_prior(X, y, 3)
        slow = 0.01 * torch.rand(8, 3, 1, generator=generator, dtype=torch.float64)  # cycles a row
        noise, scale = torch.full((8,), 0.09, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
        print(f"\n{len(X)} rows on {title}, 8 slow kernels of 3 components: seconds each, largest distance in nats")
        exact = y.new_zeros(0)
        for name, way in ways.items():
            problem = RegressionProblem(X, y, prior, likelihood=way(X))
            leaf = slow.clone().requires_grad_()
            mixtures = SpectralMixtures(torch.full_like(slow[..., 0], 1.0 / 3.0), leaf, 0.2 * leaf)
            start = time.perf_counter()
            value = problem.likelihoods(mixtures, scale, noise)
            value.sum().backward()
            elapsed = (time.perf_counter() - start) / len(slow)
            exact = value.detach() if name == "dense" else exact
            print(f"{name:24}{elapsed:>10.4f} s{float((value.detach() - exact).abs().max()):>12.2g}", flush=True)


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
    return marginalize(problem, Budget(evaluations, draws=0), Search(policy), generator=generator)


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
                    torch.stack(
                        [error, score, error.new_tensor(found.quadrature.log_evidence), error.new_tensor(elapsed)]
                    )
                )
            mean = torch.stack(rows).mean(0).tolist()
            error_of = (torch.stack(rows).std(0, unbiased=False) / max(seeds - 1, 1) ** 0.5).tolist()
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(mean[:3], error_of[:3], strict=True)]
            print(f"{name:10}{letter:8}{cells[0]:>16}{cells[1]:>20}{cells[2]:>18}{mean[3]:>9.1f}", flush=True)


def evidence_table(folder: str, name: str, components: int, seeds: int) -> None:
    """Log evidence against likelihoods evaluated: quadrature with two policies, importance sampling; and an oracle."""
    file, every = EVIDENCE_SETS[name]
    table = load_folder(folder, file)
    part = split(table.X.double()[::every], table.y.double()[::every], 0)
    problem = RegressionProblem(part.X, part.y, default_prior(part.X, part.y, components))
    print(f"{name}, {len(part.y)} rows, up to {components} component(s)")
    for letter in ("R", "I"):
        for evaluations in (50, 100, 200, 400):
            for seed in range(seeds):
                start = time.perf_counter()
                found = run(problem, evaluations, POLICIES[letter], seed).quadrature
                numbers = f"{found.log_evidence:9.2f} ± {found.log_evidence_sd:.2f}"
                print(
                    f"quadrature -{letter} {evaluations:6d} {numbers} {time.perf_counter() - start:7.1f} s", flush=True
                )
    for seed in range(seeds):
        start, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
        sampled = marginalize(problem, Budget(200), generator=generator)
        for step in sampled.history[:: max(1, len(sampled.history) // 8)][1:] + sampled.history[-1:]:
            print(f"importance {step.evaluations:8d} {step.log_evidence:9.2f} ± {step.log_evidence_sd:.2f}")
        parts = [round(value, 2) for value in sampled.evidence.log_parts.tolist()]
        print(f"{time.perf_counter() - start:.1f} s, parts {parts}, {sampled.doubt or 'trusted'}", flush=True)
        kernels = sampled.kernels
        best = kernels.cube[kernels.log_likelihood.argmax()]
        count = int(problem.prior.num_components(best))
        if count == 1 or problem.prior.num_inputs == 1:
            value, calls = tempered(problem, best, seed)
            print(f"tempered sequential Monte Carlo, n = {count}: log Z {value:.2f}, {calls} likelihoods", flush=True)


def predictions_table(folder: str, name: str, components: int, splits: int) -> None:
    """Predictions by the weights of importance sampling beside those of the same search alone, split by split."""
    file, every = EVIDENCE_SETS[name]
    table = load_folder(folder, file)
    X, y = table.X.double()[::every], table.y.double()[::every]
    print(f"{name}, {len(y)} rows, up to {components} component(s), 200 likelihoods of a search and up to 30 000 draws")
    print(f"{'split':8}{'RMSE':>8}{'alone':>8}{'NLPD':>9}{'alone':>9}{'log evidence':>16}{'seconds':>9}")
    rows = []
    for seed in range(splits):
        part = split(X, y, seed)
        problem = RegressionProblem(part.X, part.y, default_prior(part.X, part.y, components))
        start = time.perf_counter()
        found = marginalize(problem, Budget(200), generator=torch.Generator().manual_seed(seed))
        elapsed = time.perf_counter() - start
        alone = Marginalization(problem, found.state._replace(importance=None), Search())
        scores = [*scores_of(found, part), *scores_of(alone, part)]
        rows.append([scores[0], scores[2], scores[1], scores[3]])
        cells = "".join(f"{value:{width}.3f}" for value, width in zip(rows[-1], (8, 8, 9, 9), strict=True))
        evidence = f"{found.log_evidence:.2f} ± {found.log_evidence_sd:.2f}"
        print(f"{seed:<8}{cells}{evidence:>16}{elapsed:>9.1f}  {found.doubt or 'trusted'}", flush=True)
    means = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    print(f"{'mean':8}" + "".join(f"{value:{width}.3f}" for value, width in zip(means, (8, 8, 9, 9), strict=True)))


def scores_of(found: Marginalization, part: Split) -> tuple[float, float]:
    """RMSE, and the mean negative log density of the test rows, each on its own."""
    posterior = found.model().posterior(part.X_test.unsqueeze(-2), observation_noise=True)
    assert isinstance(posterior, MixturePosterior)
    density = posterior.log_prob(part.y_test.reshape(-1, 1, 1)).mean()
    return float((posterior.mean.flatten() - part.y_test).square().mean().sqrt()), -float(density)


def tempered(problem: RegressionProblem, best: Tensor, seed: int, particles: int = 1000) -> tuple[float, int]:
    """An oracle from nothing: sequential Monte Carlo from a broad normal distribution around a kernel to the posterior.

    On kernels whose mean frequencies ascend, times n!; of several inputs, with one component, on a half of the space of
    mean frequencies, twice, from all of that half. The start is only where to look; moves are by differences.
    """
    prior, generator = problem.prior, torch.Generator().manual_seed(seed)
    count, on_a_line = int(prior.num_components(best)), prior.num_inputs == 1
    columns = prior.active_columns(count)
    center = torch.special.ndtri(best[columns])
    size = len(columns)
    widths = torch.full_like(center, _NEAR if on_a_line else _NEAR_EACH)
    means = slice(count - 1, count - 1 + count * prior.num_inputs)
    half = center[means].clone()
    if on_a_line:
        order = center[means].argsort() if count > 1 else torch.arange(1)
        center = torch.cat([0.0 * center[: count - 1], center[means][order], *_reordered(center, order, count)])
    else:
        center[means], widths[means] = 0.0, _WIDE
    copies = math.lgamma(count + 1) if on_a_line else math.log(2.0)

    def is_inside(v: Tensor) -> Tensor:
        return (v[:, means].diff(dim=-1) > 0).all(-1) if on_a_line else v[:, means] @ half > 0

    def log_start(v: Tensor) -> Tensor:
        value = -0.5 * ((v - center) / widths).square().sum(-1) - widths.log().sum()
        return value - 0.5 * size * math.log(2.0 * math.pi) + (0.0 if on_a_line else copies)

    def log_target(v: Tensor) -> Tensor:
        value = torch.full((len(v),), -1e10, dtype=v.dtype)
        inside = is_inside(v)
        cube = prior.embed(torch.special.ndtr(v[inside]).clamp(EDGE, 1.0 - EDGE), count)
        log_prior = -0.5 * v[inside].square().sum(-1) - 0.5 * size * math.log(2.0 * math.pi)
        log_likelihood = problem.evaluate(cube) if on_a_line else of_one_component(problem, cube)
        value[inside] = log_likelihood.nan_to_num(nan=-1e10) + log_prior
        return value

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    v = center + widths * torch.randn(particles, size, generator=generator, dtype=torch.float64)
    if not on_a_line:
        v[:, means] *= (v[:, means] @ half).sign().unsqueeze(-1)
    target, start = log_target(v), log_start(v)
    power, log_evidence, calls = 0.0, 0.0, particles
    while power < 1.0:
        low, high = power, 1.0
        for _ in range(60):  # the next power leaves nine tenths of the particles effective
            middle = 0.5 * (low + high)
            weights = ((middle - power) * (target - start)).softmax(0)
            low, high = (middle, high) if float(1.0 / weights.square().sum()) > 0.9 * particles else (low, middle)
        following = 1.0 if 1.0 - low < 1e-9 else max(low, power + 1e-13)
        gain = (following - power) * (target - start)
        log_evidence += float(gain.logsumexp(0)) - math.log(particles)
        levels = (torch.arange(particles) + draw(1)) / particles
        rows = torch.searchsorted(gain.softmax(0).cumsum(0), levels).clamp_max(particles - 1)
        v, target, start, power = v[rows], target[rows], start[rows], following
        for _ in range(6):
            first, second = torch.randint(particles, (2, particles), generator=generator)
            length = 2.38 / math.sqrt(2.0 * size) * 10.0 ** (-2.0 * draw(particles, 1))
            length = torch.where(draw(particles, 1) < 0.1, 1.0, length)
            noise = 1e-5 * torch.randn(v.shape, generator=generator, dtype=torch.float64)
            proposed = v + length * (v[first] - v[second]) + noise
            new_target, new_start = log_target(proposed), log_start(proposed)
            calls += particles
            gain = power * (new_target - target) + (1.0 - power) * (new_start - start)
            moved = draw(particles).log() < gain
            v = torch.where(moved.unsqueeze(-1), proposed, v)
            target, start = torch.where(moved, new_target, target), torch.where(moved, new_start, start)
    return log_evidence + copies, calls


def of_one_component(problem: RegressionProblem, cube: Tensor) -> Tensor:
    """Log likelihoods of kernels of one component, reflected at the origin, anew and one by one: shape (A,)."""
    mixtures, scale, noise = problem.prior.hyperparameters(cube)
    constant = 0.5 * len(problem.y) * math.log(2.0 * math.pi)
    values = []
    for k in range(len(noise)):
        rows = 2.0 * math.pi * mixtures.scales[k, 0] * problem.X
        squares = rows.square().sum(-1)
        envelope = (rows @ rows.mT - 0.5 * squares - 0.5 * squares.unsqueeze(-1)).exp()
        angle = 2.0 * math.pi * problem.X @ mixtures.means[k, 0]
        waves = torch.stack([angle.cos(), angle.sin()], -1)
        matrix = scale[k] * mixtures.weights[k, 0] * (waves @ waves.mT) * envelope
        matrix.diagonal().add_(noise[k])
        factor, info = torch.linalg.cholesky_ex(matrix)
        white = torch.linalg.solve_triangular(factor, problem.y.unsqueeze(-1), upper=False)
        value = -0.5 * white.square().sum() - factor.diagonal().log().sum() - constant
        values.append(value if int(info) == 0 else value * torch.nan)
    return torch.stack(values) if values else problem.y.new_zeros(0)


def _reordered(center: Tensor, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scales in the order of the means, and the rest, of a row for one input; of a row of one component as it is."""
    if count == 1:
        return center[len(order) :], center[:0]
    scales = center[2 * count - 1 : 3 * count - 1][order]
    return scales, center[3 * count - 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with a manifest.json: also the accuracy of the policies")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=10, help="random splits for the accuracy")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--evidence", choices=list(EVIDENCE_SETS), help="only the log evidence of a set, by all ways")
    parser.add_argument("--predictions", choices=list(EVIDENCE_SETS), help="only predictions, on --seeds splits")
    parser.add_argument("--components", type=int, default=3, help="most components for --evidence and --predictions")
    parser.add_argument("--likelihoods", type=int, help="only likelihoods by every way, on a grid of so many cells")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.likelihoods is not None:
        ways_table(arguments.likelihoods)
        return
    if arguments.evidence is not None:
        if arguments.data is None:
            parser.error("--evidence needs --data")
        evidence_table(arguments.data, arguments.evidence, arguments.components, min(arguments.seeds, 2))
        return
    if arguments.predictions is not None:
        if arguments.data is None:
            parser.error("--predictions needs --data")
        predictions_table(arguments.data, arguments.predictions, arguments.components, arguments.seeds)
        return
    part = split(*monthly(), 0)
    problem = RegressionProblem(part.X, part.y)
    likelihood_table(problem)
    learning_table(problem, arguments.evaluations, 1 if arguments.data is None else 2)
    if arguments.data is not None:
        accuracy_table(arguments.data, arguments.sets, arguments.evaluations, arguments.seeds)


if __name__ == "__main__":
    main()
