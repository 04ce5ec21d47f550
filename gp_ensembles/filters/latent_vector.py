r"""Filters for targets with a vector of latent values, one for each of C classes that share their features.

The weights of all classes are one vector, class after class, so the state is that of C F weights. With the latent
values :math:`z_c = \phi^\top \theta_c` normal before a target, mean m and covariance S, a rule gives the gradient a and
the curvature W (C by C) of the target's site, and

.. math:: \mu \leftarrow \mu + G a, \qquad \Sigma \leftarrow \Sigma - G W G^\top, \qquad G = \mathrm{cov}(\theta, z)

A block of B targets is filtered on its B C latent values, as in :mod:`gp_ensembles.filters.latent`: each target moves
those of the rows after it. With their covariances :math:`K_{st}` before target t, the covariances :math:`X_s` of row s
with the weights, as they are before target s, are those before the block times the inverse of a unit lower triangle,

.. math:: X_s + \sum_{t < s} K_{st} W_t X_t = X_s^{(0)}

and the C F weights are updated once at the end.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.schedule import (
    Schedule,
    as_matrix,
    count_steps,
    scale_features,
    scale_state,
    total_walk,
    walk_ahead,
    walk_rows,
)
from gp_ensembles.filters.sites import VectorRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import Transition, make_schedule, split_rows


class _Sites(NamedTuple):
    """What the targets of a block teach: (*batch, B C), (*batch, B, C, C), and below its diagonal the unit triangle."""

    gradient: Tensor
    curvature: Tensor
    lower: Tensor


def update_latent_vector(
    state: GaussianState,
    Phi: Tensor,
    rows: Tensor | Rows,
    rule: VectorRule,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn a block of targets, all of each that is not missing; equal to single steps to round-off.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,), ``prior_variance`` (\*batch). Returns: the
    posterior after the block, and the latent vectors one step ahead, with mean (\*batch, B, C) and covariance
    (\*batch, B, C, C).
    """
    parts = []
    for design, part in split_rows(Phi, as_rows(rows), transition):
        schedule = make_schedule(transition, design.shape[-2], prior_variance, part.ages)
        state, latent = _update(state, design, part.y, rule, schedule, prior_variance)
        parts.append(latent)
    axis = Phi.ndim - 2
    return state, LatentMoments(*(torch.cat(fields, dim=axis) for fields in zip(*parts, strict=True)))


def _update(
    state: GaussianState, Phi: Tensor, y: Tensor, rule: VectorRule, schedule: Schedule, like: Tensor
) -> tuple[GaussianState, LatentMoments]:
    design = scale_features(Phi, schedule)
    batch_shape, (num_rows, num_features) = design.shape[:-2], design.shape[-2:]
    size = state.moments.shape[-2]
    num_latent = size // num_features
    weights = state.moments.reshape(*batch_shape, num_latent, num_features, size + 1)
    joint = (design.unsqueeze(-3) @ weights).transpose(-3, -2)  # (*batch, B, C, C F + 1)
    cross, mean = joint[..., :size], joint[..., size]
    cross = cross.reshape(*batch_shape, num_rows, num_latent, num_latent, num_features)
    drift = None
    if schedule.walk is not None:
        steps = count_steps(design) if schedule.steps is None else schedule.steps
        walked = steps.unsqueeze(-1) * walk_rows(design, schedule.walk, like)
        classes = torch.diag_embed(torch.ones_like(mean[..., 0, :]))  # each walks by itself
        cross = cross + walked[..., :, None, None, :] * classes[..., None, :, :, None]
        drift = _kron(classes, as_matrix(total_walk(schedule.walk, steps[..., -1], like), like, num_features))
    # Row s carries the walk up to s, so covariances with the rows t after it are right, and the others follow.
    covariance = torch.einsum("...scdf,...tf->...sctd", cross, design)
    shape = (*batch_shape, num_rows * num_latent, num_rows * num_latent)
    latent, sites = _find_sites(mean, _mirrored(covariance.reshape(shape), num_latent), schedule, y, rule)
    flat = cross.reshape(*batch_shape, num_rows * num_latent, size)
    if num_rows > 1:
        flat = torch.linalg.solve_triangular(sites.lower, flat, upper=False, unitriangular=True)
    learned = sites.curvature @ flat.reshape(*batch_shape, num_rows, num_latent, size)
    right = torch.cat([learned.flatten(-3, -2), -sites.gradient.unsqueeze(-1)], dim=-1)
    moments = _less_product(state.moments, flat, right)
    if drift is not None:
        moments = moments + torch.nn.functional.pad(drift, (0, 1))
    scaled = scale_state(GaussianState(moments), schedule)
    assert isinstance(scaled, GaussianState)
    return scaled, latent


