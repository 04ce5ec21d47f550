"""Figures 5 and 6 of Lu et al. (2022): errors and running times on streams of two classes, in an order of the seed."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.ensembles import presets
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.streaming.columns import Standardizer, constant_columns
from studies.harness.protocol import Stream
from studies.harness.sources import PaperSet
from studies.ie_gp.methods import (
    Descent,
    MethodRun,
    MethodSettings,
    Observe,
    Start,
    start_adaraker,
    start_ensemble,
    start_raker,
)
from studies.ie_gp.raker import LOGISTIC
from studies.ie_gp.ssgp import Settings
from studies.ie_gp.ssgp_classes import StreamingSparseClassifier
from studies.ie_gp.streams import clock, running_mean
from studies.ie_gp.study import Quantity, Scored, Task, places

NUM_WARMUP, _SHARE = 1000, 0.3  # rows to start from; of a set that has fewer than three times as many, this share
_CLIP = 1e3
SETS = (PaperSet("banana"), PaperSet("musk2"), PaperSet("ionosphere"))
_TARGET = BinaryTarget()
_SCORES = ("error_rate", "log_score", "fit_seconds", "stream_seconds")
FIGURES = (
    Quantity(5, "error rates of classes", "error_rate", "share of wrong labels so far", 0.0, _SCORES),
    Quantity(
        6,
        "running times on classes",
        "seconds",
        "seconds so far, the fit included",
        0.0,
        ("stream_seconds", "fit_seconds"),
    ),
)


def shuffled_stream(table: Table, seed: int) -> Stream:
    """Labels 0 and 1 in an order of the seed; inputs standardized by the warm-up rows and clipped at 1000 deviations.

    Raises:
        ValueError: If targets are other than 0 and 1, or all of one class in the warm-up.
    """
    labels = table.y[~table.y.isnan()]
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise ValueError(
            f"{table.name}: targets must be 0 or 1, got {float(labels[(labels != 0) & (labels != 1)][0]):g}"
        )
    order = torch.randperm(len(table.y), generator=torch.Generator().manual_seed(seed), device="cpu")
    X, y = table.X[order], table.y[order]
    warm = min(NUM_WARMUP, int(_SHARE * len(y)))
    constant = set(constant_columns(X[:warm]))
    kept = [column for column in range(X.shape[1]) if column not in constant]
    standardizer = Standardizer.fit_inputs(X[:warm][:, kept], y[:warm])
    X = standardizer.transform_inputs(X[:, kept]).clamp(-_CLIP, _CLIP)
    names = tuple(table.feature_names[column] for column in kept)
    return Stream(X[:warm], y[:warm], X[warm:], y[warm:], standardizer, names)


def score(made: MethodRun, stream: Stream) -> Scored:
    """The share of wrong labels, the mean log probability, and their curves."""
    wrong = running_mean(((made.mean > 0.5).to(stream.y) != stream.y).to(stream.y), stream.y)
    log_score = running_mean(made.log_prob, stream.y)
    scores = {
        "error_rate": float(wrong[-1]),
        "log_score": float(log_score[-1]),
        "fit_seconds": made.fit_seconds,
        "stream_seconds": made.seconds[-1],
    }
    at = places(len(stream.y))
    curves = {"error_rate": wrong[at].tolist(), "log_score": log_score[at].tolist()}
    return scores, {"rows": (at + 1).double().tolist(), **curves, **clock(made)}


def _ensemble(spec: EnsembleSpec) -> Start:
    return partial(start_ensemble, replace(spec, target=_TARGET))


def _linear(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """Logistic regression as a filter, for what it is worth to have kernels."""
    spec = replace(presets.oebe, bases=(LinearBasis(),), fit_settings=FitSettings(num_samples=1), target=_TARGET)
    online = spec.fit(stream.warm_X, stream.warm_y, generator=generator)

    def observe(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        predictions = online.observe(X, y)
        return predictions.mean, predictions.log_prob

    return observe


def _with_chances(start: Descent) -> Start:
    """A method that predicts log odds."""

    def prepare(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
        observe = start(LOGISTIC, stream, settings, generator)

        def both(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            odds = observe(X, y)
            return odds.sigmoid(), -LOGISTIC.value(odds, y)

        return both

    return prepare


def _ssgp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """The warm-up rows are its first batch, which it learns whatever the others do."""
    own = Settings(settings.num_features, settings.batch, iterations=settings.iterations)
    return StreamingSparseClassifier.fit(stream.warm_X, stream.warm_y, own, generator).observe


METHODS: Mapping[str, Start] = {
    "IE-GP": _ensemble(presets.ie_gp),
    "SIE-GP": _ensemble(presets.sie_gp),
    "DIE-GP": _ensemble(presets.die_gp),
    "SSGP": _ssgp,
    "SSGP, batches of 20": lambda stream, settings, source: _ssgp(stream, settings._replace(batch=20), source),
    "AdaRaker": _with_chances(start_adaraker),
    "Raker": _with_chances(start_raker),
    "logistic regression": _linear,
}
TASK = Task(
    "class_parts",
    SETS,
    METHODS,
    shuffled_stream,
    score,
    MethodSettings(num_features=30, batch=40),
    {"num_warmup": NUM_WARMUP, "share": _SHARE},
)
