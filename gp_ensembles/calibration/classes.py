r"""Recalibrated probabilities of classes, online: logistic regression on the predictions and the last labels.

With :math:`\ell_{t,c}` the log probability of class c that an ensemble gives row t, :math:`p = e^\ell`, and :math:`u_t`
the label of row t as a vector of zeros and a one, the recalibrated probabilities are the softmax of

.. math:: z_{t,c} = a\, \ell_{t,c} + b_c + d_1 u_{t-1,c} + d_2 u_{t-2,c} + f\, (u_{t-1,c} - p_{t-1,c})
          + g\, \ell_{t-1,c}

a temperature and shifts (Platt 1999; Guo et al. 2017), the persistence of labels, and the effect of the last error on
the next. The coefficients start at the identity (a = 1, all others 0), walk at random, and are learned by an extended
Kalman filter, one Newton step for each label. Some coefficients are left out of some candidates; a fixed share
(Herbster and Warmuth 1998) weighs those, the identity itself, and forecasts of any other kind. Where probabilities are
calibrated and labels independent the identity keeps its share.

A missing label changes neither coefficients nor shares; its probabilities replace it in the next rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_FLOOR = -12.0  # log probabilities below it have no further effect
_SHARE = 0.002  # share that is redistributed among candidates before each row
_WALK = 1e-5  # what each coefficient's variance grows by before each row
_OWN = ("temperature", "last label", "label before", "last error", "last log probability")
_VARIANCES = (0.05, 0.25, 0.25, 0.25, 0.05)  # of the coefficients a, d_1, d_2, f, g before any label
_SHIFT_VARIANCE = 0.025
_CANDIDATES = ((1, 0, 0, 0, 0), (1, 1, 0, 1, 0), (1, 1, 1, 1, 1))  # which coefficients move; shifts do in all


class ClassState(NamedTuple):
    """State of the recalibration of classes: past labels, and the probabilities that were predicted for them."""

    # Covariance and mean [P | c] of the coefficients of K candidates, those of the identity last, shape (K, F, F + 1)
    # with F = 5 + C
    moments: Tensor
    log_shares: Tensor  # log shares of the candidates, the identity, and J other forecasts, shape (K + 1 + J,)
    labels: Tensor  # the last label and the one before it, each a vector of probabilities, shape (2, C)
    error: Tensor  # the last label minus its probabilities, shape (C,)
    last: Tensor  # log probabilities of the last row, shape (C,)


def init_classes(num_classes: int, num_others: int, like: Tensor) -> ClassState:
    """The state before any label."""
    moves = like.new_tensor(_CANDIDATES)
    size = moves.shape[-1] + num_classes
    variances = torch.cat([like.new_tensor(_VARIANCES), like.new_full((num_classes,), _SHIFT_VARIANCE)])
    covariance = torch.diag_embed(_moving(moves, num_classes) * variances)
    mean = like.new_zeros(*moves.shape[:1], size, 1)
    mean[:, 0] = 1.0
    even = like.new_full((num_classes,), 1 / num_classes)
    return ClassState(
        torch.cat([covariance, mean], dim=-1),
        like.new_zeros(moves.shape[0] + 1 + num_others).log_softmax(0),
        even.repeat(2, 1),
        torch.zeros_like(even),
        even.log(),
    )


def remember_labels(state: ClassState, y: Tensor) -> ClassState:
    """The state after labels (N,) without predictions, as those of warm-up rows; NaN where missing."""
    num_classes = state.last.shape[0]
    soft = torch.cat([state.labels.flip(0), _soft(y, state.last.new_full((y.shape[0], num_classes), 1 / num_classes))])
    return state._replace(labels=soft[-2:].flip(0), error=torch.zeros_like(state.error))


def predict_classes(state: ClassState, log_prob: Tensor, others: Tensor) -> Tensor:
    """Recalibrated log probabilities of rows that all come next, shape (N, C).

    Shapes: ``others`` (J, N, C).
    """
    num_rows = log_prob.shape[0]
    past = [part.expand(num_rows, -1) for part in (state.labels[0], state.labels[1], state.error, state.last)]
    design = _design(log_prob.clamp_min(_FLOOR), *past)
    latent = torch.einsum("ndf,kf->knd", design, state.moments[..., -1])
    candidates = torch.cat([_log_softmax(latent), log_prob.unsqueeze(0), others])
    return (_shared(state.log_shares)[:, None, None] + candidates).movedim(0, -1).contiguous().logsumexp(-1)


@torch.no_grad()
def update_classes(state: ClassState, log_prob: Tensor, others: Tensor, y: Tensor) -> tuple[ClassState, Tensor]:
    """Learn a block of labels.

    Shapes: ``log_prob`` (B, C), ``others`` (J, B, C), ``y`` (B,); returns the state after it and the recalibrated log
    probabilities (B, C) before each label.
    """
    num_classes = log_prob.shape[-1]
    num_features = state.moments.shape[-2]
    clipped = log_prob.clamp_min(_FLOOR)
    probabilities = log_prob.exp()
    soft = _soft(y, probabilities)
    labels = torch.cat([state.labels.flip(0), soft])
    errors = torch.cat([state.error.unsqueeze(0), soft - probabilities])
    logs = torch.cat([state.last.unsqueeze(0), clipped])
    design = _design(clipped, labels[1:-1], labels[:-2], errors[:-1], logs[:-1])
    moves = _moving(state.moments.new_tensor(_CANDIDATES), num_classes)
    walk = torch.nn.functional.pad(torch.diag_embed(_WALK * moves), (0, 1))
    seen = (~torch.isnan(y)).tolist()
    moments = state.moments
    latents = []
    for row, label, is_seen in zip(design.unbind(), soft[:, 1:].unbind(), seen, strict=True):
        ahead = moments + walk
        joint = row @ ahead
        latents.append(joint[..., num_features])
        if is_seen:
            moments = _learned(ahead, joint, row, label)
    own = moments[..., :num_features]
    moments = torch.cat([0.5 * (own + own.mT), moments[..., num_features:]], dim=-1)  # lest rounding part its halves
    candidates = torch.cat([_log_softmax(torch.stack(latents, dim=1)), log_prob.unsqueeze(0), others])
    place = torch.where(torch.isnan(y), 0.0, y).long().expand(candidates.shape[0], -1).unsqueeze(-1)
    shares, log_shares = _share(state.log_shares, candidates.gather(-1, place).squeeze(-1), seen)
    after = ClassState(moments, shares, labels[-2:].flip(0), errors[-1], logs[-1])
    # The axis of the sum last: then the bits of a row do not depend on the other rows.
    return after, (log_shares.unsqueeze(-1) + candidates).movedim(0, -1).contiguous().logsumexp(-1)


def _learned(ahead: Tensor, joint: Tensor, row: Tensor, label: Tensor) -> Tensor:
    """Moments after a label: one Newton step in its latent vector, in coordinates in which that of class 0 is zero.

    Shapes: ``ahead`` (K, F, F + 1), ``joint`` (K, C - 1, F + 1), ``row`` (C - 1, F), ``label`` (C - 1,).
    """
    cross, latent = joint[..., :-1], joint[..., -1]
    spread = cross @ row.mT
    if latent.shape[-1] == 1:
        chance = latent.sigmoid().unsqueeze(-1)
        curvature = torch.addcmul(chance, chance, chance, value=-1)
        right = torch.cat([curvature * cross, chance - label], dim=-1)
        return torch.addcmul(ahead, cross.mT, right / (1 + curvature * spread), value=-1)
    chances = torch.nn.functional.pad(latent, (1, 0)).softmax(-1)[..., 1:]
    curvature = torch.diag_embed(chances) - chances.unsqueeze(-1) * chances.unsqueeze(-2)
    right = torch.cat([curvature @ cross, (chances - label).unsqueeze(-1)], dim=-1)
    system = torch.diag_embed(torch.ones_like(latent)) + curvature @ spread
    after: Tensor = ahead - cross.mT @ torch.linalg.solve(system, right)
    return after


def _share(log_shares: Tensor, log_prob: Tensor, seen: list[bool]) -> tuple[Tensor, Tensor]:
    """Fixed share over labels of log probabilities (G, B): log shares after them, (G,), and before each, (G, B)."""
    likelihood = (log_prob - log_prob.amax(0)).exp()
    shares = log_shares.exp()
    befores = []
    for given, is_seen in zip(likelihood.unbind(-1), seen, strict=True):
        before = (1 - _SHARE) * shares + _SHARE / len(shares)
        befores.append(before)
        if is_seen:
            shares = before * given
            shares = shares / shares.sum()
    return shares.log(), torch.stack(befores, dim=-1).log()


def _moving(moves: Tensor, num_classes: int) -> Tensor:
    """Which coefficients of each candidate move, one or zero, shape (K, F): shifts always do."""
    return torch.nn.functional.pad(moves, (0, num_classes), value=1.0)


def _soft(y: Tensor, otherwise: Tensor) -> Tensor:
    """Labels (N,) as vectors (N, C), with other vectors where they are missing."""
    missing = torch.isnan(y)
    hard = torch.nn.functional.one_hot(torch.where(missing, 0.0, y).long(), otherwise.shape[-1]).to(otherwise)
    return torch.where(missing.unsqueeze(-1), otherwise, hard)


def _design(predicted: Tensor, last: Tensor, before: Tensor, error: Tensor, past: Tensor) -> Tensor:
    """What the coefficients multiply, class 0 subtracted from each other class, shape (N, C - 1, F); parts (N, C)."""
    parts = torch.stack([predicted, last, before, error, past], dim=-1)
    own = parts[:, 1:] - parts[:, :1]
    num_classes = predicted.shape[-1]
    shifts = torch.nn.functional.pad(torch.eye(num_classes - 1, dtype=predicted.dtype, device=predicted.device), (1, 0))
    shifts[:, 0] = -1.0
    return torch.cat([own, shifts.expand(predicted.shape[0], -1, -1)], dim=-1)


def _log_softmax(contrasts: Tensor) -> Tensor:
    """Log probabilities (..., C) of latent values less that of class 0, (..., C - 1)."""
    return torch.nn.functional.pad(contrasts, (1, 0)).log_softmax(-1)


def _shared(log_shares: Tensor) -> Tensor:
    """Log shares after a small part of them has been redistributed."""
    return ((1 - _SHARE) * log_shares.exp() + _SHARE / len(log_shares)).log()
