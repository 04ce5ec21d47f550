"""Do members of another kind predict better than one Matern-5/2 process, before anything is optimized?

    python -m benchmarks.optimizer_members [--problems rosenbrock4 levy4 ...] [--seeds 3]

Each model is fitted to 40 points of a Sobol sequence and predicts 1000 others: mean log density, in nats per row of
values in units of their deviation, of all of them and of the best tenth, where an optimum is looked for.
"""

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.bo import ExactEnsembleModel
from studies.optimization.methods import initial_design
from studies.optimization.problems import make_problem
from studies.optimization.rivals import fitted_process, quadratic_trend

NUM_ROWS, NUM_TESTS, TEST_SEED = 40, 1000, 99
PROBLEMS = ("rosenbrock4", "levy4", "branin", "hartmann6", "ackley5")
MODELS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "SingleTaskGP": fitted_process,
    "Matern": lambda X, Y: ExactEnsembleModel(X, Y).fit(),
    "Matern and RBF": lambda X, Y: ExactEnsembleModel(X, Y, kernels=(2.5, math.inf)).fit(),
    "without noise": lambda X, Y: ExactEnsembleModel(X, Y, 1e-6 * Y.var(0).expand_as(Y)).fit(),
    "quadratic trend": lambda X, Y: fitted_process(X, Y, **quadratic_trend(X)),
}


def scores(name: str, seed: int) -> dict[str, Tensor]:
    """Mean log densities of a problem's test points and of the best tenth of them, shape (2,), of each model."""
    problem = make_problem(name)
    one = torch.ones(problem.dimension, dtype=torch.float64)
    bounds = torch.stack([torch.zeros_like(one), one])
    tests, X = initial_design(bounds, NUM_TESTS, TEST_SEED), initial_design(bounds, NUM_ROWS, seed)
    values, Y = problem.evaluate(tests, 0).squeeze(-1), problem.evaluate(X, 0)
    best, found = values.topk(NUM_TESTS // 10).indices, {}
    for model, make in MODELS.items():
        with torch.no_grad():
            posterior = make_quietly(make, X, Y).posterior(tests.unsqueeze(-2))
        normal = torch.distributions.Normal(posterior.mean.flatten(), posterior.variance.sqrt().flatten())
        score = normal.log_prob(values) + Y.std().log()
        found[model] = torch.stack([score.mean(), score[best].mean()])
    return found


def make_quietly(make: Callable[[Tensor, Tensor], Any], X: Tensor, Y: Tensor) -> Any:
    """A fitted model, without warnings of searches that were started again."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        return make(X, Y).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| function | {' | '.join(MODELS)} |\n|---|{'---:|' * len(MODELS)}")
    for name in options.problems:
        runs = [scores(name, seed) for seed in range(options.seeds)]
        means = [torch.stack([run[model] for run in runs]).mean(0).tolist() for model in MODELS]
        print(f"| {name} | {' | '.join(f'{every:.2f}, {best:.2f}' for every, best in means)} |", flush=True)


if __name__ == "__main__":
    main()
