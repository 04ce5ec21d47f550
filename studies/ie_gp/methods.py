"""The methods of the paper's comparison, each from warm-up rows to predictions of a stream."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.presets import die_gp, ie_gp, sie_gp
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from studies.harness.protocol import Stream
from studies.ie_gp.raker import run_rows, tuned_raker

_CHUNK = 256  # rows between two looks at the clock
_WEAK = 0.5  # precision of the prior around starting values, as in the presets: flat evidence leaves them there

Observe = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MethodSettings(NamedTuple):
    """What the paper fixes.

    Attributes:
        num_features: Features per kernel, twice the number of frequencies.
        random_walk_variance: Variance of a step of the dynamic ensemble's weights.
    """

    num_features: int = 100
    random_walk_variance: float = 1e-3


class MethodRun(NamedTuple):
    """Predictions of a stream, each made before its target was seen, in standardized units.

    Attributes:
        mean: Predictive means, shape (N,).
        log_prob: Log predictive densities, shape (N,); NaN where the target is missing, and for a method
            without a density.
        fit_seconds: Time of everything before the stream.
        ends: Number of rows read at each look at the clock.
        seconds: Time since the stream began at each of them.
    """

    mean: Tensor
    log_prob: Tensor
    fit_seconds: float
    ends: list[int]
    seconds: list[float]


Start = Callable[[Stream, MethodSettings, torch.Generator], Observe]


def run_method(start: Start, stream: Stream, settings: MethodSettings, seed: int) -> MethodRun:
    """Fit a method on the warm-up rows of a stream, then run it over the rest.

    Args:
        start: The method, one of :data:`METHODS`.
        stream: The stream.
        settings: What the paper fixes.
        seed: Seed of the frequencies; methods with the same kernels share them.
    """
    generator = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    observe = start(stream, settings, generator)
    fit_seconds = time.perf_counter() - began
    parts, ends, seconds = [], [0], [0.0]
    began = time.perf_counter()
    for X, y in stream.blocks(_CHUNK):
        parts.append(observe(X, y))
        ends.append(ends[-1] + len(y))
        seconds.append(time.perf_counter() - began)
    mean, log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
    return MethodRun(mean, log_prob, fit_seconds, ends, seconds)


def _observing(online: OnlineEnsemble) -> Observe:
    def observe(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        predictions = online.observe(X, y)
        return predictions.mean, predictions.log_prob

    return observe


def _ie_gp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    return _start(ie_gp, stream, settings, generator)


def _sie_gp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    return _start(sie_gp, stream, settings, generator)


def _die_gp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    walking = replace(die_gp, random_walk_variances=(settings.random_walk_variance,))
    return _start(walking, stream, settings, generator)


def _start(spec: EnsembleSpec, stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    own = replace(spec, bases=(KernelDictionary(settings.num_features),))
    return _observing(own.fit(stream.warm_X, stream.warm_y, generator=generator))


def _issgp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """One ARD expert: several starts, of which the evidence of the warm-up rows keeps one."""
    X, y = stream.warm_X, stream.warm_y
    ((_, features),) = FourierBasis(settings.num_features).build(X, generator=generator)
    experts = GaussianExpert(features)
    fit = fit_empirical_bayes(experts, X, y, start_precision=_WEAK)
    best = experts.take(fit.log_evidence.argmax().reshape(1))
    online = OnlineEnsemble(Ensemble([best], BayesianModelAveraging()))
    online.observe(X, y)
    return _observing(online)


def _raker(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    X, y = stream.warm_X, stream.warm_y
    with torch.no_grad():
        ((_, dictionary),) = KernelDictionary(settings.num_features).build(X, generator=generator)
        features = dictionary.bind()
    state, tuned = tuned_raker(features, X, y, len(y) + len(stream.y))

    def observe(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal state
        state, mean = run_rows(state, features, X, y, tuned)
        return mean, torch.full_like(mean, torch.nan)

    return observe


METHODS: Mapping[str, Start] = {
    "IE-GP": _ie_gp,
    "SIE-GP": _sie_gp,
    "DIE-GP": _die_gp,
    "ISSGP": _issgp,
    "Raker": _raker,
}
