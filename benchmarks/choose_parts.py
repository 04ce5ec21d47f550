"""Ablation of `auto` and `light`: presets that differ in one part or its size, over many tables.

    python -m benchmarks.choose_parts --data FOLDER --choices auto "window 1000" "no wide features"
    python -m benchmarks.choose_parts --data FOLDER --choices light "light, one start"

Every choice meets every table as in the arena, rows in blocks of 500 after a warm-up of 1 000 or a quarter. Printed per
choice: the mean, the worst and the best difference of its log score from that of the first choice (nats per row), the
mean and the largest ratio of their CRPS, and the mean ratio of CPU times, of one thread and without the warm-up.
``--each`` prints the tables, too. The models learn their blocks in turns, so that other work on the machine slows all.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.presets import load
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import ExpertRecord, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.ensembles.spec import EnsembleSpec
from studies.arena.ours import Ours, Variant

SETS = (
    "kin8nm,ccpp,sml,bike,bike_hourly,water_flow,airfoil,concrete,elevators,cpusmall,pol,naval,sarcos_thin10,"
    "air_quality,energy,road3d_5k,cadata,trump_approval"
)
BLOCK = 500
WINDOW, WIDE, TREES = auto.extra_experts


def with_extra(*records: ExpertRecord) -> EnsembleSpec:
    """``auto`` with these extra experts."""
    return replace(auto, extra_experts=records)


def window(num_rows: int, nu: float = 1.5) -> EnsembleSpec:
    """``auto`` with another window."""
    return with_extra(WindowGP(num_rows=num_rows, nu=nu, lags=True), WIDE, TREES)


def wide(num_features: int, *noises: float) -> EnsembleSpec:
    """``auto`` with other wide features."""
    return with_extra(WINDOW, WideFeatures(num_features=num_features, noises=noises), TREES)


def trees(num_trees: int, rate: float, every: int) -> EnsembleSpec:
    """``auto`` with other boosted trees."""
    return with_extra(WINDOW, WIDE, Boosting(num_trees=num_trees, learning_rate=rate, every=every))


def few(fourier: FourierBasis, *records: ExpertRecord) -> EnsembleSpec:
    """``light`` with another basis, and other extra experts."""
    return replace(light, bases=(fourier,), lags=TargetLags(bases=(fourier,)), extra_experts=records)


ONE_START = FourierBasis(starts=(0.7,))
CHOICES = {
    "auto": auto,
    **{f"window {rows}": window(rows) for rows in (500, 750, 1000, 1500)},
    "window 1250, Matern-5/2": window(1250, 2.5),
    "no window": with_extra(WIDE, TREES),
    "wide 500, noises .003 and .03": wide(500, 0.003, 0.03),
    "wide 1000, noise .01": wide(1000, 0.01),
    "no wide features": with_extra(WINDOW, TREES),
    "100 trees at .1": trees(100, 0.1, 2000),
    "60 trees at .15": trees(60, 0.15, 2000),
    "40 trees at .2": trees(40, 0.2, 2000),
    "trees every 1 000 rows": trees(80, 0.125, 1000),
    "no trees": with_extra(WINDOW, WIDE),
    "no Hilbert basis": replace(auto, bases=auto.bases[1:]),
    "no Fourier basis": replace(auto, bases=auto.bases[:1]),
    "static bases only": replace(auto, random_walk_variances=()),
    "light": light,
    "light, two noises": few(FourierBasis(), WideFeatures(num_features=250, noises=(0.003, 0.03))),
    "light, one start, two noises": few(ONE_START, WideFeatures(num_features=250, noises=(0.003, 0.03))),
    "light, one start": few(ONE_START, WideFeatures(num_features=250, noises=(0.01,))),
    "light, one start, 200 wide": few(ONE_START, WideFeatures(num_features=200, noises=(0.01,))),
    "light, one start, 150 wide": few(ONE_START, WideFeatures(num_features=150, noises=(0.01,))),
    "light, one start, none wide": few(ONE_START),
}


def run(folder: Path, title: str, names: list[str], most: int) -> dict[str, tuple[float, float, float]]:
    """Log score, CRPS and microseconds per row of each choice on one table."""
    X, y = (part.numpy() for part in load(folder, title))
    num_warm = min(1000, len(y) // 4)
    models = {name: Ours(Variant(name, CHOICES[name]), seed=0) for name in names}
    for model in models.values():
        model.warm_up(X[:num_warm], y[:num_warm])
    sums = {name: np.zeros(3) for name in names}
    stop = min(len(y), num_warm + most)
    for start in range(num_warm, stop, BLOCK):
        rows = slice(start, min(start + BLOCK, stop))
        for name, model in models.items():
            began = time.process_time()
            predicted = model.step(X[rows], y[rows])
            spent = time.process_time() - began
            sums[name] += np.nansum(predicted.log_prob(y[rows])), np.nansum(predicted.crps(y[rows])), 1e6 * spent
    count = int((~np.isnan(y[num_warm:stop])).sum())
    return {name: tuple((total / count).tolist()) for name, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=SETS)
    autos = [name for name in CHOICES if not name.startswith("light")]
    parser.add_argument("--choices", nargs="+", default=autos, choices=list(CHOICES), metavar="CHOICE")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--each", action="store_true", help="a line for each table and choice, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(dict.fromkeys(options.choices))
    found = []
    for title in options.sets.split(","):
        one = run(options.data.resolve(), title, names, options.rows)
        log_score, crps, spent = zip(*one.values(), strict=True)
        found.append((np.subtract(log_score, log_score[0]), np.divide(crps, crps[0]), np.divide(spent, spent[0])))
        if options.each:
            for name, (score, distance, cost) in one.items():
                print(f"{title}, {name}: {score:.3f} nats, CRPS {distance:.4g}, {cost:.0f} us", flush=True)
    ahead, ratio, cost = (np.stack(part) for part in zip(*found, strict=True))
    print("| choice | mean | worst | best | CRPS | worst | CPU time |\n|---|---:|---:|---:|---:|---:|---:|")
    for number, name in enumerate(names):
        a, r = ahead[:, number], ratio[:, number]
        print(
            f"| {name} | {a.mean():+.4f} | {a.min():+.3f} | {a.max():+.3f} | {r.mean():.3f} | {r.max():.3f} | "
            f"{cost[:, number].mean():.2f} |"
        )


if __name__ == "__main__":
    main()
