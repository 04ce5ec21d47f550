"""Forecasts at origin after origin, compared with seasonal naive and statsforecast's AutoETS refitted at each of them.

    python -m benchmarks.backtest --data FOLDER --rival-python PATH/TO/python
    python -m benchmarks.backtest --families --rival-python PATH/TO/python

statsforecast wants other versions of our libraries, so it runs in a Python of its own (``python -m venv RIVAL;
RIVAL/bin/pip install statsforecast``); its forecasts are kept in ``--cache`` and made again where origins changed.
Future inputs are those of time and calendar: nothing else is known in advance, to either. Scores are relative to
AutoETS's; seconds are CPU time of one thread for an origin, which for us is learning one row, the forecast of 500 paths
and its quantiles. ``--families`` are made series, by default of the seeds 0 to 2, which choices were made by: give
others with ``--seeds``.
"""

import argparse
import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.forecasting.backtest import LEVELS, Backtest, scored


class Series(NamedTuple):
    """A series: inputs known in advance (N, D), targets (N,), rows of a season, of a forecast and of the warm-up."""

    name: str
    X: Tensor
    y: Tensor
    season: int
    horizon: int
    warmup: int
    num_origins: int

    @property
    def origins(self) -> list[int]:
        """Evenly spread over the rows after the warm-up."""
        last = self.y.shape[0] - self.horizon
        return np.unique(np.linspace(self.warmup + 1, last, self.num_origins).round().astype(int)).tolist()


