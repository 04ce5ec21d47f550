"""Small tables: the scikit-learn estimator as it comes, beside BoTorch's exact Gaussian process.

    python benchmarks/small_tables.py --data FOLDER

Rows of every table of numbers with at least two inputs (or one that is no time) are put in random order; four fifths of
them, at most ``--rows``, are learned, at most 400 others predicted. Scores are mean log densities in standardized
units. The rival is ``SingleTaskGP`` with a Matern-5/2 kernel, a length scale for each column, BoTorch's priors, inputs
in the unit cube. The seconds are those of fitting, one thread.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from gpytorch.mlls import ExactMarginalLogLikelihood

from gp_ensembles.estimators.scikit_learn import OnlineRegressor

LONGEST = 400  # rows that are predicted


def load(folder: Path, entry: dict, seed: int, most: int) -> tuple[np.ndarray, ...]:
    """Inputs and targets to learn and to predict, targets standardized by those to learn."""
    frame = pd.read_csv(folder / entry["file"], usecols=[*entry["features"], entry["target"]]).dropna()
    order = np.random.default_rng(seed).permutation(len(frame))[: most + LONGEST]
    X = frame[entry["features"]].to_numpy(float)[order]
    y = frame[entry["target"]].to_numpy(float)[order]
    n = min(most, int(0.8 * len(y)))
    varied = X[:n].std(0) > 1e-9
    X, y = X[:, varied], (y - y[:n].mean()) / y[:n].std()
    return X[:n], y[:n], X[n:], y[n:]


def single_task_gp(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> float:
    """Mean log density under BoTorch's model."""
    X, y, X_test, y_test = map(torch.from_numpy, (X, y, X_test, y_test))
    dimension = X.shape[1]
    kernel = get_matern_kernel_with_gamma_prior(dimension)
    model = SingleTaskGP(X, y[:, None], None, None, kernel, None, Standardize(1), Normalize(dimension))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        found = model.posterior(X_test, observation_noise=True)
    return float(torch.distributions.Normal(found.mean[:, 0], found.variance[:, 0].sqrt()).log_prob(y_test).mean())


def ours(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> float:
    """Mean log density under the estimator's default."""
    model = OnlineRegressor(random_state=0).fit(X, y)
    return float(np.mean(model.log_prob(X_test, y_test)))


def main() -> None:
    """Print a line for each table and the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    listed = json.loads((arguments.data / "manifest.json").read_text(encoding="utf-8"))["datasets"]
    chosen = [e for e in listed if e["task"] == "regression" and 1 <= len(e["features"]) <= 30 and e["rows"] >= 100]
    differences = []
    print("| table | learned | ours | SingleTaskGP | ahead | time ratio |\n|---|---:|---:|---:|---:|---:|", flush=True)
    for entry in chosen:
        if arguments.sets and entry["name"] not in arguments.sets:
            continue
        scores, seconds = np.zeros((arguments.seeds, 2)), np.zeros((arguments.seeds, 2))
        for seed in range(arguments.seeds):
            parts = load(arguments.data, entry, seed, arguments.rows)
            for column, method in enumerate((ours, single_task_gp)):
                start = time.process_time()
                scores[seed, column] = method(*parts)
                seconds[seed, column] = time.process_time() - start
        mean, ratio = scores.mean(0), seconds.sum(0)[0] / seconds.sum(0)[1]
        differences.append(mean[0] - mean[1])
        cells = f"{mean[0]:.3f} | {mean[1]:.3f} | {differences[-1]:+.3f} | {ratio:.1f}"
        print(f"| {entry['name']} | {len(parts[1])} | {cells} |", flush=True)
    print(f"| mean | | | | {np.mean(differences):+.3f} | |\n| worst | | | | {np.min(differences):+.3f} | |")


if __name__ == "__main__":
    main()
