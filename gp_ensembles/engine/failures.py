"""Numerical failures within a stream, told in the terms of its user: the row of the call and the expert's name."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.engine.predictions import flatten, invalid_rows
from gp_ensembles.engine.runner import Runner
from gp_ensembles.engine.runners import CompactRunner
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.filters.states import (
    FilterState,
    MultiOutputState,
    Predictions,
    RefittedState,
    StructuralState,
    WindowState,
)
from gp_ensembles.filters.transitions import ExponentialForgetting
from gp_ensembles.numerics.cholesky import NumericalError

# States of which the experts of a batch share a part, or the number of rows: they fail and begin anew together.
Shared = MultiOutputState | RefittedState | StructuralState | WindowState

# Steps and experts by their numbers within a block and an expert object mean nothing to the caller.
_INTERNAL = re.compile(r" at step \d+( of the block)?( of expert \d+)?")


class ExpertFailureError(Exception):
    """An expert of an ensemble cannot go on, or some of an object that run together.

    Attributes:
        who: Which, in words.
        places: Which.
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
        """The same in a call that began so many rows before."""
        later = ExpertFailureError(self.who, self.places, self.row + num_rows, self.reason)
        later.__cause__ = self.__cause__
        return later


class Block(NamedTuple):
    """A block that failed, and what was to run on it.

    Attributes:
        bound: The bound experts.
        states: Their states before the block.
        runners: What runs each of them.
        alive: Indices of the experts that were run, (L,); ``None`` for all.
        out: Places of the experts that are kept out.
        X: Inputs of the block, shape (B, D).
        y: Its targets, shape (B,) or (B, O).
        first_row: Row of the call with which it starts.
    """

    bound: Sequence[BoundExpert]
    states: Sequence[FilterState]
    runners: Sequence[Runner]
    alive: Tensor | None
    out: Sequence[int]
    X: Tensor
    y: Tensor
    first_row: int


def explain(error: NumericalError, ensemble: Ensemble, block: Block) -> NumericalError | ExpertFailureError:
    """The same failure with its row and expert, found by running the block once more; states are not touched."""
    for runner in block.runners:
        if isinstance(runner, CompactRunner):
            runner.scatter()
    reason = _INTERNAL.sub("", str(error))
    parts: list[Predictions] = []
    start = 0
    features = evaluate(block.bound, block.X)
    for number, Phi in enumerate(features):
        expert = ensemble.experts[number]
        part = _stage(block.runners[number], Phi, block.y)
        if part is None:
            entry, runner = _culprit(number, expert, block, start, Phi)
            row = block.first_row + _first_failure(runner, Phi, block.y)
            name = _name(ensemble.expert_names, start, expert.num_experts, entry)
            places = _places(start, expert.num_experts, entry)
            return ExpertFailureError(name, places, row, f"{reason}{_mend(expert)}")
        parts.append(part)
        start += expert.num_experts
    silent = [*ensemble.layers.external_models, *block.out]
    steps = flatten(parts)
    illegal = _illegal(steps, block.y, silent, block.alive)
    if bool(illegal.any()):
        step = int(illegal.any(0).int().argmax())
        index = int(illegal[:, step].int().argmax())
        number, start = _object_of(ensemble.experts, index)
        step = _first_illegal(block.runners[number], index - start, features[number], block.y, step)
        why = f"{_symptom(steps, index, step)}{_mend(ensemble.experts[number])}"
        expert, entry = ensemble.experts[number], index - start
        one = None if isinstance(block.states[number], Shared) and expert.num_experts > 1 else entry
        name = _name(ensemble.expert_names, start, expert.num_experts, one)
        return ExpertFailureError(name, _places(start, expert.num_experts, one), block.first_row + step, why)
    last = block.first_row + block.y.shape[0] - 1
    return NumericalError(f"the weights failed within rows {block.first_row} to {last} of this call: {reason}")


def _culprit(number: int, expert: Expert, block: Block, start: int, Phi: Tensor) -> tuple[int | None, Runner]:
    """The expert within an object that fails alone, and what runs it; ``None`` and the whole if it cannot be told."""
    whole, state = block.runners[number], block.states[number]
    if expert.num_experts == 1 or isinstance(state, Shared):
        return (0 if expert.num_experts == 1 else None), whole
    for entry in range(expert.num_experts):
        if block.alive is not None and not bool((block.alive == start + entry).any()):
            continue
        index = torch.tensor([entry], dtype=torch.int64, device=block.y.device)
        single = CompactRunner(block.bound[number], state, index)
        if _stage(single, Phi, block.y) is None:
            return entry, single
    return None, whole


def _stage(runner: Runner, Phi: Tensor, y: Tensor) -> Predictions | None:
    try:
        return runner.stage(Phi, y, bool(torch.isnan(y).any()))
    except NumericalError:
        return None


def _first_failure(runner: Runner, Phi: Tensor, y: Tensor) -> int:
    """The step after which a runner fails; the last one has done so."""
    lengths = range(1, y.shape[0])
    failed = (n - 1 for n in lengths if _stage(runner, Phi[..., :n, :], y[:n]) is None)
    return next(failed, y.shape[0] - 1)


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
    """Which predictions (M, B) are none, or say of a target what is no density."""
    illegal = ~(steps.log_prob < torch.inf) & ~missing_rows(y)
    illegal[list(silent)] = False  # NaN means that they are absent
    wrong = invalid_rows(steps, silent, alive)
    return illegal if wrong is None else illegal | wrong


def _first_illegal(runner: Runner, entry: int, Phi: Tensor, y: Tensor, step: int) -> int:
    """The row at which an expert of an object fails without later rows, which may spoil what was said of ``step``."""
    for row in range(step, y.shape[0] - 1):
        part = _stage(runner, Phi[..., : row + 1, :], y[: row + 1])
        if part is None or bool(_illegal(flatten([part]), y[: row + 1], (), None)[entry, row]):
            return row
    return y.shape[0] - 1


def _symptom(steps: Predictions, index: int, step: int) -> str:
    mean, variance, log_prob = (part[index, step] for part in steps[:3])
    if bool((mean.isfinite() & (variance > 0) & variance.isfinite()).all()):
        return f"the log density of the target is {float(log_prob)}, its predictive variance has vanished"
    return f"its predictive mean is {mean.tolist()} and its variance {variance.tolist()}: numbers overflow"


def _mend(expert: Expert) -> str:
    if not isinstance(expert.transition, ExponentialForgetting):
        return ""
    return (
        "; under ExponentialForgetting the covariance winds up where inputs do not vary: use StabilizedForgetting or "
        "RandomWalk instead"
    )
