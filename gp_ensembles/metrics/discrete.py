"""Scores of predicted classes and counts: error rate, log loss, Brier score, calibration, ranked probability."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.metrics.streaming import observed_sum
from gp_ensembles.numerics.display import prints_fields

_BINS = 10
_NODES = 8  # of a rule that sums many counts


@prints_fields
class ClassScores(NamedTuple):
    """Scores of a stream of class probabilities so far; see :class:`ClassSummary`."""

    num_rows: Tensor  # rows seen, missing targets included, ()
    num_scored: Tensor  # observed targets, ()
    log_prob: Tensor  # sum of the log probabilities of the targets
    errors: Tensor  # number of targets that were not the most probable class
    brier: Tensor  # sum of the Brier scores
    bin_count: Tensor  # targets by the confidence in the most probable class, in tenths, (10,)
    bin_confidence: Tensor  # sum of that confidence in each bin, (10,)
    bin_hits: Tensor  # number of targets that were the most probable class in each bin, (10,)


class ClassSummary(NamedTuple):
    """Averages over the observed targets of a stream, each a float64 scalar; NaN before the first."""

    log_score: Tensor  # mean log probability of the target, nats per row
    log_loss: Tensor  # its negative
    error_rate: Tensor  # share of targets that were not the most probable class
    brier: Tensor  # mean Brier score, the sum over classes of squared errors of the probabilities, from 0 to 2
    # expected calibration error: the mean distance between confidence and share of hits, over tenths of confidence
    calibration_error: Tensor


def init_class_scores(like: Tensor) -> ClassScores:
    """Empty scores on the device of ``like``."""
    zero, bins = like.new_zeros((), dtype=torch.float64), like.new_zeros(_BINS, dtype=torch.float64)
    return ClassScores(zero, zero, zero, zero, zero, bins, bins, bins)


def update_class_scores(state: ClassScores, y: Tensor, probabilities: Tensor, log_prob: Tensor) -> ClassScores:
    """Score a block of predicted class probabilities, skipping rows with a missing target.

    Shapes: ``y`` (B,), ``probabilities`` (B, C), ``log_prob`` (B,).
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
        log_prob=state.log_prob + observed_sum(log_prob, seen),
        errors=state.errors + observed_sum(1 - hit, seen),
        brier=state.brier + observed_sum(brier, seen),
        bin_count=state.bin_count + bins(counted),
        bin_confidence=state.bin_confidence + bins(counted * confidence),
        bin_hits=state.bin_hits + bins(counted * hit),
    )


def summarize_classes(state: ClassScores) -> ClassSummary:
    """Averages of the scores so far."""
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
    r"""Ranked probability score of counts or levels, :math:`\sum_k (F(k) - 1\{y \le k\})^2`: CRPS of discrete targets.

    Shapes: ``cdf`` (B, K), ``y`` (B,); returns (B,).
    """
    levels = torch.arange(cdf.shape[-1], dtype=cdf.dtype, device=cdf.device)
    step = (y.unsqueeze(-1) <= levels).to(cdf.dtype)
    return torch.where(torch.isnan(y), torch.nan, (cdf - step).square().sum(-1))


def ranked_probability_of_counts(
    cdf: Callable[[Tensor, Tensor], Tensor],
    reach: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
    lower: Tensor,
    upper: Tensor,
) -> Tensor:
    r"""Ranked probability score of counts, :math:`\sum_k (F(k) - 1\{y \le k\})^2`, at a cost set by each row's spread.

    Shapes: ``y`` (B,), ``lower`` (B,), ``upper`` (B,); returns (B,).
    """
    score = (y - upper).clamp_min(0.0) + (lower - y).clamp_min(0.0)
    rows = ((upper > lower) & ~torch.isnan(y)).nonzero().squeeze(-1)
    start = lower[rows]
    while rows.shape[0]:
        target, end = y[rows], upper[rows]
        left = torch.where((start < target) & (target < end), target, end) - start
        places, weights = _run(torch.minimum(reach(start, rows), left), left)
        step = (start >= target).to(y.dtype)
        score[rows] += (weights * (cdf(start + places, rows) - step).square()).sum(0)
        # Beyond 2**53 the next number may be further than the run.
        start = torch.maximum(start + weights.sum(0).round(), torch.nextafter(start, end))
        going = start < end
        rows, start = rows[going], start[going]
    return score


def _run(length: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Places and weights (8, R) for a run of eight counts or a power of two times as many, up to ``length`` (R,)."""
    power = (length / _NODES).clamp_min(1.0).log2().floor().long()
    rules = [_sum_rule(k) for k in range(int(power.max()) + 1)]
    places, weights = (torch.stack(part, dim=-1).to(left)[:, power] for part in zip(*rules, strict=True))
    return places, torch.where((power == 0) & (places >= left), 0.0, weights)


@functools.lru_cache(maxsize=2048)
def _sum_rule(power: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (8,) that sum polynomials over 0, 1, ..., 8 * 2**power - 1, from their Jacobi matrix."""
    with torch.inference_mode(False), torch.no_grad():
        order = torch.arange(1.0, _NODES, dtype=torch.float64, device="cpu")
        length = float(_NODES * 2**power)
        # In units of the half length, so that no power of two is too large.
        side = order * (1 - (order / length).square()).sqrt() / (4 * order.square() - 1).sqrt()
        nodes, vectors = torch.linalg.eigh(torch.diag_embed(side, offset=1), UPLO="U")
        places = 0.5 * (length * (1 + nodes) - 1)
        return (places.round() if power == 0 else places), length * vectors[0].square()
