r"""Experts that say nothing of some rows: the others share their weight there, and it is theirs again when they speak.

Such an expert sleeps (Freund, Schapire, Singer and Warmuth 1997, "Using and combining predictors that specialize"). For
a row t with the awake experts A and weights w in force before it,

.. math:: w'_m = \frac{w_m}{\sum_{j \in A} w_j} \quad (m \in A), \qquad p(y_t) = \sum_{m \in A} w'_m\, p_m(y_t)

and to the rule a sleeping expert's density is :math:`p(y_t)`, so that it neither gains nor loses beside the others.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gp_ensembles.filters.states import Predictions
from gp_ensembles.meta_learners.base import MetaLearner, MetaOutput, MetaState
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.reductions import readable_all

P = TypeVar("P", bound=Predictions)


def find_absent(steps: Predictions, external_models: Sequence[int]) -> Tensor | None:
    """Which experts say nothing of which rows, (M, B): a mean that is not a number; ``None`` if all speak."""
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
    """Log weights (M,) or (M, N) in which the absent (M, N) have none and the others theirs, summing to one.

    Raises:
        NumericalError: If no expert that has weight speaks of a row; counts rows from ``first_row``, if it is given.
    """
    weights = log_weights if log_weights.ndim == 2 else log_weights.unsqueeze(-1)
    weights = weights.masked_fill(absent, -torch.inf)
    total = weights.logsumexp(0)
    unheard = torch.isneginf(total)
    if bool(unheard.any()):
        where = "a row" if first_row is None else f"row {first_row + int(unheard.int().argmax())}"
        raise NumericalError(
            f"all experts that have weight are absent from {where}, or their numbers overflow there; add one that "
            f"always predicts, or correct the inputs"
        )
    return weights - total


def weigh_awake(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, absent: Tensor, missing: Tensor | None, share: Tensor | None
) -> tuple[MetaState, MetaOutput]:
    """Weigh a row of which some experts say nothing.

    Shapes: ``log_prob`` (M, 1), ``absent`` (M, 1), ``missing`` (1,), ``share`` (1,).
    """
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
    """Rows of a block of which the same experts (M, B) are absent one after the other, and whether any is."""
    changes = (absent[:, 1:] != absent[:, :-1]).any(0).nonzero().flatten() + 1
    ends = [0, *changes.tolist(), absent.shape[1]]
    anyone = absent.any(0).tolist()
    for start, stop in itertools.pairwise(ends):
        yield slice(start, stop), anyone[start]


def impute_absent(steps: P, absent: Tensor) -> P:
    """Predictions (M, B) in which N(0, 1) stands for those that were not made: their weight is zero."""
    where = absent if steps.mean.ndim == absent.ndim else absent.unsqueeze(-1)  # several outputs
    mean, variance = steps.mean.masked_fill(where, 0.0), steps.variance.masked_fill(where, 1.0)
    return type(steps)(**{**steps._asdict(), "mean": mean, "variance": variance})


def marked(steps: P, absent: Tensor) -> P:
    """Predictions (M, B) with NaN for those that were not made."""
    fields = {name: _filled(value, absent) for name, value in steps._asdict().items()}
    return type(steps)(**fields)


def _filled(value: Tensor, absent: Tensor) -> Tensor:
    """NaN for the absent (M, B) in values (M, B, ...)."""
    return value.masked_fill(absent.reshape(*absent.shape, *[1] * (value.ndim - absent.ndim)), torch.nan)
