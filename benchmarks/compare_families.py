"""Every family of the ensembles on real streams, with baselines, in one table.

    python -m benchmarks.compare_families --data FOLDER --sets elevators pol bike
    python -m benchmarks.compare_families --markdown        # the tables of what has been run so far

FOLDER holds a manifest.json and the tables it names. The first 1000 rows (a fifth of a shorter table) set scales and
hyperparameters; the scores are one step ahead on the rest, in standardized units, on the full mixture.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from gp_ensembles.data.folder import load_folder
from gp_ensembles.ensembles import OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis, LinearBasis, PolynomialBasis, RadialBasis
from gp_ensembles.ensembles.build import (
    FitSettings,
    NamedExpert,
    build_maps,
    condition,
    dynamic_group,
    fitted_experts,
    group_size,
    static_group,
)
from gp_ensembles.ensembles.presets import SPEEDS
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, edoebe_transition
from gp_ensembles.metrics import nmse
from studies.harness.protocol import Stream, split_stream

FAMILIES = {
    "HSGP": HilbertBasis(),
    "RFF": FourierBasis(),
    "RBF": RadialBasis(),
    "Poly": PolynomialBasis(),
    "Linear": LinearBasis(),
}


def score(online: OnlineEnsemble, stream: Stream) -> dict[str, float]:
    start = time.perf_counter()
    total, means, seen = 0.0, [], 0
    for X, y in zip(stream.X.split(2048), stream.y.split(2048), strict=True):
        predictions = online.observe(X, y)
        observed = ~torch.isnan(y)
        total += float(predictions.log_prob[observed].sum())
        seen += int(observed.sum())
        means.append(predictions.mean)
    seconds = time.perf_counter() - start
    return {
        "log_score": total / seen,
        "nmse": float(nmse(torch.cat(means), stream.y)),
        "experts": online.ensemble.num_experts,
        "microseconds_per_row": 1e6 * seconds / len(stream.y),
    }


def baselines(stream: Stream) -> dict[str, dict[str, float]]:
    """Gaussian predictions: the warm-up mean, and the previous value with the variance of warm-up differences."""
    previous = torch.cat([stream.warm_y[-1:], stream.y[:-1]])
    variance = (stream.warm_y[1:] - stream.warm_y[:-1]).square().mean()
    results = {}
    for name, mean, spread in [
        ("previous value", previous, variance),
        ("warm-up mean", torch.zeros_like(stream.y), torch.ones_like(variance)),
    ]:
        error = (stream.y - mean).square()
        log_score = -0.5 * (error / spread + spread.log() + math.log(2 * math.pi)).mean()
        results[name] = {"log_score": float(log_score), "nmse": float(nmse(mean, stream.y)), "experts": 1}
    return results


def run(stream: Stream, seed: int) -> dict[str, dict[str, float]]:
    X, y = stream.warm_X, stream.warm_y
    generator = torch.Generator().manual_seed(seed)
    results = baselines(stream)
    groups: dict[str, list[NamedExpert]] = {}
    for family, basis in FAMILIES.items():
        start = time.perf_counter()
        maps = build_maps(X, [basis], generator)
        groups[family] = fitted_experts(maps, X, y, FitSettings(), generator, False)
        fit_seconds = time.perf_counter() - start
        for prefix, group in (
            ("OE", static_group(groups[family])),
            ("DOE", dynamic_group(groups[family], X, SPEEDS)),
        ):
            online = condition(X, y, [group], BayesianModelAveraging())
            results[f"{prefix}-{family}"] = score(online, stream) | {"fit_seconds": fit_seconds}
    every = [expert for group in groups.values() for expert in group]
    both = [static_group(every), dynamic_group(every, X, SPEEDS)]
    results["BMA of all"] = score(condition(X, y, both, BayesianModelAveraging()), stream)
    some = [expert for family in ("HSGP", "RFF", "RBF") for expert in groups[family]]
    speeds = [static_group(some), *(dynamic_group(some, X, [walk]) for walk in SPEEDS[1:])]
    rule = MarkovSwitching(edoebe_transition(group_size(speeds[0]), len(speeds), 0.01))
    results["E-DOEBE"] = score(condition(X, y, speeds, rule), stream)
    return results


def markdown(results: dict[str, dict[str, dict[str, float]]], key: str, digits: int) -> str:
    """A table of one score: models down, tables across, the best of each in bold."""
    names = list(results)
    better = max if key == "log_score" else min
    best = {name: better(row[key] for row in results[name].values()) for name in names}
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for model in results[names[0]]:
        cells = []
        for name in names:
            text = f"{results[name][model][key]:.{digits}f}"
            cells.append(f"**{text}**" if results[name][model][key] == best[name] else text)
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=[])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/compare_families.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.markdown:
        print(markdown(results, "log_score", 3), "\n")
        print(markdown(results, "nmse", 4))
        return
    for name in options.sets:
        table = load_folder(options.data, name)
        stream = split_stream(table, min(1000, len(table.y) // 5), drop_constant=True, clip=1e3)
        results[name] = run(stream, options.seed)
        options.out.write_text(json.dumps(results, indent=1))
        print(f"\n{name}: {len(stream.y)} rows, {stream.X.shape[1]} inputs")
        for model, row in results[name].items():
            print(f"  {model:16s} log score {row['log_score']:8.4f}   nMSE {row['nmse']:8.5f}", flush=True)


if __name__ == "__main__":
    main()
