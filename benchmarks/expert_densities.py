"""One-step log densities of very many experts on the tables of a folder: evidence for weight rules and defaults.

    python -m benchmarks.expert_densities --data FOLDER --out DENSITIES

FOLDER holds a manifest.json and the tables it names; regression sets and time series of at least 600 rows are taken,
small ones first. DENSITIES gets one NAME.npz a set, with ``log_prob`` (M, T) in float32 (standardized units, NaN
where a target is missing), ``names`` (M,), ``observed`` (T,), ``num_warmup``, ``seconds`` and ``ordering``. Sets that
are there already are skipped, so a run that was cut goes on where it stopped.

Experts do not see the weights, so any rule can be tried on these arrays without running an expert again.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from gp_ensembles.data import Table
from gp_ensembles.data.folder import load_folder
from gp_ensembles.ensembles.bases import (
    Basis,
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    PolynomialBasis,
    RadialBasis,
    SplineBasis,
)
from gp_ensembles.ensembles.build import FitSettings, build_maps, condition, dynamic_group, fitted_experts, static_group
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.numerics.cholesky import NumericalError
from studies.harness.protocol import Stream, split_stream

BASES: tuple[Basis, ...] = (
    HilbertBasis(),
    FourierBasis(),
    RadialBasis(),
    PolynomialBasis(),
    LinearBasis(),
    SplineBasis(),
)
WALKS = (1e-4, 1e-3, 1e-2)
TASKS = ("regression", "time-series")
FEWEST_ROWS, MOST_ROWS, MOST_WARM_UP = 600, 12_000, 1000
# Orders that are an artifact of how a table was made: a warm-up would see one corner of the inputs only.
ARTIFICIAL = ("grid", "factorial", "sorted")
EXPECTED = (ValueError, TypeError, OSError, NumericalError)


def chosen(folder: Path) -> list[dict[str, Any]]:
    """Manifest entries of the sets to run, those with the fewest numbers first."""
    entries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["datasets"]
    usable = [entry for entry in entries if entry["task"] in TASKS and entry["rows"] >= FEWEST_ROWS]
    return sorted(usable, key=lambda entry: min(entry["rows"], MOST_ROWS) * max(entry["n_features"], 1))


def in_order(table: Table, ordering: str, seed: int) -> Table:
    """The first rows of a table, of a shuffled one if its order is an artifact."""
    rows = torch.arange(table.y.shape[0])
    if any(word in ordering.lower() for word in ARTIFICIAL):
        rows = torch.randperm(table.y.shape[0], generator=torch.Generator().manual_seed(seed))
    rows = rows[:MOST_ROWS]
    return table._replace(X=table.X[rows], y=table.y[rows])


def densities(stream: Stream, seed: int, name: str) -> tuple[np.ndarray, list[str], dict[str, float]]:
    """Log densities (M, T) of all experts, their names, and the seconds spent on fits and on the stream."""
    X, y = stream.warm_X, stream.warm_y
    generator = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    experts = fitted_experts(build_maps(X, BASES, generator), X, y, FitSettings(), generator, False)
    fitted = time.perf_counter()
    online = condition(X, y, [static_group(experts), dynamic_group(experts, X, WALKS)], BayesianModelAveraging())
    parts = []
    with tqdm(total=len(stream.y), desc=name, unit="row", leave=False, mininterval=5.0) as bar:
        for rows, targets in stream.blocks(512):
            parts.append(online.observe(rows, targets).experts.log_prob.detach().float().numpy())
            bar.update(len(targets))
    seconds = {"fit": fitted - began, "stream": time.perf_counter() - fitted}
    return np.concatenate(parts, 1), list(online.names), seconds


def save(path: Path, arrays: dict[str, Any]) -> None:
    """Write to a hidden file first, so that a set is there whole or not at all."""
    hidden = path.with_name(f".{path.name}.part")
    with hidden.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(hidden, path)


def run(folder: Path, entry: dict[str, Any], out: Path, seed: int) -> str:
    """Run one set; returns a line about it."""
    name, ordering = entry["name"], str(entry["ordering"])
    table = in_order(load_folder(folder, name), ordering, seed)
    num_rows = table.y.shape[0]
    num_warmup = MOST_WARM_UP if num_rows >= 4 * MOST_WARM_UP else num_rows // 4
    stream = split_stream(table, num_warmup, drop_constant=True, clip=1e3)
    log_prob, names, seconds = densities(stream, seed, name)
    observed = ~torch.isnan(stream.y).numpy()
    arrays = {
        "log_prob": log_prob,
        "names": np.array(names),
        "observed": observed,
        "num_warmup": np.array(num_warmup),
        "seconds": np.array([seconds["fit"], seconds["stream"]]),
        "ordering": np.array(ordering),
    }
    save(out / f"{name}.npz", arrays)
    score = log_prob.astype(np.float64)[:, observed].mean(1)
    best = int(score.argmax())
    return (
        f"{name}: {len(stream.y)} rows, {stream.X.shape[1]} inputs, {len(names)} experts, best {names[best]} "
        f"{score[best]:.3f}, fit {seconds['fit']:.0f} s, stream {seconds['stream']:.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/expert_densities"))
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in chosen(options.data) if options.sets is None or entry["name"] in options.sets]
    for entry in tqdm(entries, unit="set", mininterval=5.0):
        if (options.out / f"{entry['name']}.npz").exists():
            continue
        try:
            tqdm.write(run(options.data, entry, options.out, options.seed))
        except EXPECTED as error:
            tqdm.write(f"{entry['name']} failed: {error}")


if __name__ == "__main__":
    main()
