"""Failures of experts within a stream: the row and expert by name, and the row once more with it in quarantine."""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gp_ensembles.engine.bound import BoundEnsemble
from gp_ensembles.engine.ensemble import Ensemble, evaluate, next_inputs
from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.engine.predictions import flatten, invalid_rows
from gp_ensembles.engine.quarantine import shut_out_
from gp_ensembles.engine.runners import CompactRunner
from gp_ensembles.experts.base import Expert
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, Predictions
from gp_ensembles.filters.transitions import ExponentialForgetting
from gp_ensembles.numerics.cholesky import NumericalError

# Steps and experts by their numbers within a block and an expert object mean nothing to the caller.
_INTERNAL = re.compile(r" at step \d+( of the block)?( of expert \d+)?")


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
    for number, Phi in enumerate(evaluate(bound.experts, next_inputs(layers, bound.state, X))):
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
    whole = as_one or entries == everyone
    runner = of_object.runner(state) if whole else CompactRunner(of_object, state, _index(rows.y, entries))
    try:
        steps = flatten([runner.stage(Phi, rows, bool(torch.isnan(rows.y).any()))])
    except NumericalError:
        if as_one or len(entries) == 1:
            return everyone if as_one else entries, None
        each = (_failure(expert, bound, number, [entry], Phi, rows) for entry in entries)
        return next((found for found in each if found[0]), (everyone, None))
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


def shut_out(
    ensemble: Ensemble, bound: BoundEnsemble, X: Tensor, rows: Rows, row: int, error: NumericalError
) -> Callable[[], None]:
    """Put the expert that fails at a row X (1, D) into quarantine from there on, with its prior as its state.

    Returns: what gives its state back; a snapshot has only the ends of long windows.

    Raises:
        NumericalError: If no other expert has weight, or no expert fails; names the row by its number in the call.
    """
    layers, state, quarantine = ensemble.layers, bound.state, bound.state.quarantine
    assert quarantine is not None
    reason = _INTERNAL.sub("", str(error))
    found = find_culprit(ensemble, bound, X, rows, reason)
    if found is None:
        raise NumericalError(f"the weights failed at row {row} of this call: {reason}") from error
    who, places, why = found
    weights = layers.by_expert(layers.rule.log_weights(state.meta)).exp()
    left = weights.index_fill(0, _index(weights, [*places, *bound.out]), 0.0)
    if not bool((left > 0).any()):
        raise NumericalError(f"{who} failed at row {row} of this call: {why}") from error
    start, prepared = 0, list[tuple[Tensor, Tensor]]()
    for expert, old in zip(ensemble.experts, state.experts, strict=True):
        own = [place - start for place in places if start <= place < start + expert.num_experts]
        if own:
            prepared += [(value, value.clone()) for value in old]
            _restart(old, expert, own)
        start += expert.num_experts
    shut_out_(quarantine, places, int(state.meta.num_seen), why)

    def undo() -> None:
        for value, old in prepared:
            value.copy_(old)

    return undo


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
