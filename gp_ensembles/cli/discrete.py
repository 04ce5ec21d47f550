"""Predictions of classes, levels and counts as rows of plain numbers, and their scores."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.counts import PoissonCounts
from gp_ensembles.distributions.latent_mixture import LatentMixture
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.metrics.discrete import (
    ClassScores,
    ranked_probability_of_counts,
    ranked_probability_of_poisson,
    ranked_probability_score,
    update_class_scores,
)
from gp_ensembles.metrics.streaming import RowScores, StreamScores, count_scores


class DiscreteRows(NamedTuple):
    """Predictions of a block of discrete targets, each made before its target; float64, on the host.

    Attributes:
        mean: Mean of the target, shape (B,): the probability of class 1 of two, the mean level or count; the most
            probable class where classes have no order.
        variance: Variance of the target, shape (B,); NaN where classes have no order.
        lower: 5 % quantile, shape (B,); NaN where classes have no order.
        upper: 95 % quantile, shape (B,); NaN where classes have no order.
        log_prob: Log probability of the target, shape (B,); NaN where it is missing.
        crps: Ranked probability score, shape (B,); NaN where the target is missing or classes have no order.
        probabilities: Probabilities of the classes, shape (B, C); C is zero for counts.
    """

    mean: Tensor
    variance: Tensor
    lower: Tensor
    upper: Tensor
    log_prob: Tensor
    crps: Tensor
    probabilities: Tensor


def rows_of_classes(probabilities: Tensor, log_prob: Tensor, y: Tensor, *, is_ordered: bool) -> DiscreteRows:
    """Rows from class probabilities (B, C) and the log probabilities of the targets (B,)."""
    if not is_ordered:
        nothing = torch.full_like(y, torch.nan)
        best = probabilities.argmax(-1).to(y.dtype)
        return DiscreteRows(best, nothing, nothing, nothing, log_prob, nothing, probabilities)
    numbers = torch.arange(probabilities.shape[-1], dtype=y.dtype, device=y.device)
    mean = (probabilities * numbers).sum(-1)
    variance = (probabilities * (numbers - mean.unsqueeze(-1)).square()).sum(-1)
    cdf = probabilities.cumsum(-1)
    lower, upper = ((cdf < level - 1e-12).sum(-1).to(y.dtype) for level in (0.05, 0.95))
    crps = ranked_probability_score(cdf, y)
    return DiscreteRows(mean, variance, lower, upper, log_prob, crps, probabilities)


def rows_of_mixture(mixture: LatentMixture, y: Tensor, block_size: int | None = None) -> DiscreteRows:
    """Rows from an ensemble's mixture; y (B,) has its dtype and device."""
    if block_size is not None:
        parts = torch.arange(y.shape[0], device=y.device).split(block_size)
        blocks = [rows_of_mixture(mixture.take(part), y[part]) for part in parts]
        return DiscreteRows(*(torch.cat(field) for field in zip(*blocks, strict=True)))
    likelihood = mixture.responses[0].likelihood
    if num_classes(likelihood) is not None:
        probabilities, log_prob = mixture.class_probabilities.double().cpu(), mixture.log_prob(y).double().cpu()
        is_ordered = not isinstance(likelihood, MulticlassLikelihood)
        return rows_of_classes(probabilities, log_prob, y.double().cpu(), is_ordered=is_ordered)
    mean, variance = mixture.moments()
    counts = mixture.counts()
    lower, upper = counts.quantile(y.new_tensor([[0.05], [0.95]]).expand(-1, y.shape[0]))
    crps = ranked_probability_of_counts(counts.cdf, counts.reach, y.double(), counts.lower, counts.upper)
    rows = mean, variance, lower, upper, mixture.log_prob(y), crps, y.new_empty(y.shape[0], 0)
    return DiscreteRows(*(part.double().cpu() for part in rows))


def rows_of_rates(rate: Tensor, y: Tensor) -> DiscreteRows:
    """Rows from Poisson rates (B,)."""
    rate = rate.clamp_min(1e-6)
    counts = PoissonCounts(rate.new_zeros(1), rate.log().unsqueeze(0), torch.zeros_like(rate).unsqueeze(0))
    lower, upper = counts.quantile(y.new_tensor([[0.05], [0.95]]).expand(-1, y.shape[0]))
    log_prob = torch.xlogy(y, rate) - rate - torch.lgamma(y + 1)
    return DiscreteRows(
        rate, rate, lower, upper, log_prob, ranked_probability_of_poisson(rate, y), y.new_empty(len(y), 0)
    )


def update_discrete(state: StreamScores | ClassScores, y: Tensor, rows: DiscreteRows) -> StreamScores | ClassScores:
    """Score a block of predictions of discrete targets."""
    if isinstance(state, ClassScores):
        return update_class_scores(state, y, rows.probabilities, rows.log_prob)
    inside = ((rows.lower <= y) & (y <= rows.upper)).double()
    return count_scores(state, y, RowScores(rows.mean, rows.variance, rows.log_prob, rows.crps, inside))
