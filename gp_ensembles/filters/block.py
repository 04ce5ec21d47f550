r"""The exact block filter: B Kalman steps at once, by matrix products.

With the design :math:`\Phi` (B, F) of the block, the state :math:`(\mu, \Sigma)` before it and the random walk
:math:`Q`, the targets of the block and the weights after it are jointly Gaussian:

.. math::
    C &= \Phi \Sigma + \mathrm{diag}(t)\, \Phi Q                              && \mathrm{cov}(y, \theta_B) \\
    K &= \Phi \Sigma \Phi^\top + \min(s, t) \circ \Phi Q \Phi^\top + \sigma^2 I = L L^\top && \mathrm{cov}(y) \\
    W &= L^{-1} C, \qquad e = L^{-1} (y - \Phi \mu)

Row t of :math:`L^{-1}` uses targets up to t only, so its diagonal gives the one-step-ahead predictions: variance
:math:`L_{tt}^2`, mean :math:`y_t - L_{tt} e_t`. Afterwards :math:`\mu \leftarrow \mu + W^\top e` and
:math:`\Sigma \leftarrow \Sigma + B Q - W^\top W`.

The state keeps [Σ | μ] in one tensor, so :math:`\Phi [\Sigma | \mu]` and :math:`L^{-1} [C | \Phi \mu - y] = [W | -e]`
are one product and one triangular solve, and the update of both moments is
:math:`[\Sigma | \mu] - W^\top [W | -e]`.

:func:`update_linear` does so under any transition, in this form or in that of
:mod:`gp_ensembles.filters.square_root`: it rescales the block, filters it, and scales everything back.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.square_root import predict_square_root, update_square_root
from gp_ensembles.filters.states import GaussianState, LinearState, StepPredictions, concatenate_steps
from gp_ensembles.filters.transitions import (
    Transition,
    count_steps,
    make_schedule,
    scale_features,
    scale_state,
    scale_targets,
    split_rows,
    total_walk,
    unscale_steps,
    walk_ahead,
    walk_rows,
    walk_variance,
)
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the predictive covariance of the block"


class BlockGain(NamedTuple):
    """Gain of a block, not yet applied to the state."""

    left: Tensor  # W, shape (*batch, B, F)
    right: Tensor  # [W | -e], shape (*batch, B, F + 1). The moments of the weights lose ``left.mT @ right``
    # Sum of what the walk adds to the covariance: its diagonal (*batch, 1) or (*batch, F), or the matrix (*batch, F,
    # F); ``None`` for static weights. Of many series its diagonal, where steps are uneven that of each, (S, M, F)
    drift: Tensor | None

    def take(self, series: Tensor) -> "BlockGain":
        """That of some of many series, integers."""
        drift = self.drift[series] if self.drift is not None and self.drift.ndim == 3 else self.drift
        return BlockGain(self.left[series], self.right[series], drift)


def condition_block(
    state: GaussianState,
    Phi: Tensor,
    rows: Tensor | Rows,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[BlockGain, StepPredictions]:
    """Predict a block one step ahead and compute its gain; arguments as in :func:`update_covariance`."""
    return condition_joint(*joint_moments(state, Phi, noise, random_walk_variance, steps), rows, noise)


def condition_joint(
    cross: Tensor, mean: Tensor, covariance: Tensor, drift: Tensor | None, rows: Tensor | Rows, noise: Tensor
) -> tuple[BlockGain, StepPredictions]:
    """The same from the results of :func:`joint_moments`."""
    rows = as_rows(rows)
    y = rows.y
    if not rows.is_plain or _any(torch.isnan(y)):
        return _condition_weighted(covariance, cross, mean, rows, noise, drift)
    factor = cholesky(_add_noise(covariance, noise), _WHAT)
    residual = (mean - y).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, torch.cat([cross, residual], dim=-1), upper=False)
    scale = factor.diagonal(dim1=-2, dim2=-1)
    predictions = StepPredictions(y + scale * whitened[..., -1], scale.square(), _log_prob(whitened[..., -1], scale))
    return BlockGain(whitened[..., :-1], whitened, drift), predictions


def joint_moments(
    state: GaussianState, Phi: Tensor, noise: Tensor, walk: Tensor | None, steps: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    r"""Moments of the latent values :math:`z_t = \phi_t^\top \theta_t` of a block and of the weights after it.

    Returns: cov(z, θ_B), shape (\*batch, B, F); the mean of z, (\*batch, B); cov(z), (\*batch, B, B); and the drift
    as in :class:`BlockGain`.
    """
    num_features = Phi.shape[-1]
    joint = Phi @ state.moments  # [Φ Σ | Φ μ]
    cross, covariance, drift = joint_covariance(joint[..., :num_features], Phi, noise, walk, steps)
    return cross, joint[..., num_features], covariance, drift


def joint_covariance(
    cross: Tensor, Phi: Tensor, noise: Tensor, walk: Tensor | None, steps: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""cov(z, θ_B), cov(z) and the drift, as in :func:`joint_moments`, from Φ Σ (\*batch, B, F)."""
    drift = None
    if walk is not None:
        steps = count_steps(Phi) if steps is None else steps
        cross = cross + steps.unsqueeze(-1) * walk_rows(Phi, walk, noise)
        drift = total_walk(walk, steps[..., -1], noise)
    # Row s of C carries the walk up to s, and min(s, t) = s on and above the diagonal of C Φᵀ.
    upper = cross @ Phi.mT
    return cross, torch.triu(upper) + torch.triu(upper, diagonal=1).mT, drift


