"""A run of known numbers, as chunks and as what a report is made of."""

import math
from types import SimpleNamespace

import pytest
import torch

from gp_ensembles.cli.commands import family_of
from gp_ensembles.cli.predictions import Chunk, PredictedRows
from gp_ensembles.cli.report.history import RunHistory

NAMES = ("hsgp/static/0", "hsgp/dynamic 0.01/0", "hsgp/dynamic 0.01/1", "window/0")
BASELINES = ("previous value", "mean")


def make_chunk(first_row: int, num_rows: int, *, start: float | None = None) -> Chunk:
    """Rows of a wave with noise, predicted well, a tenth of the targets missed; every 50th target is missing."""
    rows = torch.arange(first_row, first_row + num_rows, dtype=torch.float64)
    generator = torch.Generator().manual_seed(first_row)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    mean = 10 * (rows / 40).sin() + rows / 1000
    y = torch.where(rows % 50 == 0, torch.nan, mean + noise)
    lower, upper = mean - 1.645, mean + 1.645
    log_prob = -0.5 * (y - mean).square() - 0.5 * math.log(2 * math.pi)
    pit = torch.special.ndtr(y - mean)
    inside = torch.where(torch.isnan(y), torch.nan, ((lower <= y) & (y <= upper)).double())
    shares = torch.stack([1 + rows % 3, 2 + 0 * rows, 1 + rows % 2, 1 + 0 * rows])
    log_weights = (shares / shares.sum(0)).log()
    time = None if start is None else start + 3600 * rows
    baselines = {name: log_prob - 1 - k for k, name in enumerate(BASELINES)}
    found = PredictedRows(
        mean, 0 * mean + 1, log_prob, log_prob, inside, lower, upper, mean.new_empty(num_rows, 0), pit
    )
    return Chunk(first_row, y, found, log_weights, baselines, time=time)


def new_history(target: str = "load", kinds: tuple[str, ...] = ()) -> RunHistory:
    return RunHistory("model", target, [family_of(name) for name in NAMES], BASELINES, dict.fromkeys(kinds, 0))


def make_summary(**more: object) -> dict[str, object]:
    scores = {"log_score": -1.42, "log_score_gaussian": -1.43, "crps": 0.5641895, "nmse": 0.0196, "coverage_90": 0.904}
    scores |= {"mean_absolute_error": 0.797885, "mean_squared_z": 1.0123, "log_score_standardized": 0.5}
    worse = {key: value - 1 if key.startswith("log") else value * 3 for key, value in scores.items()}
    entry = {"coverage": 0.904, "bound": 0.01, "windows": 7.0, "windows_kept": 6.0, "mean_width": 3.29, "infinite": 0.0}
    return {
        "model": "model", "data": "wave", "target": "load", "features": ["a", "b"], "warmup": 100, "rows": 4000,
        "rows_this_run": 4000, "rows_scored": 3920, "num_experts": 4, "external_models": {}, **scores,
        "intervals": {"0.9": entry}, "baselines": {"previous value": worse, "mean": {**worse, "nmse": None}},
        "microseconds_per_row": 120.5, "fit_seconds": 1.5, "stream_seconds": 0.5, "device": "cpu", "num_threads": 1,
        "dtype": "float64", "seed": 0, "block_size": 32, "config": {"ensemble": {"like": "auto"}, "warmup": 100},
        "versions": {"gp_ensembles": "0.1.0"}, **more,
    }  # fmt: skip


@pytest.fixture(scope="session")
def run() -> SimpleNamespace:
    """How tests of the report make runs."""
    return SimpleNamespace(
        chunk=make_chunk, history=new_history, summary=make_summary, names=NAMES, baselines=BASELINES
    )
