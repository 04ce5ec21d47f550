"""The default of knots compared with an exact BoTorch process, GPyTorch's sparse regression and a random forest.

OMP_NUM_THREADS=1 python benchmarks/knot_sets.py --data FOLDER [--sets yacht ...] [--splits 0 1] [--methods default ...]

A tenth of the rows is for testing; columns and targets have unit variance on the others. SingleTaskGP has a Matern-5/2
kernel with a lengthscale for each column; of more than 2 000 rows it gets 2 000 at random. SGPR has that kernel and 200
knots at random rows (100 of fewer than 1 000 rows), which move. The forest's variance is that of its out-of-bag errors.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gpytorch
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.papers.sparse import select_knots
from gp_ensembles.papers.sparse.tails import Tails

SETS = ["yacht", "autompg", "housing", "energy", "concrete", "airfoil", "kin8nm", "ccpp", "elevators", "pol"]
EXACT_ROWS = 2000
SGPR_STEPS = 200


class Split(NamedTuple):
    """Rows to learn from and to test on, standardized by the former."""

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor


class Predicted(NamedTuple):
    """Means of the test rows, and the mean negative log density of their targets."""

    mean: Tensor
    nlpd: float

    @classmethod
    def normal(cls, split: Split, mean: Tensor, variance: Tensor) -> "Predicted":
        """Of normal predictions."""
        log_prob = torch.distributions.Normal(mean, variance.sqrt()).log_prob(split.test_y)
        return cls(mean, -float(log_prob.mean()))


def seeded(seed: int) -> torch.Generator:
    """A source of randomness."""
    return torch.Generator().manual_seed(seed)


def load(folder: Path, name: str, seed: int) -> Split:
    """A split of a data set."""
    data = load_folder(folder, name)
    X, y = torch.as_tensor(data.X).double(), torch.as_tensor(data.y).double().reshape(-1)
    order = torch.randperm(len(y), generator=seeded(seed))
    test, train = order[: len(y) // 10], order[len(y) // 10 :]
    spread = X[train].std(0, unbiased=False)
    X = (X - X[train].mean(0)) / torch.where(spread > 0, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std(unbiased=False)
    return Split(X[train], y[train], X[test], y[test])


def default(split: Split) -> tuple[Predicted, str]:
    """Nothing is chosen; two distributions: the posterior, and with the tails of the errors of rows left out."""
    found = select_knots(split.X, split.y, generator=seeded(0))
    predicted = found.predict(split.test_X)
    normal = -float(Tails(math.inf, 1.0).predict(found.model, split.test_X).log_prob(split.test_y).mean())
    freedom = found.tails.degrees_of_freedom if found.tails else math.inf
    note = f"normal: NLPD {normal:.4f}; t with {freedom:g}; {found.stop_reason}"
    return Predicted(predicted.mean, -float(predicted.log_prob(split.test_y).mean())), note


def single_task(split: Split) -> tuple[Predicted, str]:
    """The exact process of BoTorch."""
    rows = torch.randperm(len(split.y), generator=seeded(0))[:EXACT_ROWS]
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=split.X.shape[1]))
    model = SingleTaskGP(split.X[rows], split.y[rows].unsqueeze(-1), covar_module=kernel)
    with gpytorch.settings.max_cholesky_size(20_000):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        posterior = model.posterior(split.test_X.unsqueeze(-2), observation_noise=True)
        with torch.no_grad():
            mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
        return Predicted.normal(split, mean, variance), f"{len(rows)} rows"


class _Sparse(ExactGP):  # type: ignore[misc]  # GPyTorch is untyped
    """GPyTorch's sparse regression."""

    def __init__(self, X: Tensor, y: Tensor, knots: Tensor) -> None:
        likelihood = GaussianLikelihood().to(y)
        super().__init__(X, y, likelihood)
        self.mean_module = ConstantMean().to(X)
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=X.shape[1])).to(X)
        self.covar_module = InducingPointKernel(kernel, knots.clone(), likelihood)

    def forward(self, X: Tensor) -> object:
        """Prior at rows."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def sgpr(split: Split) -> tuple[Predicted, str]:
    """As in GPyTorch's tutorial: Adam on the bound."""
    count = 200 if len(split.y) >= 1000 else 100
    rows = torch.randperm(len(split.y), generator=seeded(0))[:count]
    model = _Sparse(split.X, split.y, split.X[rows])
    model.train()
    objective = ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with gpytorch.settings.fast_computations(True, True, True):  # importing BoTorch turns them off
        for _ in range(SGPR_STEPS):
            optimizer.zero_grad()
            (-objective(model(split.X), split.y)).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            parts = [model.likelihood(model(rows)) for rows in split.test_X.split(500)]
            moments = tuple(torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
    return Predicted.normal(split, moments[0], moments[1]), f"{count} knots"


def forest(split: Split) -> tuple[Predicted, str]:
    """Two hundred trees."""
    trees = RandomForestRegressor(200, oob_score=True, random_state=0, n_jobs=1).fit(split.X.numpy(), split.y.numpy())
    variance = float((torch.as_tensor(trees.oob_prediction_) - split.y).square().mean())
    mean = torch.as_tensor(trees.predict(split.test_X.numpy()))
    return Predicted.normal(split, mean, torch.full_like(mean, variance)), "200 trees"


METHODS: dict[str, Callable[[Split], tuple[Predicted, str]]] = {
    "default": default,
    "SingleTaskGP": single_task,
    "SGPR": sgpr,
    "forest": forest,
}


def main() -> None:
    """A line for each set, split and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets with a manifest")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--splits", type=int, nargs="+", default=[0], help="seeds of the splits")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.sets:
        for seed in arguments.splits:
            split = load(arguments.data, name, seed)
            for method in arguments.methods:
                started = time.process_time()
                (mean, nlpd), note = METHODS[method](split)
                seconds = time.process_time() - started
                rmse = float((mean - split.test_y).square().mean().sqrt())
                print(
                    f"{name:10} {len(split.y):6} rows, split {seed}  {method:12} RMSE {rmse:.4f}  NLPD {nlpd:8.4f}  "
                    f"{seconds:7.1f} s  ({note})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
