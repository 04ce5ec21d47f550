"""Costs of presets: memory, a file, pauses where something is trained or dropped, and rows one at a time.

    python -m benchmarks.presets --data FOLDER
    python -m benchmarks.presets --data FOLDER --single-rows

Each preset runs in a separate process: it is fitted to 1000 rows, learns more rows in one call, and then rows one at a
time. Memory is the peak of the process minus its memory after loading library and table. The slowest single rows are
relative to the median of all, in CPU time of one thread; ``--single`` should cover a cycle of refits, trainings and
drops. The file is that of ``OnlineModel.save`` at the end; its size depends on the number of rows in the window.

With ``--single-rows`` all presets are fitted to the same warm-up rows of a set and take turns on the next ones, each
predicted and then learned; `bases` is all bases at three speeds and nothing else. Times are CPU times of one thread, in
microseconds. With numba installed (extra ``fast``), the single-row path is compiled and results go to another table.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.numerics.compiled import IS_COMPILED
from gp_ensembles.streaming import OnlineModel, StreamConfig
from studies.arena.ours import VARIANTS

WARMUP = 1000
TURN = 20  # rows
BASES = "bases"
COLUMNS = {
    "libraries": "libraries, MB",
    "memory": "additional memory, MB",
    "file": "model file, MB",
    "load": "loading, seconds",
    "median": "single row, milliseconds",
    "third": "third slowest of {num_rows} vs. the median",
    "stop": "slowest vs. the median",
}
SINGLE_COLUMNS = ["", "set", "`predict`, median", "p99", "then `observe`, median", "p99", "slowest"]
Calls = tuple[Callable[[int], object], Callable[[int], object]]  # predict and learn the row of a number


def load(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a set."""
    entry = next(e for e in json.loads((folder / "manifest.json").read_text())["datasets"] if e["name"] == name)
    frame = pd.read_csv(folder / entry["file"])
    columns = (frame[entry["features"]], frame[entry["target"]])
    X, y = (torch.tensor(part.to_numpy(float), dtype=torch.float64) for part in columns)
    return X, y


def of_one(folder: Path, title: str, preset: str, num_rows: int, num_single: int) -> dict[str, float]:
    """Measurements of one preset; memory is correct only in a fresh process."""
    X, y = load(folder, title)
    before = _megabytes()
    model = OnlineModel(StreamConfig(PRESETS[preset], warmup=WARMUP))
    model.observe(X[: WARMUP + num_rows], y[: WARMUP + num_rows])
    times = []
    for t in range(WARMUP + num_rows, WARMUP + num_rows + num_single):
        started = time.process_time()
        model.observe(X[t : t + 1], y[t : t + 1])
        times.append(time.process_time() - started)
    memory, median, longest = _megabytes() - before, statistics.median(times), sorted(times)[-3:]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.pt"
        model.save(file)
        size = file.stat().st_size / 1e6
        started = time.process_time()
        OnlineModel.load(file)
        loading = time.process_time() - started
    return {
        "libraries": before,
        "memory": memory,
        "file": size,
        "load": loading,
        "median": 1e3 * median,
        "stop": longest[-1] / median,
        "third": longest[0] / median,
    }


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _in_process(preset: str) -> dict[str, Any]:
    """The same in a separate process."""
    command = [sys.executable, "-m", "benchmarks.presets", *sys.argv[1:], "--one", preset]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fitted(name: str, X: Tensor, y: Tensor) -> Calls:
    """Calls of a model fitted to the warm-up rows."""
    spec = VARIANTS["auto_bases"].spec if name == BASES else PRESETS[name]
    model = OnlineModel(StreamConfig(spec, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    return lambda t: model.predict(X[t : t + 1]), lambda t: model.observe(X[t : t + 1], y[t : t + 1])


def row_times(models: dict[str, Calls], num_rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """CPU times of predicting and of learning each row, microseconds."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in models}
    for start in range(WARMUP, WARMUP + num_rows, TURN):
        for name, (predict, learn) in models.items():
            for t in range(start, start + TURN):
                started = time.thread_time_ns()
                predict(t)
                middle = time.thread_time_ns()
                learn(t)
                times[name][0].append((middle - started) / 1e3)
                times[name][1].append((time.thread_time_ns() - middle) / 1e3)
    return {name: (np.array(one), np.array(other)) for name, (one, other) in times.items()}


def single_rows(folder: Path, title: str, presets: Sequence[str], num_rows: int) -> list[list[Cell]]:
    """Rows of the single-row table for one set."""
    X, y = load(folder, title)
    X = X[:, X[:WARMUP].std(0) > 0]
    times = row_times({preset: fitted(preset, X, y) for preset in [*presets, BASES]}, num_rows)
    return [
        [
            f"`{model}`",
            title,
            *(float(np.percentile(predicted, q)) for q in (50, 99)),
            *(float(np.percentile(learned, q)) for q in (50, 99, 100)),
        ]
        for model, (predicted, learned) in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", default="bike_hourly")
    parser.add_argument("--presets", nargs="+", default=["light", "auto", "deep"])
    parser.add_argument("--rows", type=int, default=1000, help="rows after the warm-up that are learned at once")
    parser.add_argument("--single", type=int, default=1500, help="rows given one at a time")
    parser.add_argument("--single-rows", action="store_true", help="predict and learn rows one at a time, in turns")
    parser.add_argument("--sets", nargs="+", default=["bike_hourly", "cpusmall"], help="sets of the single rows")
    parser.add_argument("--turns", type=int, default=400, help="single rows of each set")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(of_one(options.data, options.set, options.one, options.rows, options.single)))
        return
    rows: list[list[Cell]] = []
    if options.single_rows:
        for title in options.sets:
            rows += single_rows(options.data, title, options.presets, options.turns)
        keep(f"single_rows_{'with' if IS_COMPILED else 'without'}_numba", SINGLE_COLUMNS, rows)
        return
    for preset in options.presets:
        found = _in_process(preset)
        rows.append([f"`{preset}`", *(found[part] for part in COLUMNS)])
        print(rows[-1], flush=True)
    num_rows = f"{options.single:,}".replace(",", " ")
    keep("presets", ["", *(column.format(num_rows=num_rows) for column in COLUMNS.values())], rows)


if __name__ == "__main__":
    main()
