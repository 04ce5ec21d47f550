"""Classes, one step ahead: `auto_for` the labels against boosted trees, retrained every 500 rows.

    python -m benchmarks.classes --data FOLDER [--sets elec2 digits]

The dozen sets was written down before the first run; defaults were chosen on ``DECIDE`` and confirmed on ``CONFIRM``.
Two sets are read from the package of river, where that is installed. Sets without an order in time are shuffled by the
seed. Rows before the warm-up's end are not scored: 1000 of sets of 3000 rows and more, 500 of others.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.streaming import OnlineModel, StreamConfig

DECIDE = ("elec2", "digits", "segments", "switch_5", "phishing", "oil_flow")
CONFIRM = ("banana", "musk2", "usps_0to4", "made_10", "shuttle", "fade_3")
_ORDERED = ("elec2", "segments", "switch_5", "phishing", "shuttle", "fade_3")
SEED, _MOST_ROWS, _EVERY, _BINS = 0, 5000, 500, 10
Array = NDArray[Any]


def _river(name: str, target: str) -> tuple[Array, Array]:
    """A set of river's package."""
    frame = pd.read_csv(Path(importlib.import_module("river").__file__ or "").parent / "datasets" / name)
    return frame.drop(columns=target).to_numpy(float), frame[target].to_numpy()


def _table(folder: Path, name: str, drop: tuple[str, ...] = ()) -> tuple[Array, Array]:
    frame = pd.read_csv(folder / f"{name}.csv.gz").drop(columns=list(drop))
    return frame.drop(columns="label").to_numpy(float), frame["label"].to_numpy()


def _usps(folder: Path) -> tuple[Array, Array]:
    """Pictures of 8 x 8 points."""
    found = np.load(folder / "usps_0to4.npz")
    return found["X"].reshape(-1, 8, 2, 8, 2).mean((2, 4)).reshape(-1, 64), found["y"]


def _made(num_classes: int, num_inputs: int, seed: int, num_rows: int = 4000) -> tuple[Array, Array]:
    sizes = {"n_informative": num_inputs // 2, "n_classes": num_classes, "flip_y": 0.02}
    X, y = make_classification(num_rows, num_inputs, **sizes, random_state=seed)
    return X, y


def _switch(folder: Path) -> tuple[Array, Array]:
    """Five classes whose concept changes every 1300 rows."""
    parts = [_made(5, 10, seed, 1300) for seed in (1, 2, 3)]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def _fade(folder: Path) -> tuple[Array, Array]:
    """Three classes, of which one concept gives way to another little by little."""
    (X, y), (other, labels) = _made(3, 12, 4), _made(3, 12, 5)
    takes = np.random.default_rng(0).random(len(y)) < np.linspace(0, 1, len(y))
    return np.where(takes[:, None], other, X), np.where(takes, labels, y)


SETS: dict[str, Callable[[Path], tuple[Array, Array]]] = {
    "elec2": lambda folder: _table(folder, "elec2"),
    "digits": lambda folder: load_digits(return_X_y=True),
    "segments": lambda folder: _river("segment.csv.zip", "category"),
    "switch_5": _switch,
    "phishing": lambda folder: _river("phishing.csv.gz", "is_phishing"),
    "oil_flow": lambda folder: _table(folder, "oil_flow"),
    "banana": lambda folder: _table(folder, "banana"),
    "musk2": lambda folder: _table(folder, "musk2", ("bag",)),
    "usps_0to4": _usps,
    "made_10": lambda folder: _made(10, 20, 6),
    "shuttle": lambda folder: _river("shuttle.csv.gz", "anomaly"),
    "fade_3": _fade,
}


def stream(folder: Path, name: str, seed: int) -> tuple[Array, Array, int]:
    """Inputs (N, D), labels (N,) from zero, and how many rows are the warm-up."""
    X, y = SETS[name](folder)
    order = np.arange(len(y)) if name in _ORDERED else np.random.default_rng(seed).permutation(len(y))
    labels = np.unique(y, return_inverse=True)[1]
    X, labels = X[order][:_MOST_ROWS], labels[order][:_MOST_ROWS]
    return X, labels, 1000 if len(X) >= 3000 else 500


def rival(X: Array, y: Array, warmup: int) -> Array:
    """Probabilities of the rows behind the warm-up by boosted trees, retrained on all rows before."""
    parts = []
    for start in range(warmup, len(X), _EVERY):
        model = HistGradientBoostingClassifier(random_state=0).fit(X[:start], y[:start])
        known = model.predict_proba(X[start : start + _EVERY])
        found = np.zeros((len(known), y.max() + 1))
        found[:, model.classes_.astype(int)] = known
        parts += [found]
    return np.concatenate(parts)


def ours(X: Array, y: Array, warmup: int, seed: int) -> Array:
    """Probabilities of the same rows by the default ensemble."""
    num_classes = int(y.max()) + 1
    target = BinaryTarget() if num_classes == 2 else ClassTarget(num_classes)
    model = OnlineModel(StreamConfig(auto_for(target), warmup=warmup, seed=seed))
    found = model.observe(torch.from_numpy(X), torch.from_numpy(y).double())
    return found.distribution.class_probabilities[-(len(y) - warmup) :].numpy()


def scores(probabilities: Array, y: Array) -> tuple[float, float, float]:
    """Log loss, share of errors, and expected calibration error of the most probable class in ten bins."""
    loss = -np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-15)).mean()
    right, sure = probabilities.argmax(1) == y, probabilities.max(1)
    places = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs((right[places == b] - sure[places == b]).sum()) for b in range(_BINS)]
    return float(loss), float(1 - right.mean()), float(sum(gaps) / len(y))


def by_chance(probabilities: Array) -> float:
    """Calibration error on average if labels are drawn from the probabilities: what as many rows show of no error."""
    draws = np.random.default_rng(0).random((200, len(probabilities), 1))
    sums = probabilities.cumsum(1)[:, :-1]
    return float(np.mean([scores(probabilities, (draw > sums).sum(1))[2] for draw in draws]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=[*DECIDE, *CONFIRM])
    arguments = parser.parse_args()
    rows: list[list[Cell]] = []
    for name in arguments.sets:
        X, y, warmup = stream(arguments.data, name, SEED)
        start = time.process_time()
        found = ours(X, y, warmup, SEED)
        seconds = time.process_time() - start
        own = *scores(found, y[warmup:]), by_chance(found)
        other = scores(rival(X, y, warmup), y[warmup:])
        rows.append([name, int(y.max()) + 1, X.shape[1], len(y), *own, *other, seconds])
        print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in rows[-1]), flush=True)
    names = ["log loss", "error rate", "ECE"]
    columns = ["set", "classes", "inputs", "rows", *names, "ECE by chance", *(f"trees: {n}" for n in names), "seconds"]
    if arguments.sets == [*DECIDE, *CONFIRM]:
        keep("class_sets", columns, rows)


if __name__ == "__main__":
    main()
