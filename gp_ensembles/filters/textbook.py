"""The Kalman filter one target at a time: the reference for every other form."""

import math

import torch
from torch import Tensor

from gp_ensembles.filters.states import GaussianState, StepPredictions, concatenate_steps


def textbook_step(
    state: GaussianState, phi: Tensor, y: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[GaussianState, StepPredictions]:
    r"""Predict one target, then learn it: recursive Bayesian linear regression.

    (Lu et al. 2022, equations 23, 26 and 27; Waxman and Djuric 2024, equations 8 to 11.)

    .. math::
        \Sigma &\leftarrow \Sigma + Q, \qquad m = \phi^\top \mu, \qquad v = \phi^\top \Sigma \phi + \sigma^2 \\
        \mu &\leftarrow \mu + \Sigma \phi (y - m) / v, \qquad
        \Sigma \leftarrow \Sigma - \Sigma \phi \phi^\top \Sigma / v

    Shapes: ``phi`` (\*batch, F), ``y`` (\*batch), ``noise`` (\*batch), ``random_walk_variance`` (\*batch, 1) or
    (\*batch, F).
    """
    mean, covariance = state.mean, state.covariance
    if random_walk_variance is not None:
        covariance = covariance + torch.diag_embed(random_walk_variance.expand_as(mean))
    cross = (covariance @ phi.unsqueeze(-1)).squeeze(-1)
    predicted = (phi * mean).sum(-1)
    variance = (phi * cross).sum(-1) + noise
    missing = torch.isnan(y)
    error = torch.where(missing, 0.0, y - predicted)
    log_prob = -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi))
    log_prob = torch.where(missing, torch.nan, log_prob)
    gain = torch.where(missing, 0.0, 1 / variance).unsqueeze(-1) * cross
    mean = mean + gain * error.unsqueeze(-1)
    covariance = covariance - gain.unsqueeze(-1) * cross.unsqueeze(-2)
    step = StepPredictions(predicted.unsqueeze(-1), variance.unsqueeze(-1), log_prob.unsqueeze(-1))
    return GaussianState(torch.cat([covariance, mean.unsqueeze(-1)], dim=-1)), step


def textbook_filter(
    state: GaussianState, Phi: Tensor, y: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[GaussianState, StepPredictions]:
    r"""Run :func:`textbook_step` over a block of targets.

    Args:
        state: Posterior before the block.
        Phi: Features in the order of time, shape (\*batch, B, F).
        y: Targets, shape (B,) or (\*batch, B); NaN where missing.
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: Diagonal of Q, shape (\*batch, 1) or (\*batch, F), of the walk before every row; ``None``
            for static weights.

    Returns:
        The posterior after the block, and the predictions made before each target, shape (\*batch, B).
    """
    steps: list[StepPredictions] = []
    for t in range(Phi.shape[-2]):
        state, step = textbook_step(state, Phi[..., t, :], y[..., t], noise, random_walk_variance)
        steps.append(step)
    return state, concatenate_steps(steps)