def _condition_weighted(
    covariance: Tensor, cross: Tensor, mean: Tensor, rows: Rows, noise: Tensor, drift: Tensor | None
) -> tuple[BlockGain, StepPredictions]:
    """The same where some targets are missing or count in part: they are predicted as they are."""
    y, own = rows.y, noise.unsqueeze(-1)
    seen = (~torch.isnan(y)).to(mean.dtype).expand_as(mean)
    roots = rows.root_weights(noise)
    root = seen if roots is None else seen * roots
    residual = torch.where(seen > 0, mean - y, 0.0)
    masked = covariance * root.unsqueeze(-1) * root.unsqueeze(-2)
    factor = cholesky(_add_noise(masked, noise), _WHAT)
    right = torch.cat([cross, residual.unsqueeze(-1)], dim=-1) * root.unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, right, upper=False)
    # Column t above the diagonal: how row t, all of it, depends on what counted of the targets before it.
    past = torch.linalg.solve_triangular(factor, covariance * root.unsqueeze(-1), upper=False)
    past = torch.triu(past, diagonal=1)
    variance = covariance.diagonal(dim1=-2, dim2=-1) + own - past.square().sum(-2)
    scale = factor.diagonal(dim1=-2, dim2=-1)
    variance = torch.where(root == 1, scale.square(), variance if rows.extra is None else variance + rows.extra)
    predicted = mean - torch.triu(past * whitened[..., -1:], diagonal=1).sum(-2)  # infinite ones are of later rows only
    # Zero where there is no target: nothing times NaN would be its derivative.
    error = whitened[..., -1] if roots is None else torch.where(seen > 0, y - predicted, 0.0) / variance.sqrt()
    log_prob = torch.where(seen > 0, _log_prob(error, variance.sqrt()), torch.nan)
    return BlockGain(whitened[..., :-1], whitened, drift), StepPredictions(predicted, variance, log_prob)


def apply_gain(state: GaussianState, gain: BlockGain) -> GaussianState:
    """The posterior after the block, as a new state."""
    moments = state.moments - gain.left.mT @ gain.right
    if gain.drift is not None:
        full = gain.drift.ndim == moments.ndim
        spread = gain.drift if full else torch.diag_embed(gain.drift.expand_as(moments[..., 0]))
        moments = moments + torch.nn.functional.pad(spread, (0, 1))
    return GaussianState(moments)


