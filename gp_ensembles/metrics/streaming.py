"""Scores that accumulate over a stream: state in, state out, the same for any blocking.

States are named tuples of float64 scalars whatever the dtype of the data, so that long sums do not round;
``state._asdict()`` is a dictionary of tensors for a checkpoint and ``State(**dictionary)`` reads it back.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.metrics.scores import covered, crps_mixture, pit
from gp_ensembles.numerics import mixtures, normal
from gp_ensembles.numerics.display import prints_fields


@prints_fields
class StreamScores(NamedTuple):
    """All scores of a stream of mixture predictions so far; see :class:`ScoreSummary`."""

    num_rows: Tensor  # rows seen, missing targets included
    num_scored: Tensor  # observed targets
    log_prob: Tensor  # sum of the mixture's log densities
    gaussian_log_prob: Tensor  # sum of the moment-matched normal's log densities
    crps: Tensor  # sum of the mixture's CRPS
    covered: Tensor  # number of targets inside the central interval
    absolute_error: Tensor  # sum of absolute errors
    squared_error: Tensor  # sum of squared errors
    squared_z: Tensor  # sum of squared standardized errors
    target_mean: Tensor  # mean of the observed targets
    target_deviation: Tensor  # sum of their squared deviations from it


@prints_fields
class ScoreSummary(NamedTuple):
    """Averages over the observed targets of a stream, each a float64 scalar; NaN before the first."""

    log_score: Tensor  # mean log density of the full mixture, nats per row
    log_score_gaussian: Tensor  # mean log density of the moment-matched normal, nats per row
    crps: Tensor  # mean CRPS of the mixture, units of the target
    coverage: Tensor  # share of targets inside the central interval
    mean_absolute_error: Tensor  # units of the target
    nmse: Tensor  # squared error over the variance of the targets, dimensionless; NaN where all are the same
    mean_squared_z: Tensor  # mean squared standardized error; 1 is right


def init_scores(like: Tensor) -> StreamScores:
    """Empty scores on the device of ``like``.

    Example:
        >>> init_scores(torch.zeros(1)).num_rows
        tensor(0., dtype=torch.float64)
    """
    zero = like.new_zeros((), dtype=torch.float64)
    return StreamScores(*[zero] * len(StreamScores._fields))


def update_scores(
    state: StreamScores, y: Tensor, log_weights: Tensor, mean: Tensor, variance: Tensor, *, level: float = 0.9
) -> StreamScores:
    """Score a block of mixture predictions, skipping rows with a missing target.

    Args:
        state: The state before the block.
        y: Targets, shape (B,); NaN is missing.
        log_weights: Log weights before each target, shape (M, B) or (M, 1).
        mean: The experts' means, shape (M, B).
        variance: The experts' variances, noise included, shape (M, B).
        level: Level of the central interval whose coverage is counted; keep it the same over a stream.

    Example:
        >>> y, one = torch.tensor([0.0, torch.nan]), torch.ones(1, 2)
        >>> scores = update_scores(init_scores(y), y, 0 * one, 0 * one, one)
        >>> summarize(scores).crps.item(), scores.num_scored.item()
        (0.2336..., 1.0)
    """
    y, log_weights, mean, variance = (tensor.double() for tensor in (y, log_weights, mean, variance))
    center, spread = mixtures.moments(log_weights, mean, variance)
    log_prob = mixtures.log_prob(log_weights, mean, variance, y)
    crps = crps_mixture(log_weights, mean, variance, y)
    inside = covered(pit(log_weights, mean, variance, y), level)
    return count_scores(state, y, center, spread, log_prob, crps, inside)


def count_scores(
    state: StreamScores, y: Tensor, mean: Tensor, variance: Tensor, log_prob: Tensor, crps: Tensor, inside: Tensor
) -> StreamScores:
    """Count a block of predictions that have been scored row by row, skipping rows with a missing target.

    Shapes: ``y`` (B,), ``mean`` (B,), ``variance`` (B,), ``log_prob`` (B,), ``crps`` (B,), ``inside`` (B,), which is
    whether the target lies in the central interval.
    """
    seen = ~torch.isnan(y)
    error = y - mean
    moments = _merge_moments(state.num_scored, state.target_mean, state.target_deviation, y, seen)
    return StreamScores(
        num_rows=state.num_rows + y.shape[0],
        num_scored=moments[0],
        log_prob=state.log_prob + observed_sum(log_prob, seen),
        gaussian_log_prob=state.gaussian_log_prob + observed_sum(normal.log_prob(y, mean, variance), seen),
        crps=state.crps + observed_sum(crps, seen),
        covered=state.covered + observed_sum(inside, seen),
        absolute_error=state.absolute_error + observed_sum(error.abs(), seen),
        squared_error=state.squared_error + observed_sum(error.square(), seen),
        squared_z=state.squared_z + observed_sum(error.square() / variance, seen),
        target_mean=moments[1],
        target_deviation=moments[2],
    )


def summarize(state: StreamScores) -> ScoreSummary:
    """Averages of the scores so far.

    Example:
        >>> one = torch.ones(1, 1)
        >>> scores = update_scores(init_scores(one), one[0], 0 * one, 0 * one, one)
        >>> summarize(scores).mean_absolute_error
        tensor(1., dtype=torch.float64)
    """
    count = state.num_scored
    # Targets that are all the same have the variance of round-off.
    least = count * (torch.finfo(torch.float64).eps * state.target_mean).square()
    deviation = torch.where(state.target_deviation > least, state.target_deviation, torch.nan)
    return ScoreSummary(
        log_score=state.log_prob / count,
        log_score_gaussian=state.gaussian_log_prob / count,
        crps=state.crps / count,
        coverage=state.covered / count,
        mean_absolute_error=state.absolute_error / count,
        nmse=state.squared_error / deviation,
        mean_squared_z=state.squared_z / count,
    )


def observed_sum(score: Tensor, seen: Tensor) -> Tensor:
    """Sum of a score (B,) over the rows ``seen`` (B,)."""
    return torch.where(seen, score.double(), 0.0).sum()


def _merge_moments(
    count: Tensor, mean: Tensor, deviation: Tensor, y: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations with a block added (Chan, Golub and LeVeque 1983); it may be empty."""
    values = y.double()
    num = seen.sum().double()
    block_mean = observed_sum(values, seen) / num.clamp(min=1)
    block_deviation = observed_sum((values - block_mean).square(), seen)
    after = count + num
    shift = torch.where(num > 0, block_mean - mean, 0.0)
    share = num / after.clamp(min=1)
    return after, mean + shift * share, deviation + block_deviation + shift.square() * count * share
