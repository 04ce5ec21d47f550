"""What a row costs under each preset, in calls of many rows and one at a time, and as a share of what `auto` takes.

    python -m benchmarks.bench_price --data FOLDER --presets light,auto,deep

All presets are fitted to the same warm-up rows and learn the same rows in turns, of each the fastest run counts: wall
time, threads as they are. Retraining counts if it falls on the rows, so give them a cycle of it. ``--into FILE`` keeps
the prices as JSON.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.bench_row import SETS, load
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.ensembles.price import price_of_row
from gp_ensembles.streaming import OnlineModel, StreamConfig


def prices(
    X: torch.Tensor, y: torch.Tensor, names: list[str], num_rows: int, num_single: int, rounds: int
) -> dict[str, tuple[float, float, float]]:
    """For each preset: microseconds a row in one call of ``num_rows``, one at a time, and seconds to fit."""
    num_warm = min(1000, len(y) // 4)
    models, fits = {}, {}
    for name in names:
        started = time.perf_counter()
        config = StreamConfig(PRESETS[name], warmup=num_warm)
        models[name] = OnlineModel(config).fit(X[:num_warm], y[:num_warm])
        fits[name] = time.perf_counter() - started
    many, few = slice(num_warm, num_warm + num_rows), slice(num_warm, num_warm + num_single)
    best: dict[str, tuple[float, float]] = {name: (float("inf"), float("inf")) for name in names}
    for _ in range(rounds):
        for name, model in models.items():
            together = price_of_row(model, X[many], y[many], repetitions=1)
            alone = price_of_row(model, X[few], y[few], rows_per_call=1, repetitions=1)
            best[name] = (min(best[name][0], together), min(best[name][1], alone))
    return {name: (*best[name], fits[name]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--presets", default="auto")
    parser.add_argument("--rows", type=int, default=1000, help="rows of the call of many")
    parser.add_argument("--single", type=int, default=200, help="rows given one at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, help="a file for the prices")
    options = parser.parse_args()
    names, found = options.presets.split(","), {}
    print(
        "| set | preset | us a row | of auto | us a row alone | of auto | fit, s |\n|---|---|---:|---:|---:|---:|---:|"
    )
    for title in options.sets.split(","):
        X, y = load(options.data.resolve(), title)
        found[title] = prices(X, y, names, options.rows, options.single, options.rounds)
        for name, (together, alone, fit) in found[title].items():
            first, second = (
                f"1/{beside / own:.1f}"
                for beside, own in zip(found[title].get("auto", (0.0, 0.0)), (together, alone), strict=False)
            )
            print(f"| {title} | {name} | {together:.0f} | {first} | {alone:.0f} | {second} | {fit:.1f} |", flush=True)
    if options.into is not None:
        options.into.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
