"""Failures of experts within a stream: the row and expert by name, and the row once more with it in quarantine."""

import re
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.engine.bound import BoundEnsemble
from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.engine.predictions import EnsemblePredictions, concatenate_predictions, flatten, invalid_rows
from gp_ensembles.engine.quarantine import Quarantine, let_in_, next_return, places_out, shut_out_
from gp_ensembles.engine.runners import CompactRunner
from gp_ensembles.engine.state import EnsembleState, snapshot
from gp_ensembles.experts.base import Expert
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, Predictions
from gp_ensembles.filters.transitions import ExponentialForgetting
from gp_ensembles.numerics.cholesky import NumericalError

# Steps and experts by their numbers within a block and an expert object mean nothing to the caller.
_INTERNAL = re.compile(r" at step \d+( of the block)?( of expert \d+)?")
Run = Callable[[Tensor, Rows, bool], EnsemblePredictions]


class BlockError(Exception):
    """Numerical failure of a block of a call, which has not changed the state.

    Attributes:
        rows: Its rows.
    """

    def __init__(self, rows: range, reason: str) -> None:
        super().__init__(reason)
        self.rows = rows


def find_culprit(
    ensemble: Ensemble, bound: BoundEnsemble, X: Tensor, rows: Rows, reason: str
) -> tuple[str, list[int], str] | None:
    """The first expert that fails at a row X (1, D) by itself, or all experts of an object that run together.

    ``reason`` is why the row failed, if an expert raises. States are not touched. Returns: the expert in words, the
    places of those that failed, and why, a clause; ``None`` if none does.
    """
    layers, start = ensemble.layers, 0
    runs = ~torch.isneginf(
        layers.by_expert(layers.rule.log_weights(bound.state.meta))
    )  # of the others the rest is dead
    runs[[*bound.out, *layers.external_models]] = False  # of external models NaN means absent
    for number, Phi in enumerate(evaluate(bound.experts, bound.inputs(X, rows.y))):
        expert = ensemble.experts[number]
        entries = runs[start : start + expert.num_experts].nonzero().flatten().tolist()
        failed, symptom = _failure(expert, bound, number, entries, Phi, rows) if entries else ([], None)
        if failed:
            names = ensemble.expert_names[start + failed[0]], ensemble.expert_names[start + failed[-1]]
            who = f"expert {names[0]!r}" if len(failed) == 1 else f"one of the experts {names[0]!r} to {names[1]!r}"
            why = f"{symptom or reason}{_mend(expert)}"
            return who, [start + entry for entry in failed], why
        start += expert.num_experts
    return None


def _failure(
    expert: Expert, bound: BoundEnsemble, number: int, entries: list[int], Phi: Tensor, rows: Rows
) -> tuple[list[int], str | None]:
    """Those of some experts of an object that fail at a row, and the symptom where none of them raises."""
    everyone = list(range(expert.num_experts))
    as_one = expert.traits.shares_state  # they fail together
    of_object, state = bound.experts[number], bound.state.experts[number]
    if as_one or entries == everyone:
        runner = of_object.runner(state)
    else:
        index = torch.tensor(entries, dtype=torch.int64, device=rows.y.device)
        runner = CompactRunner(of_object, state, index)
    try:
        steps = flatten([runner.stage(Phi, rows, bool(torch.isnan(rows.y).any()))])
    except NumericalError:
        if as_one or len(entries) == 1:
            return everyone if as_one else entries, None
        alone = (_failure(expert, bound, number, [entry], Phi, rows) for entry in entries)
        return next((found for found in alone if found[0]), (everyone, None))
    illegal = _illegal(steps, rows.y)[entries, 0].nonzero().flatten().tolist()
    if not illegal:
        return [], None
    return everyone if as_one else [entries[illegal[0]]], _symptom(steps, entries[illegal[0]])


def _illegal(steps: Predictions, y: Tensor) -> Tensor:
    """Mask (M, 1) of invalid predictions, or of targets whose log density is not a number below infinity."""
    illegal = ~(steps.log_prob < torch.inf) & ~missing_rows(y)
    wrong = invalid_rows(steps)
    return illegal if wrong is None else illegal | wrong


def _symptom(steps: Predictions, index: int) -> str:
    mean, variance, log_prob = (part[index, 0] for part in steps[:3])
    if bool((mean.isfinite() & (variance > 0) & variance.isfinite()).all()):
        return f"the log density of the target is {float(log_prob)}, its predictive variance has vanished"
    return f"its predictive mean is {mean.tolist()} and its variance {variance.tolist()}: an overflow"


def _mend(expert: Expert) -> str:
    if not isinstance(expert.transition, ExponentialForgetting):
        return ""
    return (
        "; under ExponentialForgetting the covariance grows without bound where inputs do not vary: "
        "use StabilizedForgetting or RandomWalk instead"
    )