def update_covariance(
    state: GaussianState,
    Phi: Tensor,
    rows: Tensor | Rows,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[GaussianState, StepPredictions]:
    r"""Predict and learn a block of targets; equal to single steps to round-off.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,) or (\*batch, B), ``noise`` (\*batch),
    ``random_walk_variance`` (\*batch, 1) or (\*batch, F), ``steps`` since the state (B,) or (\*batch, B).
    """
    gain, predictions = condition_block(state, Phi, rows, noise, random_walk_variance, steps)
    return apply_gain(state, gain), predictions


def predict_covariance(
    state: GaussianState, Phi: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Predict targets one step ahead, each on its own, learning nothing.

    Shapes: ``Phi`` (..., \*batch, N, F), ``noise`` (\*batch).
    """
    joint = Phi @ state.moments
    variance = (joint[..., :-1] * Phi).sum(-1) + noise.unsqueeze(-1)
    if random_walk_variance is not None:
        variance = variance + walk_variance(Phi, random_walk_variance, noise)
    return joint[..., -1], variance


def update_linear(
    state: LinearState,
    Phi: Tensor,
    rows: Tensor | Rows,
    noise: Tensor,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[LinearState, StepPredictions]:
    r"""Predict and learn a block of targets with weights that change.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,) or (\*batch, B), ``noise`` (\*batch),
    ``prior_variance`` (\*batch); returns (\*batch, B).
    """
    parts = []
    for design, part in split_rows(Phi, as_rows(rows), transition):
        schedule = make_schedule(transition, design.shape[-2], prior_variance, part.ages)
        design, scaled = scale_features(design, schedule), part._replace(y=scale_targets(part.y, schedule))
        steps: StepPredictions
        if isinstance(state, GaussianState):
            state, steps = update_covariance(state, design, scaled, noise, schedule.walk, schedule.steps)
        else:
            state, steps = update_square_root(state, design, scaled, noise, schedule.walk, schedule.steps)
        state = scale_state(state, schedule)
        parts.append(unscale_steps(steps, part.y, schedule))
    return state, concatenate_steps(parts)


def predict_linear(
    state: LinearState,
    Phi: Tensor,
    noise: Tensor,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Predict rows that all come next, each on its own, learning nothing; arguments as in :func:`update_linear`.

    Shapes: ``Phi`` (..., \*batch, N, F), ``noise`` (\*batch), ``prior_variance`` (\*batch), ``steps`` to each (1,).
    """
    schedule = make_schedule(transition, 1, prior_variance, steps)
    design, walk = scale_features(Phi, schedule), walk_ahead(schedule)
    if isinstance(state, GaussianState):
        mean, variance = predict_covariance(state, design, noise, walk)
    else:
        mean, variance = predict_square_root(state, design, noise, walk)
    return mean if schedule.target_scale is None else mean * schedule.target_scale, variance


def predict_steps(state: LinearState, Phi: Tensor, *arguments: Any) -> StepPredictions:
    """:func:`predict_linear` as predictions of rows without a target."""
    mean, variance = predict_linear(state, Phi, *arguments)
    return StepPredictions(mean, variance, torch.full_like(mean, torch.nan))


def predict_joint_linear(
    state: LinearState, Phi: Tensor, noise: Tensor, transition: Transition | None, prior_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Joint prediction of rows that all come next; arguments as in :func:`predict_linear`."""
    schedule = make_schedule(transition, 1, prior_variance)
    design, walk = scale_features(Phi, schedule), walk_ahead(schedule)
    covariance = design @ state.covariance @ design.mT
    if walk is not None:
        covariance = covariance + walk_rows(design, walk, noise) @ design.mT
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(-1))
    mean = (design @ state.mean.unsqueeze(-1)).squeeze(-1)
    return mean if schedule.target_scale is None else mean * schedule.target_scale, covariance


def _add_noise(covariance: Tensor, noise: Tensor) -> Tensor:
    return covariance + torch.diag_embed(noise.unsqueeze(-1).expand(covariance.shape[:-1]))


def _log_prob(whitened: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * whitened.square() - scale.log() - 0.5 * math.log(2 * math.pi)


def _any(mask: Tensor) -> bool:
    try:
        return bool(mask.any())
    except RuntimeError:  # values cannot be read inside vmap or on the meta device: the general path is right
        return True
