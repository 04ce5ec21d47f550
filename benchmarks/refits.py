"""What it is worth that experts are found anew: short warm-ups, streams that drift, a sensor that is exchanged.

    python -m benchmarks.refits --data FOLDER [--tables warm-up drift sensor] [--sets NAME ...] [--rows 5000]

FOLDER holds a manifest.json and the tables it names. Everything is one step ahead and goes through ``OnlineModel``; log
scores are in nats a row, in units of the target's deviation in the rows before those that are scored. The ensemble
is ``auto`` with the bases and walks that matter most (24 experts with lags), alone and with further ones.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis
from gp_ensembles.ensembles.further import FurtherExpert
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.refitted import Refitted
from gp_ensembles.ensembles.windows import WindowGP
from gp_ensembles.streaming import OnlineModel, StreamConfig

CORE = replace(auto, bases=(HilbertBasis(), FourierBasis()), random_walk_variances=(1e-2,), further=())
WINDOW = WindowGP(lags=True, refit_every=1000)
FURTHER: dict[str, tuple[FurtherExpert, ...]] = {
    "alone": (),
    "with Refitted": (Refitted(),),
    "with a window": (WINDOW,),
    "with both": (WINDOW, Refitted()),
}
SETS = (
    *("bike_hourly", "kin8nm", "sarcos_ias", "elevators_ordered", "air_quality", "pol", "cadata", "barrett_wam"),
    *("cpusmall", "appliances_energy", "ccpp", "brent_oil"),
)
LONG, SHORT, CHANGE = 1000, 200, 2500


def log_scores(X: Tensor, y: Tensor, num_warmup: int, further: tuple[FurtherExpert, ...]) -> Tensor:
    """One-step-ahead log densities of the rows from LONG on, of targets as they are."""
    config = StreamConfig(replace(CORE, further=further), warmup=num_warmup, seed=0, drop_constant=True)
    model = OnlineModel(config).fit(X[:num_warmup], y[:num_warmup])
    found = model.observe(X[num_warmup:], y[num_warmup:])
    return found.distribution.log_prob(y[num_warmup:])[LONG - num_warmup :]


def table_of(folder: Path, name: str, num_rows: int) -> tuple[Tensor, Tensor]:
    """The first rows of a table; a missing input is set to the mean of the first ones."""
    table = load_folder(folder, name)
    X, y = table.X[:num_rows].double(), table.y[:num_rows].double()
    means = X[:SHORT].nanmean(0).nan_to_num(0.0)
    return torch.where(X.isnan(), means, X), standardized(y)


def standardized(y: Tensor) -> Tensor:
    """Targets in units of the rows before those that are scored."""
    first = y[:LONG][~y[:LONG].isnan()]
    return (y - first.mean()) / first.std()


def warm_up_table(folder: Path, names: list[str], num_rows: int) -> None:
    print(f"\n| set | {LONG} rows, alone | " + " | ".join(f"{SHORT} rows, {how}" for how in FURTHER) + " |")
    print("|---|" + "---:|" * (1 + len(FURTHER)))
    for name in names:
        X, y = table_of(folder, name, LONG + num_rows)
        cells = [log_scores(X, y, LONG, ())] + [log_scores(X, y, SHORT, further) for further in FURTHER.values()]
        print(f"| {name} | " + " | ".join(f"{float(cell.nanmean()):.3f}" for cell in cells) + " |", flush=True)


def drifting(num_rows: int, kind: str) -> tuple[Tensor, Tensor]:
    """A random smooth function of three inputs whose length scales stay, or shrink fourfold, steadily or at once."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 3, generator=g, dtype=torch.float64)
    omega = torch.randn(3, 300, generator=g, dtype=torch.float64) * torch.tensor([[0.6], [0.3], [0.05]])
    phase = 2 * math.pi * torch.rand(300, generator=g, dtype=torch.float64)
    t = torch.arange(num_rows, dtype=torch.float64)
    scale = {"none": 1 + 0 * t, "steady": 4 ** (t / num_rows), "sudden": torch.where(t < CHANGE, 1.0, 4.0)}[kind]
    y = ((X * scale.unsqueeze(-1)) @ omega + phase).cos().mean(-1) * math.sqrt(600)
    return X, standardized(y + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64))


def compared(title: str, X: Tensor, y: Tensor, start: int) -> None:
    """A line: the log score of each from so many rows on after LONG."""
    cells = [log_scores(X, y, LONG, further)[start - LONG :] for further in FURTHER.values()]
    print(f"| {title} | " + " | ".join(f"{float(cell.nanmean()):.3f}" for cell in cells) + " |", flush=True)


def exchanged(X: Tensor, y: Tensor) -> tuple[Tensor, str]:
    """From row CHANGE on the input that says most of the target reads 1.7 times as much, and half a deviation more."""
    seen = ~y[:LONG].isnan()
    correlation = torch.corrcoef(torch.cat([X[:LONG][seen], y[:LONG][seen, None]], -1).T)[-1, :-1].nan_to_num(0.0)
    column = int(correlation.abs().argmax())
    other = X.clone()
    mean, deviation = X[:LONG, column].mean(), X[:LONG, column].std()
    other[CHANGE:, column] = mean + 1.7 * (X[CHANGE:, column] - mean) + 0.5 * deviation
    return other, f"input {column}"


def main() -> None:
    """All tables, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--tables", nargs="*", choices=("warm-up", "drift", "sensor"), default=("warm-up", "drift", "sensor")
    )
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--rows", type=int, default=5000, help="rows that are scored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "warm-up" in options.tables:
        warm_up_table(options.data, options.sets, options.rows)
    if "drift" in options.tables:
        print("\n| length scales | " + " | ".join(FURTHER) + " |\n|---|" + "---:|" * len(FURTHER))
        for kind in ("none", "steady", "sudden"):
            compared(kind, *drifting(LONG + options.rows, kind), CHANGE)
    if "sensor" in options.tables:
        print("\n| set | " + " | ".join(FURTHER) + " |\n|---|" + "---:|" * len(FURTHER))
        for name in options.sets:
            X, y = table_of(options.data, name, LONG + options.rows)
            other, column = exchanged(X, y)
            compared(f"{name}, {column}", other, y, CHANGE)


if __name__ == "__main__":
    main()