@final
class Watch:
    """Runs an ensemble of which an expert is in quarantine or about to be."""

    def __init__(
        self, ensemble: Ensemble, read: Callable[[], BoundEnsemble], run: Run, renew: Callable[[], None]
    ) -> None:
        self._ensemble = ensemble
        self._read = read
        self._run = run
        self._renew = renew
        self._prepared: list[tuple[Tensor, Tensor]] = []  # states of restarted experts, and copies from before

    def observe(self, X: Tensor, rows: Rows, has_gaps: bool, failed: BlockError | None) -> EnsemblePredictions:
        """Predict and learn rows that were checked; all or none.

        Shapes: ``X`` (N, D), targets (N,) or (N, O).
        """
        restore = snapshot(self._read().state, X.shape[0])
        self._prepared.clear()
        try:
            return self._observe(X, rows, has_gaps, range(0) if failed is None else failed.rows)
        except BaseException:
            with uninterrupted():
                for value, old in reversed(self._prepared):  # a snapshot has only the ends of long windows
                    value.copy_(old)
                restore()
                self._renew()
            raise

    def _observe(self, X: Tensor, rows: Rows, has_gaps: bool, suspect: range) -> EnsemblePredictions:
        """The rows of a block that failed are learned one by one, up to the one at which an expert fails."""
        start, done = 0, list[EnsemblePredictions]()
        while start < X.shape[0] or not done:
            stop = min(X.shape[0], start + self._rows_until_return())
            if start < suspect.stop:
                stop = min(stop, max(start + 1, suspect.start))
            part = rows.block(slice(start, stop))
            try:
                done.append(self._run(X[start:stop], part, has_gaps and bool(torch.isnan(part.y).any())))
                start = stop
            except BlockError as error:
                if stop > start + 1:
                    suspect = range(start + error.rows.start, start + error.rows.stop)
                else:
                    self._shut_out(X[start:stop], part, start, error)
                    suspect = range(0)
        self._rows_until_return()  # an expert that is due is back for whoever asks for the next row
        return concatenate_predictions(done)

    def _rows_until_return(self) -> int:
        """Rows until the next expert leaves quarantine, after releasing those that are due."""
        state = self._read().state
        quarantine, num_seen = _of(state), int(state.meta.num_seen)
        if not places_out(quarantine):
            return 1 << 62
        if next_return(quarantine) <= num_seen:
            let_in_(quarantine, num_seen)
            self._renew()
            return self._rows_until_return()
        return next_return(quarantine) - num_seen

    def _shut_out(self, X: Tensor, rows: Rows, row: int, error: BlockError) -> None:
        """Put the expert that fails at a row X (1, D) into quarantine from there on, with its prior as its state."""
        bound, layers = self._read(), self._ensemble.layers
        state = bound.state
        reason = _INTERNAL.sub("", str(error))
        found = find_culprit(self._ensemble, bound, X, rows, reason)
        if found is None:
            raise NumericalError(f"the weights failed at row {row} of this call: {reason}") from error.__cause__
        quarantine, (who, places, why) = _of(state), found
        weights = layers.by_expert(layers.rule.log_weights(state.meta)).exp()
        left = weights.index_fill(0, _index(weights, [*places, *places_out(quarantine)]), 0.0)
        if not bool((left > 0).any()):
            raise NumericalError(f"{who} failed at row {row} of this call: {why}") from error.__cause__
        start = 0
        for expert, old in zip(self._ensemble.experts, state.experts, strict=True):
            own = [place - start for place in places if start <= place < start + expert.num_experts]
            if own:
                self._prepared += [(value, value.clone()) for value in old]
                _restart(old, expert, own)
            start += expert.num_experts
        shut_out_(quarantine, places, int(state.meta.num_seen), why)
        self._renew()


def _of(state: EnsembleState) -> Quarantine:
    assert state.quarantine is not None
    return state.quarantine


def _restart(state: FilterState, expert: Expert, entries: Sequence[int]) -> None:
    """Reset some experts of an object to their prior in place, or all if they share a state."""
    batch_shape = expert.batch_shape
    whole = len(entries) == batch_shape.numel() or expert.traits.shares_state
    for old, new in zip(state, expert.init(), strict=True):
        if whole:
            old.copy_(new)
        else:
            size, rest = batch_shape.numel(), old.shape[len(batch_shape) :]
            index = _index(old, entries)
            old.view(size, *rest)[index] = new.reshape(size, *rest)[index].to(old)


def _index(like: Tensor, places: Sequence[int]) -> Tensor:
    return torch.tensor(list(places), dtype=torch.int64, device=like.device)
