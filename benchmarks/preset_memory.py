"""What a preset keeps in memory and in a file, and how long it stops when something is trained or dropped.

    python -m benchmarks.preset_memory --data FOLDER --presets light,auto,deep

Each preset has a process of its own: it is fitted to 1000 rows, learns some more in one call, and then rows one at a
time. Memory is the most that the process had, less what it had when library and table were loaded. The slowest of the
rows by themselves are given in medians of all, CPU time of one thread; ``--single`` should hold a cycle of what is done
now and then. The file is that of ``OnlineModel.save`` at the end; its size depends on how many rows the window has.
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
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_row import load
from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.streaming import OnlineModel, StreamConfig

_WARM = 1000
COLUMNS = {
    "libraries": "the libraries, MB",
    "memory": "memory beyond them, MB",
    "file": "a file of the model, MB",
    "load": "reading it, seconds",
    "median": "a row by itself, milliseconds",
    "third": "third slowest of {num_rows}, in such rows",
    "stop": "slowest",
}


def measured(folder: Path, title: str, preset: str, num_rows: int, num_single: int) -> dict[str, float]:
    """The numbers of one preset; memory is right only in a process that has done nothing else."""
    X, y = load(folder, title)
    before = _megabytes()
    model = OnlineModel(StreamConfig(PRESETS[preset], warmup=_WARM))
    model.observe(X[: _WARM + num_rows], y[: _WARM + num_rows])
    times = []
    for t in range(_WARM + num_rows, _WARM + num_rows + num_single):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", default="bike_hourly")
    parser.add_argument("--presets", default="light,auto,deep")
    parser.add_argument("--rows", type=int, default=1000, help="rows after the warm-up that are learned at once")
    parser.add_argument("--single", type=int, default=1500, help="rows given one at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(1)
        found = measured(options.data, options.set, options.one, options.rows, options.single)
        print(json.dumps(found))
        return
    rows: list[list[Cell]] = []
    for preset in options.presets.split(","):
        found = _in_process(preset)
        rows.append([f"`{preset}`", *(found[part] for part in COLUMNS)])
        print(rows[-1], flush=True)
    num_rows = f"{options.single:,}".replace(",", " ")
    keep("presets", ["", *(column.format(num_rows=num_rows) for column in COLUMNS.values())], rows)


def _in_process(preset: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.preset_memory", *sys.argv[1:], "--one", preset]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
