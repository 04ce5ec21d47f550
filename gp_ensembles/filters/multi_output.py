r"""The block filter for several outputs that share features and covariance.

With outputs that are independent given the features and have one prior and one noise, the posterior covariance does not
depend on the targets, so all outputs share it and differ in their means only. That ends where outputs are missing in
different rows: outputs with the same history of gaps are a *group* with one covariance, and a row that is observed for
only some outputs of a group splits it. So every result is exact, and the cost grows with the number of groups only.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.block import joint_covariance
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import MultiOutputState, StepPredictions, concatenate_steps
from gp_ensembles.filters.transitions import (
    Schedule,
    Transition,
    make_schedule,
    scale_features,
    split_rows,
    walk_ahead,
    walk_variance,
)
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the predictive covariance of the block"


class MultiOutputNoise(NamedTuple):
    r"""Noise and scale of several outputs.

    Attributes:
        noise: Observation noise variance of an output of scale one, shape (\*batch).
        scale: Scale of each output, shape (\*batch, O); weights and noise are in units of it.

    Example:
        >>> import torch
        >>> MultiOutputNoise(torch.tensor(0.1), torch.ones(3)).scale
        tensor([1., 1., 1.])
    """

    noise: Tensor
    scale: Tensor


class GroupGain(NamedTuple):
    """Gain of a block for one group of outputs."""

    outputs: Tensor  # which outputs, shape (K,)
    source: int  # number of the group they come from
    whitened: Tensor  # W, shape (*batch, B, F)
    error: Tensor  # e, shape (*batch, B, K)
    drift: Tensor | None  # sum of what the walk adds to the covariance, as in BlockGain


def multi_output_state(prior_variance: Tensor, num_features: int, num_outputs: int) -> MultiOutputState:
    r"""State before any data: all outputs in one group.

    There is room for as many covariances as outputs; those of groups that do not exist yet are zero.

    Args:
        prior_variance: Prior variance of each weight, shape (\*batch).
        num_features: Number of features F.
        num_outputs: Number of outputs O.

    Example:
        >>> import torch
        >>> state = multi_output_state(torch.tensor(2.0), 3, 7)
        >>> state.covariance.shape, state.mean.shape, state.group
        (torch.Size([7, 3, 3]), torch.Size([7, 3]), tensor([0, 0, 0, 0, 0, 0, 0]))
    """
    batch_shape = prior_variance.shape
    first = torch.diag_embed(prior_variance.unsqueeze(-1).expand(*batch_shape, num_features)).unsqueeze(0)
    rest = first.new_zeros(num_outputs - 1, *batch_shape, num_features, num_features)
    mean = first.new_zeros(*batch_shape, num_outputs, num_features)
    group = torch.zeros(num_outputs, dtype=torch.int64, device=first.device)
    return MultiOutputState(torch.cat([first, rest]), mean, group)


def update_multi_output(
    state: MultiOutputState,
    Phi: Tensor,
    rows: Tensor | Rows,
    noise: MultiOutputNoise,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[MultiOutputState, StepPredictions]:
    r"""Predict and learn a block of targets; equal to one filter for each output to round-off.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B, O), ``prior_variance`` (\*batch). Returns: the
    posterior after the block, and the predictions made before each row, mean and variance (\*batch, B, O), joint log
    density of what was observed (\*batch, B), NaN where nothing was.
    """
    parts = []
    rows = as_rows(rows)
    for design, part in split_rows(Phi, rows._replace(y=rows.y.mT), transition):
        schedule = make_schedule(transition, design.shape[-2], prior_variance, part.ages)
        gains, steps = condition_multi_output(state, design, part.y.mT, noise, schedule)
        state = apply_gains(state, gains, schedule)
        parts.append(steps)
    return state, concatenate_steps(parts)


def predict_multi_output(
    state: MultiOutputState,
    Phi: Tensor,
    noise: MultiOutputNoise,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> StepPredictions:
    r"""Mean and variance, each (\*batch, N, O), of rows (\*batch, N, F) that all come next."""
    schedule = make_schedule(transition, 1, prior_variance, steps)
    design, walk = scale_features(Phi, schedule), walk_ahead(schedule)
    unit_noise, scale = noise
    mean = design @ state.mean.mT
    if schedule.target_scale is not None:
        mean = mean * schedule.target_scale.unsqueeze(-1)
    columns = []
    for group in range(num_groups(state)):
        variance = ((design @ state.covariance[group]) * design).sum(-1) + unit_noise.unsqueeze(-1)
        if walk is not None:
            variance = variance + walk_variance(design, walk, unit_noise)
        columns.append(variance)
    variance = torch.stack(columns, dim=-1)[..., state.group]
    mean, variance = mean * scale.unsqueeze(-2), variance * scale.square().unsqueeze(-2)
    return StepPredictions(mean, variance, torch.full_like(mean[..., 0], torch.nan))


def num_groups(state: MultiOutputState) -> int:
    """Number of groups of outputs that share a covariance."""
    return int(state.group.max()) + 1


def condition_multi_output(
    state: MultiOutputState, Phi: Tensor, y: Tensor, noise: MultiOutputNoise, schedule: Schedule
) -> tuple[list[GroupGain], StepPredictions]:
    """Predict a block one step ahead and compute the gain of each group; the state is not touched."""
    gains, means, variances, order = [], [], [], []
    missing = torch.isnan(y)
    log_prob = torch.zeros_like(Phi[..., 0])
    for outputs, source in _groups(state.group, missing):
        seen = ~missing[:, outputs[0]]
        moments = state.covariance[source], state.mean[..., outputs, :]
        own = noise.scale[..., outputs].unsqueeze(-2)
        gain, mean, variance, density = _learn(moments, Phi, y[:, outputs] / own, seen, noise.noise, schedule)
        gains.append(gain._replace(outputs=outputs, source=source))
        means.append(mean * own)
        variances.append(variance.unsqueeze(-1) * own.square())
        order.append(outputs)
        log_prob = log_prob + torch.where(seen, density - own.log().sum(-1), 0.0)
    log_prob = torch.where(missing.all(-1), torch.nan, log_prob)
    if len(order) == 1:
        return gains, StepPredictions(means[0], variances[0], log_prob)
    back = torch.cat(order).argsort()
    mean, variance = torch.cat(means, dim=-1)[..., back], torch.cat(variances, dim=-1)[..., back]
    return gains, StepPredictions(mean, variance, log_prob)


def apply_gains(state: MultiOutputState, gains: list[GroupGain], schedule: Schedule) -> MultiOutputState:
    """The posterior after the block, as a new state."""
    mean, group = state.mean.clone(), state.group.clone()
    covariances = []
    for number, gain in enumerate(gains):
        covariance = state.covariance[gain.source] - gain.whitened.mT @ gain.whitened
        if gain.drift is not None:
            full = gain.drift.ndim == covariance.ndim
            spread = gain.drift if full else torch.diag_embed(gain.drift.expand_as(covariance[..., 0]))
            covariance = covariance + spread
        if schedule.covariance_scale is not None:
            covariance = covariance * schedule.covariance_scale[..., None, None]
        covariances.append(covariance)
        mean = mean.index_add(-2, gain.outputs, gain.error.mT @ gain.whitened)
        group = group.index_fill(0, gain.outputs, number)
    if schedule.mean_scale is not None:
        mean = mean * schedule.mean_scale[..., None, None]
    return MultiOutputState(torch.cat([torch.stack(covariances), state.covariance[len(gains) :]]), mean, group)


def apply_gains_(state: MultiOutputState, gains: list[GroupGain], schedule: Schedule) -> None:
    """The same in place, where no group has split."""
    for gain in gains:
        covariance = state.covariance[gain.source]
        if covariance.ndim == 3:
            covariance.baddbmm_(gain.whitened.mT, gain.whitened, alpha=-1.0)
        else:
            covariance -= gain.whitened.mT @ gain.whitened
        if gain.drift is not None:
            full = gain.drift.ndim == covariance.ndim
            (covariance if full else covariance.diagonal(dim1=-2, dim2=-1)).add_(gain.drift)
        if schedule.covariance_scale is not None:
            covariance *= schedule.covariance_scale[..., None, None]
        state.mean.index_add_(state.mean.ndim - 2, gain.outputs, gain.error.mT @ gain.whitened)
    if schedule.mean_scale is not None:
        state.mean.mul_(schedule.mean_scale[..., None, None])


def _groups(group: Tensor, missing: Tensor) -> list[tuple[Tensor, int]]:
    """Outputs that share a covariance and their gaps in this block, with the group they come from."""
    if not bool(missing.any()):
        number = int(group.max()) + 1
        if number == 1:
            return [(torch.arange(group.shape[0], device=group.device), 0)]
        return [((group == g).nonzero().squeeze(-1), g) for g in range(number)]
    members: dict[tuple[object, ...], list[int]] = {}
    for output, (source, gaps) in enumerate(zip(group.tolist(), missing.mT.tolist(), strict=True)):
        members.setdefault((source, *gaps), []).append(output)
    return [
        (torch.tensor(found, dtype=group.dtype, device=group.device), int(group[found[0]]))
        for found in members.values()
    ]


def _learn(
    moments: tuple[Tensor, Tensor], Phi: Tensor, y: Tensor, seen: Tensor, noise: Tensor, schedule: Schedule
) -> tuple[GroupGain, Tensor, Tensor, Tensor]:
    r"""One group: gain, predictive mean (\*batch, B, K) and variance (\*batch, B), joint log density (\*batch, B)."""
    before, means = moments
    design = scale_features(Phi, schedule)
    targets = y if schedule.target_scale is None else y / schedule.target_scale.unsqueeze(-1)
    mean = design @ means.mT
    cross, covariance, drift = joint_covariance(design @ before, design, noise, schedule.walk, schedule.steps)
    has_gaps = not bool(seen.all())
    mask = seen.to(mean.dtype)
    residual, learned, right = targets - mean, covariance, cross
    if has_gaps:
        residual = torch.where(seen.unsqueeze(-1), residual, 0.0)
        learned = covariance * mask.unsqueeze(-1) * mask
        right = cross * mask.unsqueeze(-1)
    lower = cholesky(learned + torch.diag_embed(noise.unsqueeze(-1).expand_as(mean[..., 0])), _WHAT)
    both = torch.cat([right, residual], dim=-1)
    whitened, error = torch.linalg.solve_triangular(lower, both, upper=False).tensor_split([cross.shape[-1]], dim=-1)
    scale = lower.diagonal(dim1=-2, dim2=-1)
    variance, predicted = scale.square(), targets - scale.unsqueeze(-1) * error
    if has_gaps:
        past = torch.linalg.solve_triangular(lower, covariance * mask.unsqueeze(-1), upper=False)
        past = torch.triu(past, diagonal=1)
        unseen = covariance.diagonal(dim1=-2, dim2=-1) + noise.unsqueeze(-1) - past.square().sum(-2)
        variance = torch.where(seen, variance, unseen)
        predicted = torch.where(seen.unsqueeze(-1), predicted, mean + past.mT @ error)
    if schedule.target_scale is not None:
        predicted = predicted * schedule.target_scale.unsqueeze(-1)
    if has_gaps or schedule.target_scale is not None:
        deviation = torch.where(seen.unsqueeze(-1), y - predicted, 0.0)
        density = -0.5 * deviation.square().sum(-1) / variance
    else:
        density = -0.5 * error.square().sum(-1)
    density = density - 0.5 * y.shape[-1] * (variance.log() + math.log(2 * math.pi))
    gain = GroupGain(seen, 0, whitened, error, drift)
    return gain, predicted, variance, density
