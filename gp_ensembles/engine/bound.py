"""An ensemble with its hyperparameters read once: its runners for blocks, and its path for single rows.

A call of torch costs a microsecond whatever its size, and a row of a small ensemble takes two hundred of them. So
nearly every row, one with a target that is no outlier, takes the equations of :mod:`~gp_ensembles.engine.weighing` on
plain arrays, which share the memory of the state. All other rows are left to blocks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, is_
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.engine.ensemble import Ensemble, responses_of
from gp_ensembles.engine.quarantine import places_out
from gp_ensembles.engine.recorded import Recording
from gp_ensembles.engine.runners import RunnerBatches, SharedBases
from gp_ensembles.engine.state import EnsembleState, named_tensors
from gp_ensembles.experts.base import BoundExpert, Expert, LinearRow
from gp_ensembles.experts.laplace import LatentGroup, join_latent
from gp_ensembles.experts.linear_rows import RowBatches
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.filters.rows import RowExpert
from gp_ensembles.innovations import recursions
from gp_ensembles.meta_learners.combined import RowRule, WeighedRow, row_rule
from gp_ensembles.numerics.backends import rows_of
from gp_ensembles.numerics.compiled import IS_COMPILED, compiled

Numbers = NDArray[np.float64]
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_formulas: Any = rows_of(recursions)


class RowMixture(NamedTuple):
    """The mixture of a row: M experts, each with its K - 1 innovation models behind it."""

    log_weights: Numbers  # log weights in force, shape (M K,)
    mean: Numbers  # means, shape (M, K)
    variance: Numbers  # variances, shape (M, K)


class StagedRow(NamedTuple):
    """A row that has been predicted and not yet learned."""

    mixture: RowMixture  # its predictive mixture
    weighed: WeighedRow  # the result of the rule for its target
    y: float  # the target
    # Sizes of errors, both sums of the autoregression and errors after it
    innovations: tuple[Numbers, Numbers, Numbers, Numbers]
    external_models: Numbers  # counts of external models after it, (9, G)


@final
class RowEnsemble:
    """Runs an ensemble one row at a time on plain arrays."""

    def __init__(
        self,
        ensemble: Ensemble,
        state: EnsembleState,
        rule: RowRule,
        batches: RowBatches,
        others: Sequence[tuple[slice, RowExpert]],
    ) -> None:
        layers, innovations = ensemble.layers, state.innovations
        assert layers.bank is not None
        assert innovations is not None
        self._rule, self._batches, self._others = rule, batches, tuple(others)
        self.is_current: Callable[[], bool] = bool  # whether nothing that was read has changed since
        self._models = layers.bank.row_constants
        self.num_copies: int = layers.num_copies
        each = [math.inf, *layers.bank.degrees_of_freedom]
        self.degrees_of_freedom: NDArray[Any] = np.tile(each, len(ensemble.expert_names))
        self._threshold = math.inf if layers.outlier_threshold is None else layers.outlier_threshold
        scale, (product, square), last_error, age = (part.numpy() for part in innovations)
        self._innovations = scale, product, square, last_error, age.reshape(1)
        self._reach = None if layers.memory is None else tuple(map(float, layers.memory.reach()))
        self._history = np.empty(0) if state.history is None else state.history.numpy()
        lags = () if layers.memory is None else layers.memory.lags
        self._lags = len(self._history) - np.array(lags, dtype=np.int64)
        self._inputs = np.empty(ensemble.num_inputs + len(lags))
        self._mean, self._variance = (np.empty(len(ensemble.expert_names)) for _ in range(2))
        self._external_models = np.array(layers.external_models, dtype=np.int64)
        self._tally = np.empty((9, 0)) if state.external_models is None else state.external_models.numpy()

    @classmethod
    def of(
        cls, ensemble: Ensemble, bound: Sequence[BoundExpert], state: EnsembleState, shared_bases: SharedBases
    ) -> "RowEnsemble | None":
        """The fast path of an ensemble; ``None`` where only blocks can run."""
        layers, like = ensemble.layers, state.meta.log_weights
        if like.dtype != torch.float64 or like.device.type != "cpu" or layers.bank is None or state.innovations is None:
            return None
        if ensemble.bounded_features():  # blocks refuse rows outside
            return None
        rule = row_rule(layers.rule, state.meta)
        if rule is None:
            return None
        starts = np.cumsum([0, *(expert.num_experts for expert in ensemble.experts)]).tolist()
        joined = {places[0]: places for places in shared_bases}
        taken = {place for places in shared_bases for place in places}
        objects: dict[tuple[int, ...], Tensor] = {}
        others: list[tuple[slice, RowExpert]] = []
        linear: dict[int, LinearRow] = {}
        for number, (expert, b, part) in enumerate(zip(ensemble.experts, bound, state.experts, strict=True)):
            row = None if b.plans.row is None else b.plans.row(b, part, expert.features)
            if row is None:
                return None
            if isinstance(row, RowExpert):
                others.append((slice(starts[number], starts[number + 1]), row))
                continue
            linear[number] = row
            if number in joined:
                objects[joined[number]] = shared_bases[joined[number]]
            elif number not in taken:
                objects[number,] = part[0].unsqueeze(0)
        if not objects:
            return None
        maps = [ensemble.experts[places[0]].features for places in objects]
        return cls(ensemble, state, rule, RowBatches(objects, maps, linear, starts), others)

    def predict(self, x: Numbers) -> RowMixture | None:
        """The mixture of the next row x (D,); ``None`` if an expert does not predict it."""
        if not self._look(x):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            _, means, variances = _predicted(self._models, self._innovations, self._mean, self._variance)
        return RowMixture(self._rule.log_weights(), means, variances)

    def stage(self, x: Numbers, y: float) -> StagedRow | None:
        """Predict and weigh a row x (D,) with target y; the state is unchanged. ``None`` for rows that need a block."""
        if not (all(other.is_ready() for _, other in self._others) and self._look(x)):
            return None
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            known = self._models, self._innovations, self._mean, self._variance
            drift, means, variances = _predicted(*known)
            log_prob, scale, product, square, errors = _learned(*known, drift, y)
        weighed = self._rule.weigh(log_prob.ravel())
        if weighed is None or not _is_usual(weighed.log_weights, means, variances, self._variance, y, self._threshold):
            return None
        tally = self._tally
        if len(self._external_models):
            weights = np.exp(weighed.log_weights).reshape(means.shape)[self._external_models].sum(1)
            tally = _count_row(tally, log_prob[self._external_models, 0], weights, weighed.log_prob)
        mixture = RowMixture(weighed.log_weights, means, variances)
        return StagedRow(mixture, weighed, y, (scale, product, square, errors), tally)

    def commit(self, row: StagedRow) -> None:
        """Learn the row that was last staged."""
        self._batches.learn(row.y)
        for _, other in self._others:
            other.learn(row.y)
        self._rule.commit(row.weighed)
        for old, new in zip(self._innovations, (*row.innovations, 0.0), strict=True):
            old[...] = new
        self._tally[...] = row.external_models
        if self._reach is not None:
            self._history[:-1] = self._history[1:]
            self._history[-1] = min(max(row.y, self._reach[0]), self._reach[1])

    def flush(self) -> None:
        """Complete the state, before others read or change it."""
        self._batches.flush()
        for _, other in self._others:
            other.forget()

    def _look(self, x: Numbers) -> bool:
        """Predict a row x (D,) with all experts and keep what learning needs; whether all of them predicted it."""
        num_inputs = len(x)
        self._inputs[:num_inputs] = x
        if len(self._lags):
            self._inputs[num_inputs:] = self._history[self._lags]
        self._batches.look(self._inputs)
        self._mean[self._batches.experts], self._variance[self._batches.experts] = (
            self._batches.mean,
            self._batches.variance,
        )
        for places, other in self._others:
            predicted = other.predict(self._inputs)
            if predicted is None:
                return False
            self._mean[places], self._variance[places] = predicted
        return True


def _predict_by_arrays(
    models: recursions.Models, state: tuple[Numbers, ...], mean: Numbers, variance: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    scale, *errors = state
    drift = _formulas.predict_error(*errors)
    means, variances = _formulas.moments(models, scale, mean, variance, drift)
    return drift, _behind(mean, means), _behind(variance, variances)


def _learn_by_arrays(
    models: recursions.Models, state: tuple[Numbers, ...], mean: Numbers, variance: Numbers, drift: Numbers, y: float
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    (scale, *before), errors = state, y - mean
    own = -0.5 * (np.square(errors) / variance + np.log(variance)) - _HALF_LOG_TWO_PI
    plain, drifted = _formulas.squared_errors(models, errors, variance, drift)
    densities = _formulas.log_densities(models, scale, variance, plain, drifted)
    scale = _formulas.next_scale(models.keep, models.gain, scale, _formulas.ratios(models, plain, drifted))
    return _behind(own, densities), scale, *_formulas.next_sums(*before, errors, variance), errors


def _behind(own: Numbers, more: Numbers) -> Numbers:
    """Numbers of the experts (M,), each with those of its innovation models (K - 1, M) behind it, shape (M, K)."""
    return np.concatenate([own[:, None], more.T], axis=1)


# As :func:`~gp_ensembles.innovations.recursions.predict_row` and ``learn_row``, which are loops.
_predicted = _formulas.predict_row if IS_COMPILED else _predict_by_arrays
_learned = _formulas.learn_row if IS_COMPILED else _learn_by_arrays


@compiled
def _is_usual(
    log_weights: Numbers, means: Numbers, variances: Numbers, of_experts: Numbers, y: float, threshold: float
) -> bool:
    """Whether all variances are positive and finite, and the target is no outlier of the mixture."""
    if not (of_experts.min() > 0 and np.isfinite(of_experts.sum())):
        return False
    weights = np.exp(log_weights).reshape(means.shape)
    mean = (weights * means).sum()
    variance = (weights * (variances + np.square(means - mean))).sum()
    return bool(abs(y - mean) <= threshold * np.sqrt(variance))


def _count_row(tally: Numbers, own: Numbers, weights: Numbers, mixed: float) -> Numbers:
    """Counts (9, G) of external models after a row that all of them predicted; ``own`` and ``weights`` (G,)."""
    one, zero = np.ones_like(own), np.zeros_like(own)
    after: Numbers = tally + np.stack([zero, own - mixed, own, mixed * one, one, one, zero, weights, zero])
    after[-1] = 1.0
    return after


_VERSION = attrgetter("_version")
Buffers = Mapping[str, Tensor | None]


class BoundEnsemble:
    """Experts bound to their hyperparameters, their runners, and whether these are still up to date."""

    def __init__(self, ensemble: Ensemble, state: EnsembleState, shared_bases: SharedBases, buffers: Buffers) -> None:
        self._of_state = buffers
        self.is_dropped = False  # once another is to take its place
        self._parameters = list(ensemble.parameters())
        self._as_bytes = all(p.device.type == "cpu" and p.is_contiguous() for p in self._parameters)
        self._memories = [p.detach().numpy().data for p in self._parameters] if self._as_bytes else []
        self._pointers = [p.data_ptr() for p in self._parameters] if self._as_bytes else []
        self._values = self._read()
        self._buffers = list(ensemble.buffers())
        self._versions = list(map(_VERSION, self._buffers))
        names, tensors = zip(*named_tensors(state), strict=True)
        self._names: tuple[str, ...] = names
        self._tensors: tuple[Tensor, ...] = tensors
        self._ensemble, self._shared_bases = ensemble, shared_bases
        self.state = state
        self.out: tuple[int, ...] = places_out(state.quarantine)  # rebuilt when an expert enters or leaves quarantine
        self.like: Tensor = state.meta.log_weights
        self.bounded: tuple[FeatureMap, ...] = ensemble.bounded_features()
        self.experts: tuple[BoundExpert, ...] = ensemble.bind()
        self.latent_group: LatentGroup | None = join_latent(self.experts)  # None unless they share a likelihood
        self.responses: tuple[Response, ...] = tuple(response.frozen() for response in responses_of(self.experts))
        self.checkers: tuple[Expert, ...] = ensemble.experts
        if self.latent_group is not None:
            group, first = self.latent_group, self.responses[: self.latent_group.num_objects]
            num = sum(response.num_experts for response in first)
            joined = Response(group.likelihood, group.predictive, num, torch.Size([num]))
            self.responses = (joined, *self.responses[len(first) :])
            self.checkers = ensemble.experts[:1]
        limits = (e.transition.max_rows for e in ensemble.experts if e.transition is not None)
        self.limits: list[int] = [limit for limit in limits if limit is not None]  # longest blocks of transitions
        self.recording: Recording | None = None  # made on first use
        self.batches: RunnerBatches = RunnerBatches.of(self.experts, state.experts, shared_bases)

    def is_fresh(self) -> bool:
        """Whether nothing that was read has changed since, and the state is still in its buffers."""
        # Without a Python loop over tensors: this runs for every row.
        return (
            not self.is_dropped
            and all(map(is_, map(self._of_state.get, self._names), self._tensors))
            and self._versions == list(map(_VERSION, self._buffers))
            and self._is_equal()
        )

    @cached_property
    def row(self) -> RowEnsemble | None:
        """The fast path for single rows, to be flushed afterwards; ``None`` where only blocks can run."""
        row = RowEnsemble.of(self._ensemble, self.experts, self.state, self._shared_bases)
        if row is not None:
            row.is_current = self.is_fresh
        return row

    def flush(self) -> None:
        """Complete the state after single rows."""
        row = self.__dict__.get("row")  # do not build it here
        if row is not None:
            row.flush()

    def _is_equal(self) -> bool:
        """Whether no hyperparameter has changed."""
        if self._as_bytes and self._pointers != list(map(Tensor.data_ptr, self._parameters)):
            return False
        now, then = self._read(), self._values
        return torch.equal(now, then) if isinstance(now, Tensor) and isinstance(then, Tensor) else now == then

    def _read(self) -> bytes | Tensor:
        """The hyperparameters; as bytes on the CPU, where rows may come one at a time."""
        if self._as_bytes:
            return b"".join(self._memories)
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
