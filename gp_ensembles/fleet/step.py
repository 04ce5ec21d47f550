"""One step of many series: experts, innovation models, weight rule and outlier handling.

Equally many rows of several series are learned at once. A series in which an expert fails, or has recently
failed, is processed as a separate ensemble until all its experts are back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.engine.ensemble import Ensemble, evaluate, responses_of
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.outliers import Discounted, discount, find_outliers
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions, are_sound, assemble, flatten, make_mixture
from gp_ensembles.engine.quarantine import weights_without
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.engine.weighing import append_copies, innovate, spliced, weigh, with_lags, within_reach
from gp_ensembles.filters.rows import Rows, add_extra_noise
from gp_ensembles.filters.states import LatentPredictions, Predictions
from gp_ensembles.fleet.store import Store
from gp_ensembles.meta_learners.base import MetaOutput, MetaState
from gp_ensembles.numerics.cholesky import NumericalError


class Work(NamedTuple):
    """Equally many rows of each of several series."""

    places: Tensor  # distinct places of the series, shape (S,)
    numbers: Tensor  # row numbers within the call, in time order, shape (S, B)
    X: Tensor  # inputs, shape (S, B, D)
    rows: Rows  # targets, NaN where missing, additional noise and steps, shape (S, B) each

    def row(self, number: int) -> "Work":
        """One row of each series."""
        here = slice(number, number + 1)
        return Work(self.places, self.numbers[:, here], self.X[:, here], self.rows.mapped(lambda part: part[:, here]))

    def take(self, series: Tensor) -> "Work":
        """A subset of the series, by index or mask."""
        return Work(self.places[series], self.numbers[series], self.X[series], self.rows.at(series))


class RowBuffer:
    """Predictions of the N rows of a call, assembled from parts in any order; NaN for rows without one."""

    whole: EnsemblePredictions | None  # all rows; ``None`` before any prediction

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
    """An ensemble with its hyperparameters read, applied to the states of many series.

    Args:
        ensemble: The ensemble.
        store: The states.
        alone: Creates a separate ensemble for the series at a place, with a copy of its state.
    """

    def __init__(self, ensemble: Ensemble, store: Store, alone: Callable[[int], OnlineEnsemble]) -> None:
        self._layers, self._store, self._alone = ensemble.layers, store, alone
        self._experts = ensemble.bind()
        self._responses = tuple(response.frozen() for response in responses_of(self._experts))
        self._batches = [bound.plans.series(bound, store.expert(n)) for n, bound in enumerate(self._experts)]

    def most_series(self, num_rows: int) -> int:
        """Maximum number of series processed at once, with this many rows each."""
        return min(batch.most_series(num_rows) for batch in self._batches)

    def observe(self, work: Work, predicted: RowBuffer) -> None:
        """Predict and learn; predictions made before each target are written to ``predicted``."""
        left_out = self._store.is_left_out(work.places)
        if bool(left_out.any()):
            self._observe_alone(work.take(left_out), predicted)
            work = work.take(~left_out)
        if len(work.places) == 0:
            return
        try:
            self._learn(work, predicted)
        except NumericalError:  # in some series: bisect to find it
            if len(work.places) == 1:
                self._observe_alone(work, predicted)
                return
            for half in torch.arange(len(work.places), device=work.places.device).chunk(2):
                self.observe(work.take(half), predicted)

    def predict(self, places: Tensor, X: Tensor, extra: Tensor | None) -> AnyMixture:
        """Predict one step ahead at each row X (N, D) of series (N,); NaN for series that have failed."""
        state, memory = self._store.layers(places), self._layers.memory
        inputs = X
        if memory is not None and state.history is not None:
            inputs = torch.cat([X, memory.next_columns(state.history)], dim=-1)
        features = self._features(inputs.unsqueeze(-2))
        parts = [
            batch.predict(places, Phi, self._store.variances(number, places))
            for number, (batch, Phi) in enumerate(zip(self._batches, features, strict=True))
        ]
        steps = flatten(parts, lead=1)
        if extra is not None and not isinstance(steps, LatentPredictions):
            steps = add_extra_noise(steps, extra[:, None, None], steps.log_prob)
        bank, rule = self._layers.bank, self._layers.rule
        if bank is not None and state.innovations is not None:
            copies = torch.func.vmap(bank.predict)(state.innovations, steps.mean, steps.variance)
            steps = torch.func.vmap(append_copies)(steps, copies)
        mixture = make_mixture(torch.func.vmap(rule.log_weights)(state.meta).T, _flat(steps), self._responses)
        for place in places[self._store.is_left_out(places)].unique().tolist():
            rows = (places == place).nonzero().flatten()
            if self._store.has_failed(place):
                mixture.log_weights[:, rows] = torch.nan
                continue
            part = self._alone(place).predict(X[rows], extra=None if extra is None else extra[rows])
            mixture.log_weights[:, rows] = part.log_weights.reshape(len(part.log_weights), -1)
            for field in mixture._fields:
                if field not in ("log_weights", "responses"):
                    getattr(mixture, field)[:, rows] = getattr(part, field)
        return mixture

    def log_weights(self, places: Tensor) -> Tensor:
        """Log weights for the next target of each series (N,), shape (N, M); minus infinity for quarantined experts."""
        log_weights = torch.func.vmap(self._layers.rule.log_weights)(self._store.layers(places).meta)
        return weights_without(log_weights, self._store.quarantine(places), self._layers.num_copies)

    def _observe_alone(self, work: Work, predicted: RowBuffer) -> None:
        """Learn series one by one, quarantining experts that fail; series without usable experts are set aside."""
        for number in torch.arange(len(work.places), device=work.places.device).split(1):
            one = work.take(number)
            place, num_rows = int(one.places), one.numbers.shape[1]
            if self._store.has_failed(place):
                continue
            online, rows = self._alone(place), one.rows.mapped(lambda part: part[0])
            try:
                predictions = online.observe(one.X[0], rows.y, steps=rows.steps, extra=rows.extra)
            except NumericalError:
                if num_rows == 1:
                    self._store.set_aside(place)
                else:  # learn the rows before the failing one
                    for row in range(num_rows):
                        self._observe_alone(one.row(row), predicted)
                continue
            with uninterrupted():
                self._store.write(place, online.state)
            predicted.put(one.numbers[0], predictions)

    def _learn(
        self, work: Work, predicted: RowBuffer, kept: Predictions | None = None, last: Discounted | None = None
    ) -> None:
        """Learn series without quarantined experts; the outliers of a series are found one after another.

        After the first outlier, ``kept`` are the experts' predictions so far, (S, M, B), and ``last`` the latest one.
        """
        layers, before, size = self._layers, self._store.layers(work.places), work.numbers.shape[1]
        y = within_reach(layers, work.rows.y)
        share, remembered, start = (None, y, None) if last is None else (last.share, last.remembered, last.start)
        if last is not None:
            before = before._replace(outliers=last.tally)
        history, inputs = with_lags(layers.memory, before.history, work.X, remembered)
        own = self._stage(work.places, inputs, work.rows._replace(y=y, share=share))
        if kept is not None and start is not None:
            own = spliced(kept, own, start.unsqueeze(-1))
        after, steps, output = self._weighed(before._replace(history=history), own, y, share)
        predictions = self._assembled(steps, output)
        mean, variance = (part.reshape(y.shape) for part in predictions[:2])
        sound = are_sound(own).flatten(1).all(1)  # series whose experts' predictions are all finite
        far = find_outliers(layers.outlier_threshold, mean, variance, y, start)
        is_far = torch.zeros_like(sound) if far is None else far.any(-1) & sound
        done = (sound & ~is_far).nonzero().flatten()
        with uninterrupted():  # a series' state is written completely or not at all
            for batch in self._batches:
                batch.commit(done)
            self._store.put_layers(work.places[done], after, done)
        is_done = (sound & ~is_far).repeat_interleave(size).nonzero().flatten()
        predicted.put(work.numbers[done].flatten(), _take(predictions, is_done))
        if far is not None and before.outliers is not None and bool(is_far.any()):
            assert layers.outlier_threshold is not None
            chosen = is_far.nonzero().flatten()
            known = before.outliers, before.meta.num_seen, mean, variance, y, far, remembered
            own_share = None if share is None else share[chosen]
            own_rows = [part[chosen] for part in known]
            found = discount(layers.outlier_threshold, layers.memory, *own_rows, share=own_share)
            kept, rest = type(own)(*(field[chosen] for field in own)), work.take(chosen)
            try:
                self._learn(rest, predicted, kept, found)
            except NumericalError:
                self._observe_alone(rest, predicted)
        if not bool(sound.all()):
            self._observe_alone(work.take(~sound), predicted)

    def _stage(self, places: Tensor, inputs: Tensor, rows: Rows) -> Predictions:
        """Predict rows (S, B) with all expert objects, (S, M, B), and stage their updates."""
        parts = [
            batch.stage(places, Phi, rows, self._store.variances(number, places))
            for number, (batch, Phi) in enumerate(zip(self._batches, self._features(inputs), strict=True))
        ]
        return flatten(parts, lead=1)

    def _features(self, X: Tensor) -> list[Tensor]:
        r"""Features of each expert object at inputs (S, B, D), shape (S, \*batch, B, F), all rows in one product."""
        known: dict[int, Tensor] = {}
        values = []
        for Phi in evaluate(self._experts, X.flatten(0, 1)):
            if id(Phi) not in known:  # experts with the same map share its values
                known[id(Phi)] = Phi.unflatten(-2, X.shape[:2]).movedim(-3, 0).contiguous()
            values.append(known[id(Phi)])
        return values

    def _weighed(
        self, before: EnsembleState, own: Predictions, y: Tensor, share: Tensor | None
    ) -> tuple[EnsembleState, Predictions, MetaOutput]:
        """Apply innovation models and weight rule to each series: updated state, predictions, weights."""
        missing = y.isnan()
        optional = before.innovations, share, missing if bool(missing.any()) else None
        present = [number for number, part in enumerate(optional) if part is not None]

        def one(meta: MetaState, steps: Predictions, y: Tensor, *given: Any) -> tuple[Any, ...]:
            parts = dict(zip(present, given, strict=True))
            innovations, share, missing = (parts.get(number) for number in range(len(optional)))
            innovations, weighed = innovate(self._layers, innovations, steps, y, share, missing)
            meta, output = weigh(self._layers.rule, meta, weighed.log_prob, share, missing)
            return (meta, weighed, output) if innovations is None else (meta, weighed, output, innovations)

        given = (part for part in optional if part is not None)
        meta, steps, output, *innovations = torch.func.vmap(one)(before.meta, own, y, *given)
        return before._replace(meta=meta, innovations=innovations[0] if innovations else None), steps, output

    def _assembled(self, steps: Predictions, output: MetaOutput) -> EnsemblePredictions:
        """Predictions of all rows, grouped by series."""
        log_weights = output.log_weights.movedim(0, 1).flatten(1)
        predictions = assemble(_flat(steps), log_weights, output.log_prob.flatten())
        return predictions._replace(responses=self._responses)


def _flat(steps: Predictions) -> Predictions:
    """Reshape predictions (S, M, B, ...) to (M, S B, ...), grouped by series."""
    return type(steps)(*(field.movedim(0, 1).flatten(1, 2) for field in steps))


def _take(predictions: EnsemblePredictions, rows: Tensor) -> EnsemblePredictions:
    if len(rows) == len(predictions.mean):
        return predictions
    mean, variance, log_prob = (part[rows] for part in predictions[:3])
    steps = type(predictions.experts)(*(field[:, rows] for field in predictions.experts))
    log_weights = predictions.log_weights[:, rows]
    return EnsemblePredictions(mean, variance, log_prob, log_weights, steps, predictions.responses)
