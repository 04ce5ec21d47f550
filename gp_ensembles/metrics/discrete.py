"""Scores of predicted classes and counts: error rate, log loss, Brier score, calibration, ranked probability."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.metrics.running import total

_BINS = 10


class ClassScores(NamedTuple):
    """Scores of a stream of class probabilities so far; see :class:`ClassSummary`.

    Attributes:
        num_rows: Rows seen, missing targets included, a scalar.
        num_scored: Observed targets, a scalar.
        log_prob: Sum of the log probabilities of the targets.
        errors: Number of targets that were not the most probable class.
        brier: Sum of the Brier scores.
        bin_count: Targets by the confidence in the most probable class, in tenths, shape (10,).
        bin_confidence: Sum of that confidence in each bin, shape (10,).
        bin_hits: Number of targets that were the most probable class in each bin, shape (10,).
    """

    num_rows: Tensor
    num_scored: Tensor
    log_prob: Tensor
    errors: Tensor
    brier: Tensor
    bin_count: Tensor
    bin_confidence: Tensor
    bin_hits: Tensor


class ClassSummary(NamedTuple):
    """Averages over the observed targets of a stream, each a float64 scalar; NaN before the first.

    Attributes:
        log_score: Mean log probability of the target, nats per row.
        log_loss: Its negative.
        error_rate: Share of targets that were not the most probable class.
        brier: Mean Brier score, the sum over classes of squared errors of the probabilities, from 0 to 2.
        calibration_error: Expected calibration error: the mean distance between confidence and share of hits, over
            tenths of confidence.
    """

    log_score: Tensor
    log_loss: Tensor
    error_rate: Tensor
    brier: Tensor
    calibration_error: Tensor


def init_class_scores(like: Tensor) -> ClassScores:
    """Empty scores on the device of ``like``.

    Example:
        >>> import torch
        >>> init_class_scores(torch.zeros(1)).num_rows
        tensor(0., dtype=torch.float64)
    """
    zero, bins = like.new_zeros((), dtype=torch.float64), like.new_zeros(_BINS, dtype=torch.float64)
    return ClassScores(zero, zero, zero, zero, zero, bins, bins, bins)


def update_class_scores(state: ClassScores, y: Tensor, probabilities: Tensor, log_prob: Tensor) -> ClassScores:
    """Score a block of predicted class probabilities, skipping rows with a missing target.

    Args:
        state: The state before the block.
        y: Targets, class numbers, shape (B,); NaN is missing.
        probabilities: Probabilities of the classes, shape (B, C).
        log_prob: Log probabilities of the targets, shape (B,), which may be smaller than a probability can be.

    Returns:
        The state after the block.

    Example:
        >>> import torch
        >>> y, sure = torch.tensor([1.0, torch.nan]), torch.tensor([[0.2, 0.8], [0.5, 0.5]])
        >>> scores = update_class_scores(init_class_scores(y), y, sure, sure[:, 1].log())
        >>> round(float(summarise_classes(scores).brier), 4), scores.num_scored.item()
        (0.08, 1.0)
    """
    probabilities, log_prob = probabilities.double(), log_prob.double()
    seen = ~torch.isnan(y)
    label = torch.where(seen, y, 0.0).long()
    confidence, best = probabilities.max(-1)
    hit = (best == label).double()
    own = probabilities.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    brier = probabilities.square().sum(-1) - 2 * own + 1
    number = (confidence * _BINS).long().clamp(0, _BINS - 1)
    counted = seen.double()

    def bins(values: Tensor) -> Tensor:
        return torch.zeros_like(state.bin_count).index_add(0, number, values)

    return ClassScores(
        num_rows=state.num_rows + y.shape[0],
        num_scored=state.num_scored + counted.sum(),
        log_prob=state.log_prob + total(log_prob, seen),
        errors=state.errors + total(1 - hit, seen),
        brier=state.brier + total(brier, seen),
        bin_count=state.bin_count + bins(counted),
        bin_confidence=state.bin_confidence + bins(counted * confidence),
        bin_hits=state.bin_hits + bins(counted * hit),
    )


def summarise_classes(state: ClassScores) -> ClassSummary:
    """Averages of the scores so far.

    Example:
        >>> import torch
        >>> y, probabilities = torch.tensor([0.0]), torch.tensor([[0.25, 0.75]])
        >>> scores = update_class_scores(init_class_scores(y), y, probabilities, probabilities[:, 0].log())
        >>> summarise_classes(scores).error_rate
        tensor(1., dtype=torch.float64)
    """
    count = state.num_scored
    gap = (state.bin_confidence - state.bin_hits).abs().sum()
    return ClassSummary(
        log_score=state.log_prob / count,
        log_loss=-state.log_prob / count,
        error_rate=state.errors / count,
        brier=state.brier / count,
        calibration_error=gap / count,
    )


def ranked_probability_score(cdf: Tensor, y: Tensor) -> Tensor:
    r"""Ranked probability score of counts or levels, :math:`\sum_k (F(k) - 1\{y \le k\})^2`: the CRPS of the discrete.

    Args:
        cdf: Distribution function at 0, 1, ..., K - 1, shape (B, K), with F(K - 1) close to one.
        y: Targets, shape (B,), below K; NaN is missing.

    Returns:
        Scores in units of the target, shape (B,); NaN where y is.

    Example:
        >>> import torch
        >>> ranked_probability_score(torch.tensor([[0.5, 1.0]]), torch.tensor([1.0]))
        tensor([0.2500])
    """
    levels = torch.arange(cdf.shape[-1], dtype=cdf.dtype, device=cdf.device)
    step = (y.unsqueeze(-1) <= levels).to(cdf.dtype)
    return torch.where(torch.isnan(y), torch.nan, (cdf - step).square().sum(-1))
