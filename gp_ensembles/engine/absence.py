r"""Experts without a prediction for a row get weight zero there; their share is renormalized over the others.

These are the specialists (sleeping experts) of Freund, Schapire, Singer and Warmuth (1997, "Using and combining
predictors that specialize"). For a row t with the experts A that predict it and the weights w before it,

.. math:: w'_m = \frac{w_m}{\sum_{j \in A} w_j} \quad (m \in A), \qquad p(y_t) = \sum_{m \in A} w'_m\, p_m(y_t)

and to the rule the density of an absent expert is :math:`p(y_t)`, so that its weight neither rises nor falls.
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
    """Log weights (M,) or (M, N), renormalized over the experts that are not ``absent`` (M, N).

    Raises:
        NumericalError: If no expert that has weight predicts a row; names it, counted from ``first_row``, if given.
    """
    weights = log_weights if log_weights.ndim == 2 else log_weights.unsqueeze(-1)
    weights = weights.masked_fill(absent, -torch.inf)
    total = weights.logsumexp(0)
    unheard = torch.isneginf(total)
    if bool(unheard.any()):
        where = "a row" if first_row is None else f"row {first_row + int(unheard.int().argmax())}"
        raise NumericalError(
            f"no expert that has weight predicts {where}: all are absent or overflow there; add an expert that "
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
