r"""The label chain: probabilities of the next label given the last one, whatever the inputs.

Rows of Dirichlet counts with forgetting, one row for each last label:

.. math:: P(y_t = c \mid y_{t-1} = k) = \frac{n_{kc}}{\sum_d n_{kd}}, \qquad
          n_{kc} \leftarrow \gamma n_{kc} + (1 - \gamma) n_0 + [y_t = c]

Only the row of the last label changes, so labels that are rare are not forgotten. Through a gap the chain goes on by
itself: after a missing label the last one is known by its probabilities only, and nothing is counted until two labels
in a row are seen.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_FORGETTING = 0.995  # the last 200 times that a label was seen
_PRIOR = 0.5  # counts before any label (Jeffreys)


class LabelState(NamedTuple):
    """State of the label chain."""

    counts: Tensor  # n, last label by next, shape (C, C)
    last: Tensor  # probabilities of the last label: zeros and a one where it was seen, shape (C,)
    is_seen: Tensor  # one if it was, else zero, shape ()


def init_labels(num_classes: int, like: Tensor) -> LabelState:
    """The state before any label."""
    counts = like.new_full((num_classes, num_classes), _PRIOR)
    return LabelState(counts, counts[0] / counts[0].sum(), like.new_zeros(()))


def predict_labels(state: LabelState) -> Tensor:
    """Log probabilities of the next label, shape (C,); of many series (..., C)."""
    return (state.last.unsqueeze(-2) @ (state.counts / state.counts.sum(-1, keepdim=True))).squeeze(-2).log()


@torch.no_grad()
def step_labels(state: LabelState, y: Tensor) -> tuple[LabelState, Tensor]:
    """Learn one label of each of many series.

    Shapes: ``y`` (S,), states (S, ...); returns the states after it and the log probabilities (S, C) before it.
    """
    ahead, is_seen, num_classes = predict_labels(state), ~y.isnan(), state.last.shape[-1]
    label = torch.nn.functional.one_hot(y.nan_to_num(0.0).long(), num_classes).to(state.last)
    followed = state.last * (is_seen * state.is_seen).unsqueeze(-1)  # one for the label before, if both are seen
    added = label.unsqueeze(-2) - (1 - _FORGETTING) * (state.counts - _PRIOR)
    counts = state.counts + followed.unsqueeze(-1) * added
    last = torch.where(is_seen.unsqueeze(-1), label, ahead.exp())
    return LabelState(counts, last, is_seen.to(state.is_seen)), ahead


@torch.no_grad()
def update_labels(state: LabelState, y: Tensor) -> tuple[LabelState, Tensor]:
    """Learn a block of labels.

    Shapes: ``y`` (B,); returns the state after it and the log probabilities (B, C) before each label.
    """
    counts, last, previous = state.counts.clone(), state.last, None
    if bool(state.is_seen):
        previous = int(last.argmax())
    parts = []
    certain = torch.eye(counts.shape[0], dtype=counts.dtype, device=counts.device)
    fresh = (1 - _FORGETTING) * _PRIOR + certain
    for label in y.tolist():
        ahead = last @ (counts / counts.sum(-1, keepdim=True)) if previous is None else counts[previous].clone()
        parts.append(ahead)
        if label != label:
            last, previous = ahead / ahead.sum(), None
            continue
        current = int(label)
        if previous is not None:
            counts[previous] = _FORGETTING * ahead + fresh[current]
        last, previous = certain[current], current
    table = torch.stack(parts)
    after = LabelState(counts, last, last.new_tensor(float(previous is not None)))
    return after, table.log() - table.sum(-1, keepdim=True).log()
