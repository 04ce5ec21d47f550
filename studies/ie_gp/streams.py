"""Figures 2, 3 and 4 of Lu et al. (2022): errors, predictive densities and running times on streams of numbers."""

import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.metrics.scores import observed_mean, running_nmse
from studies.harness.protocol import Stream, split_stream
from studies.harness.sources import PaperSet
from studies.ie_gp.methods import METHODS, MethodRun, MethodSettings
from studies.ie_gp.study import Quantity, Scored, Task, places

NUM_WARMUP = 1000
_LAST = 1000
SETS = (
    PaperSet("toms_hardware"),
    PaperSet("air_quality"),
    PaperSet("twitter_buzz"),
    PaperSet("sarcos", ("sarcos", "sarcos_thin10"), "every tenth row of the published training set"),
)
_SCORES = ("nmse", "mse_last_1000", "log_score", "worst_row_share", "fit_seconds", "stream_seconds")
FIGURES = (
    Quantity(
        2, "normalized mean squared errors on streams", "nmse", "normalized mean squared error so far", 0.0, _SCORES
    ),
    Quantity(
        3,
        "predictive log densities on streams",
        "log_score",
        "mean log density so far, nats per row",
        1.0,
        ("log_score", "nmse"),
    ),
    Quantity(
        4,
        "running times on streams",
        "seconds",
        "seconds so far, the fit included",
        0.0,
        ("stream_seconds", "fit_seconds"),
    ),
)


def scaled_stream(table: Table, num_warmup: int = NUM_WARMUP) -> Stream:
    """Targets standardized by the warm-up rows; inputs scaled by their range there unless it lies in [0, 1] already."""
    stream = split_stream(table, num_warmup, drop_constant=True)
    kept = [table.feature_names.index(name) for name in stream.feature_names]
    X = table.X[:, kept]
    lowest, highest = X[:num_warmup].amin(0), X[:num_warmup].amax(0)
    if bool((lowest < 0).any()) or bool((highest > 1).any()):
        X = (X - lowest) / (highest - lowest)
    return stream._replace(warm_X=X[:num_warmup], X=X[num_warmup:])


def score(made: MethodRun, stream: Stream) -> Scored:
    """Scores and curves of a run; squared errors in the file's units where a name does not say otherwise."""
    y = stream.y
    error = torch.where(torch.isnan(y), 0.0, stream.standardizer.inverse_std(y - made.mean).square())
    nmse = running_nmse(made.mean, y)
    log_score = running_mean(made.log_prob, y)
    scores = {
        "nmse": float(nmse[-1]),
        "mse_last_1000": float(observed_mean(error[-_LAST:], y[-_LAST:])),
        "log_score": float(log_score[-1]),
        "worst_row_share": float(error.max() / error.sum()),
        "fit_seconds": made.fit_seconds,
        "stream_seconds": made.seconds[-1],
    }
    at = places(len(y))
    curves = {
        "rows": (at + 1).double().tolist(),
        "nmse": nmse[at].tolist(),
        "log_score": log_score[at].tolist(),
        **clock(made),
    }
    return scores, curves


def running_mean(values: Tensor, y: Tensor) -> Tensor:
    """Mean of values (N,) over the rows so far whose target (N,) was observed."""
    seen = ~torch.isnan(y)
    return torch.where(seen, values, 0.0).cumsum(0) / seen.cumsum(0)


def clock(made: MethodRun) -> dict[str, list[float]]:
    """The curve of the running time."""
    return {"clock_rows": [float(end) for end in made.ends[1:]], "seconds": made.seconds[1:]}


TASK = Task(
    "stream_parts",
    SETS,
    METHODS,
    lambda table, seed: scaled_stream(table),
    score,
    MethodSettings(),
    {"num_warmup": NUM_WARMUP},
)