def seasonal_naive(y: Tensor, horizon: int, season: int, origins: Sequence[int]) -> Backtest:
    """The value of y (N,) one or as few seasons ago as possible, with quantiles of its own past errors.

    Raises:
        ValueError: If an origin has too few rows before it.
    """
    back = [season * -(-h // season) for h in range(1, horizon + 1)]
    if min(origins) <= max(back):
        raise ValueError(f"a season of {season} needs more than {max(back)} rows before each origin")
    levels, quantiles = y.new_tensor(LEVELS), []
    for origin in origins:
        past = y[:origin]
        errors = [past[lag:] - past[:-lag] for lag in back]
        last = torch.stack([past[origin + h - lag] for h, lag in enumerate(back)])
        spread = torch.stack([torch.nanquantile(error, levels) for error in errors])
        quantiles.append(last.unsqueeze(-1) + spread)
    return scored(y, origins, horizon, quantiles)


CALENDAR = ("instant", "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday")
# Inputs known in advance, and rows of a season, of a forecast, of the warm-up.
SETS: dict[str, tuple[tuple[str, ...], int, int, int]] = {
    "airline_passengers": (("year",), 12, 12, 60),
    "co2_mauna_loa_monthly": (("decimal_year",), 12, 12, 200),
    "solar_lean2004": (("year",), 11, 12, 150),
    "trump_approval": (("ordinal_date",), 7, 14, 200),
    "water_flow": (("hours",), 24, 24, 400),
    "brent_oil": (("t",), 5, 20, 1000),
    "sml_ordered": (("hours", "day_of_week"), 96, 24, 1000),
    "bike_hourly": (CALENDAR, 24, 24, 1000),
}


def real(folder: Path, names: list[str], num_origins: int) -> Iterator[Series]:
    """The sets of a folder."""
    for name in names:
        columns, season, horizon, warmup = SETS[name]
        table = load_folder(folder, name, features=columns)
        yield Series(name, table.X, table.y, season, horizon, warmup, num_origins)


def made(seeds: Sequence[int] = (0, 1, 2), num_rows: int = 600) -> Iterator[Series]:
    """Series of seven families, one of each seed."""
    rows = np.arange(num_rows)
    wave = np.sin(2 * np.pi * rows / 12)

    def autoregression(rng: np.random.Generator, first: float, second: float) -> np.ndarray:
        values = [0.0, 0.0]
        for noise in rng.standard_normal(num_rows):
            values.append(first * values[-1] + second * values[-2] + noise)
        return np.array(values[2:])

    def jumps(rng: np.random.Generator) -> np.ndarray:
        return 4 * rng.standard_normal(num_rows // 100 + 1).repeat(100)[:num_rows]

    def bursts(rng: np.random.Generator) -> np.ndarray:
        scale = np.exp(0.1 * rng.standard_normal(num_rows).cumsum() * 0.98 ** np.arange(num_rows)[::-1].clip(0, 1))
        return (scale * rng.standard_normal(num_rows)).cumsum()

    families: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
        "season": lambda rng: 3 * wave + rng.standard_normal(num_rows),
        "growing season": lambda rng: np.exp(rows / 300 + 0.3 * wave + 0.05 * rng.standard_normal(num_rows)),
        "random walk": lambda rng: rng.standard_normal(num_rows).cumsum(),
        "changing trend": lambda rng: (
            (0.1 * rng.standard_normal(num_rows)).cumsum().cumsum() + rng.standard_normal(num_rows)
        ),
        "cycle": lambda rng: autoregression(rng, 1.6, -0.8),
        "changing level": lambda rng: jumps(rng) + autoregression(rng, 0.5, 0.0),
        "bursts": bursts,
    }
    X = torch.arange(num_rows, dtype=torch.float64).unsqueeze(-1)
    for name, family in families.items():
        for seed in seeds:
            y = torch.tensor(family(np.random.default_rng(seed)))
            yield Series(f"{name} {seed}", X, y, 12, 12, 200, 20)


def ours(series: Series, preset: str) -> tuple[Backtest, np.ndarray]:
    """Scores of a preset, and CPU seconds of each origin."""
    model = OnlineModel(StreamConfig(PRESETS[preset], warmup=series.warmup))
    generator, horizon = torch.Generator().manual_seed(0), series.horizon
    learned, quantiles, seconds = 0, [], []
    for origin in series.origins:
        if learned < origin - 1:
            model.observe(series.X[learned : origin - 1], series.y[learned : origin - 1])
        start = time.process_time()
        model.observe(series.X[origin - 1 : origin], series.y[origin - 1 : origin])
        forecast = model.forecast(series.X[origin : origin + horizon], generator=generator)
        quantiles.append(forecast.quantile(LEVELS).mT)
        seconds.append(time.process_time() - start)
        learned = origin
    targets = torch.stack([series.y[origin : origin + horizon] for origin in series.origins])
    return Backtest(torch.tensor(series.origins), LEVELS, torch.stack(quantiles), targets), np.array(seconds)


def rival(all_series: list[Series], python: str, cache: Path) -> dict[str, tuple[Backtest, np.ndarray]]:
    """AutoETS, by another Python; what it said of the same series and origins is not asked again."""
    known = json.loads(cache.read_text()) if cache.exists() else {}
    jobs = {}
    for one in all_series:
        y = one.y.tolist()
        job = {"targets": y, "season": one.season, "horizon": one.horizon, "origins": one.origins, "levels": LEVELS}
        jobs[one.name] = hashlib.sha256(json.dumps(job).encode()).hexdigest(), {"name": one.name, **job}
    missing = [job for digest, job in jobs.values() if digest not in known]
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder) / "jobs.json", Path(folder) / "answers.json"
            asked.write_text(json.dumps(missing))
            script = Path(__file__).with_name("backtest_autoets.py")
            subprocess.run([python, str(script), str(asked), str(answered)], check=True)
            answers = {answer["name"]: answer for answer in json.loads(answered.read_text())}
        known.update({jobs[name][0]: answer for name, answer in answers.items()})
        cache.write_text(json.dumps(known))
    results = {}
    for one in all_series:
        answer = known[jobs[one.name][0]]
        targets = torch.stack([one.y[origin : origin + one.horizon] for origin in one.origins])
        predicted = Backtest(torch.tensor(one.origins), LEVELS, torch.tensor(answer["quantiles"]).double(), targets)
        results[one.name] = predicted, np.array(answer["seconds"])
    return results


def row(name: str, predicted: Backtest, reference: float, seconds: np.ndarray | None) -> str:
    """A line of the table: CRPS, relative to a reference, coverage of 50, 80 and 90 %, and of 90 % by thirds."""
    score = float(predicted.crps.mean())
    covered = " / ".join(f"{100 * float(predicted.coverage(share).mean()):.0f}" for share in (0.5, 0.8, 0.9))
    thirds = " / ".join(f"{100 * float(part.mean()):.0f}" for part in predicted.coverage(0.9).tensor_split(3))
    spent = "" if seconds is None else f"{1e3 * np.median(seconds):.0f}"
    return f"| {name} | {score:.4g} | {score / reference:.3f} | {covered} | {thirds} | {spent} |"


def main() -> None:
    """Print a table for each series, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of tables")
    parser.add_argument("--families", action="store_true", help="made series instead")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the made series")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--presets", nargs="+", default=["forecaster", "light", "auto"], choices=list(PRESETS))
    parser.add_argument("--origins", type=int, default=40, help="origins of each set")
    parser.add_argument("--rival-python", required=True, help="a Python that has statsforecast")
    parser.add_argument("--cache", type=Path, default=Path("out/backtest_autoets.json"))
    options = parser.parse_args()
    if not options.families and options.data is None:
        parser.error("give --data FOLDER, or --families")
    torch.set_num_threads(1)
    all_series = list(made(options.seeds) if options.families else real(options.data, options.sets, options.origins))
    options.cache.parent.mkdir(parents=True, exist_ok=True)
    others = rival(all_series, options.rival_python, options.cache)
    ratios: dict[str, list[float]] = {name: [] for name in ("seasonal naive", *options.presets)}
    spent: dict[str, list[float]] = {name: [] for name in ("AutoETS", *options.presets)}
    print("| | CRPS | to AutoETS | covered by 50 / 80 / 90 % | by 90 %, thirds of the horizon | ms an origin |")
    print("|---|---:|---:|---:|---:|---:|")
    for series in all_series:
        predicted, seconds = others[series.name]
        reference = float(predicted.crps.mean())
        print(f"| **{series.name}**, {series.horizon} ahead | | | | | |")
        print(row("AutoETS", predicted, reference, seconds))
        spent["AutoETS"].append(float(np.median(seconds)))
        results = {"seasonal naive": (seasonal_naive(series.y, series.horizon, series.season, series.origins), None)}
        for preset in options.presets:
            predicted, seconds = ours(series, preset)
            results[preset] = predicted, seconds
            spent[preset].append(float(np.median(seconds)))
        for name, (predicted, seconds) in results.items():
            print(row(name, predicted, reference, seconds), flush=True)
            ratios[name].append(float(predicted.crps.mean()) / reference)
    print()
    total = sum(spent["AutoETS"])
    for name, values in ratios.items():
        times = f"; AutoETS takes {total / sum(spent[name]):.0f} times as long" if name in spent else ""
        mean, better = np.exp(np.mean(np.log(values))), sum(value < 1 for value in values)
        print(f"{name}: CRPS {mean:.3f} of AutoETS's (geometric mean), better on {better} of {len(values)}{times}")


if __name__ == "__main__":
    main()
