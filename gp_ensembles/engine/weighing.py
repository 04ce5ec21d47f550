r"""Prediction and weighing of a block: lagged targets, innovation models, the weight rule, outliers, absent experts.

Experts without a prediction for a row get weight zero there; their share is renormalized over the others. These are the
specialists (sleeping experts) of Freund, Schapire, Singer and Warmuth (1997, "Using and combining predictors that
specialize"). For a row t with the experts A that predict it and the weights w before it,

.. math:: w'_m = \frac{w_m}{\sum_{j \in A} w_j} \quad (m \in A), \qquad p(y_t) = \sum_{m \in A} w'_m\, p_m(y_t)

and to the rule the density of an absent expert is :math:`p(y_t)`, so that its weight neither rises nor falls.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.engine.external_counts import count_block
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.outliers import discount, find_outliers
from gp_ensembles.engine.predictions import EnsemblePredictions, as_student_t, assemble, invalid_rows
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import Predictions, StudentTPredictions, concatenate_steps
from gp_ensembles.innovations.bank import InnovationBank, InnovationPredictions, InnovationState
from gp_ensembles.meta_learners.base import MetaLearner, MetaOutput, MetaState, weigh_observed
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.reductions import readable_all

P = TypeVar("P", bound=Predictions)
# Predictions of all experts of rows from their inputs (B, D + P).
Stage = Callable[[Tensor, Rows], Predictions]

# Standardized targets are clamped to this, so that in an error the digits of the prediction are not lost.
_FARTHEST, _FARTHEST_SINGLE = 1e8, 1e6


def find_absent(steps: Predictions, external_models: Sequence[int]) -> Tensor | None:
    """Mask (M, B) of predictions that are absent, whose mean is NaN; ``None`` if there are none."""
    if not external_models:
        return None
    places = list(external_models)
    silent = torch.isnan(steps.mean[places])
    silent = silent.any(-1) if silent.ndim > steps.log_prob.ndim else silent  # several outputs
    if readable_all(~silent):
        return None
    absent = torch.zeros_like(steps.log_prob, dtype=torch.bool)
    absent[places] = silent
    return absent


def awake_weights(log_weights: Tensor, absent: Tensor, first_row: int | None = None) -> Tensor:
    """Log weights (M,) or (M, N), renormalized over the experts that are not ``absent`` (M, N)."""
    weights = log_weights if log_weights.ndim == 2 else log_weights.unsqueeze(-1)
    weights = weights.masked_fill(absent, -torch.inf)
    total = weights.logsumexp(0)
    unheard = torch.isneginf(total)
    if bool(unheard.any()):
        where = "a row" if first_row is None else f"row {first_row + int(unheard.int().argmax())}"
        raise NumericalError(
            f"no expert with weight predicts {where}: all are absent or overflow there; add an expert that "
            f"always predicts, or correct the inputs"
        )
    return weights - total


def weigh_awake(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, absent: Tensor, missing: Tensor | None, share: Tensor | None
) -> tuple[MetaState, MetaOutput]:
    """Update the rule with one row: ``log_prob`` and ``absent`` (M, 1), ``missing`` and ``share`` (1,)."""
    weights = awake_weights(rule.log_weights(state), absent)
    if missing is not None and bool(missing):
        after, _ = rule.update_block(state, torch.zeros_like(log_prob))
        return after, MetaOutput(weights, log_prob.new_full((1,), torch.nan))
    known = log_prob.masked_fill(absent, -torch.inf)
    counted = known if share is None else known * share
    predicted = (weights + counted).logsumexp(0)
    after, _ = rule.update_block(state, torch.where(absent, predicted, counted))
    return after, MetaOutput(weights, predicted if share is None else (weights + known).logsumexp(0))


def segments(absent: Tensor) -> Iterator[tuple[slice, bool]]:
    """Consecutive rows of a block at which the same experts of ``absent`` (M, B) are absent, and whether any is."""
    changes = (absent[:, 1:] != absent[:, :-1]).any(0).nonzero().flatten() + 1
    ends = [0, *changes.tolist(), absent.shape[1]]
    anyone = absent.any(0).tolist()
    for start, stop in itertools.pairwise(ends):
        yield slice(start, stop), anyone[start]


def impute_absent(steps: P, absent: Tensor) -> P:
    """Predictions (M, B) with N(0, 1) in place of the absent ones, whose weight is zero."""
    where = absent if steps.mean.ndim == absent.ndim else absent.unsqueeze(-1)  # several outputs
    mean, variance = steps.mean.masked_fill(where, 0.0), steps.variance.masked_fill(where, 1.0)
    return type(steps)(**{**steps._asdict(), "mean": mean, "variance": variance})


def marked(steps: P, absent: Tensor) -> P:
    """Predictions (M, B) with NaN in place of the absent ones."""
    fields = {name: _filled(value, absent) for name, value in steps._asdict().items()}
    return type(steps)(**fields)


def _filled(value: Tensor, absent: Tensor) -> Tensor:
    """Values (M, B, ...) with NaN where ``absent`` (M, B)."""
    return value.masked_fill(absent.reshape(*absent.shape, *[1] * (value.ndim - absent.ndim)), torch.nan)


class Layers(NamedTuple):
    """Parts of an ensemble other than its experts."""

    rule: MetaLearner  # the weight rule
    bank: InnovationBank | None = None  # innovation models; ``None`` for none
    memory: TargetMemory | None = None  # past targets as inputs; ``None`` for none
    # Error in standard deviations of the mixture from which a target counts less; ``None`` for never
    outlier_threshold: float | None = None
    external_models: tuple[int, ...] = ()  # places of the experts that may be absent from a row

    @property
    def num_copies(self) -> int:
        """Number K of predictions that the rule weighs for each expert: its own, and one for each innovation model."""
        return 1 if self.bank is None else 1 + len(self.bank.models)

    def by_expert(self, log_weights: Tensor) -> Tensor:
        """Log weights (M / K, ...) of the experts, innovation models included, from those of the rule (M, ...)."""
        return log_weights if self.bank is None else log_weights.unflatten(0, (-1, self.num_copies)).logsumexp(1)


def run_block(
    layers: Layers,
    state: EnsembleState,
    X: Tensor,
    rows: Rows,
    stage: Stage,
    *,
    missing: Tensor | None = None,
    dead: Tensor | None = None,
    out: Sequence[int] = (),
) -> tuple[EnsembleState, EnsemblePredictions]:
    """Predict and weigh a block: the state after it, less the experts', and the predictions made before each target.

    The experts then learn what ``stage`` was called with last.

    Shapes: ``X`` (B, D), targets (B,) or (B, O), ``missing`` (B,), ``dead`` (E,), a mask of experts that are not run.
    """
    y = within_reach(layers, rows.y)
    rows, remembered, kept, start = rows._replace(y=y), y, None, None
    share: Tensor | None = None
    silent = (*layers.external_models, *out)
    while True:
        history, inputs = with_lags(layers.memory, state.history, X, remembered)
        steps = stage(inputs, rows._replace(share=share))
        failed = invalid_rows(steps, silent, dead)
        if failed is not None:  # whether there is a target or not
            steps = steps._replace(log_prob=torch.where(failed, torch.nan, steps.log_prob))
            missing = None if missing is None else missing & ~failed.any(0)
        if kept is not None and start is not None:  # to the bit: the transform of an outlier magnifies any other
            steps = spliced(kept, steps, start)
        absent = find_absent(steps, silent)
        if absent is None:
            innovations, weighed = innovate(layers, state.innovations, steps, y, share, missing, dead)
            meta, output = weigh(layers.rule, state.meta, weighed.log_prob, share, missing)
        else:
            innovations, weighed = _innovate_awake(layers, state.innovations, steps, y, share, missing, dead, absent)
            absent = absent.repeat_interleave(layers.num_copies, 0)
            meta, output = _weigh_awake(layers.rule, state.meta, weighed.log_prob, share, missing, absent)
        # For one row the weights may share memory with the state, which is about to change.
        log_weights = output.log_weights.clone()
        mixed = weighed
        if dead is not None:  # their numbers are NaN
            mixed = impute_absent(weighed, dead.repeat_interleave(layers.num_copies).unsqueeze(-1))
        predictions = assemble(mixed, log_weights, output.log_prob)._replace(experts=weighed)
        if absent is not None:
            predictions = predictions._replace(experts=marked(weighed, absent))
        counted, tally = share, state.outliers
        far = find_outliers(layers.outlier_threshold, predictions.mean, predictions.variance, y, start)
        is_outlier = False
        while far is not None and tally is not None and not is_outlier and bool(far.any()):
            assert layers.outlier_threshold is not None
            known = tally, state.meta.num_seen, predictions.mean, predictions.variance, y, far, remembered
            found = discount(layers.outlier_threshold, layers.memory, *known, share=share)
            start, share, remembered, tally = found[:4]
            is_outlier = bool(found.is_outlier)
            far = far & (torch.arange(y.shape[-1], device=y.device) >= start)
        state = state._replace(outliers=tally)
        if not is_outlier:
            external_models = state.external_models
            if external_models is not None:
                external_models = count_block(
                    external_models, layers.external_models, layers.num_copies, predictions, counted
                )
            after = state._replace(meta=meta, innovations=innovations, history=history, external_models=external_models)
            return after, predictions
        kept = steps


def within_reach(layers: Layers, y: Tensor) -> Tensor:
    """Targets of any shape, clamped if there is an outlier threshold."""
    if layers.outlier_threshold is None:
        return y
    limit = _FARTHEST if y.dtype == torch.float64 else _FARTHEST_SINGLE
    return y.clamp(-limit, limit)


def weigh(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, share: Tensor | None, missing: Tensor | None
) -> tuple[MetaState, MetaOutput]:
    """Update the rule with densities to the power of each target's share; mixture densities are of the whole target."""
    known = log_prob if missing is None else log_prob.masked_fill(missing, 0.0)  # NaN would reach derivatives
    counted = known if share is None else known * share
    if missing is None:
        meta, output = rule.update_block(state, counted)
    else:
        meta, output = weigh_observed(rule, state, counted, missing)
    if share is None:
        return meta, output
    whole = (output.log_weights + known).logsumexp(0)
    return meta, output._replace(log_prob=torch.where(share < 1, whole, output.log_prob))


