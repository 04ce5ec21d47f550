"""One row of an ensemble on plain arrays, which share the memory of its state.

A call of torch costs a microsecond whatever its size, and a row of a small ensemble takes two hundred of them. Here
are the same equations as in :mod:`~gp_ensembles.engine.weighing`, for what occurs in nearly every row: a target that
is there and no outlier. Everything else is left to the blocks.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.external_counts import count_row
from gp_ensembles.engine.row_batches import LinearObjects, RowBatches, is_linear
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.one_row import RowExpert, row_expert
from gp_ensembles.filters.states import GaussianState, StructuralState
from gp_ensembles.innovations.one_row import learn_models, predict_models
from gp_ensembles.meta_learners.one_row import RowRule, WeighedRow
from gp_ensembles.numerics.compiled import compiled

Numbers = NDArray[np.float64]


class RowMixture(NamedTuple):
    """The mixture of a row: M experts, each with its K - 1 innovation models behind it.

    Attributes:
        log_weights: Log weights in force, shape (M K,).
        mean: Means, shape (M, K).
        variance: Variances, shape (M, K).
    """

    log_weights: Numbers
    mean: Numbers
    variance: Numbers


class StagedRow(NamedTuple):
    """A row that is predicted and not yet learned.

    Attributes:
        mixture: The mixture before the target.
        weighed: What the rule makes of the target.
        y: The target.
        innovations: Sizes of errors, sums of the autoregression and errors after it.
        external_models: What is counted of external models after it, (9, G).
    """

    mixture: RowMixture
    weighed: WeighedRow
    y: float
    innovations: tuple[Numbers, Numbers, Numbers]
    external_models: Numbers


@final
class RowEnsemble:
    """One row at a time, for an ensemble that :meth:`of` knows."""

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
        self._rule, self._models, self._batches, self._others = rule, layers.bank.row_models, batches, tuple(others)
        self.degrees_of_freedom: NDArray[Any] = np.tile([math.inf, *self._models.df[:, 0]], len(ensemble.expert_names))
        self._threshold = math.inf if layers.outlier_threshold is None else layers.outlier_threshold
        self._innovations = tuple(part.numpy() for part in innovations)
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
        cls,
        ensemble: Ensemble,
        bound: Sequence[BoundExpert],
        state: EnsembleState,
        shared_bases: Sequence[tuple[tuple[int, ...], Tensor]],
    ) -> "RowEnsemble | None":
        """The same for an ensemble; ``None`` for one that blocks are made for."""
        layers, like = ensemble.layers, state.meta.log_weights
        if like.dtype != torch.float64 or like.device.type != "cpu" or layers.bank is None or state.innovations is None:
            return None
        if ensemble.bounded_features():  # blocks refuse rows outside
            return None
        rule = RowRule.of(layers.rule, state.meta)
        if rule is None:
            return None
        starts = np.cumsum([0, *(expert.num_experts for expert in ensemble.experts)]).tolist()
        joined = {places[0]: (places, moments) for places, moments in shared_bases}
        taken = {place for places, _ in shared_bases for place in places}
        objects: list[LinearObjects] = []
        others: list[tuple[slice, RowExpert]] = []
        for number, (b, part) in enumerate(zip(bound, state.experts, strict=True)):
            features = ensemble.experts[number].features
            if number in joined:
                places, moments = joined[number]
                objects.append(LinearObjects(places, features, moments, [starts[place] for place in places]))
            elif number not in taken and is_linear(b, part) and isinstance(part, GaussianState | StructuralState):
                objects.append(LinearObjects((number,), features, part.moments, starts[number : number + 1]))
            elif number not in taken:
                other = row_expert(b, part, features)
                if other is None:
                    return None
                others.append((slice(starts[number], starts[number + 1]), other))
        return cls(ensemble, state, rule, RowBatches(objects, bound, state.experts), others) if objects else None

    def predict(self, x: Numbers) -> RowMixture | None:
        """The mixture of a row x (D,) that comes next; ``None`` where an expert says nothing of it."""
        if not self._look(x):
            return None
        scale, products, last_error, age = self._innovations
        models, mean, variance = self._models, self._mean, self._variance
        with np.errstate(invalid="ignore", divide="ignore"):
            _, means, variances = predict_models(
                models.places, models.shifts, models.factor, scale, products, last_error, float(age), mean, variance
            )
        return RowMixture(self._rule.log_weights(), means, variances)

    def stage(self, x: Numbers, y: float) -> StagedRow | None:
        """Predict a target from a row x (D,); the state is not touched."""
        if not (all(other.is_ready() for _, other in self._others) and self._look(x)):
            return None
        mean, variance = self._mean, self._variance
        scale, products, last_error, age = self._innovations
        models, rows_since = self._models, float(age)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            drift, means, variances = predict_models(
                models.places, models.shifts, models.factor, scale, products, last_error, rows_since, mean, variance
            )
            log_prob, sizes, sums, errors = learn_models(
                models, scale, products, last_error, rows_since, mean, variance, drift, y
            )
        weighed = self._rule.weigh(log_prob.ravel())
        if weighed is None or not _is_usual(weighed.log_weights, means, variances, variance, y, self._threshold):
            return None
        tally = self._tally
        if len(self._external_models):
            weights = np.exp(weighed.log_weights).reshape(means.shape)[self._external_models].sum(1)
            tally = count_row(tally, log_prob[self._external_models, 0], weights, weighed.log_prob)
        mixture = RowMixture(weighed.log_weights, means, variances)
        return StagedRow(mixture, weighed, y, (sizes, sums, errors), tally)

    def commit(self, row: StagedRow) -> None:
        """Learn the row that was staged last."""
        self._batches.learn(row.y)
        for _, other in self._others:
            other.learn(row.y)
        self._rule.commit(row.weighed)
        for old, new in zip(self._innovations, row.innovations, strict=False):
            old[...] = new
        self._innovations[3][...] = 0.0
        self._tally[...] = row.external_models
        if self._reach is not None:
            self._history[:-1] = self._history[1:]
            self._history[-1] = min(max(row.y, self._reach[0]), self._reach[1])

    def flush(self) -> None:
        """Make the state whole, for all that reads or changes it elsewhere."""
        self._batches.flush()
        for _, other in self._others:
            other.forget()

    def _look(self, x: Numbers) -> bool:
        """Predict a row x (D,) with all experts, which keep what learning it takes; whether each says something."""
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


@compiled
def _is_usual(
    log_weights: Numbers, means: Numbers, variances: Numbers, of_experts: Numbers, y: float, threshold: float
) -> bool:
    """Whether all variances are positive numbers, and a target is within some deviations of the mixture's mean."""
    if not (of_experts.min() > 0 and np.isfinite(of_experts.sum())):
        return False
    weights = np.exp(log_weights).reshape(means.shape)
    mean = (weights * means).sum()
    variance = (weights * (variances + np.square(means - mean))).sum()
    return bool(abs(y - mean) <= threshold * np.sqrt(variance))
