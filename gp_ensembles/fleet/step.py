"""A batch of rows of many series through experts, innovation models, weight rule and outlier treatment.

The experts are run by :mod:`~gp_ensembles.fleet.series_batches`; the layers around them, a few dozen numbers per
series, are the code of one series under ``torch.func.vmap``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble, evaluate, responses_of
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions, assemble, make_mixture
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.engine.weighing import append_copies, innovate, weigh, within_reach
from gp_ensembles.filters.states import LatentPredictions, Predictions
from gp_ensembles.fleet.series_batches import BlockSeriesBatch, SeriesBatch, row_series_batch, side_by_side
from gp_ensembles.fleet.store import Store
from gp_ensembles.innovations.bank import InnovationState
from gp_ensembles.meta_learners.base import MetaOutput, MetaState
from gp_ensembles.numerics.cholesky import NumericalError


class Work(NamedTuple):
    """Equally many rows of each of some series.

    Attributes:
        places: Distinct places of the series, shape (S,).
        rows: Numbers of their rows in the call, in the order of time, shape (S, B).
        X: Inputs, shape (S, B, D).
        y: Targets, shape (S, B); NaN where missing.
    """

    places: Tensor
    rows: Tensor
    X: Tensor
    y: Tensor

    def take(self, series: Tensor) -> "Work":
        """Some of the series: places among them, or a mask."""
        return Work(*(part[series] for part in self))

    def row(self, number: int) -> "Work":
        """One row of each series."""
        here = slice(number, number + 1)
        return Work(self.places, self.rows[:, here], self.X[:, here], self.y[:, here])


class _Weighed(NamedTuple):
    """What the layers around the experts made of some rows.

    Attributes:
        state: The state after them, without those of the experts.
        own: The experts' own predictions, (S, M, B) each.
        steps: The same with those of the innovation models.
        output: The output of the weight rule.
    """

    state: EnsembleState
    own: Predictions
    steps: Predictions
    output: MetaOutput


class RowBuffer:
    """Predictions of the N rows of a call, put together from batches in any order; NaN for rows without one.

    Attributes:
        whole: All rows; ``None`` before any prediction.
    """

    whole: EnsemblePredictions | None

    def __init__(self, num_rows: int) -> None:
        self._num_rows, self.whole = num_rows, None

    def put(self, rows: Tensor, part: EnsemblePredictions) -> None:
        """Write the predictions of some rows, integers (n,)."""
        if self.whole is None:
            steps = type(part.experts)(*(self._empty(value, 1) for value in part.experts))
            mean, variance, log_prob = (self._empty(value, 0) for value in part[:3])
            log_weights = self._empty(part.log_weights, 1)
            self.whole = EnsemblePredictions(mean, variance, log_prob, log_weights, steps, part.responses)
        for whole, value in zip(self.whole[:3], part[:3], strict=True):
            whole.index_copy_(0, rows, value)
        for whole, value in zip(
            (self.whole.log_weights, *self.whole.experts), (part.log_weights, *part.experts), strict=True
        ):
            whole.index_copy_(1, rows, value)

    def _empty(self, like: Tensor, axis: int) -> Tensor:
        shape = list(like.shape)
        shape[axis] = self._num_rows
        return like.new_full(shape, torch.nan)


class Step:
    """An ensemble with its hyperparameters read, on the states of many series."""

    def __init__(self, ensemble: Ensemble, store: Store) -> None:
        self._layers, self._store = ensemble.layers, store
        self._experts = ensemble.bind()
        self._responses = tuple(response.frozen() for response in responses_of(self._experts))
        states = [store.expert(number) for number in range(len(self._experts))]
        self._rows = [row_series_batch(bound, state) for bound, state in zip(self._experts, states, strict=True)]
        self._blocks: list[SeriesBatch] = [
            BlockSeriesBatch(b, state) for b, state in zip(self._experts, states, strict=True)
        ]

    def most_series(self, num_rows: int) -> int:
        """How many series are processed at once, with this many rows each."""
        return min(batch.most_series for batch in self._batches(num_rows))

    def observe(self, work: Work, predicted: RowBuffer) -> None:
        """Predict and learn; the predictions made before each target are put into ``predicted``."""
        well = self._store.failed[work.places] < 0
        if not bool(well.all()):
            work = work.take(well)
        num_series, num_rows = work.y.shape
        if num_series == 0:
            return
        try:
            if num_rows > 1:
                self._block(work, predicted)
            else:
                self._row(work, predicted)
        except NumericalError:  # of some series: find out of which
            if num_rows > 1:
                self._row_by_row(work, predicted)
            elif num_series == 1:
                self._set_aside(work.places)
            else:
                for half in torch.arange(num_series, device=work.places.device).chunk(2):
                    self.observe(work.take(half), predicted)

    def predict(self, places: Tensor, X: Tensor) -> AnyMixture:
        """Predict one step ahead at each row X (N, D) of a series (N,); the distribution of a failed one is NaN."""
        state, memory = self._store.layers(places), self._layers.memory
        if memory is not None and state.history is not None:
            X = torch.cat([X, state.history[:, [-lag for lag in memory.lags]]], dim=-1)
        features = self._features(X.unsqueeze(-2))
        steps = side_by_side(
            [
                batch.predict(places, Phi, self._store.variances(number, places))
                for number, (batch, Phi) in enumerate(zip(self._rows, features, strict=True))
            ]
        )
        bank, rule = self._layers.bank, self._layers.rule
        if bank is not None and state.innovations is not None:
            copies = torch.func.vmap(bank.predict)(state.innovations, steps.mean, steps.variance)
            steps = torch.func.vmap(append_copies)(steps, copies)
        log_weights = torch.func.vmap(rule.log_weights)(state.meta)
        failed = self._store.failed[places] >= 0
        log_weights = log_weights.masked_fill(failed.unsqueeze(-1), torch.nan)
        return make_mixture(log_weights.T, _flat(steps), self._responses)

    def log_weights(self, places: Tensor) -> Tensor:
        """Log weights for the next target of each series (N,), shape (N, M)."""
        weights: Tensor = torch.func.vmap(self._layers.rule.log_weights)(self._store.layers(places).meta)
        return weights

    def _batches(self, num_rows: int) -> list[SeriesBatch]:
        return self._rows if num_rows == 1 else self._blocks

    def _block(self, work: Work, predicted: RowBuffer) -> None:
        """A block of each series; series with an outlier or a failure row by row."""
        weighed, _ = self._weighed(work, self._store.layers(work.places))
        predictions = self._assembled(weighed)
        y = within_reach(self._layers, work.y)
        rest = (self._far(predictions, y) | ~_sound(weighed.own)).any(-1)
        self._commit(self._blocks, work, weighed.state, (~rest).nonzero().flatten())
        predicted.put(work.rows.flatten(), predictions)
        if bool(rest.any()):
            self._row_by_row(work.take(rest), predicted)

    def _row_by_row(self, work: Work, predicted: RowBuffer) -> None:
        for number in range(work.y.shape[1]):
            self.observe(work.row(number), predicted)

    def _row(self, work: Work, predicted: RowBuffer) -> None:
        """One row of each series; outliers count less, see :func:`~gp_ensembles.engine.weighing.run_block`."""
        before = self._store.layers(work.places)
        weighed, features = self._weighed(work, before)
        predictions = self._assembled(weighed)
        y = within_reach(self._layers, work.y)
        sound = _sound(weighed.own).squeeze(-1)
        far = self._far(predictions, y).squeeze(-1) & sound
        self._commit(self._rows, work, weighed.state, (sound & ~far).nonzero().flatten())
        keep = sound.nonzero().flatten()
        predicted.put(work.rows.flatten()[keep], _take(predictions, keep))
        self._set_aside(work.places[~sound])
        if bool(far.any()):
            chosen = far.nonzero().flatten()
            steps = type(weighed.own)(*(field[chosen] for field in weighed.own))
            self._outliers(work.take(chosen), [Phi[chosen] for Phi in features], steps, predictions, chosen, predicted)

    def _outliers(
        self,
        work: Work,
        features: list[Tensor],
        steps: Predictions,
        predictions: EnsemblePredictions,
        chosen: Tensor,
        predicted: RowBuffer,
    ) -> None:
        """Learn targets of which only a share counts."""
        y, before = within_reach(self._layers, work.y), self._store.layers(work.places)
        mean, deviation = (part[chosen].unsqueeze(-1) for part in (predictions.mean, predictions.variance.sqrt()))
        assert self._layers.outlier_threshold is not None
        share = (self._layers.outlier_threshold * deviation / (y - mean)) ** 4
        root = share.sqrt()
        shaped = [Phi * root.reshape(-1, *[1] * (Phi.ndim - 1)) for Phi in features]
        self._stage(self._rows, work.places, shaped, y * root)
        weighed = self._weigh(before, steps, y, share, None)
        history, memory = None, self._layers.memory
        if memory is not None and before.history is not None:  # a usual target is remembered as it is
            remembered = torch.where(memory.is_usual_each(y), y, mean + (y - mean) * share)
            history, _ = memory.columns(before.history, remembered)
        state = weighed.state._replace(history=history)
        self._commit(self._rows, work, state, torch.arange(len(chosen), device=chosen.device))
        predicted.put(work.rows.flatten(), self._assembled(weighed))

    def _weighed(self, work: Work, before: EnsembleState) -> tuple[_Weighed, list[Tensor]]:
        """Predictions and updates before they are written, and the features."""
        y, X, history = within_reach(self._layers, work.y), work.X, None
        if self._layers.memory is not None and before.history is not None:
            history, columns = self._layers.memory.columns(before.history, y)
            X = torch.cat([X, columns], dim=-1)
        features = self._features(X)
        batches = self._batches(y.shape[1])
        steps = side_by_side(self._stage(batches, work.places, features, y))
        missing = y.isnan()
        weighed = self._weigh(before, steps, y, None, missing if bool(missing.any()) else None)
        return weighed._replace(state=weighed.state._replace(history=history)), features

    def _stage(
        self, batches: list[SeriesBatch], places: Tensor, features: Sequence[Tensor], y: Tensor
    ) -> list[Predictions]:
        """Predict rows with all expert objects, and keep their updates."""
        return [
            batch.stage(places, Phi, y, self._store.variances(number, places))
            for number, (batch, Phi) in enumerate(zip(batches, features, strict=True))
        ]

    def _features(self, X: Tensor) -> list[Tensor]:
        r"""Features of each expert object at inputs (S, B, D), shape (S, \*batch, B, F); of all rows in one product."""
        known: dict[int, Tensor] = {}
        values = []
        for Phi in evaluate(self._experts, X.flatten(0, 1)):
            if id(Phi) not in known:  # experts on one map share its values
                known[id(Phi)] = Phi.unflatten(-2, X.shape[:2]).movedim(-3, 0).contiguous()
            values.append(known[id(Phi)])
        return values

    def _weigh(
        self, state: EnsembleState, own: Predictions, y: Tensor, share: Tensor | None, missing: Tensor | None
    ) -> _Weighed:
        """Innovation models and the weight rule, all series at once, with an axis for the series in front."""
        has_share, has_gaps = share is not None, missing is not None
        optional = [part for part in (share, missing) if part is not None]

        def one(
            meta: MetaState, innovations: InnovationState | None, steps: Predictions, y: Tensor, *optional: Tensor
        ) -> tuple[MetaState, InnovationState | None, Predictions, MetaOutput]:
            share, missing = optional[0] if has_share else None, optional[-1] if has_gaps else None
            innovations, weighed = innovate(self._layers, innovations, steps, y, share, missing, None)
            meta, output = weigh(self._layers.rule, meta, weighed.log_prob, share, missing)
            return meta, innovations, weighed, output

        if state.innovations is not None:
            meta, innovations, steps, output = torch.func.vmap(one)(state.meta, state.innovations, own, y, *optional)
            return _Weighed(EnsembleState((), meta, innovations), own, steps, output)

        def without(
            meta: MetaState, steps: Predictions, y: Tensor, *optional: Tensor
        ) -> tuple[MetaState, Predictions, MetaOutput]:
            after, _, weighed, output = one(meta, None, steps, y, *optional)
            return after, weighed, output

        meta, steps, output = torch.func.vmap(without)(state.meta, own, y, *optional)
        return _Weighed(EnsembleState((), meta), own, steps, output)

    def _assembled(self, weighed: _Weighed) -> EnsemblePredictions:
        """Predictions of all rows, those of a series one after the other."""
        log_weights = weighed.output.log_weights.movedim(0, 1).flatten(1)
        predictions = assemble(_flat(weighed.steps), log_weights, weighed.output.log_prob.flatten())
        return predictions._replace(responses=self._responses)

    def _far(self, predictions: EnsemblePredictions, y: Tensor) -> Tensor:
        """Which targets (S, B) are outliers."""
        threshold = self._layers.outlier_threshold
        if threshold is None:
            return torch.zeros_like(y, dtype=torch.bool)
        return ((y.flatten() - predictions.mean).abs() > threshold * predictions.variance.sqrt()).reshape(y.shape)

    def _commit(self, batches: list[SeriesBatch], work: Work, state: EnsembleState, keep: Tensor) -> None:
        """Write the updates of some of the series, places among them."""
        for batch in batches:
            batch.commit(keep)
        innovations = None
        if state.innovations is not None:
            innovations = InnovationState(*(part[keep] for part in state.innovations))
        meta = MetaState(*(part[keep] for part in state.meta))
        history = None if state.history is None else state.history[keep]
        self._store.put_layers(work.places[keep], EnsembleState((), meta, innovations, history))

    def _set_aside(self, places: Tensor) -> None:
        self._store.failed[places] = self._store.layers(places).meta.num_seen


def _flat(steps: Predictions) -> Predictions:
    """Predictions (S, M, B, ...) as (M, S B, ...), those of a series one after the other."""
    return type(steps)(*(field.movedim(0, 1).flatten(1, 2) for field in steps))


def _take(predictions: EnsemblePredictions, rows: Tensor) -> EnsemblePredictions:
    if len(rows) == len(predictions.mean):
        return predictions
    mean, variance, log_prob = (part[rows] for part in predictions[:3])
    steps = type(predictions.experts)(*(field[:, rows] for field in predictions.experts))
    log_weights = predictions.log_weights[:, rows]
    return EnsemblePredictions(mean, variance, log_prob, log_weights, steps, predictions.responses)


def _sound(steps: Predictions) -> Tensor:
    """Which rows (S, B) all experts predict by numbers; under other likelihoods variances may be zero or infinite."""
    is_latent = isinstance(steps, LatentPredictions)
    variance = steps.variance
    sound = steps.mean.isfinite() & (variance >= 0 if is_latent else (variance > 0) & (variance < torch.inf))
    while sound.ndim > steps.log_prob.ndim:
        sound = sound.all(-1)
    return sound.all(1)