def with_lags(
    memory: TargetMemory | None, history: Tensor | None, X: Tensor, y: Tensor
) -> tuple[Tensor | None, Tensor]:
    """The last targets after a block, and the inputs of the experts; without a history, that before any target."""
    if memory is None:
        return None, X
    if history is None:
        history = memory.init(y)
    history, columns = memory.columns(history, y)
    return history, torch.cat([X, columns], dim=-1)


def innovate(
    layers: Layers,
    state: InnovationState | None,
    steps: Predictions,
    y: Tensor,
    share: Tensor | None,
    missing: Tensor | None,
    dead: Tensor | None = None,
) -> tuple[InnovationState | None, Predictions]:
    """The experts' predictions, each followed by those of its innovation models, (M K, B); the ``dead`` learn none."""
    if layers.bank is None or state is None:
        return None, steps
    after, copies = layers.bank.update_block(
        state, steps.mean, steps.variance, y, share=share, missing=missing, dead=dead
    )
    return after, append_copies(steps, copies)


def _innovate_awake(
    layers: Layers,
    state: InnovationState | None,
    steps: Predictions,
    y: Tensor,
    share: Tensor | None,
    missing: Tensor | None,
    dead: Tensor | None,
    absent: Tensor,
) -> tuple[InnovationState | None, Predictions]:
    """The same if some experts are absent (M, B): then their innovation models are absent, too, and learn nothing."""
    steps, parts = impute_absent(steps, absent), []
    for rows, _ in segments(absent):
        silent = absent[:, rows.start] if dead is None else dead | absent[:, rows.start]
        part = type(steps)(*(field[:, rows] for field in steps))
        state, part = innovate(layers, state, part, y[rows], _some(share, rows), _some(missing, rows), silent)
        parts.append(part)
    return state, impute_absent(concatenate_steps(parts), absent.repeat_interleave(layers.num_copies, 0))


