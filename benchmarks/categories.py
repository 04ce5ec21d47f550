"""Numbers and categories together: exact ensembles by ``cat_dims`` and by one-hot inputs, beside ``MixedSingleTaskGP``.

OMP_NUM_THREADS=1 python benchmarks/categories.py [--seeds 10]

Functions of two numbers and of two categories with four and three levels: effects that add up, effects that multiply,
and a category that selects which number counts. Negative log density of 300 rows left out and root mean squared error
of the mean; lower is better.
"""

import argparse
import statistics
import warnings
from functools import partial

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.gp_regression_mixed import MixedSingleTaskGP
from botorch.models.transforms.input import NumericToCategoricalEncoding
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn.functional import one_hot

from gp_ensembles.bo import ExactEnsembleModel
from gp_ensembles.bo.outcomes import as_mixture

LEVELS = {2: 4, 3: 3}
CATEGORIES = list(LEVELS)


def made_up(kind: str, num_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (n, 4) and targets (n, 1) with noise of standard deviation 0.05."""
    numbers = torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)
    levels = [torch.randint(count, (num_rows,), generator=generator) for count in LEVELS.values()]
    first = numbers.new_tensor([0.3, -1.1, 0.8, 0.1])[levels[0]]
    second = numbers.new_tensor([0.0, 1.0, -0.5])[levels[1]]
    a, b = numbers.unbind(-1)
    if kind == "sums":
        y = (5 * a).sin() + b.square() + first + second
    elif kind == "products":
        y = (5 * a + 2 * first).sin() * (1 + second) + b
    else:
        y = torch.where(levels[0] < 2, (6 * a).sin(), (6 * b).cos()) + 0.5 * second * b
    noise = 0.05 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return torch.cat([numbers, torch.stack(levels, -1).to(numbers)], -1), (y + noise).unsqueeze(-1)


def scores(X: Tensor, Y: Tensor, places: Tensor, truth: Tensor) -> dict[str, tuple[float, float]]:
    """Negative log density and error of each model."""
    encode = NumericToCategoricalEncoding(4, LEVELS, {c: partial(one_hot, num_classes=n) for c, n in LEVELS.items()})
    rival = MixedSingleTaskGP(X, Y, cat_dims=CATEGORIES)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(rival.likelihood, rival))
    models = {
        "`cat_dims`": ExactEnsembleModel(X, Y, cat_dims=CATEGORIES).fit(),
        "one-hot": ExactEnsembleModel(X, Y, input_transform=encode).fit(),
        "`MixedSingleTaskGP`": rival,
    }
    found = {}
    for name, model in models.items():
        posterior = as_mixture(model.posterior(places.unsqueeze(-2), observation_noise=True))
        density = posterior.log_prob(truth.unsqueeze(-2)).mean()
        error = (posterior.mean.squeeze(-2) - truth).square().mean().sqrt()
        found[name] = (-float(density), float(error))
    return found


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in ("sums", "products", "a selection"):
        for num_rows in (20, 50):
            rounds = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                generator = torch.Generator().manual_seed(seed)
                rounds.append(scores(*made_up(kind, num_rows, generator), *made_up(kind, 300, generator)))
            cells = [
                " / ".join(f"{statistics.mean(one[name][place] for one in rounds):.2f}" for place in (0, 1))
                for name in rounds[0]
            ]
            print(f"| {kind} | {num_rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
