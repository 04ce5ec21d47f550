"""The methods of the paper's comparison, each from warm-up rows to predictions of a stream."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary
from gp_ensembles.ensembles.presets import die_gp, ie_gp, sie_gp
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from studies.harness.protocol import Stream
from studies.ie_gp import adaraker, raker, ssgp
from studies.ie_gp.raker import State

_CHUNK, _LOOKS = 256, 8  # rows between two looks at the clock, of which a short stream has so many
_WEAK = 0.5  # precision of the prior around starting values, as in the presets: flat evidence leaves them there
_DEAD = 1e-16  # weight below which the paper removes an expert for good

Observe = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MethodSettings(NamedTuple):
    """What the paper fixes, and what it is silent on.

    Attributes:
        num_features: Features per kernel, twice the number of frequencies, and inducing points of SSGP.
        random_walk_variance: Variance of a step of the dynamic ensemble's weights.
        batch: Rows between two refits of SSGP.
        iterations: Steps of L-BFGS of each of these.
        as_published: As the authors ran it: warm-up rows give hyperparameters and are forgotten, and experts of no
            weight are removed for good.
    """

    num_features: int = 100
    random_walk_variance: float = 1e-3
    batch: int = 300
    iterations: int = 10
    as_published: bool = False


class MethodRun(NamedTuple):
    """Predictions of a stream, each made before its target was seen, in standardized units.

    Attributes:
        mean: Predictive means, of labels the probability of 1, shape (N,).
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
Descent = Callable[[raker.Loss, Stream, MethodSettings, torch.Generator], Callable[[Tensor, Tensor], Tensor]]


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
    for X, y in stream.blocks(min(_CHUNK, -(-len(stream.y) // _LOOKS))):
        parts.append(observe(X, y))
        ends.append(ends[-1] + len(y))
        seconds.append(time.perf_counter() - began)
    mean, log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
    return MethodRun(mean, log_prob, fit_seconds, ends, seconds)


def start_ensemble(spec: EnsembleSpec, stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """One of the paper's ensembles, over its dictionary of kernels."""
    own = replace(spec, bases=(KernelDictionary(settings.num_features),), rank_on_warm_up=False)  # as the paper does
    if not own.static:
        own = replace(own, random_walk_variances=(settings.random_walk_variance,))
    if settings.as_published and isinstance(own.rule, BayesianModelAveraging):
        own = replace(own, rule=BayesianModelAveraging(prune_below=_DEAD))
    online = own.fit(stream.warm_X, stream.warm_y, generator=generator)
    return _observing(OnlineEnsemble(online.ensemble) if settings.as_published else online)


def start_raker(
    loss: raker.Loss, stream: Stream, settings: MethodSettings, generator: torch.Generator
) -> Callable[[Tensor, Tensor], Tensor]:
    """Raker with the step that predicts the warm-up rows best; what it says of rows before their targets."""
    X, y, features = stream.warm_X, stream.warm_y, _dictionary(stream, settings, generator)
    state, tuned = raker.tuned_raker(features, X, y, len(y) + len(stream.y), loss)
    if settings.as_published:
        state = raker.init_raker(features(X[:1]), tuned)
    return _going_on(partial(raker.run_raker, settings=tuned, loss=loss), state, features)


def start_adaraker(
    loss: raker.Loss, stream: Stream, settings: MethodSettings, generator: torch.Generator
) -> Callable[[Tensor, Tensor], Tensor]:
    """AdaRaker with the penalty that predicts the warm-up rows best; what it says of rows before their targets.

    Its instances go on from what they learned, as in the authors' program: where they restart, all of them know
    nothing at rows 1 024, 2 048, ....
    """
    X, y, features = stream.warm_X, stream.warm_y, _dictionary(stream, settings, generator)
    num_rows = len(y) + len(stream.y)
    state, tuned = adaraker.tuned_adaraker(features, X, y, num_rows, loss, keeps=True)
    if settings.as_published:
        state = adaraker.init_adaraker(features(X[:1]), tuned, num_rows)
    return _going_on(partial(adaraker.run_adaraker, settings=tuned, loss=loss), state, features)


def _going_on(
    run: Callable[[State, Tensor, Tensor], tuple[State, Tensor]], state: State, features: BoundFeatures
) -> Callable[[Tensor, Tensor], Tensor]:
    """Predictions of the next rows, from what was learned of those before."""

    def observe(X: Tensor, y: Tensor) -> Tensor:
        nonlocal state
        state, mean = raker.run_rows(run, state, features, X, y)
        return mean

    return observe


def _observing(online: OnlineEnsemble) -> Observe:
    def observe(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        predictions = online.observe(X, y)
        return predictions.mean, predictions.log_prob

    return observe


def _without_density(start: Descent) -> Start:
    def prepare(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
        observe = start(raker.SQUARED, stream, settings, generator)

        def both(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            mean = observe(X, y)
            return mean, torch.full_like(mean, torch.nan)

        return both

    return prepare


def _dictionary(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> BoundFeatures:
    with torch.no_grad():
        ((_, dictionary),) = KernelDictionary(settings.num_features).build(stream.warm_X, generator=generator)
        return dictionary.bind()


def _i_ssgpr(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """Gijsberts and Metta (2013): one expert on random features of an RBF kernel with a length scale for each column.

    Hyperparameters have the highest evidence of the warm-up rows; of several starts it keeps one.
    """
    X, y = stream.warm_X, stream.warm_y
    ((_, features),) = FourierBasis(settings.num_features).build(X, generator=generator)
    experts = GaussianExpert(features)
    fit = fit_empirical_bayes(experts, X, y, start_precision=_WEAK)
    best = experts.take(fit.log_evidence.argmax().reshape(1))
    online = OnlineEnsemble(Ensemble([best], BayesianModelAveraging()))
    if not settings.as_published:
        online.observe(X, y)
    return _observing(online)


def _ssgp(stream: Stream, settings: MethodSettings, generator: torch.Generator) -> Observe:
    """The warm-up rows are its first batch, which it learns whatever the others do."""
    own = ssgp.Settings(settings.num_features, settings.batch, iterations=settings.iterations)
    return ssgp.StreamingSparseGP.fit(stream.warm_X, stream.warm_y, own, generator).observe


METHODS: Mapping[str, Start] = {
    "IE-GP": partial(start_ensemble, ie_gp),
    "SIE-GP": partial(start_ensemble, sie_gp),
    "DIE-GP": partial(start_ensemble, die_gp),
    "SSGP": _ssgp,
    "I-SSGPR": _i_ssgpr,
    "AdaRaker": _without_density(start_adaraker),
    "Raker": _without_density(start_raker),
}