def _some(values: Tensor | None, rows: slice) -> Tensor | None:
    return None if values is None else values[rows]


def _weigh_awake(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, share: Tensor | None, missing: Tensor | None, absent: Tensor
) -> tuple[MetaState, MetaOutput]:
    """Update the rule if some predictions are absent (M K, B): row by row there, in blocks elsewhere."""
    outputs = []
    for rows, anyone in segments(absent):
        for part in [slice(t, t + 1) for t in range(rows.start, rows.stop)] if anyone else [rows]:
            counts, gaps = _some(share, part), _some(missing, part)
            if anyone:
                state, output = weigh_awake(rule, state, log_prob[:, part], absent[:, part], gaps, counts)
            else:
                state, output = weigh(rule, state, log_prob[:, part], counts, gaps)
            outputs.append(output)
    log_weights = torch.cat([output.log_weights for output in outputs], dim=1)
    return state, MetaOutput(log_weights, torch.cat([output.log_prob for output in outputs]))


def append_copies(steps: Predictions, copies: InnovationPredictions) -> StudentTPredictions:
    """The experts' predictions (M, N), each followed by those of its K - 1 innovation models: (M K, N) in all."""
    pairs = zip(as_student_t(steps), copies, strict=True)
    parts = (torch.cat([one.unsqueeze(1), more], dim=1).flatten(0, 1) for one, more in pairs)
    return StudentTPredictions(*parts)


def spliced(before: P, after: P, start: Tensor) -> P:
    """Predictions (..., M, B) from ``before`` up to a row, (..., 1, 1), and from ``after`` from there on."""
    is_before = torch.arange(after.log_prob.shape[-1], device=start.device) < start
    fields = (torch.where(is_before, one, two) for one, two in zip(before, after, strict=True))
    return type(after)(*fields)
