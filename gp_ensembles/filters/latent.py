r"""Filters for targets that are not Gaussian: exact in blocks, given the rule that turns a target into a site.

A target informs the weights only through its latent value :math:`z_t = \phi_t^\top \theta_t`. So a block of B targets
is filtered on B numbers, whose joint moments a few matrix products give: one site after the other, with gradient
:math:`a_t` and curvature :math:`W_t`, each moving the latent values of the rows after it. With their covariances
:math:`K_{st}` before target t, the covariances :math:`X_s` of row s with the weights, as they are before target s, are
those before the block times the inverse of a unit lower triangle,

.. math:: X_s + \sum_{t < s} K_{st} W_t X_t = X_s^{(0)}, \qquad
          \mu \leftarrow \mu + \sum_t X_t^\top a_t, \qquad
          \Sigma \leftarrow \Sigma - \sum_t X_t^\top W_t X_t

and the F weights are updated once at the end, as in the Gaussian block filter. Experts that share a likelihood find
their sites together, whatever their features (:func:`find_sites`).

Of C unordered classes a target informs a vector of C latent values. Each class has weights of its own, which are
independent of those of the others given the targets so far, so that a row costs C times as much as one latent value: of
the precision of each site the diagonal is kept (mean field). States have an axis for the classes behind that of the
batch.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.filters.block import BlockGain, apply_gain, predict_covariance, predict_linear
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.sites import SiteRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import (
    Schedule,
    Transition,
    count_steps,
    make_schedule,
    scale_features,
    scale_state,
    split_rows,
    total_walk,
    walk_ahead,
    walk_rows,
)
from gp_ensembles.numerics.derivatives import diagonal_matrix, library_of
from gp_ensembles.numerics.reductions import readable_flags


class LatentBlock(NamedTuple):
    """A block before its targets, in the coordinates of its schedule; (*batch) is (*batch, C) for C classes."""

    cross: Tensor  # cov(z, θ_B), shape (*batch, B, F)
    mean: Tensor  # means of the latent values, shape (*batch, B)
    covariance: Tensor  # their covariance, shape (*batch, B, B); only what is on and right of the diagonal counts
    # Factor from latent values to those of the likelihood, shape (B,) or (*batch, B), without an axis for classes;
    # ``None`` for one
    target_scale: Tensor | None
    drift: Tensor | None  # as in BlockGain


class BlockSites(NamedTuple):
    """Sites of the targets of a block, each given those before it; (*batch) is (*batch, C) for C classes."""

    latent: LatentMoments  # latent values one step ahead
    gradient: Tensor  # shift of the latent mean per unit of covariance, shape (*batch, B)
    curvature: Tensor  # reduction of the covariance, shape (*batch, B)
    # Below its unit diagonal, the triangle that makes covariances before the block of those before each target, shape
    # (*batch, B, B)
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
        design, schedule, own = with_class_axis(rule.num_latent, design, schedule, prior_variance)
        block = latent_block(state, design, schedule, own)
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
    if rule.num_latent == 1:
        none = torch.zeros_like(prior_variance)
        return LatentMoments(*predict_linear(state, Phi, none, transition, prior_variance, steps))
    schedule = make_schedule(transition, 1, prior_variance, steps)
    design, schedule, own = with_class_axis(rule.num_latent, Phi, schedule, prior_variance)
    found = predict_covariance(state, design, torch.zeros_like(own), walk_ahead(schedule))
    mean, variance = (part.mT for part in found)
    mean = mean if schedule.target_scale is None else mean * schedule.target_scale.unsqueeze(-1)
    return LatentMoments(mean, torch.diag_embed(variance))


def with_class_axis(
    num_latent: int, Phi: Tensor, schedule: Schedule, prior_variance: Tensor
) -> tuple[Tensor, Schedule, Tensor]:
    r"""Features in the coordinates of a schedule, the schedule and prior variances; with an axis for classes, if any.

    Shapes: ``Phi`` (\*batch, B, F), ``prior_variance`` (\*batch).
    """
    design = scale_features(Phi, schedule)
    if num_latent == 1:
        return design, schedule, prior_variance
    return design.unsqueeze(-3), schedule.with_class_axis(prior_variance.ndim), prior_variance.unsqueeze(-1)


def latent_block(state: GaussianState, design: Tensor, schedule: Schedule, prior_variance: Tensor) -> LatentBlock:
    """Joint moments of the latent values of a block and the weights after it; see :func:`with_class_axis`."""
    joint, size, drift = design @ state.moments, design.shape[-1], None
    cross, mean = joint[..., :size], joint[..., size]
    if schedule.walk is not None:
        steps = count_steps(design) if schedule.steps is None else schedule.steps
        cross = cross + steps.unsqueeze(-1) * walk_rows(design, schedule.walk, prior_variance)
        drift = total_walk(schedule.walk, steps[..., -1], prior_variance)
    # Row s carries the walk up to s, so covariances with the rows t after it are right.
    return LatentBlock(cross, mean, cross @ design.mT, schedule.target_scale, drift)


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
    xp, num_rows, has_classes = library_of(mean), y.shape[-1], rule.num_latent > 1
    missing, known = xp.isnan(y), None
    if y.ndim == 1:
        known = readable_flags(missing) if isinstance(missing, Tensor) else missing.tolist()
    centers, variances, gradients, curvatures = (xp.zeros_like(mean) for _ in range(4))
    lower = xp.zeros_like(covariance)
    # Below, mean and covariance are of the rows from t on; what is left of the diagonal is not used.
    for t in range(num_rows):
        own, center = covariance[..., 0, 0], mean[..., 0]
        scale = None if target_scale is None else target_scale[..., t]
        scale = scale[..., None] if has_classes and scale is not None else scale
        center = center if scale is None else center * scale
        centers[..., t], variances[..., t] = center, own
        later = covariance[..., 0, 1:]  # cov(z_t, z_s) for the rows s behind it
        covariance, mean = covariance[..., 1:, 1:], mean[..., 1:]
        if known and known[t]:
            continue
        target = y[..., t : t + 1]
        target = target if known else xp.nan_to_num(target)
        if has_classes:
            site = rule.solve(center[..., None, :], diagonal_matrix(own)[..., None, :, :], target)
            gradient, curvature = site.gradient[..., 0, :], _diagonal_curvature(site.curvature[..., 0, :, :], own)
        elif isinstance(center, Tensor):  # parameters of experts have an axis for rows
            gradient, curvature = (part[..., 0] for part in rule.solve(center[..., None], own[..., None], target))
        else:  # numbers next to one another, without an axis of length one: a third of the time
            gradient, curvature = rule.solve(center.copy(), own.copy(), target.item())
        gradient = gradient if scale is None else gradient / scale
        if known is None:
            gone = missing[..., t : t + 1] if has_classes else missing[..., t]
            gradient, curvature = xp.where(gone, 0.0, gradient), xp.where(gone, 0.0, curvature)
        gradients[..., t], curvatures[..., t] = gradient, curvature
        if t + 1 < num_rows:
            learned = curvature[..., None] * later
            lower[..., t + 1 :, t] = learned
            covariance = covariance - later[..., :, None] * learned[..., None, :]
            mean = mean + later * gradient[..., None]
    if has_classes:
        latent = centers.swapaxes(-1, -2), diagonal_matrix(variances.swapaxes(-1, -2))
    else:
        latent = centers, variances
    return latent, gradients, curvatures, lower


def _diagonal_curvature(curvature: Any, variance: Any) -> Any:
    """Reductions of variances (*batch, C) by the diagonal of a site's precision, from its curvature (*batch, C, C)."""
    xp = library_of(curvature)
    system = diagonal_matrix(xp.ones_like(variance)) - curvature * variance[..., None, :]
    precision = xp.diagonal(xp.linalg.solve(system, curvature), 0, -2, -1)
    return precision / (1 + precision * variance)


def latent_gain(block: LatentBlock, sites: BlockSites) -> BlockGain:
    """What the weights learn from a block."""
    cross = block.cross  # cov(z_t, θ_B) before target t, for all t
    if sites.curvature.shape[-1] > 1:
        # Transposed, for then the numbers of a row lie next to one another, as they do before.
        solved = torch.linalg.solve_triangular(sites.lower.mT, cross.mT, upper=True, left=False, unitriangular=True)
        cross = solved.mT
    right = torch.cat([sites.curvature.unsqueeze(-1) * cross, -sites.gradient.unsqueeze(-1)], dim=-1)
    return BlockGain(cross, right, block.drift)
