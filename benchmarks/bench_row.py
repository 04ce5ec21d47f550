"""What a row of `auto` costs through ``OnlineModel``, in calls of several lengths, beside another version.

    git worktree add ../before COMMIT
    python benchmarks/bench_row.py --data FOLDER --beside ../before

Both versions fit to the same warm-up rows, then learn the same rows in turns, each in a process of its own. The times
are CPU times of one thread: of each version the fastest call counts. Without ``--beside`` there are no ratios.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

SETS = "ccpp,airfoil_raw,trump_approval,brent_oil,air_quality,bike_hourly,sarcos_ias,sml_ordered"
ROOT = Path(__file__).resolve().parents[1]
MOST_CALLS = 30


def load(folder: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a set."""
    entry = next(e for e in json.loads((folder / "manifest.json").read_text())["datasets"] if e["name"] == name)
    frame = pd.read_csv(folder / entry["file"])
    columns = (frame[entry["features"]], frame[entry["target"]])
    X, y = (torch.tensor(part.to_numpy(float), dtype=torch.float64) for part in columns)
    return X, y


def work(folder: Path, name: str) -> None:
    """Fit, then answer each length on the input with the CPU times of calls."""
    from gp_ensembles.ensembles.presets import auto  # the version that the path names
    from gp_ensembles.streaming import OnlineModel, StreamConfig

    torch.set_num_threads(1)
    X, y = load(folder, name)
    num_warm = min(1000, len(y) // 4)
    started = time.process_time()
    fitted = OnlineModel(StreamConfig(auto, warmup=num_warm)).fit(X[:num_warm], y[:num_warm])
    print(time.process_time() - started, flush=True)
    for line in sys.stdin:
        length, model, times = int(line), copy.deepcopy(fitted), []
        for start in range(num_warm, min(len(y), num_warm + MOST_CALLS * length) - length + 1, length):
            before = time.process_time()
            model.observe(X[start : start + length], y[start : start + length])
            times.append(time.process_time() - before)
        print(min(times), flush=True)


def start(library: Path, folder: Path, name: str) -> Any:
    """A worker on one version of the library."""
    environment = {**os.environ, "PYTHONPATH": str(library), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--data", str(folder), "--work", name]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--beside", type=Path, help="a checkout of another version")
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.data.resolve()
    if options.work:
        work(folder, options.work)
        return
    libraries = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    print("| set | rows a call | us a row | beside | fit, s | beside |\n|---|---:|---:|---:|---:|---:|")
    for name in options.sets.split(","):
        workers = [start(library, folder, name) for library in libraries]
        fits = [float(worker.stdout.readline()) for worker in workers]
        for length in options.lengths:
            best = [float("inf")] * len(workers)
            for _ in range(options.rounds):
                for k, worker in enumerate(workers):
                    worker.stdin.write(f"{length}\n")
                    worker.stdin.flush()
                    best[k] = min(best[k], float(worker.stdout.readline()))
            ratio, slower = (f"{part[0] / part[-1]:.2f}" if options.beside else "" for part in (best, fits))
            print(
                f"| {name} | {length} | {1e6 * best[0] / length:.0f} | {ratio} | {fits[0]:.1f} | {slower} |", flush=True
            )
        for worker in workers:
            worker.stdin.close()
            worker.wait()


if __name__ == "__main__":
    main()
