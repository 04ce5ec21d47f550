"""Variances of each series against those that all share: log scores of a fleet, on made series and on real columns.

    python -m benchmarks.fleet_variances [--data FOLDER]

Log scores are of standardized targets. The real series are the first columns of all tables of a folder with a manifest
that move, 800 rows each; what they have in common is nothing but the fleet.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.fleet import Fleet


class Made(NamedTuple):
    """Series of one length: inputs (N, S, D), targets (N, S), and how many rows are the warm-up."""

    name: str
    X: Tensor
    y: Tensor
    warmup: int


def made(seed: int) -> Made:
    """Smooth functions with noise between a fiftieth of their size and twice it."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    num_series, num_rows = 40, 500
    noise = 10 ** (-1.7 + 2 * torch.rand(num_series, **draw))
    rough = 3 * torch.rand(num_series, **draw) + 0.3
    X = torch.randn(num_rows, num_series, 2, **draw)
    y = torch.sin(rough * X[..., 0]) + 0.3 * X[..., 1] + noise * torch.randn(num_rows, num_series, **draw)
    return Made(f"noise between .02 and 2, seed {seed}", X, y, 150)


def columns(folder: Path) -> Iterator[Tensor]:
    """Columns of all tables that have 800 rows, no gaps at the start, and move."""
    for entry in json.loads((folder / "manifest.json").read_text())["datasets"]:
        try:
            table = load_folder(folder, entry["name"])
        except ValueError:  # not a table of numbers
            continue
        if len(table.y) < 800:
            continue
        for column in (table.y, *table.X[:, :4].T):
            first = column[:150]
            if bool(first.isfinite().all()) and len(first.unique()) > 20:
                yield column[:800].double()


def real(folder: Path) -> Made:
    """These columns as series; their only inputs are a sine and a cosine of 24 rows."""
    y = torch.stack(list(columns(folder)), dim=1)
    angle = 2 * math.pi * torch.arange(len(y), dtype=torch.float64) / 24
    X = torch.stack([angle.sin(), angle.cos()], dim=-1).unsqueeze(1).expand(*y.shape, 2)
    return Made(f"{y.shape[1]} real columns", X, y, 200)


def score(series: Made, own_variances: bool) -> tuple[float, float]:
    """Log score of standardized targets, and the share of targets inside of intervals of 90 %."""
    num_rows, num_series = series.y.shape
    names = [number for _ in range(num_rows) for number in range(num_series)]
    X, y, cut = series.X.reshape(-1, series.X.shape[-1]), series.y.flatten(), series.warmup * num_series
    fleet = Fleet(warmup=100, own_variances=own_variances)
    fleet.fit(names[:cut], X[:cut], y[:cut])
    assert fleet.series is not None
    scale = fleet.series.note("y_scale", names[cut:])
    said = fleet.observe(names[cut:], X[cut:], y[cut:])
    return float((said.log_prob + scale.log()).nanmean()), float(said.covered.nanmean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for one in (made(0), made(1), *([] if given.data is None else [real(given.data)])):
        shared, own = score(one, own_variances=False), score(one, own_variances=True)
        print(
            f"{one.name}: shared {shared[0]:.4f} ({shared[1]:.3f} covered), of each series {own[0]:.4f} "
            f"({own[1]:.3f}), difference {own[0] - shared[0]:+.4f}"
        )
