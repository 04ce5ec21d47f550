"""Our sampler of Optuna beside Optuna's own: regret and processor time on test functions.

    python -m benchmarks.optuna_samplers --seeds 10

Six functions, 60 trials each, minimized; finished studies are kept in ``--out``, so that an interrupted call resumes.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import torch
from botorch.test_functions import Ackley, Branin, Hartmann, Levy, Michalewicz, Rosenbrock
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.measured import Cell, keep, show
from gp_ensembles.estimators.optuna import EnsembleSampler

TRIALS = 60
FUNCTIONS = {
    "Branin": Branin(),
    "Michalewicz-2": Michalewicz(2),
    "Levy-4": Levy(4),
    "Rosenbrock-4": Rosenbrock(4),
    "Ackley-5": Ackley(5),
    "Hartmann-6": Hartmann(6),
}
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "EnsembleSampler": lambda seed: EnsembleSampler(seed=seed),
    "GPSampler": lambda seed: GPSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
}


def regret_and_seconds(function: Any, make: Callable[[int], BaseSampler], seed: int) -> tuple[float, float]:
    """How far the best trial is from the minimum, and the processor time of the whole study."""
    bounds = function.bounds.mT.tolist()

    def objective(trial: optuna.Trial) -> float:
        x = [trial.suggest_float(f"x{place}", low, high) for place, (low, high) in enumerate(bounds)]
        return float(function(torch.tensor([x], dtype=torch.float64)))

    began = time.process_time()
    study = optuna.create_study(sampler=make(seed))
    study.optimize(objective, n_trials=TRIALS)
    return study.best_value - function.optimal_value, time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/optuna_samplers.jsonl"))
    parser.add_argument("--keep", action="store_true", help="as the numbers of the page")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.touch()
    found: dict[tuple[str, str, int], tuple[float, float]] = {}
    for line in map(json.loads, options.out.read_text(encoding="utf-8").splitlines()):
        found[line[0], line[1], line[2]] = line[3], line[4]
    with options.out.open("a", encoding="utf-8") as lines:
        for seed in range(options.seeds):
            for name, function in FUNCTIONS.items():
                for sampler, make in SAMPLERS.items():
                    if (name, sampler, seed) not in found:
                        found[name, sampler, seed] = regret_and_seconds(function, make, seed)
                        print(json.dumps([name, sampler, seed, *found[name, sampler, seed]]), file=lines, flush=True)
    ours, *rivals = SAMPLERS
    rows: list[list[Cell]] = []
    for name in FUNCTIONS:
        regrets = {sampler: [found[name, sampler, seed][0] for seed in range(options.seeds)] for sampler in SAMPLERS}
        seconds = {sampler: sum(found[name, sampler, seed][1] for seed in range(options.seeds)) for sampler in SAMPLERS}
        won = [sum(a < b for a, b in zip(regrets[ours], regrets[rival], strict=True)) for rival in rivals]
        times = [seconds[ours] / seconds[rival] for rival in rivals[:1]]
        rows.append([name, *map(median, regrets.values()), *(f"{count} of {options.seeds}" for count in won), *times])
    heads = [f"better than {rival}" for rival in rivals]
    columns = ["function", *SAMPLERS, *heads, f"CPU time, {rivals[0]} = 1"]
    (keep if options.keep else show)("optuna_samplers", columns, rows)


if __name__ == "__main__":
    main()
