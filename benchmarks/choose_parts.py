"""Ablation of `auto` and `light`: presets that differ in one part or its size, over many tables.

    python -m benchmarks.choose_parts --data FOLDER --choices auto "window 1000" "no wide features"
    python -m benchmarks.choose_parts --data FOLDER --choices light "light, one start"
    python -m benchmarks.choose_parts --data FOLDER --window

Every choice meets every table as in the arena, rows in blocks of 500 after a warm-up of 1 000 or a quarter. Printed per
choice: the mean, the worst and the best difference of its log score from that of the first choice (nats per row), the
mean and the largest ratio of their CRPS, and the mean ratio of CPU times, of one thread and without the warm-up.
``--each`` prints the tables, too. The models learn their blocks in turns, so that other work on the machine slows all.

``--window`` compares a window of 2 000 rows alone, its hyperparameters found as in ``auto``, with the same at the most
evidence of twelve searches to the end, six starts of each smoothness.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.presets import load
from gp_ensembles.ensembles.bases import FourierBasis, scaled_kernel
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import ExpertRecord, WarmUp, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.empirical_bayes import LBFGS, fit_empirical_bayes
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.numerics.short_length_scales import short_length_scales
from studies.arena.ours import Ours, Variant
from studies.arena.sets import Task, entries, load_task

SETS = (
    "kin8nm,ccpp,sml,bike,bike_hourly,water_flow,airfoil,concrete,elevators,cpusmall,pol,naval,sarcos_thin10,"
    "air_quality,energy,road3d_5k,cadata,trump_approval"
)
BLOCK = 500
WINDOW, WIDE, TREES = auto.extra_experts
STARTS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)  # of the searches to the end, as shares of the range


def with_extra(*records: ExpertRecord) -> EnsembleSpec:
    """``auto`` with these extra experts."""
    return replace(auto, extra_experts=records)


def window(num_rows: int, nu: float | None = None) -> EnsembleSpec:
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
    "window 1250, Matern-3/2": window(1250, 1.5),
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
    "static bases, too": replace(auto, static=True),
    "static bases only": replace(auto, static=True, random_walk_variances=()),
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


def compare_windows(task: Task) -> None:
    """Print the log score of a window of 2 000 rows at the hyperparameters of ``auto`` and at the best ones."""
    warm_X, warm_y, later_X, later_y = (torch.from_numpy(part) for part in (task.warm_X, task.warm_y, task.X, task.y))
    X, y, num_warm = torch.cat([warm_X, later_X]), torch.cat([warm_y, later_y]), len(warm_y)
    assert auto.lags is not None
    lagged = auto.lags.build(warm_X, warm_y, [])
    if lagged is not None:
        X = torch.cat([X, lagged.memory.columns(lagged.memory.init(y), y)[1]], dim=-1)
    inputs, short = X[:num_warm], short_length_scales(warm_X, warm_y)
    warm_up = WarmUp(warm_X, warm_y, inputs, auto.fit_settings, short=() if short is None else (short,))
    (_, found), best = WindowGP(num_rows=2000, lags=True).build(warm_up)[0], -torch.inf
    for nu in (1.5, 2.5):
        expert = WindowExpert(scaled_kernel(inputs, nu, STARTS), X.shape[1], 2000)
        fit = fit_empirical_bayes(expert, inputs, warm_y, LBFGS(500, 1e-7, 1e-9))
        if float(fit.log_evidence.max()) > best:
            best, honest = float(fit.log_evidence.max()), expert.take(fit.log_evidence.argmax().reshape(1))
    scores = []
    for process in (found, honest):
        state, sums = process.init(), []
        for rows, targets in zip(X.split(BLOCK), y.split(BLOCK), strict=True):
            with torch.no_grad():
                state, steps = process.update(state, rows, targets)
            sums.append(torch.distributions.Normal(steps.mean[0], steps.variance[0].sqrt()).log_prob(targets))
        scores.append(float(torch.cat(sums)[num_warm:].nanmean()))
    print(f"{task.name}: {scores[0]:.3f} nats as in auto, {scores[1]:.3f} at the best, {scores[0] - scores[1]:+.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=SETS)
    autos = [name for name in CHOICES if not name.startswith("light")]
    parser.add_argument("--choices", nargs="+", default=autos, choices=list(CHOICES), metavar="CHOICE")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--each", action="store_true", help="a line for each table and choice, too")
    parser.add_argument("--window", action="store_true", help="compare the search of the window with one to the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.window:
        for entry in entries(options.data.resolve()):
            if entry.kind != "classes" and entry.name in options.sets.split(","):
                compare_windows(load_task(entry, options.rows))
        return
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
