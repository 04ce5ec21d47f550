r"""Filters for targets that are not Gaussian: exact in blocks, given the rule that turns a target into a site.

A target informs the weights only through its latent value :math:`z_t = \phi_t^\top \theta_t`, or through its vector of
C of them, one for each class: classes share their features, and their weights are one vector, class after class. So a
block of B targets is filtered on B C numbers, whose joint moments a few matrix products give: one site after the other,
with gradient :math:`a_t` and curvature :math:`W_t`, each moving the latent values of the rows after it. With their
covariances :math:`K_{st}` before target t, the covariances :math:`X_s` of row s with the weights, as they are before
target s, are those before the block times the inverse of a unit lower triangle,

.. math:: X_s + \sum_{t < s} K_{st} W_t X_t = X_s^{(0)}, \qquad
          \mu \leftarrow \mu + \sum_t X_t^\top a_t, \qquad
          \Sigma \leftarrow \Sigma - \sum_t X_t^\top W_t X_t

and the C F weights are updated once at the end, as in the Gaussian block filter. Experts that share a likelihood find
their sites together, whatever their features (:func:`find_sites`).
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.filters.block import BlockGain, apply_gain, predict_linear
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.sites import SiteRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import (
    Schedule,
    Transition,
    count_steps,
    is_full,
    make_schedule,
    scale_features,
    scale_state,
    split_rows,
    total_walk,
    walk_ahead,
    walk_rows,
)
from gp_ensembles.numerics.derivatives import library_of
from gp_ensembles.numerics.reductions import readable_flags


class LatentBlock(NamedTuple):
    """A block before its targets, in the coordinates of its schedule."""

    cross: Tensor  # cov(z, θ_B), shape (*batch, B C, C F)
    mean: Tensor  # means of the latent values, shape (*batch, B), or (*batch, B, C) for latent vectors
    # Their covariance, shape (*batch, B C, B C); only what is right of the diagonal blocks and in them counts
    covariance: Tensor
    # Factor from latent values to those of the likelihood, shape (B,) or (*batch, B); ``None`` for one
    target_scale: Tensor | None
    drift: Tensor | None  # as in BlockGain


class BlockSites(NamedTuple):
    """Sites of the targets of a block, each given those before it."""

    latent: LatentMoments  # latent values one step ahead
    gradient: Tensor  # shift of the latent mean per unit of covariance, shape (*batch, B C)
    curvature: Tensor  # reduction of the covariance, shape (*batch, B, C, C)
    # Below its unit diagonal, the triangle that makes covariances before the block of those before each target, shape
    # (*batch, B C, B C)
    lower: Tensor


def update_latent(
    state: GaussianState,
    Phi: Tensor,
    rows: Tensor | Rows,
    rule: SiteRule,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn a block of targets, all of each that is not missing; equal to single steps to round-off.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,), ``prior_variance`` (\*batch). Returns: the
    posterior after the block, and the latent values one step ahead.
    """
    parts = []
    for design, part in split_rows(Phi, as_rows(rows), transition):
        schedule = make_schedule(transition, design.shape[-2], prior_variance, part.ages)
        block = latent_block(state, design, schedule, prior_variance)
        sites = find_sites(block.mean, block.covariance, block.target_scale, part.y, rule)
        scaled = scale_state(apply_gain(state, latent_gain(block, sites)), schedule)
        assert isinstance(scaled, GaussianState)
        state = scaled
        parts.append(sites.latent)
    if len(parts) == 1:
        return state, parts[0]
    axis = Phi.ndim - 2
    return state, LatentMoments(*(torch.cat(fields, dim=axis) for fields in zip(*parts, strict=True)))


