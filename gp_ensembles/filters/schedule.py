"""Any transition over a block as a random walk in rescaled coordinates."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.states import GaussianState, LinearState, SquareRootState, StepPredictions
from gp_ensembles.numerics import normal


class Schedule(NamedTuple):
    """A block of B rows in coordinates in which the weights only walk at random."""

    row_scale: Tensor | None = None  # α, shape (B,) or (*batch, B)
    target_scale: Tensor | None = None  # ρ, shape (B,) or (*batch, B)
    walk: Tensor | None = None  # Q: its diagonal (*batch, 1) or (*batch, F), or the matrix (*batch, F, F)
    steps: Tensor | None = None  # steps of the walk before each row, (B,) or (*batch, B); ``None`` for 1, 2, ..., B
    mean_scale: Tensor | None = None  # scale of the mean after the block, shape () or (*batch)
    covariance_scale: Tensor | None = None  # scale of the covariance after the block, shape () or (*batch)


def count_steps(Phi: Tensor) -> Tensor:
    """One step of the walk before every row: 1, 2, ..., B."""
    return torch.arange(1, Phi.shape[-2] + 1, dtype=Phi.dtype, device=Phi.device)


def is_full(walk: Tensor, noise: Tensor) -> bool:
    r"""Whether a walk is a matrix (\*batch, F, F) and not a diagonal (\*batch, 1) or (\*batch, F)."""
    return walk.ndim == noise.ndim + 2


def walk_rows(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""The product :math:`\Phi Q`, shape (..., \*batch, N, F).

    Shapes: ``walk`` (\*batch, 1) or (\*batch, F), ``noise`` (\*batch).
    """
    return Phi @ walk if is_full(walk, noise) else Phi * walk.unsqueeze(-2)


def walk_variance(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""Variance that one step of the walk adds to each row, :math:`\phi^\top Q \phi`, (..., \*batch, N)."""
    return (walk_rows(Phi, walk, noise) * Phi).sum(-1)


def total_walk(walk: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    r"""Q times the number of steps, shape () or (\*batch), in the form that Q has."""
    missing = walk.ndim - steps.ndim
    return walk * steps.reshape(*steps.shape, *[1] * missing)


def scale_features(Phi: Tensor, schedule: Schedule) -> Tensor:
    r"""Features (..., \*batch, N, F) in the coordinates of a schedule: of N rows, or of one for N alternatives."""
    return Phi if schedule.row_scale is None else Phi * schedule.row_scale.unsqueeze(-1)


def scale_targets(y: Tensor, schedule: Schedule) -> Tensor:
    r"""Targets, (B,) or (\*batch, B), in the coordinates of a schedule."""
    return y if schedule.target_scale is None else y / schedule.target_scale


def walk_ahead(schedule: Schedule) -> Tensor | None:
    """Covariance that a schedule of one row adds, in the form of its walk."""
    if schedule.walk is None or schedule.steps is None:
        return schedule.walk
    count = schedule.steps.squeeze(-1)
    return schedule.walk * count.reshape(*count.shape, *[1] * (schedule.walk.ndim - count.ndim))


def scale_state(state: LinearState, schedule: Schedule) -> LinearState:
    """The state after a block, back in the coordinates of the weights."""
    if schedule.mean_scale is None and schedule.covariance_scale is None:
        return state
    ones = state.mean.new_ones(())
    mean_scale = ones if schedule.mean_scale is None else schedule.mean_scale
    covariance_scale = ones if schedule.covariance_scale is None else schedule.covariance_scale
    if isinstance(state, SquareRootState):
        factor = state.factor * covariance_scale.sqrt()[..., None, None]
        return SquareRootState(state.mean * mean_scale.unsqueeze(-1), factor)
    return GaussianState(state.moments * moment_scales(state.moments, mean_scale, covariance_scale))


def moment_scales(moments: Tensor, mean_scale: Tensor, covariance_scale: Tensor) -> Tensor:
    r"""Factors for [Σ | μ], shape (\*batch, 1, F + 1)."""
    num_features = moments.shape[-2]
    batch_shape = moments.shape[:-2]
    spread = covariance_scale.expand(batch_shape).unsqueeze(-1).expand(*batch_shape, num_features)
    return torch.cat([spread, mean_scale.expand(batch_shape).unsqueeze(-1)], dim=-1).unsqueeze(-2)


def unscale_steps(steps: StepPredictions, y: Tensor, schedule: Schedule) -> StepPredictions:
    r"""Predictions of the scaled targets as predictions of the targets y, (B,) or (\*batch, B)."""
    if schedule.target_scale is None:
        return steps
    mean = steps.mean * schedule.target_scale
    missing = torch.isnan(y)
    log_prob = normal.log_prob(torch.where(missing, mean, y), mean, steps.variance)
    return steps._replace(mean=mean, log_prob=torch.where(missing, torch.nan, log_prob))
