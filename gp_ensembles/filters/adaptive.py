"""The Gaussian filters under any adaptation: rescale the block, filter it, scale everything back."""

import torch
from torch import Tensor

from gp_ensembles.filters import dispatch
from gp_ensembles.filters.adaptation import Adaptation, Schedule
from gp_ensembles.filters.states import GaussianState, LinearState, SquareRootState, StepPredictions, concatenate_steps
from gp_ensembles.numerics import normal


def update_block(
    state: LinearState,
    Phi: Tensor,
    y: Tensor,
    noise: Tensor,
    adaptation: Adaptation | None,
    prior_variance: Tensor,
) -> tuple[LinearState, StepPredictions]:
    r"""Predict and learn a block of targets with weights that change.

    Args:
        state: Posterior before the block.
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,); NaN where missing.
        noise: Observation noise variance, shape (\*batch).
        adaptation: How the weights change before every row; ``None`` for static weights.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        The posterior after the block, and the predictions made before each target, each (\*batch, B).

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.forgetting import ExponentialForgetting
        >>> from gp_ensembles.filters.states import gaussian_state
        >>> one = torch.ones((), dtype=torch.float64)
        >>> Phi, y = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> _, steps = update_block(gaussian_state(one, 1), Phi, y, one, ExponentialForgetting(0.5), one)
        >>> steps.variance
        tensor([3.0000], dtype=torch.float64)
    """
    if adaptation is None:
        return dispatch.update_block(state, Phi, y, noise)
    parts = []
    for rows, targets in split_rows(Phi, y, adaptation):
        schedule = adaptation.schedule(rows.shape[-2], prior_variance)
        design, scaled = scale_rows(rows, targets, schedule)
        state, steps = dispatch.update_block(state, design, scaled, noise, schedule.walk, schedule.steps)
        state = scale_state(state, schedule)
        parts.append(unscale_steps(steps, targets, schedule))
    return state, concatenate_steps(parts)


def predict(
    state: LinearState, Phi: Tensor, noise: Tensor, adaptation: Adaptation | None, prior_variance: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Predict each target one step ahead on its own, learning nothing; arguments as in :func:`update_block`.

    Args:
        state: Posterior of the weights.
        Phi: Features, shape (..., \*batch, N, F).
        noise: Observation noise variance, shape (\*batch).
        adaptation: One step of it precedes the prediction.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        Mean and variance (noise included), each (..., \*batch, N).
    """
    if adaptation is None:
        return dispatch.predict(state, Phi, noise)
    schedule = adaptation.schedule(1, prior_variance)
    mean, variance = dispatch.predict(state, scale_ahead(Phi, schedule), noise, walk_ahead(schedule))
    return mean if schedule.target_scale is None else mean * schedule.target_scale, variance


def predict_joint(
    state: LinearState, Phi: Tensor, noise: Tensor, adaptation: Adaptation | None, prior_variance: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Joint prediction of several targets at the next step; arguments as in :func:`predict`.

    Returns:
        Mean (..., \*batch, N) and covariance (..., \*batch, N, N), noise included.
    """
    if adaptation is None:
        return dispatch.predict_joint(state, Phi, noise)
    schedule = adaptation.schedule(1, prior_variance)
    mean, covariance = dispatch.predict_joint(state, scale_ahead(Phi, schedule), noise, walk_ahead(schedule))
    return mean if schedule.target_scale is None else mean * schedule.target_scale, covariance


def split_rows(Phi: Tensor, y: Tensor, adaptation: Adaptation | None) -> list[tuple[Tensor, Tensor]]:
    r"""The block in pieces that are short enough for the adaptation; Phi (\*batch, B, F), y (..., B)."""
    limit = None if adaptation is None else adaptation.max_rows
    if limit is None or Phi.shape[-2] <= limit:
        return [(Phi, y)]
    return list(zip(Phi.split(limit, dim=-2), y.split(limit, dim=-1), strict=True))


def scale_rows(Phi: Tensor, y: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
    r"""Features (\*batch, B, F) and targets, (B,) or (\*batch, B), in the coordinates of a schedule."""
    design = Phi if schedule.row_scale is None else Phi * schedule.row_scale.unsqueeze(-1)
    return design, y if schedule.target_scale is None else y / schedule.target_scale


def scale_ahead(Phi: Tensor, schedule: Schedule) -> Tensor:
    r"""Features (..., \*batch, N, F) of rows that all come next, in the coordinates of a schedule of one row."""
    return Phi if schedule.row_scale is None else Phi * schedule.row_scale.unsqueeze(-1)


def walk_ahead(schedule: Schedule) -> Tensor | None:
    """What a schedule of one row adds to the covariance, in the form of its walk."""
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
    log_prob = normal.log_prob(y, mean, steps.variance)
    return steps._replace(mean=mean, log_prob=torch.where(torch.isnan(y), 0.0, log_prob))
