r"""A probability and the frequency of its event so far, mixed by a fixed share of their likelihoods.

.. math:: p'_t = w_{t,0}\, p_t + w_{t,1} \frac{n_1}{n_0 + n_1}

The counts n start at one half each and forget nothing, so where an event depends on nothing the frequency wins; weights
are those of a fixed share (Herbster and Warmuth 1998).
"""

from typing import NamedTuple

import torch
from torch import Tensor

_SHARE = 0.0005  # that is redistributed before each row


class FrequencyState(NamedTuple):
    """State of the mixture, of many series with axes in front."""

    counts: Tensor  # rows without and with the event, from one half each, shape (..., 2)
    weights: Tensor  # of the given probability and of the frequency, shape (..., 2)


def init_frequency(labels: Tensor) -> FrequencyState:
    """The state after labels (N,) without probabilities, zero or one; NaN where missing."""
    seen = labels[~labels.isnan()]
    counts = torch.stack([(seen == 0).sum(), (seen == 1).sum()]).to(labels) + 0.5
    return FrequencyState(counts, torch.full_like(counts, 0.5))


def mix_frequency(state: FrequencyState, probability: Tensor) -> Tensor:
    """The probabilities of the next rows, (N, ...), mixed; the state has the axes (...)."""
    return (_parts(state, probability) * _weights(state)).sum(-1)


@torch.no_grad()
def update_frequency(state: FrequencyState, probability: Tensor, label: Tensor) -> tuple[FrequencyState, Tensor]:
    """Learn the labels (...) of one row, NaN where missing, of which the given probabilities (...) were predicted.

    Returns the state after it and the mixed probabilities before it, (...).
    """
    parts, before = _parts(state, probability), _weights(state)
    is_seen, event = ~label.isnan(), label.nan_to_num(0.0).unsqueeze(-1)
    weights = before * torch.where(event > 0, parts, 1 - parts)
    counts = state.counts + torch.cat([1 - event, event], dim=-1)
    after = FrequencyState(counts, weights / weights.sum(-1, keepdim=True))
    kept = (torch.where(is_seen.unsqueeze(-1), new, old) for new, old in zip(after, state, strict=True))
    return FrequencyState(*kept), (parts * before).sum(-1)


def _parts(state: FrequencyState, probability: Tensor) -> Tensor:
    frequency = (state.counts[..., 1] / state.counts.sum(-1)).expand_as(probability)
    return torch.stack([probability, frequency], dim=-1)


def _weights(state: FrequencyState) -> Tensor:
    return (1 - _SHARE) * state.weights + _SHARE / 2
