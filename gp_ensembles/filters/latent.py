r"""Filters for targets that are not Gaussian: exact in blocks, given the rule that turns a target into a site.

A target informs the weights only through its latent value :math:`z_t = \phi_t^\top \theta_t`. So a block of B
targets is filtered on B numbers, whose joint moments two matrix products give: one site after the other, each moving
the latent values of the rows after it. The F weights are updated once at the end, as in the Gaussian block filter.
Experts that share a likelihood find their sites together, whatever their features (:func:`find_sites`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.block import BlockGain, apply_gain, joint_moments, predict_linear
from gp_ensembles.filters.plain_sites import logistic_sites
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.schedule import Schedule, scale_features, scale_state
from gp_ensembles.filters.sites import LaplaceRule, MomentMatchingRule, SiteRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import Transition, make_schedule, split_rows
from gp_ensembles.numerics.reductions import readable_flags

_AT_ONCE = 16  # rows of a block that move one another singly; those after them follow by matrix products


class LatentBlock(NamedTuple):
    r"""A block before its targets, in the coordinates of its schedule.

    Attributes:
        cross: cov(z, \theta_B), shape (\*batch, B, F).
        mean: Means of the latent values, shape (\*batch, B).
        covariance: Their covariance, shape (\*batch, B, B); only what is on and below the diagonal counts.
        target_scale: Factor from latent values to those of the likelihood, shape (B,) or (\*batch, B); ``None`` for
            one.
        drift: As in :class:`~gp_ensembles.filters.block.BlockGain`.
    """

    cross: Tensor
    mean: Tensor
    covariance: Tensor
    target_scale: Tensor | None
    drift: Tensor | None


class BlockSites(NamedTuple):
    r"""Sites of the targets of a block, each given those before it.

    Attributes:
        latent: Latent values one step ahead.
        gradient: Shift of the latent mean per unit of covariance, shape (\*batch, B).
        curvature: Reduction of the covariance, likewise.
        columns: cov(z, z_t) before target t in column t, shape (\*batch, B, B).
    """

    latent: LatentMoments
    gradient: Tensor
    curvature: Tensor
    columns: Tensor


def update_latent(
    state: GaussianState,
    Phi: Tensor,
    rows: Tensor | Rows,
    rule: SiteRule,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn a block of targets, all of each that is not missing; equal to single steps to round-off.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,), ``prior_variance`` (\*batch).
    """
    parts = []
    for design, part in split_rows(Phi, as_rows(rows), transition):
        schedule = make_schedule(transition, design.shape[-2], prior_variance, part.ages)
        gain, latent = condition_latent(state, design, part.y, rule, schedule)
        scaled = scale_state(apply_gain(state, gain), schedule)
        assert isinstance(scaled, GaussianState)
        state = scaled
        parts.append(latent)
    if len(parts) == 1:
        return state, parts[0]
    return state, LatentMoments(*(torch.cat(fields, dim=-1) for fields in zip(*parts, strict=True)))


