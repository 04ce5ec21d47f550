"""What series gain by hyperparameters of their own: log scores of a fleet, on made and real series.

    python -m benchmarks.fleet_variances [--data FOLDER]

Log scores are of standardized targets. The real series are the first columns of all tables of a folder with a manifest
that move, 800 rows each; what they have in common is nothing but the fleet.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.settings import SMALL


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


def two_kinds(seed: int) -> Made:
    """Functions with noise of a fifth of their size; every second one changes ten times as fast as the others."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    num_series, num_rows = 40, 500
    rate = torch.tensor([0.6, 6.0], dtype=torch.float64).repeat(num_series // 2)
    X = torch.randn(num_rows, num_series, 1, **draw)
    phase = 2 * math.pi * torch.rand(num_series, **draw)
    y = torch.sin(rate * X[..., 0] + phase) + 0.2 * torch.randn(num_rows, num_series, **draw)
    return Made(f"length scales that differ tenfold, seed {seed}", X, y, 150)


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


def two_starts() -> EnsembleSpec:
    """The default ensemble with experts of short length scales beside each: twice the states."""
    basis = FourierBasis(num_features=50, starts=(0.05, 0.7))
    return replace(SMALL, bases=(basis,), lags=TargetLags(bases=(basis,)))


def score(series: Made, fleet: Fleet) -> tuple[float, float]:
    """Log score of standardized targets, and the share of targets inside of intervals of 90 %."""
    num_rows, num_series = series.y.shape
    names = [number for _ in range(num_rows) for number in range(num_series)]
    X, y, cut = series.X.reshape(-1, series.X.shape[-1]), series.y.flatten(), series.warmup * num_series
    fleet.fit(names[:cut], X[:cut], y[:cut])
    scale = series.y[: series.warmup].std(0, correction=0).repeat(num_rows - series.warmup)
    said = fleet.observe(names[cut:], X[cut:], y[cut:])
    return float((said.log_prob + scale.log()).nanmean()), float(said.covered.nanmean())


def line(what: str, shared: tuple[float, float], own: tuple[float, float]) -> str:
    """Both scores and their difference."""
    return (
        f"{what}: shared {shared[0]:.4f} ({shared[1]:.3f} covered), own {own[0]:.4f} ({own[1]:.3f}), difference "
        f"{own[0] - shared[0]:+.4f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for one in (made(0), made(1), *([] if given.data is None else [real(given.data)])):
        alike, own = (score(one, Fleet(warmup=100, own_variances=has_own)) for has_own in (False, True))
        print(line(f"variances of each series, {one.name}", alike, own))
        print(line(f"length scales, too, {one.name}", own, score(one, Fleet(warmup=100, own_length_scales=True))))
    for one in (two_kinds(0), two_kinds(1)):
        alike = score(one, Fleet(warmup=100))
        print(line(f"length scales of each, {one.name}", alike, score(one, Fleet(warmup=100, own_length_scales=True))))
        print(line(f"two experts for all, {one.name}", alike, score(one, Fleet(two_starts(), warmup=100))))