def _less_product(moments: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""Moments (\*batch, R, C) less ``left.mT @ right``, in one pass over their memory."""
    if moments.ndim != 3:
        return moments - left.mT @ right
    return torch.baddbmm(moments, left.mT, right, alpha=-1.0)


def _mirrored(covariance: Tensor, num_latent: int) -> Tensor:
    """A symmetric matrix from its blocks of C rows on and above the diagonal."""
    size = covariance.shape[-1]
    place = torch.arange(size, device=covariance.device) // num_latent
    return torch.where(place.unsqueeze(-1) <= place, covariance, covariance.mT)


def _find_sites(
    mean: Tensor, covariance: Tensor, schedule: Schedule, y: Tensor, rule: VectorRule
) -> tuple[LatentMoments, _Sites]:
    """One site after the other, on latent values of mean (*batch, B, C) and covariance (*batch, B C, B C)."""
    num_rows, num_latent = mean.shape[-2:]
    seen, scales = (~torch.isnan(y)).tolist(), schedule.target_scale
    means, variances, gradients, curvatures, columns = [], [], [], [], []
    moments = torch.cat([covariance, mean.flatten(-2).unsqueeze(-1)], dim=-1)  # of the rows from t on
    for t in range(num_rows):
        own = moments[..., :num_latent, :num_latent]
        variance, center = 0.5 * (own + own.mT), moments[..., :num_latent, -1]
        scale = None if scales is None else scales[..., t].unsqueeze(-1)
        center = center if scale is None else center * scale
        means.append(center)
        variances.append(variance)
        later = moments[..., :num_latent, num_latent:-1]  # cov(z_t, z_s) for the rows s behind it
        if seen[t]:
            gradient, curvature = rule.solve(center, variance, y[t])
            gradient = gradient if scale is None else gradient / scale
        else:
            gradient, curvature = torch.zeros_like(center), torch.zeros_like(variance)
        gradients.append(gradient)
        curvatures.append(curvature)
        moments = moments[..., num_latent:, num_latent:]
        if t + 1 < num_rows:
            columns.append(torch.nn.functional.pad(later.mT @ curvature, (0, 0, (t + 1) * num_latent, 0)))
            if seen[t]:
                right = torch.cat([curvature @ later, -gradient.unsqueeze(-1)], dim=-1)
                moments = moments - later.mT @ right
    columns.append(torch.zeros_like(covariance[..., :num_latent]))
    latent = LatentMoments(torch.stack(means, dim=-2), torch.stack(variances, dim=-3))
    lower = torch.cat(columns, dim=-1)
    return latent, _Sites(torch.cat(gradients, dim=-1), torch.stack(curvatures, dim=-3), lower)


def predict_latent_vector(
    state: GaussianState,
    Phi: Tensor,
    rule: VectorRule,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> LatentMoments:
    r"""Latent vectors of rows (\*batch, N, F) that all come next; arguments as in :func:`update_latent_vector`."""
    num_features = Phi.shape[-1]
    schedule = make_schedule(transition, 1, prior_variance, steps)
    walk = walk_ahead(schedule)
    design = scale_features(Phi, schedule)
    num_latent = state.mean.shape[-1] // num_features
    batch_shape = state.mean.shape[:-1]
    mean = design @ state.mean.reshape(*batch_shape, num_latent, num_features).mT
    covariance = state.covariance
    if walk is not None:
        classes = torch.diag_embed(torch.ones_like(state.mean[..., :num_latent]))
        covariance = covariance + _kron(classes, as_matrix(walk, prior_variance, num_features))
    blocks = covariance.reshape(*batch_shape, num_latent, num_features, num_latent, num_features)
    variance = torch.einsum("...nf,...cfdg,...ng->...ncd", design, blocks, design)
    scale = schedule.target_scale
    return LatentMoments(mean if scale is None else mean * scale.unsqueeze(-1), variance)


def _kron(left: Tensor, right: Tensor) -> Tensor:
    """Kronecker product of the last two axes."""
    product = left[..., :, None, :, None] * right[..., None, :, None, :]
    size = left.shape[-1] * right.shape[-1]
    return product.reshape(*product.shape[:-4], size, size)
