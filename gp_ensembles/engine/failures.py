"""Failures of experts within a stream: the row and expert by name, and a retry of the block with it in quarantine."""

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
from gp_ensembles.engine.shared_basis import RunnerBatches
from gp_ensembles.engine.state import EnsembleState, snapshot
from gp_ensembles.experts.base import Expert, Runner
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, Predictions
from gp_ensembles.filters.transitions import ExponentialForgetting
from gp_ensembles.numerics.cholesky import NumericalError

# Steps and experts by their numbers within a block and an expert object mean nothing to the caller.
_INTERNAL = re.compile(r" at step \d+( of the block)?( of expert \d+)?")


class ExpertFailureError(Exception):
    """Failure of an expert of an ensemble, or of all experts of an object that run together.

    Attributes:
        who: The expert in words.
        places: Places of the experts that failed.
        row: Row of the call.
        reason: Why, a clause.
    """

    def __init__(self, who: str, places: Sequence[int], row: int, reason: str) -> None:
        super().__init__(f"{who} failed at row {row} of this call: {reason}")
        self.who = who
        self.places: tuple[int, ...] = tuple(places)
        self.row = row
        self.reason = reason

    def later(self, num_rows: int) -> "ExpertFailureError":
        """The same failure in a call that began ``num_rows`` rows earlier."""
        later = ExpertFailureError(self.who, self.places, self.row + num_rows, self.reason)
        later.__cause__ = self.__cause__
        return later


def explain(
    error: NumericalError,
    ensemble: Ensemble,
    bound: BoundEnsemble,
    batches: RunnerBatches,
    X: Tensor,
    rows: Rows,
    *,
    alive: Tensor | None,
    first_row: int,
) -> NumericalError | ExpertFailureError:
    """The same failure with its row and expert, found by running the block once more; states are not touched.

    Shapes: ``X`` (B, D), targets (B,) or (B, O), ``alive`` (L,) of the experts that were run, if not all were.
    """
    y = rows.y
    runners = [batches.single(number) for number in range(len(bound.experts))]
    for runner in runners:
        if isinstance(runner, CompactRunner):
            runner.scatter()
    reason = _INTERNAL.sub("", str(error))
    parts: list[Predictions] = []
    start = 0
    features = evaluate(bound.experts, bound.inputs(X, y))
    for number, Phi in enumerate(features):
        expert = ensemble.experts[number]
        part = _stage(runners[number], Phi, rows)
        if part is None:
            is_run = [alive is None or bool((alive == start + entry).any()) for entry in range(expert.num_experts)]
            entry, runner = _culprit(bound, expert, number, runners[number], is_run, Phi, rows)
            row = first_row + _first_failure(runner, Phi, rows)
            name = _name(ensemble.expert_names, start, expert.num_experts, entry)
            places = _places(start, expert.num_experts, entry)
            return ExpertFailureError(name, places, row, f"{reason}{_mend(expert)}")
        parts.append(part)
        start += expert.num_experts
    silent = [*ensemble.layers.external_models, *bound.out]
    steps = flatten(parts)
    illegal = _illegal(steps, y, silent, alive)
    if bool(illegal.any()):
        step = int(illegal.any(0).int().argmax())
        index = int(illegal[:, step].int().argmax())
        number, start = _object_of(ensemble.experts, index)
        step = _first_illegal(runners[number], index - start, features[number], rows, step)
        why = f"{_symptom(steps, index, step)}{_mend(ensemble.experts[number])}"
        expert, entry = ensemble.experts[number], index - start
        one = None if expert.traits.shares_state and expert.num_experts > 1 else entry
        name = _name(ensemble.expert_names, start, expert.num_experts, one)
        return ExpertFailureError(name, _places(start, expert.num_experts, one), first_row + step, why)
    last = first_row + y.shape[0] - 1
    return NumericalError(f"the weights failed within rows {first_row} to {last} of this call: {reason}")


def _culprit(
    bound: BoundEnsemble,
    expert: Expert,
    number: int,
    whole: Runner,
    is_run: Sequence[bool],
    Phi: Tensor,
    rows: Rows,
) -> tuple[int | None, Runner]:
    """The expert within an object that fails alone, and its runner; ``None`` and the whole if none does."""
    state = bound.state.experts[number]
    if len(is_run) == 1 or expert.traits.shares_state:
        return (0 if len(is_run) == 1 else None), whole
    for entry in (entry for entry, run in enumerate(is_run) if run):
        index = torch.tensor([entry], dtype=torch.int64, device=rows.y.device)
        single = CompactRunner(bound.experts[number], state, index)
        if _stage(single, Phi, rows) is None:
            return entry, single
    return None, whole


