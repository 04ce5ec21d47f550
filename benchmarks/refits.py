"""Gains of refitted experts: short warm-ups, streams that drift, sensors that are exchanged.

    python -m benchmarks.refits --data FOLDER [--tables causes warm-up drift sensor] [--sets NAME ...] [--rows 5000]

FOLDER holds a manifest.json and the tables it names. Everything is one step ahead; log scores are in nats per row, in
units of the target's deviation in the rows before those that are scored. "warm-up" has ``auto`` with refits in both
columns; the other tables have the bases and walks of ``auto`` that matter most, alone and with extra experts. All but
"causes" goes through ``OnlineModel``.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis
from gp_ensembles.ensembles.extra_experts import ExpertRecord, Refitted, WindowGP
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.filters.states import RefittedState, WindowState
from gp_ensembles.numerics.lag_selection import find_lags
from gp_ensembles.streaming import OnlineModel, StreamConfig

CORE = replace(auto, bases=(HilbertBasis(), FourierBasis()), random_walk_variances=(1e-2,), extra_experts=())
WINDOW = WindowGP(lags=True, refit_every=1000)
FURTHER: dict[str, tuple[ExpertRecord, ...]] = {
    "alone": (),
    "with Refitted": (Refitted(),),
    "with a window": (WINDOW,),
    "with both": (WINDOW, Refitted()),
    "with both, every 250": (replace(WINDOW, refit_every=250), Refitted(every=250)),
}
ALWAYS_LEARNING = replace(
    auto,
    extra_experts=(
        *(replace(one, refit_every=1000) if isinstance(one, WindowGP) else one for one in auto.extra_experts),
        Refitted(),
    ),
)
# The first twelve are those of the table of causes.
SETS = (
    *("bike_hourly", "pol", "kin8nm", "sarcos_ias", "barrett_wam", "elevators_ordered", "cpusmall", "air_quality"),
    *("cadata", "ccpp", "appliances_energy", "brent_oil", "sarcos_thin10", "sml_ordered", "road3d_5k", "elevators"),
    *("sterling_eri", "bike", "naval"),
)
EXCHANGED = ("bike_hourly", "kin8nm", "air_quality", "cpusmall")
LONG, SHORT, CHANGE = 1000, 200, 2500
CALLS = (60, 120, 240, 480)  # rows after a change at which refits are called


def log_scores(X: Tensor, y: Tensor, num_warmup: int, spec: EnsembleSpec, *, calls: tuple[int, ...] = ()) -> Tensor:
    """One-step-ahead log densities of the rows from LONG on; refits are called so many rows after CHANGE."""
    model = OnlineModel(StreamConfig(spec, warmup=num_warmup, seed=0))
    model.fit(X[:num_warmup], y[:num_warmup])
    stops, found = [CHANGE, *(CHANGE + call for call in calls)] if calls else [], []
    for start, stop in zip([num_warmup, *stops], [*stops, y.shape[0]], strict=True):
        if start > num_warmup and stop < y.shape[0]:
            call_refits(model, stop)
        found.append(model.observe(X[start:stop], y[start:stop]).distribution.log_prob(y[start:stop]))
    return torch.cat(found)[LONG - num_warmup :]


def call_refits(model: OnlineModel, row: int) -> None:
    """Refits at a row, of Refitted to the rows since CHANGE alone: more than any test for changes could know."""
    assert model.online is not None
    for state in model.online.state.experts:
        if isinstance(state, RefittedState | WindowState):
            state.due.fill_(row)
        if isinstance(state, RefittedState):
            capacity = state.targets.shape[0]
            state.targets[torch.arange(max(0, CHANGE - capacity), CHANGE) % capacity] = torch.nan


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


def composed(X: Tensor, y: Tensor, scales: int, lags: int, fit: int, extra_experts: tuple[ExpertRecord, ...]) -> float:
    """The mean log score after LONG where scales, lags and hyperparameters are of so many first rows each."""
    first = y[:scales][~y[:scales].isnan()]
    shift, deviation = first.mean(), first.std(correction=0)
    kept = (X[:scales] != X[0]).any(0)
    X, y = X[:, kept], (y - shift) / deviation
    X = ((X - X[:scales].mean(0)) / X[:scales].std(0, correction=0)).clamp(-10, 10)
    found, limits = find_lags(y[:lags], 6, min(200, fit - 1)), CORE.lags
    seen = None if limits is None or not found else replace(limits, lags=found)
    spec = replace(CORE, lags=seen, extra_experts=extra_experts)
    online = spec.fit(X[:fit], y[:fit], generator=torch.Generator().manual_seed(0))
    return float(online.observe(X[fit:], y[fit:]).log_prob[LONG - fit :].nanmean() - deviation.log())


def causes_table(folder: Path, names: list[str], num_rows: int) -> None:
    """What is missing after a short warm-up, without recalibration: inputs are within 10 deviations."""
    kinds = {
        f"all from {LONG}": (LONG, LONG, LONG, ()),
        f"scales from {SHORT}": (SHORT, LONG, LONG, ()),
        f"scales, lags from {SHORT}": (SHORT, SHORT, LONG, ()),
        f"all from {SHORT}": (SHORT, SHORT, SHORT, ()),
        f"all from {SHORT}, + both": (SHORT, SHORT, SHORT, FURTHER["with both"]),
        f"all from {LONG}, + both": (LONG, LONG, LONG, FURTHER["with both"]),
    }
    print("\n| set | " + " | ".join(kinds) + " |\n|---|" + "---:|" * len(kinds))
    for name in names:
        X, y = table_of(folder, name, LONG + num_rows)
        print(f"| {name} | " + " | ".join(f"{composed(X, y, *kind):.3f}" for kind in kinds.values()) + " |", flush=True)


def warm_up_table(folder: Path, names: list[str], num_rows: int) -> None:
    print(f"\n| set | {LONG} rows | {SHORT} rows | difference | {SHORT} rows, `auto` |\n|---|---:|---:|---:|---:|")
    for name in names:
        X, y = table_of(folder, name, LONG + num_rows)
        runs = ((LONG, ALWAYS_LEARNING), (SHORT, ALWAYS_LEARNING), (SHORT, auto))
        long, short, plain = (float(log_scores(X, y, *run).nanmean()) for run in runs)
        print(f"| {name} | {long:.3f} | {short:.3f} | {short - long:+.3f} | {plain:.3f} |", flush=True)


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


def compared(title: str, X: Tensor, y: Tensor) -> None:
    """A line: the log score of each from row CHANGE on."""
    specs = [replace(CORE, extra_experts=extra_experts) for extra_experts in FURTHER.values()]
    cells = [log_scores(X, y, LONG, spec) for spec in specs]
    cells.append(log_scores(X, y, LONG, replace(CORE, extra_experts=FURTHER["with both"]), calls=CALLS))
    scores = [float(cell[CHANGE - LONG :].nanmean()) for cell in cells]
    print(f"| {title} | " + " | ".join(f"{score:.3f}" for score in scores) + " |", flush=True)


def exchanged(X: Tensor, y: Tensor, seed: int) -> Tensor:
    """From row CHANGE on two of the six inputs that say most of the target have another gain and another offset."""
    seen, g = ~y[:LONG].isnan(), torch.Generator().manual_seed(seed)
    correlation = torch.corrcoef(torch.cat([X[:LONG][seen], y[:LONG][seen, None]], -1).T)[-1, :-1].nan_to_num(0.0)
    most = correlation.abs().argsort(descending=True)[:6]
    columns = most[torch.randperm(len(most), generator=g)[:2]]
    gain = 0.5 + 1.5 * torch.rand(len(columns), generator=g, dtype=torch.float64)
    offset = 2 * torch.rand(len(columns), generator=g, dtype=torch.float64) - 1
    mean, deviation = X[:LONG, columns].mean(0), X[:LONG, columns].std(0)
    other = X.clone()
    other[CHANGE:, columns] = mean + gain * (X[CHANGE:, columns] - mean) + offset * deviation
    return other


def main() -> None:
    """All tables, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    tables = ("causes", "warm-up", "drift", "sensor")
    parser.add_argument("--tables", nargs="*", choices=tables, default=tables)
    parser.add_argument("--sets", nargs="*", help="twelve for causes, nineteen for warm-ups, four for sensors")
    parser.add_argument("--rows", type=int, default=5000, help="rows that are scored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "causes" in options.tables:
        causes_table(options.data, options.sets or list(SETS[:12]), options.rows)
    if "warm-up" in options.tables:
        warm_up_table(options.data, options.sets or list(SETS), options.rows)
    kinds = [*FURTHER, "with both, called"]
    if "drift" in options.tables:
        print("\n| length scales | " + " | ".join(kinds) + " |\n|---|" + "---:|" * len(kinds))
        for kind in ("none", "steady", "sudden"):
            compared(kind, *drifting(LONG + options.rows, kind))
    if "sensor" in options.tables:
        print("\n| set | " + " | ".join(kinds) + " |\n|---|" + "---:|" * len(kinds))
        for name in options.sets or EXCHANGED:
            X, y = table_of(options.data, name, LONG + options.rows)
            for seed in range(2):
                compared(f"{name}, {seed}", exchanged(X, y, seed), y)


if __name__ == "__main__":
    main()
