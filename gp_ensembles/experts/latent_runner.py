"""Runner of experts with likelihoods: features and weights of each expert object, the sites of all of them together.

The likelihood of a target depends on its latent value only. So the experts of an ensemble that share a likelihood find
their modes at once, as one batch of numbers, whatever their bases and sizes, instead of in as many small searches.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Runner, of_length
from gp_ensembles.filters.latent import BlockSites, LatentBlock, find_sites, lower_factor
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.schedule import Schedule, count_steps, is_full, moment_scales, scale_features
from gp_ensembles.filters.sites import SiteRule
from gp_ensembles.filters.states import GaussianState, LatentMoments, LatentPredictions
from gp_ensembles.filters.transitions import make_schedule
from gp_ensembles.likelihoods.predictive import Predictive
from gp_ensembles.numerics.gpytorch_types import Likelihood


class LatentGroup(NamedTuple):
    """Experts of one or more objects that share a likelihood.

    Attributes:
        likelihood: The likelihood, of batch shape (M,) or none.
        rule: Gives the site of each target.
        predictive: Computes predictions of targets.
    """

    likelihood: Likelihood
    rule: SiteRule
    predictive: Predictive


def stage_latent(
    group: LatentGroup, runners: Sequence["LatentRunner"], features: Sequence[Tensor], rows: Rows
) -> LatentPredictions:
    r"""Predict a block with all objects of a group; states are not touched.

    Shapes: ``features`` (\*batch, B, F); returns (M, B).
    """
    y = rows.y
    blocks = [runner.look(Phi, rows.ages) for runner, Phi in zip(runners, features, strict=True)]
    mean, covariance = torch.cat([block.mean for block in blocks]), torch.cat([block.covariance for block in blocks])
    scale = None
    if any(block.target_scale is not None for block in blocks):
        scale = torch.cat([_scale(block) for block in blocks])
    sites = find_sites(mean, covariance, scale, y, group.rule)
    lower = lower_factor(sites)
    start = 0
    for runner, block in zip(runners, blocks, strict=True):
        own = slice(start, start + block.mean.shape[0])
        start = own.stop
        runner.keep(block, sites, lower, own)
    return latent_predictions(group.predictive, group.likelihood, sites.latent, y)


class _Scratch:
    """Schedule and scratch memory of blocks of one length."""

    def __init__(self, bound: BoundExpert, moments: Tensor, num_rows: int, ages: Tensor | None = None) -> None:
        num_experts, num_features = moments.shape[:2]
        prior_variance = bound.prior_variance.detach()
        self.schedule: Schedule = make_schedule(bound.transition, num_rows, prior_variance, ages)
        self.design_shape = torch.Size([num_experts, num_rows, num_features])
        self.joint = moments.new_empty(num_experts, num_rows, num_features + 1)
        self.left = moments.new_empty(num_experts, num_rows + 1, num_features)
        self.right = moments.new_zeros(num_experts, num_rows + 1, num_features + 1)
        self.right[:, -1, -1] = -1.0
        self.walk: Tensor | None = None  # the diagonal of Q times the steps, or Q
        self.steps: Tensor | None = None  # if Q is a matrix
        self.drift: Tensor | None = None
        walk = self.schedule.walk
        if walk is not None:
            steps = count_steps(self.joint) if self.schedule.steps is None else self.schedule.steps.detach()
            steps = steps.expand(*prior_variance.shape, num_rows).reshape(num_experts, num_rows, 1)
            flat = walk.detach().reshape(num_experts, *walk.shape[prior_variance.ndim :])
            if is_full(walk, prior_variance):
                self.walk, self.steps, self.drift = flat, steps, steps[:, -1:] * flat
            else:
                self.walk, self.drift = steps * flat.unsqueeze(1), steps[:, -1] * flat
        scales = self.schedule.mean_scale, self.schedule.covariance_scale
        self.scales: Tensor | None = None
        if scales != (None, None):
            one = moments.new_ones(())
            mean_scale, covariance_scale = (one if scale is None else scale for scale in scales)
            like = moments.reshape(*prior_variance.shape, *moments.shape[1:])
            self.scales = moment_scales(like, mean_scale, covariance_scale)


class LatentRunner(Runner):
    """A batch of experts with a likelihood of one latent value, its state changed in place."""

    def __init__(self, bound: BoundExpert, state: GaussianState, alone: LatentGroup) -> None:
        self._bound = bound
        self._state = state
        self._alone = alone
        num_features = state.moments.shape[-2]
        self._shape = state.moments.shape
        self._batch_shape = bound.prior_variance.shape
        self._moments = state.moments.view(-1, num_features, num_features + 1)
        self._prepared: dict[int, _Scratch] = {}
        self._looked: _Scratch | None = None
        self._staged: _Scratch | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> LatentPredictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        steps = stage_latent(self._alone, [self], [Phi], rows)
        return LatentPredictions(*(part.reshape(*self._batch_shape, *part.shape[1:]) for part in steps))

    def look(self, Phi: Tensor, ages: Tensor | None = None) -> LatentBlock:
        r"""Moments of the latent values of a block of features (\*batch, B, F), the batch as one axis."""
        scratch = self._scratch(Phi.shape[-2], ages)
        self._looked, self._staged = scratch, None
        design = scale_features(Phi, scratch.schedule).reshape(scratch.design_shape)
        joint = torch.bmm(design, self._moments, out=scratch.joint)
        cross = joint[..., :-1]
        if scratch.walk is not None:
            if scratch.steps is None:
                cross.addcmul_(design, scratch.walk)
            else:
                cross.addcmul_(design @ scratch.walk, scratch.steps)
        # Row s of the cross-covariance carries the walk up to s: right on and below the diagonal.
        return LatentBlock(cross, joint[..., -1], torch.bmm(design, cross.mT), scratch.schedule.target_scale, None)

    def keep(self, block: LatentBlock, sites: BlockSites, lower: Tensor, rows: slice) -> None:
        """Keep the update of these experts, ``rows`` among the sites and ``lower`` (M, B, B), until :meth:`commit`."""
        num_rows = block.mean.shape[-1]
        scratch = self._looked
        assert scratch is not None
        curvature, gradient, cross = sites.curvature[rows].unsqueeze(-1), sites.gradient[rows], block.cross
        if num_rows > 1:  # cov(z_t, θ_B) before target t, for all t
            cross = torch.linalg.solve_triangular(lower[rows], cross, upper=False, unitriangular=True)
        left, right = scratch.left, scratch.right
        torch.mul(cross, curvature.abs().sqrt(), out=left[:, :-1])
        torch.mul(left[:, :-1], curvature.sign(), out=right[:, :-1, :-1])
        left[:, -1:] = gradient.unsqueeze(-2) @ cross
        self._staged = scratch

    def _scratch(self, num_rows: int, ages: Tensor | None) -> _Scratch:
        if ages is not None:
            return _Scratch(self._bound, self._moments, num_rows, ages)
        return of_length(self._prepared, num_rows, partial(_Scratch, self._bound, self._moments))

    def commit(self) -> None:
        """Learn the staged block."""
        scratch = self._staged
        if scratch is None:
            return
        self._moments.baddbmm_(scratch.left.mT, scratch.right, alpha=-1.0)
        if scratch.drift is not None:
            covariance = self._moments[..., :-1]
            (covariance.diagonal(dim1=-2, dim2=-1) if scratch.steps is None else covariance).add_(scratch.drift)
        if scratch.scales is not None:
            self._moments.view(self._shape).mul_(scratch.scales)
        self._staged = None


def _scale(block: LatentBlock) -> Tensor:
    if block.target_scale is None:
        return torch.ones_like(block.mean)
    return (
        block.target_scale.expand(block.mean.shape)
        if block.target_scale.ndim == 1
        else block.target_scale.reshape(block.mean.shape)
    )


def latent_predictions(
    predictive: Predictive, likelihood: Likelihood, moments: LatentMoments, y: Tensor
) -> LatentPredictions:
    r"""Predictions of targets (B,), NaN where missing, from latent values one step ahead (\*batch, B)."""
    seen = ~torch.isnan(y)
    if bool(seen.all()):
        mean, variance, log_prob = predictive.assess(likelihood, *moments, y)
        return LatentPredictions(mean, variance, log_prob, *moments)
    filled = torch.where(seen, y, y[seen][0] if bool(seen.any()) else 0.0)
    mean, variance, log_prob = predictive.assess(likelihood, *moments, filled)
    return LatentPredictions(mean, variance, torch.where(seen, log_prob, torch.nan), *moments)