def predict_latent(
    state: GaussianState,
    Phi: Tensor,
    rule: SiteRule,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> LatentMoments:
    r"""Latent values of rows (..., \*batch, N, F) that all come next; other arguments as in :func:`update_latent`."""
    noiseless = torch.zeros_like(prior_variance)
    return LatentMoments(*predict_linear(state, Phi, noiseless, transition, prior_variance, steps))


def condition_latent(
    state: GaussianState, Phi: Tensor, y: Tensor, rule: SiteRule, schedule: Schedule
) -> tuple[BlockGain, LatentMoments]:
    """Gain of a block, not yet applied to the state, and its latent values one step ahead."""
    block = latent_block(state, Phi, schedule)
    sites = find_sites(block.mean, block.covariance, block.target_scale, y, rule)
    left, right = latent_gain(block.cross, sites)
    return BlockGain(left, right, block.drift), sites.latent


def latent_block(state: GaussianState, Phi: Tensor, schedule: Schedule) -> LatentBlock:
    r"""Joint moments of the latent values of a block and the weights after it; Phi (\*batch, B, F)."""
    batch = state.moments[..., 0, 0]  # any tensor with the batch shape
    design = scale_features(Phi, schedule)
    cross, mean, covariance, drift = joint_moments(state, design, batch, schedule.walk, schedule.steps)
    return LatentBlock(cross, mean, covariance, schedule.target_scale, drift)


def find_sites(mean: Tensor, covariance: Tensor, target_scale: Tensor | None, y: Tensor, rule: SiteRule) -> BlockSites:
    """One site after the other, on the latent values of a block.

    Shapes: ``y`` (B,).
    """
    num_rows = y.shape[-1]
    moments = torch.cat([covariance, mean.unsqueeze(-1)], dim=-1)
    if isinstance(rule, LaplaceRule | MomentMatchingRule) and rule.is_logistic and target_scale is None:
        sites = _on_arrays(moments, y, rule)
        if sites is not None:
            return sites
    parts: list[BlockSites] = []
    for start in range(0, num_rows, _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        scale = None if target_scale is None else target_scale[..., rows]
        sites = _by_rows(moments, scale, y[..., rows], rule)
        own = sites.gradient.shape[-1]
        columns = sites.columns
        if start + own < num_rows:  # the rows after these move as the weights do
            later = _one_after_another(moments[..., own:, :own].mT, sites)
            right = torch.cat([sites.curvature.unsqueeze(-1) * later, -sites.gradient.unsqueeze(-1)], dim=-1)
            moments = moments[..., own:, own:] - later.mT @ right
            columns = torch.cat([columns, later.mT], dim=-2)
        parts.append(sites._replace(columns=torch.nn.functional.pad(columns, (0, 0, start, 0))))
    if len(parts) == 1:
        return parts[0]
    latent = LatentMoments(
        *(torch.cat(fields, dim=-1) for fields in zip(*(part.latent for part in parts), strict=True))
    )
    gradient, curvature, columns = (torch.cat(fields, dim=-1) for fields in list(zip(*parts, strict=True))[1:])
    return BlockSites(latent, gradient, curvature, columns)


def _on_arrays(moments: Tensor, y: Tensor, rule: LaplaceRule | MomentMatchingRule) -> BlockSites | None:
    """Sites of two classes on plain arrays; ``None`` unless numbers are double, in memory and not recorded."""
    is_plain = moments.ndim == 3 and moments.dtype == y.dtype == torch.float64 and moments.is_cpu and y.is_cpu
    if not is_plain or torch.is_grad_enabled():
        return None
    try:
        quadrature = rule.quadrature if isinstance(rule, MomentMatchingRule) else None
        found = logistic_sites(moments.clone().numpy(), y.numpy(), quadrature)
    except RuntimeError:  # inside vmap
        return None
    if found is None:
        return None
    mean, variance, gradient, curvature, columns = (torch.from_numpy(part) for part in found)
    return BlockSites(LatentMoments(mean, variance), gradient, curvature, columns)


def _by_rows(moments: Tensor, target_scale: Tensor | None, y: Tensor, rule: SiteRule) -> BlockSites:
    r"""Sites of the first rows of a block, from the covariance and mean (\*batch, B, B + 1) of its latent values."""
    num_rows = y.shape[-1]
    if moments.shape[-2] > num_rows:
        moments = torch.cat([moments[..., :num_rows, :num_rows], moments[..., :num_rows, -1:]], dim=-1)
    missing = torch.isnan(y)
    known = readable_flags(missing) if y.ndim == 1 else None  # targets of many series are missing at rows of their own
    columns, gradients, curvatures, means, variances = [], [], [], [], []
    for t in range(num_rows):
        column = moments[..., t]
        variance, center = column[..., t : t + 1], moments[..., t, num_rows:]
        scale = None if target_scale is None else target_scale[..., t : t + 1]
        if scale is not None:
            center = center * scale
        if known is None or not known[t]:
            target = y[..., t : t + 1]
            sites = rule.solve(center, variance, target if known else target.nan_to_num(0.0))
            shrink = 1 / (1 + sites.precision * variance)
            curvature = sites.precision * shrink
            gradient = torch.addcmul(sites.shift, sites.precision, center, value=-1) * shrink
            if scale is not None:
                gradient = gradient / scale
            if known is None:
                gone = missing[..., t : t + 1]
                gradient, curvature = (torch.where(gone, 0.0, part) for part in (gradient, curvature))
        else:
            curvature = gradient = torch.zeros_like(center)
        means.append(center)
        variances.append(variance)
        columns.append(column)
        gradients.append(gradient)
        curvatures.append(curvature)
        if t + 1 < num_rows and not (known and known[t]):
            right = torch.cat([curvature * column, -gradient], dim=-1)
            moments = torch.addcmul(moments, column.unsqueeze(-1), right.unsqueeze(-2), value=-1)
    if num_rows == 1:
        return BlockSites(LatentMoments(means[0], variances[0]), gradients[0], curvatures[0], columns[0].unsqueeze(-1))
    latent = LatentMoments(torch.cat(means, dim=-1), torch.cat(variances, dim=-1))
    return BlockSites(latent, torch.cat(gradients, dim=-1), torch.cat(curvatures, dim=-1), torch.stack(columns, dim=-1))


def latent_gain(cross: Tensor, sites: BlockSites) -> tuple[Tensor, Tensor]:
    r"""Rows (\*batch, B + 1, F) and (\*batch, B + 1, F + 1) whose product the moments of the weights lose."""
    cross = _one_after_another(cross, sites)
    size = sites.curvature.abs().sqrt().unsqueeze(-1) * cross
    signed = size * sites.curvature.sign().unsqueeze(-1)
    shift = sites.gradient.unsqueeze(-2) @ cross
    right = torch.nn.functional.pad(signed, (0, 1))
    last = torch.nn.functional.pad(-torch.ones_like(shift[..., :1]), (shift.shape[-1], 0))
    return torch.cat([size, shift], dim=-2), torch.cat([right, last], dim=-2)


def _one_after_another(cross: Tensor, sites: BlockSites) -> Tensor:
    r"""Covariances cov(z_t, .) before the block, (\*batch, B, R), as they are before target t."""
    if cross.shape[-2] == 1:
        return cross
    after: Tensor = torch.linalg.solve_triangular(lower_factor(sites), cross, upper=False, unitriangular=True)
    return after


def lower_factor(sites: BlockSites) -> Tensor:
    """Below its unit diagonal, the triangle that makes covariances before the block of those before each target."""
    return torch.tril(sites.columns * sites.curvature.unsqueeze(-2), diagonal=-1)
