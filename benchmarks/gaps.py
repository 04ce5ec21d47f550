"""Imputation of missing inputs and the noise that is added for it: scores where cells were knocked out.

    python -m benchmarks.gaps --data FOLDER

``light``, a warm-up of 1 000 rows. A tenth of all cells is knocked out at random or in bursts of 25 rows; the table
``air_quality_raw`` has gaps of its own. "no noise" takes away what :class:`~gp_ensembles.streaming.inputs.InputPath`
adds to the noise of such rows.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.measured import Cell, keep
from gp_ensembles.data.folder import load_folder
from gp_ensembles.ensembles.presets import light
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.config import Impute
from gp_ensembles.streaming.inputs import InputPath

WARMUP, MOST_ROWS, SHARE, BURST = 1000, 5000, 0.1, 25
TABLES = ("ccpp", "sml_ordered", "bike_hourly")
OWN = "air_quality_raw"
WAYS: dict[str, tuple[Impute, bool]] = {
    "mean, no noise": ("mean", False),
    "last, no noise": ("last", False),
    "found, no noise": ("found", False),
    "found, noise": ("found", True),
}


def knocked(X: Tensor, kind: str, seed: int) -> Tensor:
    """Rows (N, D) with a tenth of the cells missing, alone or in bursts."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "original":
        return X
    if kind == "random":
        gone = torch.rand(X.shape, generator=generator) < SHARE
    else:
        bursts = (torch.rand(X.shape, generator=generator) < SHARE / BURST).double().cumsum(0)
        before = torch.cat([torch.zeros(BURST, X.shape[1]), bursts])[: len(X)]
        gone = bursts > before  # one began in the last 25 rows
    return torch.where(gone, torch.nan, X)


def scores(X: Tensor, y: Tensor, impute: Impute, noise: bool) -> tuple[float, float]:
    """The mean log score in nats per row, and the share of targets within 90 % intervals in rows with a gap."""
    with_effects = InputPath.with_effects

    def without(*given: object) -> object:
        state = with_effects(*given)  # type: ignore[arg-type]
        return state if noise else state._replace(effect=torch.zeros_like(state.effect))

    with patch.object(InputPath, "with_effects", without):
        predictions = OnlineModel(StreamConfig(light, warmup=WARMUP, impute=impute)).observe(X, y)
    low, high = predictions.interval()
    X, y = X[WARMUP:], y[WARMUP:]
    odd = X.isnan().any(1) & ~y.isnan()
    covered = ((low <= y) & (y <= high))[odd].double().mean()
    return float(predictions.log_prob.nanmean()), float(covered)


def cases() -> Iterator[tuple[str, str, Sequence[int]]]:
    """Tables, kinds of gaps and seeds."""
    for name in TABLES:
        for kind in ("random", "bursts"):
            yield name, kind, (0, 1)
    yield OWN, "original", (0,)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[list[Cell]] = []
    for name, kind, seeds in cases():
        table = load_folder(options.data, name)
        most = len(table.y) if kind == "original" else MOST_ROWS
        tables = [knocked(table.X[:most], kind, seed) for seed in seeds]
        found = [[scores(X, table.y[:most], *way) for X in tables] for way in WAYS.values()]
        share = 100 * mean(float(X[WARMUP:].isnan().any(1).double().mean()) for X in tables)
        cells = [f"{mean(score for score, _ in each):.3f}" for each in found]
        covered = [f"{mean(share for _, share in found[place]):.2f}" for place in (0, 2, 3)]
        rows.append([f"{name}, {kind}", f"{share:.0f} %", *cells, *covered])
        print(rows[-1], flush=True)
    covering = [f"coverage: {way}" for way in WAYS if not way.startswith("last")]
    keep("gaps", ["set, gaps", "rows with gaps", *WAYS, *covering], rows)


if __name__ == "__main__":
    main()
