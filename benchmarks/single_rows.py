"""What a row by itself costs: `observe` and `predict` of the presets beside `auto` before it had further parts.

    python -m benchmarks.single_rows --data FOLDER --sets bike_hourly cpusmall

All models fit to the same warm-up rows, and then take turns, some rows each. Times are CPU times of one thread, in
microseconds; "times" is how many rows a model learns while `bases`, all bases at three speeds and nothing further,
learns one (medians). With numba installed (extra ``fast``) rows of `light` are compiled. ``--learn-one`` adds what
river's interface makes of `light`. ``--keep`` writes the table for the site, of runs with numba or without.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_row import load
from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.estimators.river import RiverRegressor
from gp_ensembles.numerics.compiled import IS_COMPILED
from gp_ensembles.streaming import OnlineModel, StreamConfig
from studies.arena.ours import VARIANTS

OLD = "bases"
TURN = 20  # rows
COLUMNS = ["", "set", "`predict`, median", "99 of 100", "then `observe`, median", "99 of 100", "slowest"]
Calls = tuple[Callable[[int], object], Callable[[int], object]]  # predict and learn the row of a number


def of_preset(name: str, X: Tensor, y: Tensor, warmup: int) -> Calls:
    """Calls of a model that was fitted to the warm-up rows."""
    spec = VARIANTS["auto_bases"].spec if name == OLD else PRESETS[name]
    model = OnlineModel(StreamConfig(spec, warmup=warmup)).fit(X[:warmup], y[:warmup])
    return lambda t: model.predict(X[t : t + 1]), lambda t: model.observe(X[t : t + 1], y[t : t + 1])


def of_river(X: Tensor, y: Tensor, warmup: int) -> Calls:
    """Calls of river's interface to `light`; what it predicts is a mean."""
    model, rows, targets = RiverRegressor(PRESETS["light"], warmup=warmup), X.tolist(), y.tolist()
    rows = [{str(j): value for j, value in enumerate(row)} for row in rows]
    for t in range(warmup):
        model.learn_one(rows[t], targets[t])
    return lambda t: model.predict_one(rows[t]), lambda t: model.learn_one(rows[t], targets[t])


def measure(models: dict[str, Calls], first: int, num_rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """CPU times of predicting and of learning each row, microseconds."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in models}
    for start in range(first, first + num_rows, TURN):
        for name, (predict, learn) in models.items():
            for t in range(start, start + TURN):
                begin = time.thread_time_ns()
                predict(t)
                middle = time.thread_time_ns()
                learn(t)
                times[name][0].append((middle - begin) / 1e3)
                times[name][1].append((time.thread_time_ns() - middle) / 1e3)
    return {name: (np.array(one), np.array(other)) for name, (one, other) in times.items()}


def show(name: str, times: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Rows of the table."""
    for model, (predicted, learned) in times.items():
        learning = " | ".join(f"{np.percentile(learned, q):.0f}" for q in (50, 99, 100))
        predicting = " | ".join(f"{np.percentile(predicted, q):.0f}" for q in (50, 99))
        ratio = f"{np.median(times[OLD][1]) / np.median(learned):.1f}"
        print(f"| {name} | {model} | {learning} | {ratio} | {predicting} |", flush=True)


def cells(name: str, times: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[list[Cell]]:
    """Rows of the table that is kept."""
    return [
        [
            f"`{model}`",
            name,
            *(float(np.percentile(predicted, q)) for q in (50, 99)),
            *(float(np.percentile(learned, q)) for q in (50, 99, 100)),
        ]
        for model, (predicted, learned) in times.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["bike_hourly", "cpusmall"])
    parser.add_argument("--presets", nargs="+", default=["light", "auto", "deep"])
    parser.add_argument("--learn-one", action="store_true")
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"numba: {'yes' if IS_COMPILED else 'no'}\n")
    print("| set | model | observe p50 | p99 | max | times | predict p50 | p99 |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    kept: list[list[Cell]] = []
    for name in options.sets:
        X, y = load(options.data, name)
        varies = X[: options.warmup].std(0) > 0
        X = X[:, varies]
        models = {preset: of_preset(preset, X, y, options.warmup) for preset in [*options.presets, OLD]}
        if options.learn_one:
            models["light, river"] = of_river(X, y, options.warmup)
        times = measure(models, options.warmup, options.rows)
        show(name, times)
        kept += cells(name, times)
    if options.keep:
        keep(f"single_rows_{'with' if IS_COMPILED else 'without'}_numba", COLUMNS, kept)


if __name__ == "__main__":
    main()
