"""Raker on intervals of every dyadic length, combined: the rival that follows changes."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures
from studies.ie_gp.raker import (
    PENALTIES,
    SQUARED,
    Loss,
    RakerSettings,
    RakerState,
    check_rows,
    descend_,
    least,
    run_rows,
)

_MOST_STEP = 0.5


class AdaRakerState(NamedTuple):
    r"""What the instances have learned, one for each length 1, 2, 4, ... of intervals.

    Attributes:
        raker: Their weights (\*batch, J, M, F) and the log weights of their kernels (\*batch, J, M).
        log_shares: Unnormalized log weights of the instances, shape (\*batch, J).
        num_rows: Rows so far.
    """

    raker: RakerState
    log_shares: Tensor
    num_rows: int


class AdaRakerSettings(NamedTuple):
    r"""How it learns; entries of a batch learn side by side.

    Attributes:
        penalty: Strength of the penalty on the weights' squared norm, shape (\*batch).
        keeps: Whether an instance goes on from what it learned where its next interval begins, as in the authors'
            published program; in the paper it restarts.
    """

    penalty: Tensor
    keeps: bool = False


def init_adaraker(Phi: Tensor, settings: AdaRakerSettings, num_rows: int) -> AdaRakerState:
    """The state before a stream of so many rows, for features (M, B, F) of the kind of ``Phi``."""
    shape = (*settings.penalty.shape, num_rows.bit_length(), Phi.shape[0], Phi.shape[-1])
    return AdaRakerState(RakerState(Phi.new_zeros(shape), Phi.new_zeros(shape[:-1])), Phi.new_zeros(shape[:-2]), 0)


@torch.no_grad()
def run_adaraker(
    state: AdaRakerState, Phi: Tensor, y: Tensor, settings: AdaRakerSettings, loss: Loss = SQUARED
) -> tuple[AdaRakerState, Tensor]:
    r"""Predict each target, then learn: the algorithm AdaRaker of Shen, Chen and Giannakis (2019), section 4.

    Row t = 1, 2, ... lies in one interval :math:`[k 2^j, (k + 1) 2^j - 1]`, :math:`k \ge 1`, for each j with
    :math:`2^j \le t`. An instance of Raker with the step :math:`\eta_j = \min(1/2, 2^{-j/2})` runs in each of them.
    The share of an instance is :math:`h_j = \eta_j` where its interval begins, and

    .. math::
        \hat y_t = \sum_j \bar h_{j,t} \hat y_{j,t}, \quad
        h_{j,t+1} = h_{j,t} \exp \bigl(\eta_j (\ell(\hat y_t, y_t) - \ell(\hat y_{j,t}, y_t)) \bigr).

    Args:
        state: State before the rows, see :func:`init_adaraker`.
        Phi: Features of each kernel, shape (M, B, F).
        y: Targets, shape (B,); NaN where missing, from which nothing is learned.
        settings: Penalties, shape (\*batch).
        loss: See :func:`~studies.ie_gp.raker.run_raker`.

    Returns:
        The state after the rows, and the predictions made before each target, shape (\*batch, B).

    Raises:
        ValueError: If the shapes do not fit, or there are more rows than the state has room for.

    Example:
        >>> Phi = torch.ones(1, 3, 1, dtype=torch.float64, device="cpu")
        >>> settings = AdaRakerSettings(Phi.new_tensor(0.0))
        >>> state, mean = run_adaraker(init_adaraker(Phi, settings, 3), Phi, Phi.new_ones(3), settings)
        >>> mean  # in row 3 one instance restarts, the other has learned all of row 2
        tensor([0.0000, 0.0000, 0.5000], dtype=torch.float64)
    """
    check_rows(Phi, y)
    levels = state.log_shares.shape[-1]
    if (state.num_rows + len(y)).bit_length() > levels:
        raise ValueError(f"the state has room for {2**levels - 1} rows, got {state.num_rows + len(y)}")
    weights, log_weights, log_shares = (part.clone() for part in (*state.raker, state.log_shares))
    steps = Phi.new_tensor([min(_MOST_STEP, 2 ** (-0.5 * j)) for j in range(levels)])
    penalty = settings.penalty.unsqueeze(-1).expand(log_shares.shape)
    means, missing = [], torch.isnan(y).tolist()
    for t, features in enumerate(Phi.unbind(1)):
        row = state.num_rows + t + 1
        num_restarted, active = (row & -row).bit_length(), row.bit_length()
        log_shares[..., :num_restarted] = steps[:num_restarted].log()
        if not settings.keeps:
            weights[..., :num_restarted, :, :], log_weights[..., :num_restarted, :] = 0.0, 0.0
        running = RakerState(weights[..., :active, :, :], log_weights[..., :active, :])
        values = (running.weights * features).sum(-1)
        each = (running.log_weights.softmax(-1) * values).sum(-1)
        mean = (log_shares[..., :active].softmax(-1) * each).sum(-1)
        means.append(mean)
        if missing[t]:
            continue
        gain = loss.value(mean, y[t]).unsqueeze(-1) - loss.value(each, y[t])
        log_shares[..., :active] += steps[:active] * gain
        own = RakerSettings(steps[:active].expand_as(each), penalty[..., :active])
        descend_(running, features, values, y[t], own, loss)
    after = AdaRakerState(RakerState(weights, log_weights), log_shares, state.num_rows + len(y))
    return after, torch.stack(means, -1)


def tuned_adaraker(
    features: BoundFeatures, X: Tensor, y: Tensor, num_rows: int, loss: Loss = SQUARED, *, keeps: bool = False
) -> tuple[AdaRakerState, AdaRakerSettings]:
    """The penalty that predicts the warm-up rows X (N, D) and y (N,) best, and what was learned from them with it.

    Arguments as in :func:`~studies.ie_gp.raker.tuned_raker`; steps need not be chosen.
    """
    penalties = X.new_tensor(PENALTIES)
    settings = AdaRakerSettings(penalties, keeps)
    run = partial(run_adaraker, settings=settings, loss=loss)
    state, mean = run_rows(run, init_adaraker(features(X[:1]), settings, num_rows), features, X, y)
    best = least(mean, y, loss)
    raker = RakerState(state.raker.weights[best], state.raker.log_weights[best])
    return AdaRakerState(raker, state.log_shares[best], state.num_rows), AdaRakerSettings(penalties[best], keeps)
