"""Rows on which an expert fails: those before are learned with it, it is shut out, and the others go on."""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.failures import ExpertFailureError, Shared
from gp_ensembles.engine.interrupts import uninterrupted
from gp_ensembles.engine.predictions import EnsemblePredictions, concatenate_predictions
from gp_ensembles.engine.quarantine import Quarantine, let_in_, next_return, places_out, shut_out_
from gp_ensembles.engine.row_timing import RowTiming
from gp_ensembles.engine.state import EnsembleState, snapshot
from gp_ensembles.filters.states import FilterState
from gp_ensembles.numerics.cholesky import NumericalError

Run = Callable[[Tensor, Tensor, bool, RowTiming], EnsemblePredictions]


@final
class Watch:
    """Runs an ensemble of which an expert is out, or is about to be."""

    def __init__(
        self, ensemble: Ensemble, read: Callable[[], EnsembleState], run: Run, renew: Callable[[], None]
    ) -> None:
        self._ensemble = ensemble
        self._read = read
        self._run = run
        self._renew = renew
        self._prepared: list[tuple[Tensor, Tensor]] = []  # of experts that began anew, and as it was before

    def observe(
        self, X: Tensor, y: Tensor, has_gaps: bool, timing: RowTiming, failure: ExpertFailureError | None
    ) -> EnsemblePredictions:
        """Predict and learn rows that were checked; all or none.

        Shapes: ``X`` (N, D), ``y`` (N,) or (N, O).

        Raises:
            NumericalError: If nobody who has weight would be left, or the weights fail.
        """
        restore = snapshot(self._read(), X.shape[0])
        self._prepared.clear()
        try:
            return self._observe(X, y, has_gaps, timing, failure)
        except BaseException:
            with uninterrupted():
                for value, old in reversed(self._prepared):  # the way back knows only where long windows ended
                    value.copy_(old)
                restore()
                self._renew()
            raise

    def _observe(
        self, X: Tensor, y: Tensor, has_gaps: bool, timing: RowTiming, failure: ExpertFailureError | None
    ) -> EnsemblePredictions:
        num_rows, start = X.shape[0], 0
        limit = num_rows if failure is None else failure.row
        done: list[EnsemblePredictions] = []
        while start < num_rows or not done:
            if failure is not None and start == limit:
                self._shut_out(failure)
                failure, limit = None, num_rows
            stop = min(limit, start + self._rows_until_return())
            rows, targets = X[start:stop], y[start:stop]
            gaps = has_gaps and bool(torch.isnan(targets).any())
            try:
                done.append(self._run(rows, targets, gaps, timing.rows(slice(start, stop))))
            except ExpertFailureError as error:
                failure = error.later(start)  # an earlier row of the same, or one later on
                limit = failure.row
            else:
                start = stop
        return concatenate_predictions(done)

    def _rows_until_return(self) -> int:
        """Rows until the next expert is in again, after those are whose time has come."""
        state = self._read()
        quarantine, num_seen = _of(state), int(state.meta.num_seen)
        if not places_out(quarantine):
            return 1 << 62
        if next_return(quarantine) <= num_seen:
            let_in_(quarantine, num_seen)
            self._renew()
            return self._rows_until_return()
        return next_return(quarantine) - num_seen

    def _shut_out(self, failure: ExpertFailureError) -> None:
        """Keep experts out, from the next row on, with their priors as their states."""
        state, layers = self._read(), self._ensemble.layers
        quarantine = _of(state)
        weights = layers.by_expert(layers.rule.log_weights(state.meta)).exp()
        left = weights.index_fill(0, _index(weights, [*failure.places, *places_out(quarantine)]), 0.0)
        if not bool((left > 0).any()):
            raise NumericalError(str(failure)) from failure.__cause__
        start = 0
        for expert, old in zip(self._ensemble.experts, state.experts, strict=True):
            own = [place - start for place in failure.places if start <= place < start + expert.num_experts]
            if own:
                self._prepared += [(value, value.clone()) for value in old]
                _begin_anew(old, expert.init(), expert.features.prior_variance.shape, own)
            start += expert.num_experts
        shut_out_(quarantine, failure.places, int(state.meta.num_seen), failure.reason)
        self._renew()


def _of(state: EnsembleState) -> Quarantine:
    assert state.quarantine is not None
    return state.quarantine


def _begin_anew(state: FilterState, first: FilterState, batch_shape: torch.Size, entries: Sequence[int]) -> None:
    """Some experts of an object as they were before any data, in place; objects that share a state all of them."""
    whole = len(entries) == batch_shape.numel() or isinstance(state, Shared)
    for old, new in zip(state, first, strict=True):
        if whole:
            old.copy_(new)
        else:
            size, rest = batch_shape.numel(), old.shape[len(batch_shape) :]
            index = _index(old, entries)
            old.view(size, *rest)[index] = new.reshape(size, *rest)[index].to(old)


def _index(like: Tensor, places: Sequence[int]) -> Tensor:
    return torch.tensor(list(places), dtype=torch.int64, device=like.device)
