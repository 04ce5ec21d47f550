"""Fusion of scikit-learn's regressors head to head: P-BHS, BHS, pools, and scikit-learn's own stacking.

OMP_NUM_THREADS=1 python benchmarks/fuse_forecasters.py --data FOLDER [--sets yacht ...] [--seeds 3] [--rows 160]

Random rows for training, up to 500 others for testing; columns and targets have unit variance on the training rows. The
experts are ridge regression, a random forest of 200 trees and Gaussian processes with a Matern-5/2 (a length scale for
each column) and a squared-exponential kernel (one for all), all of scikit-learn; ``cross_fit`` in ten folds gives the
predictions from which weights are learned. scikit-learn's StackingRegressor has ridge regression on top and
five folds; the variance of its normal density is that of its errors in five further folds. Mean NLPD of the seeds.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor, StackingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import RidgeCV
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.numerics import normal
from gp_ensembles.papers.fusion import (
    BHS,
    PBHS,
    ExpertPredictions,
    fit_fusion,
    fuse,
    linear_pool,
    predict_experts,
    stacking_weights,
)
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.regressors import cross_fit

SETS = ["yacht", "concrete", "airfoil", "energy", "housing", "autompg"]
MOST_TEST = 500
Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def load(folder: Path, name: str, rows: int, seed: int) -> Rows:
    """Training inputs and targets, test inputs and targets."""
    data = load_folder(folder, name)
    X, y = torch.as_tensor(data.X).double(), torch.as_tensor(data.y).double().reshape(-1)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = order[:rows], order[rows : rows + MOST_TEST]
    spread = X[train].std(0, unbiased=False)
    X = (X - X[train].mean(0)) / torch.where(spread > 0, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std(unbiased=False)
    return X[train], y[train], X[test], y[test]


def regressors(num_inputs: int) -> dict[str, Any]:
    """The experts by name."""
    kernels = {"Matern GP": Matern([1.0] * num_inputs, nu=2.5), "RBF GP": RBF(1.0)}
    processes = {
        name: GaussianProcessRegressor(ConstantKernel() * kernel + WhiteKernel(0.1), normalize_y=True)
        for name, kernel in kernels.items()
    }
    return {"ridge": RidgeCV(), "forest": RandomForestRegressor(200, random_state=0), **processes}


def stacked(experts: dict[str, Any], rows: Rows, seed: int) -> float:
    """NLPD of scikit-learn's stacking, a normal density whose variance comes from a further cross-validation."""
    X, y, test_X, test_y = rows
    folds = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed + 99)) % 5
    model = StackingRegressor([(name.replace(" ", ""), clone(one)) for name, one in experts.items()], RidgeCV(), cv=5)
    errors = torch.empty_like(y)
    for fold in range(5):
        inside = folds == fold
        part = clone(model).fit(X[~inside].numpy(), y[~inside].numpy())
        errors[inside] = y[inside] - torch.as_tensor(part.predict(X[inside].numpy()))
    mean = torch.as_tensor(model.fit(X.numpy(), y.numpy()).predict(test_X.numpy()))
    return -float(normal.log_prob(test_y, mean, errors.square().mean().expand_as(mean)).mean())


def run(rows: Rows, seed: int, with_stacking: bool) -> dict[str, float]:
    """NLPD of every expert and every fusion."""
    X, y, test_X, test_y = rows
    generator = torch.Generator().manual_seed(seed)
    experts = regressors(X.shape[1])
    found = cross_fit(list(experts.values()), X, y, generator=generator)
    known, ahead = found.predictions, predict_experts(found.experts, test_X)
    scores = dict(zip(experts, (-ahead.log_prob(test_y).mean(1)).tolist(), strict=True))
    scores["best expert"] = min(scores.values())

    def learned(kind: Callable[[Tensor, Tensor, ExpertPredictions], FusionModel]) -> float:
        fitted = fit_fusion(kind(X, y, known), generator=generator)
        return -float(fitted.predict(test_X, ahead).log_prob(test_y).mean())

    began = time.process_time()
    scores["P-BHS"] = learned(PBHS)
    scores["seconds"] = time.process_time() - began
    scores["BHS"] = learned(BHS)
    constant = linear_pool(ahead.mean, ahead.target_variance, stacking_weights(known.log_prob(y)))
    scores["constant stacking"] = -float(constant.log_prob(test_y).mean())
    for name, log_weights in {"PoE": 0.0, "gPoE 1/K": None}.items():
        scores[name] = -float(fuse(ahead, log_weights, space="y").log_prob(test_y).mean())
    if with_stacking:
        scores["StackingRegressor"] = stacked(experts, rows, seed)
    return scores


def main() -> None:
    """All sets and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--no-stacking", action="store_true", help="leave out scikit-learn's, 36 fits of each expert")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in arguments.sets:
        every = [
            run(load(arguments.data, name, arguments.rows, seed), seed, not arguments.no_stacking)
            for seed in range(arguments.seeds)
        ]
        means = {kind: sum(one[kind] for one in every) / len(every) for kind in every[0]}
        won = sum(one["P-BHS"] < one["best expert"] for one in every)
        line = "  ".join(f"{kind} {value:.3f}" for kind, value in means.items())
        print(f"{name}: {line}  P-BHS ahead of the best expert on {won} of {len(every)}", flush=True)


if __name__ == "__main__":
    main()