def predict_latent(
    state: GaussianState,
    Phi: Tensor,
    rule: SiteRule,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> LatentMoments:
    r"""Latent values of rows (\*batch, N, F) that all come next; arguments as in :func:`update_latent`.

    Rows of single latent values may have further axes before those of the batch.
    """
    num_features, size = Phi.shape[-1], state.mean.shape[-1]
    if size == num_features:
        return LatentMoments(
            *predict_linear(state, Phi, torch.zeros_like(prior_variance), transition, prior_variance, steps)
        )
    schedule = make_schedule(transition, 1, prior_variance, steps)
    design, walk = scale_features(Phi, schedule), walk_ahead(schedule)
    shape = *state.mean.shape[:-1], size // num_features, num_features
    mean = design @ state.mean.reshape(shape).mT
    covariance = state.covariance.reshape(*shape, *shape[-2:])
    variance = torch.einsum("...nf,...cfdg,...ng->...ncd", design, covariance, design)
    if walk is not None:  # each class walks by itself
        walked = (walk_rows(design, walk, prior_variance) * design).sum(-1)
        variance = variance + torch.diag_embed(walked.unsqueeze(-1).expand_as(mean))
    return LatentMoments(
        mean if schedule.target_scale is None else mean * schedule.target_scale.unsqueeze(-1), variance
    )


def latent_block(state: GaussianState, Phi: Tensor, schedule: Schedule, like: Tensor) -> LatentBlock:
    r"""Joint moments of the latent values of a block and the weights after it; Phi (\*batch, B, F), like (\*batch)."""
    design = scale_features(Phi, schedule)
    batch_shape, (num_rows, num_features), size = design.shape[:-2], design.shape[-2:], state.moments.shape[-2]
    num_latent = size // num_features
    weights = state.moments.reshape(*batch_shape, num_latent, num_features, size + 1)
    joint = (design.unsqueeze(-3) @ weights).transpose(-3, -2)  # (*batch, B, C, C F + 1)
    cross, mean, drift = joint[..., :size], joint[..., size], None
    cross = cross.reshape(*batch_shape, num_rows, num_latent, num_latent, num_features)
    if schedule.walk is not None:
        steps = count_steps(design) if schedule.steps is None else schedule.steps
        walked = steps.unsqueeze(-1) * walk_rows(design, schedule.walk, like)
        cross = cross + _for_classes(walked.unsqueeze(-2), num_latent)
        drift = total_walk(schedule.walk, steps[..., -1], like)
        drift = _drift(drift, is_full(drift, like), num_latent)
    # Row s carries the walk up to s, so covariances with the rows t after it are right.
    covariance = cross.flatten(-4, -2) @ design.mT
    covariance = covariance.reshape(*batch_shape, num_rows * num_latent, num_latent, num_rows).mT
    total = num_rows * num_latent
    return LatentBlock(
        cross.reshape(*batch_shape, total, size),
        mean.squeeze(-1) if num_latent == 1 else mean,
        covariance.reshape(*batch_shape, total, total),
        schedule.target_scale,
        drift,
    )


def _for_classes(parts: Tensor, num_latent: int) -> Tensor:
    """Numbers (..., 1, F) that each of C classes has by itself, as (..., C, C, F)."""
    classes = torch.diag_embed(parts.new_ones(num_latent))
    return parts.unsqueeze(-2) * classes.unsqueeze(-1)


def _drift(drift: Tensor, is_matrix: bool, num_latent: int) -> Tensor:
    """What the walk adds to the covariance of one class, for all classes."""
    if num_latent == 1 or (not is_matrix and drift.shape[-1] == 1):
        return drift
    if not is_matrix:
        return drift.repeat(*[1] * (drift.ndim - 1), num_latent)
    blocks = _for_classes(drift.unsqueeze(-2), num_latent)  # (*batch, F, C, C, F)
    return blocks.movedim(-4, -3).flatten(-2, -1).flatten(-3, -2)


def find_sites(mean: Tensor, covariance: Tensor, target_scale: Tensor | None, y: Tensor, rule: SiteRule) -> BlockSites:
    r"""One site after the other, on the latent values of a block, as in :class:`LatentBlock`.

    Shapes: ``y`` (B,), or (\*batch, B) with targets missing at rows of their own.
    """
    given = mean, covariance, y, *(() if target_scale is None else (target_scale,))
    is_plain = rule.takes_arrays and y.ndim == 1 and all(v.is_cpu and v.dtype == torch.float64 for v in given)
    if is_plain and not torch.is_grad_enabled():
        try:
            arrays = [part.detach().numpy() for part in given]
        except RuntimeError:  # inside vmap
            arrays = []
        if arrays:
            with np.errstate(over="ignore", invalid="ignore"):  # an expert that fails is found by its predictions
                found = _find_sites(arrays[0], arrays[1], arrays[3] if len(arrays) > 3 else None, arrays[2], rule)
            return BlockSites(LatentMoments(*map(torch.from_numpy, found[0])), *map(torch.from_numpy, found[1:]))
    found = _find_sites(mean, covariance, target_scale, y, rule)
    return BlockSites(LatentMoments(*found[0]), *found[1:])


def _find_sites(mean: Any, covariance: Any, target_scale: Any, y: Any, rule: SiteRule) -> tuple[Any, Any, Any, Any]:
    """The same on tensors or on arrays."""
    xp, num_rows, is_vector = library_of(mean), y.shape[-1], mean.ndim == covariance.ndim
    size = covariance.shape[-1] // num_rows
    missing, known = xp.isnan(y), None
    if y.ndim == 1:
        known = readable_flags(missing) if isinstance(missing, Tensor) else missing.tolist()
    mean = mean.reshape(covariance.shape[:-1])
    centers, gradients, lower = xp.zeros_like(mean), xp.zeros_like(mean), xp.zeros_like(covariance)
    variances = xp.zeros_like(covariance[..., :size]).reshape(*covariance.shape[:-2], num_rows, size, size)
    curvatures = xp.zeros_like(variances)
    # Below, mean and covariance are of the rows from t on; what is left of the diagonal blocks is not used.
    for t in range(num_rows):
        here, behind = slice(t * size, (t + 1) * size), slice((t + 1) * size, None)
        own, center = covariance[..., :size, :size], mean[..., :size]
        scale = None if target_scale is None else target_scale[..., t : t + 1]
        center = center if scale is None else center * scale
        own = 0.5 * (own + own.swapaxes(-1, -2)) if is_vector else own
        centers[..., here], variances[..., t, :, :] = center, own
        later = covariance[..., :size, size:]  # cov(z_t, z_s) for the rows s behind it
        covariance, mean = covariance[..., size:, size:], mean[..., size:]
        if known and known[t]:
            continue
        target = y[..., t : t + 1]
        target = target if known else xp.nan_to_num(target)
        if is_vector:
            site = rule.solve(center[..., None, :], own[..., None, :, :], target)
            gradient, curvature = site.gradient[..., 0, :], site.curvature[..., 0, :, :]
        elif isinstance(center, Tensor):  # parameters of experts have an axis for rows
            site = rule.solve(center, own[..., 0], target)
            gradient, curvature = site.gradient, site.curvature[..., None]
        else:  # numbers next to one another, without an axis of length one: a third of the time
            site = rule.solve(center[..., 0].copy(), own[..., 0, 0].copy(), target.item())
            gradient, curvature = site.gradient[..., None], site.curvature[..., None, None]
        gradient = gradient if scale is None else gradient / scale
        if known is None:
            gone = missing[..., t : t + 1]
            gradient, curvature = xp.where(gone, 0.0, gradient), xp.where(gone[..., None], 0.0, curvature)
        gradients[..., here], curvatures[..., t, :, :] = gradient, curvature
        if t + 1 < num_rows:
            learned, back = _product(curvature, later), later.swapaxes(-1, -2)
            lower[..., behind, here] = learned.swapaxes(-1, -2)
            covariance = covariance - _product(back, learned)
            mean = mean + _product(back, gradient[..., None])[..., 0]
    if is_vector:
        latent = centers.reshape(*centers.shape[:-1], num_rows, size), variances
    else:
        latent = centers, variances[..., 0, 0]
    return latent, gradients, curvatures, lower


def _product(left: Any, right: Any) -> Any:
    """Matrix product; of one column and one row it is not worth a call of BLAS for each expert."""
    return left * right if left.shape[-1] == 1 else left @ right


def latent_gain(block: LatentBlock, sites: BlockSites) -> BlockGain:
    """What the weights learn from a block."""
    cross = block.cross  # cov(z_t, θ_B) before target t, for all t
    if sites.curvature.shape[-3] > 1:
        # Transposed, for then the numbers of a row lie next to one another, as they do before.
        solved = torch.linalg.solve_triangular(sites.lower.mT, cross.mT, upper=True, left=False, unitriangular=True)
        cross = solved.mT
    num_latent = sites.curvature.shape[-1]
    learned = _product(sites.curvature, cross.unflatten(-2, (-1, num_latent))).flatten(-3, -2)
    right = torch.cat([learned, -sites.gradient.unsqueeze(-1)], dim=-1)
    return BlockGain(cross, right, block.drift)