def _stage(runner: Runner, Phi: Tensor, rows: Rows) -> Predictions | None:
    try:
        return runner.stage(Phi, rows, bool(torch.isnan(rows.y).any()))
    except NumericalError:
        return None


def _first_failure(runner: Runner, Phi: Tensor, rows: Rows) -> int:
    """The first step at which a runner fails, given that it fails by the last one."""
    num_rows = Phi.shape[-2]
    failed = (n - 1 for n in range(1, num_rows) if _stage(runner, Phi[..., :n, :], rows.block(slice(n))) is None)
    return next(failed, num_rows - 1)


def _places(start: int, num_experts: int, entry: int | None) -> Sequence[int]:
    return range(start, start + num_experts) if entry is None else (start + entry,)


def _name(names: Sequence[str], start: int, num_experts: int, entry: int | None) -> str:
    if entry is None:
        return f"one of the experts {names[start]!r} to {names[start + num_experts - 1]!r}"
    return f"expert {names[start + entry]!r}"


def _object_of(experts: Sequence[Expert], index: int) -> tuple[int, int]:
    """The number of the object of an expert, and the place of its first one."""
    start = 0
    for number, expert in enumerate(experts):
        if index < start + expert.num_experts:
            return number, start
        start += expert.num_experts
    raise IndexError("no such expert")


def _illegal(steps: Predictions, y: Tensor, silent: Sequence[int], alive: Tensor | None) -> Tensor:
    """Mask (M, B) of invalid predictions, or of targets whose log density is not a number below infinity."""
    illegal = ~(steps.log_prob < torch.inf) & ~missing_rows(y)
    illegal[list(silent)] = False  # for these NaN means absent
    wrong = invalid_rows(steps, silent, alive)
    return illegal if wrong is None else illegal | wrong


def _first_illegal(runner: Runner, entry: int, Phi: Tensor, rows: Rows, step: int) -> int:
    """The first row at which an expert of an object fails without later rows, which may spoil ``step`` before them."""
    for row in range(step, Phi.shape[-2] - 1):
        before = rows.block(slice(row + 1))
        part = _stage(runner, Phi[..., : row + 1, :], before)
        if part is None or bool(_illegal(flatten([part]), before.y, (), None)[entry, row]):
            return row
    return Phi.shape[-2] - 1


def _symptom(steps: Predictions, index: int, step: int) -> str:
    mean, variance, log_prob = (part[index, step] for part in steps[:3])
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


Run = Callable[[Tensor, Rows, bool], EnsemblePredictions]


@final
class Watch:
    """Runs an ensemble of which an expert is in quarantine or about to be."""

    def __init__(
        self, ensemble: Ensemble, read: Callable[[], EnsembleState], run: Run, renew: Callable[[], None]
    ) -> None:
        self._ensemble = ensemble
        self._read = read
        self._run = run
        self._renew = renew
        self._prepared: list[tuple[Tensor, Tensor]] = []  # states of restarted experts, and copies from before

    def observe(self, X: Tensor, rows: Rows, has_gaps: bool, failure: ExpertFailureError | None) -> EnsemblePredictions:
        """Predict and learn rows that were checked; all or none.

        Shapes: ``X`` (N, D), targets (N,) or (N, O).

        Raises:
            NumericalError: If no expert that has weight would be left, or the weights fail.
        """
        restore = snapshot(self._read(), X.shape[0])
        self._prepared.clear()
        try:
            return self._observe(X, rows, has_gaps, failure)
        except BaseException:
            with uninterrupted():
                for value, old in reversed(self._prepared):  # a snapshot has only the ends of long windows
                    value.copy_(old)
                restore()
                self._renew()
            raise

    def _observe(
        self, X: Tensor, rows: Rows, has_gaps: bool, failure: ExpertFailureError | None
    ) -> EnsemblePredictions:
        num_rows, start = X.shape[0], 0
        limit = num_rows if failure is None else failure.row
        done: list[EnsemblePredictions] = []
        while start < num_rows or not done:
            if failure is not None and start == limit:
                self._shut_out(failure)
                failure, limit = None, num_rows
            stop = min(limit, start + self._rows_until_return())
            part = rows.block(slice(start, stop))
            gaps = has_gaps and bool(torch.isnan(part.y).any())
            try:
                done.append(self._run(X[start:stop], part, gaps))
            except ExpertFailureError as error:
                failure = error.later(start)  # an earlier row of the same expert, or a later one
                limit = failure.row
            else:
                start = stop
        return concatenate_predictions(done)

    def _rows_until_return(self) -> int:
        """Rows until the next expert leaves quarantine, after releasing those that are due."""
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
        """Put experts into quarantine from the next row on, with their priors as their states."""
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
                _restart(old, expert, own)
            start += expert.num_experts
        shut_out_(quarantine, failure.places, int(state.meta.num_seen), failure.reason)
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
