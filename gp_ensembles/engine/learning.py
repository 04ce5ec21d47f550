"""Learning of the rows of one call, block by block: all of them or none.

Each block goes a straight line: features, experts, innovations, rule, mixture; then all of these learn it. Where an
expert fails, rows go one at a time up to the one at which it does, and it is in quarantine from there on, see
:mod:`~gp_ensembles.engine.quarantine`.
"""

import math
import sys
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.engine.bound import BoundEnsemble
from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.failures import shut_out
from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.engine.predictions import EnsemblePredictions, concatenate_predictions
from gp_ensembles.engine.quarantine import let_in_, next_return
from gp_ensembles.engine.recorded import Recording
from gp_ensembles.engine.runners import RunnerBatches, runners_without, scatter
from gp_ensembles.engine.state import EnsembleState, snapshot, write_layers_
from gp_ensembles.engine.weighing import run_block
from gp_ensembles.experts.base import Runner
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import Predictions
from gp_ensembles.numerics.cholesky import NumericalError


@final
class Learning:
    """One call of rows that were checked.

    Args:
        ensemble: The ensemble.
        block_size: Rows learned at once, at most.
        read: Its hyperparameters and state, read once until they change.
        renew: Drops what was read.
        record: Its recorded blocks; ``None`` where blocks are not recorded or an expert is in quarantine.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        block_size: int,
        read: Callable[[], BoundEnsemble],
        renew: Callable[[], None],
        record: Callable[[], Recording | None],
    ) -> None:
        self._ensemble, self._block_size = ensemble, block_size
        self._read, self._renew, self._record = read, renew, record
        self._undo: list[Callable[[], None]] = []
        self._num_rows = 0
        self._choose()

    def learn(self, X: Tensor, rows: Rows) -> EnsemblePredictions:
        """Predict and learn rows X (N, D), at least one; a call that raises or is interrupted changes nothing."""
        self._num_rows = X.shape[0]
        try:
            return self._learn(X, rows)
        except BaseException:
            if self._undo:
                with uninterrupted():
                    for undo in reversed(self._undo):
                        undo()
                    self._renew()
            raise

    def _learn(self, X: Tensor, rows: Rows) -> EnsemblePredictions:
        start, num_rows, done = 0, self._num_rows, list[EnsemblePredictions]()
        size, suspect = self._most(rows), 0  # rows before the suspect one go one at a time
        if num_rows > size or self._bound.out or self._record() is not None:
            self._keep()
        while start < num_rows:
            if start >= suspect and (recording := self._record()) is not None:
                replayed = recording.learn(X, rows, start)
                start += sum(len(part.mean) for part in replayed)
                done += replayed
                if start == num_rows:
                    break
            stop = min(num_rows, start + (1 if start < suspect else size), start + self._rows_until_return())
            block = X[start:stop], rows.block(slice(start, stop))
            try:
                after, predictions = self._predict(*block)
            except NumericalError as error:
                self._keep()
                suspect = 0 if stop == start + 1 else stop
                if not suspect:
                    scatter(self._runners)
                    with uninterrupted():  # what is shut out is restarted
                        self._undo.append(shut_out(self._ensemble, self._bound, *block, start, error))
                    self._renew()
                    self._choose()
                continue
            with uninterrupted():  # all parts learn the block or none; a copy of the state would cost a row too much
                self._batches.commit()
                write_layers_(self._bound.state, after)
            done.append(predictions)
            start = stop
        scatter(self._runners)
        self._rows_until_return()  # an expert that is due is back for whoever asks for the next row
        return concatenate_predictions(done)

    def _predict(self, X: Tensor, rows: Rows) -> tuple[EnsembleState, EnsemblePredictions]:
        """Predict and weigh a block X (B, D): the state after it, less the experts'; nothing changes."""
        bound, layers, has_gaps = self._bound, self._ensemble.layers, bool(rows.y.isnan().any())
        dead = self._dead_experts()
        if dead is not None and bool((dead if self._dead is None else dead & ~self._dead).any()):
            self._keep()
            scatter(self._runners)
            self._choose(dead)
        batches, missing = self._batches, missing_rows(rows.y) if has_gaps else None

        def stage(inputs: Tensor, rows: Rows) -> Predictions:
            if rows.share is None or inputs is not X:  # lagged targets change with an outlier
                batches.set_block(evaluate(bound.experts, inputs), rows, has_gaps)
            return batches.condition(bound.latent_group, rows)

        after, predictions = run_block(
            layers, bound.state, X, rows, stage, missing=missing, dead=self._dead, out=bound.out
        )
        return after, predictions._replace(responses=bound.responses) if bound.responses else predictions

    def _keep(self) -> None:
        """Take a snapshot of the state, once, before the call has changed anything."""
        if not self._undo:
            self._undo.append(snapshot(self._bound.state, self._num_rows))

    def _most(self, rows: Rows) -> int:
        """Rows of a block in which no more steps pass than transitions allow, or one."""
        longest = 1.0 if rows.steps is None else max(1.0, float(rows.steps.max()))
        return max(1, min([self._block_size, *(int(limit / longest) for limit in self._bound.limits)]))

    def _rows_until_return(self) -> int:
        """Rows until the next expert leaves quarantine, after those that are due have left; many if none is in it."""
        while self._bound.out:
            state = self._bound.state
            quarantine, num_seen = state.quarantine, int(state.meta.num_seen)
            assert quarantine is not None
            if next_return(quarantine) > num_seen:
                return next_return(quarantine) - num_seen
            scatter(self._runners)
            let_in_(quarantine, num_seen)
            self._renew()
            self._choose()
        return sys.maxsize

    def _choose(self, dead: Tensor | None = None) -> None:
        """Choose what is run: no expert in quarantine, and none that is ``dead``, a mask (E,)."""
        self._bound = bound = self._read()
        self._batches: RunnerBatches = bound.batches
        self._runners: dict[int, Runner] = {}  # of objects of which some experts are not run
        self._dead = dead
        if bound.out or dead is not None:
            out = torch.zeros(len(self._ensemble.expert_names), dtype=torch.bool, device=bound.like.device)
            out[list(bound.out)] = True
            silent = out if dead is None else dead | out
            self._runners = runners_without(self._ensemble.experts, bound.experts, bound.state.experts, silent, out)
            self._batches = bound.batches.replaced(self._runners)

    def _dead_experts(self) -> Tensor | None:
        """Mask (E,) of the experts whose predictions have all lost their weight; ``None`` if each has some."""
        meta, layers = self._bound.state.meta, self._ensemble.layers
        if float(meta.log_weights.amin()) > -math.inf:
            return None
        # Weights for the next target: a switching rule revives an expert that an outlier left without weight.
        return torch.isneginf(layers.rule.log_weights(meta)).reshape(-1, layers.num_copies).all(-1)
