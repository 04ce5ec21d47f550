"""Streams of two classes: the papers' ensembles beside logistic regressions, ours and another's, in one table.

OMP_NUM_THREADS=1 python benchmarks/classify.py --data ../shared/data [--seeds 3]
OMP_NUM_THREADS=1 python benchmarks/classify.py --data ../shared/data --streams   # classes of streams in their order
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gp_ensembles.calibration.labels import init_labels, update_labels
from gp_ensembles.data import load_folder
from gp_ensembles.distributions import LatentMixture
from gp_ensembles.ensembles import presets
from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary, LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.streaming import OnlineModel, Standardizer, StreamConfig, constant_columns

BASELINE, REFIT = "scikit-learn's logistic regression", 100  # refitted after so many rows
TARGET = BinaryTarget()
ONE = FitSettings(num_samples=1)
_KERNELS = (KernelDictionary(30),)
MODELS = {
    "logistic regression": replace(presets.oebe, bases=(LinearBasis(),), fit_settings=ONE, target=TARGET),
    "IE-GP": replace(presets.ie_gp, bases=_KERNELS, target=TARGET),
    "SIE-GP": replace(presets.sie_gp, bases=_KERNELS, target=TARGET),
    "DIE-GP": replace(presets.die_gp, bases=_KERNELS, target=TARGET),
    "E-DOEBE": replace(presets.e_doebe, bases=(FourierBasis(), RadialBasis()), fit_settings=ONE, target=TARGET),
    "auto": presets.auto_for(TARGET),
}


class Case(NamedTuple):
    """A stream: its set, its order, how many rows warm up."""

    name: str
    order: str
    warmup: int


CASES = (
    Case("banana", "shuffled", 1000),
    Case("banana", "sorted by x1", 1000),
    Case("ionosphere", "shuffled", 100),
    Case("musk2", "shuffled", 1000),
)


def stream(folder: Path, case: Case, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs standardized by the warm-up rows and clipped at 1000 deviations, and labels, in the case's order."""
    table = load_folder(folder, case.name)
    if case.order == "shuffled":
        order = torch.randperm(table.y.shape[0], generator=torch.Generator().manual_seed(seed))
    else:
        order = table.X[:, 0].argsort()
    X, y = table.X[order], table.y[order]
    constant = constant_columns(X[: case.warmup])
    X = X[:, [column for column in range(X.shape[1]) if column not in constant]]
    return Standardizer.fit_inputs(X[: case.warmup], y).transform_inputs(X).clamp(-1e3, 1e3), y


STREAMS = ("elec2", "bike_hourly", "air_quality", "appliances_energy", "sarcos_ias", "trump_approval", "sp500_returns")
_MOST_ROWS = 10_000


def labels_of(y: Tensor, warmup: int) -> Tensor:
    """Two classes of any target: itself, or whether it lies above the median of the warm-up."""
    seen = y[~y.isnan()]
    if bool(((seen == 0) | (seen == 1)).all()):
        return y
    first = y[:warmup]
    return torch.where(y.isnan(), y, (y > first[~first.isnan()].median()).double())


def streams_table(folder: Path) -> None:
    """Print one line for each stream: previous label, `auto` as it is and recalibrated, and what a row costs."""
    print(
        "| stream | rows | label chain | error % | plain | error % | recalibrated | error % | µs a row | row by row |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in STREAMS:
        table = load_folder(folder, name)
        warmup = min(1000, table.y.shape[0] // 4)
        y = labels_of(table.y, warmup)[: warmup + _MOST_ROWS]
        X, rest = table.X[: len(y)], y[warmup:]
        seen = ~rest.isnan()
        labels = rest[seen].long()
        _, chain = update_labels(update_labels(init_labels(2, y), y[:warmup])[0], rest)
        tables, micros = [chain], []
        for is_recalibrated in (False, True):
            config = StreamConfig(presets.auto_for(TARGET), warmup, recalibrate=is_recalibrated)
            model = OnlineModel(config).fit(X[:warmup], y[:warmup])
            began = time.perf_counter()
            predictions = model.observe(X[warmup:], rest)
            micros.append(1e6 * (time.perf_counter() - began) / len(rest))
            assert isinstance(predictions.distribution, LatentMixture)
            tables.append(predictions.distribution.class_probabilities.log())
        began = time.perf_counter()
        for row in range(100):
            model.observe(X[row : row + 1], y[row : row + 1])
        micros.append(1e4 * (time.perf_counter() - began))
        cells = [name, f"{len(rest)}"]
        for log_prob in tables:
            said = log_prob[seen]
            loss = -float(said.gather(-1, labels.unsqueeze(-1)).mean())
            cells += [f"{loss:.3f}", f"{100 * float((said.argmax(-1) != labels).double().mean()):.1f}"]
        print(f"| {' | '.join([*cells, f'{micros[1]:.0f}', f'{micros[2]:.0f}'])} |", flush=True)


def refitted(X: Tensor, y: Tensor, warmup: int) -> Tensor:
    """Scikit-learn's logistic regression, refitted to all rows seen after every hundred."""
    parts = []
    for start in range(warmup, X.shape[0], REFIT):
        model = LogisticRegression(max_iter=1000).fit(X[:start].numpy(), y[:start].numpy())
        parts.append(torch.as_tensor(model.predict_proba(X[start : start + REFIT].numpy())[:, 1]))
    return torch.cat(parts)


def probabilities(name: str, X: Tensor, y: Tensor, warmup: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of label 1 one step ahead on the rows after the warm-up, and the log probability of the labels."""
    rest = y[warmup:]
    if name == BASELINE:
        chance = refitted(X, y, warmup)
        return chance, torch.where(rest > 0.5, chance, 1 - chance).log()
    online = MODELS[name].fit(X[:warmup], y[:warmup], generator=torch.Generator().manual_seed(seed))
    predictions = online.observe(X[warmup:], rest)
    return predictions.mean, predictions.log_prob


def main() -> None:
    """Print one line for each case and model: medians over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=[BASELINE, *MODELS])
    parser.add_argument("--streams", action="store_true", help="classes of streams in their order")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.streams:
        streams_table(arguments.data)
        return
    print("| stream | model | cumulative error % | log loss | Brier |")
    print("|---|---|---|---|---|")
    for case in CASES:
        for name in arguments.models:
            scores = []
            for seed in range(arguments.seeds):
                X, y = stream(arguments.data, case, seed)
                chance, log_prob = probabilities(name, X, y, case.warmup, seed)
                labels = y[case.warmup :]
                error = ((chance > 0.5).double() != labels).double().mean()
                brier = (chance - labels).square().mean()
                scores.append([100 * float(error), -float(log_prob.mean()), float(brier)])
            error_rate, loss, square = (statistics.median(column) for column in zip(*scores, strict=True))
            print(f"| {case.name}, {case.order} | {name} | {error_rate:.1f} | {loss:.3f} | {square:.3f} |", flush=True)


if __name__ == "__main__":
    main()
