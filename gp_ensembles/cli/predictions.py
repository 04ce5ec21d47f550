"""Predictions of rows as plain numbers in the units of the target, and their scores."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.levels import CoverageState, count_coverage
from gp_ensembles.distributions import LatentMixture, Mixture, Recalibrated, StudentTMixture, WithPointMass
from gp_ensembles.distributions.counts import CountDistributions, LogRateCounts
from gp_ensembles.distributions.quadrature import at_nodes, crps_at_nodes
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.metrics.discrete import (
    ClassScores,
    ranked_probability_of_counts,
    ranked_probability_score,
    summarize_classes,
    update_class_scores,
)
from gp_ensembles.metrics.scores import covered, crps_mixture
from gp_ensembles.metrics.streaming import StreamScores, count_scores, summarize
from gp_ensembles.numerics.reductions import logsumexp_over_experts
from gp_ensembles.streaming.predictions import OnlinePredictions, StreamDistribution

MODEL = "model"
NumberDistribution = Mixture | StudentTMixture | Recalibrated | WithPointMass
_CRPS_TOLERANCE = 1e-6  # per row, in standard deviations of the warm-up targets


class PredictedRows(NamedTuple):
    """Predictions of a block and their scores, each made before its target; float64, on the host.

    The first five fields are what :func:`~gp_ensembles.metrics.streaming.count_scores` takes, each (B,): ``mean`` is
    the probability of class 1 of two, the mean level or count, and the most probable class where classes have no order.
    What a predictor does not have is NaN: ends (B,), probabilities (B, 0), probability integral transforms (B,).
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor  # log densities of the targets
    crps: Tensor
    inside: Tensor  # whether each target lies in its 90 % interval, 0 or 1
    lower: Tensor  # lower ends of 90 % intervals, 5 % quantiles where they are not adaptive
    upper: Tensor
    probabilities: Tensor  # of the classes, (B, C)
    pit: Tensor


class Chunk(NamedTuple):
    """Predictions of consecutive rows of a stream, in the target's units."""

    first_row: int  # number of the first row, counting the data rows of the stream from one
    y: Tensor  # targets, shape (B,); NaN where missing
    rows: PredictedRows  # of the model; ``inside`` is NaN where targets are missing or classes
    log_weights: Tensor  # before each target, shape (M, B)
    baselines: dict[str, Tensor]  # log densities of the targets under each baseline, by name, each (B,)
    # Ends of adaptive intervals of other coverages, by name of their column, each (B,).
    interval_ends: dict[str, Tensor] = {}  # noqa: RUF012 (never written to)
    time: Tensor | None = None  # of each row, shape (B,): seconds since 1970 (UTC) or numbers

    def tail(self, num_skipped: int) -> "Chunk":
        """The chunk without its first rows."""
        return Chunk(
            self.first_row + num_skipped,
            self.y[num_skipped:],
            PredictedRows(*(part[num_skipped:] for part in self.rows)),
            self.log_weights[:, num_skipped:],
            {name: part[num_skipped:] for name, part in self.baselines.items()},
            {name: part[num_skipped:] for name, part in self.interval_ends.items()},
            None if self.time is None else self.time[num_skipped:],
        )


def rows_of_classes(probabilities: Tensor, log_prob: Tensor, y: Tensor, *, is_ordered: bool) -> PredictedRows:
    """Rows from class probabilities (B, C) and the log probabilities of the targets (B,)."""
    if not is_ordered:
        nothing = torch.full_like(y, torch.nan)
        best = probabilities.argmax(-1).to(y.dtype)
        return _discrete_rows(y, best, nothing, (nothing, nothing), log_prob, nothing, probabilities)
    numbers = torch.arange(probabilities.shape[-1], dtype=y.dtype, device=y.device)
    mean = (probabilities * numbers).sum(-1)
    variance = (probabilities * (numbers - mean.unsqueeze(-1)).square()).sum(-1)
    cdf = probabilities.cumsum(-1)
    ends = tuple((cdf < level - 1e-12).sum(-1).to(y.dtype) for level in (0.05, 0.95))
    return _discrete_rows(y, mean, variance, ends, log_prob, ranked_probability_score(cdf, y), probabilities)


def rows_of_mixture(mixture: LatentMixture, y: Tensor, block_size: int | None = None) -> PredictedRows:
    """Rows from an ensemble's mixture; y (B,) has its dtype and device."""
    if block_size is not None:
        parts = torch.arange(y.shape[0], device=y.device).split(block_size)
        blocks = [rows_of_mixture(mixture.take(part), y[part]) for part in parts]
        return PredictedRows(*(torch.cat(field) for field in zip(*blocks, strict=True)))
    likelihood = mixture.responses[0].likelihood
    if num_classes(likelihood) is not None:
        probabilities, log_prob = mixture.class_probabilities.double().cpu(), mixture.log_prob(y).double().cpu()
        is_ordered = not isinstance(likelihood, MulticlassLikelihood)
        return rows_of_classes(probabilities, log_prob, y.double().cpu(), is_ordered=is_ordered)
    rows = *mixture.moments(), *_ends_and_crps(mixture.counts(), y), mixture.log_prob(y), y
    mean, variance, lower, upper, crps, log_prob, y = (part.double().cpu() for part in rows)
    return _discrete_rows(y, mean, variance, (lower, upper), log_prob, crps)


def rows_of_rates(rate: Tensor, y: Tensor) -> PredictedRows:
    """Rows from Poisson rates (B,)."""
    rate = rate.clamp_min(1e-6)
    counts = LogRateCounts(rate.new_zeros(1), rate.log().unsqueeze(0), torch.zeros_like(rate).unsqueeze(0))
    *ends, crps = _ends_and_crps(counts, y)
    return _discrete_rows(y, rate, rate, ends, torch.xlogy(y, rate) - rate - torch.lgamma(y + 1), crps)


def _ends_and_crps(counts: CountDistributions, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """5 and 95 % quantiles, and scores of counts y (B,)."""
    lower, upper = counts.quantile(y.new_tensor([[0.05], [0.95]]).expand(-1, y.shape[0]))
    return lower, upper, ranked_probability_of_counts(counts.cdf, counts.reach, y.double(), counts.lower, counts.upper)


def rows_of_numbers(distribution: NumberDistribution, y: Tensor, scale: float) -> PredictedRows:
    """Rows from densities of numbers y (B,), standard deviation about ``scale``, without interval ends."""
    mean, variance, crps = _moments_and_crps(distribution, y, _CRPS_TOLERANCE * scale)
    cdf, nothing = distribution.cdf(y), torch.full_like(y, torch.nan)
    inside = covered(cdf, 0.9)
    if isinstance(distribution, WithPointMass):
        lower, upper = distribution.quantile(y.new_tensor([[0.05], [0.95]]))
        inside = torch.where(y.isnan(), torch.nan, ((lower <= y) & (y <= upper)).to(y))
        share = torch.where(y == distribution.at[0], distribution.log_share[0].exp(), 0.0)
        # Where it jumps, any number on the way is as good: its own far digits choose one, the same in every run.
        cdf = cdf - share * (1e7 * cdf).frac()
    scores = mean, variance, distribution.log_prob(y), crps, inside
    return PredictedRows(*scores, nothing, nothing, y.new_empty(y.shape[0], 0), cdf)


def rows_of_model(
    predictions: OnlinePredictions, y: Tensor, scale: float, block_size: int
) -> tuple[PredictedRows, dict[str, Tensor]]:
    """Rows of the model for targets (B,), and the ends of adaptive intervals of other coverages than 90 % by column."""
    if isinstance(predictions.distribution, LatentMixture):
        return rows_of_mixture(predictions.distribution, y.to(predictions.distribution.latent_mean), block_size), {}
    distribution = _on_host(predictions.distribution)
    rows = rows_of_numbers(distribution, y, scale)
    lower, upper = distribution.quantile(y.new_tensor([[0.05], [0.95]]))
    rows = rows._replace(lower=lower, upper=upper)
    interval_ends: dict[str, Tensor] = {}
    intervals = predictions.intervals
    for place, coverage in enumerate(() if intervals is None else intervals.coverages):
        assert intervals is not None
        lower, upper = distribution.quantile(intervals.levels[:, place].cpu())
        if coverage == 0.9:
            rows = rows._replace(lower=lower, upper=upper, inside=intervals.covered[place].cpu())
        else:
            interval_ends.update(zip(interval_columns(coverage), (lower, upper), strict=True))
    return rows, interval_ends


Scores = dict[str, StreamScores | ClassScores]
Coverages = dict[float, CoverageState]  # by the share that intervals are to cover


def score_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    predictions: OnlinePredictions,
    baselines: dict[str, PredictedRows],
    scale: float,
    block_size: int,
) -> tuple[Scores, Chunk]:
    """Score predictions of a block of targets ``y`` (B,), whose standard deviation is about ``scale``."""
    rows, interval_ends = rows_of_model(predictions, y, scale, block_size)
    after = {name: _counted(scores[name], y, found) for name, found in {MODEL: rows, **baselines}.items()}
    log_weights = predictions.log_weights.double().cpu()
    is_unknown = torch.isnan(y) | isinstance(after[MODEL], ClassScores)
    rows = rows._replace(inside=torch.where(is_unknown, torch.nan, rows.inside.double()))
    densities = {name: found.log_prob for name, found in baselines.items()}
    return after, Chunk(first_row, y, rows, log_weights - logsumexp_over_experts(log_weights), densities, interval_ends)


def interval_columns(coverage: float) -> tuple[str, str]:
    """Names of the columns of an interval's ends."""
    tails = (f"{(1 - coverage) / 2:.6f}", f"{(1 + coverage) / 2:.6f}")
    lower, upper = (text.removeprefix("0.").rstrip("0").ljust(2, "0") for text in tails)
    return f"q{lower}", f"q{upper}"


def count_intervals(state: Coverages, chunk: Chunk, predictions: OnlinePredictions) -> Coverages:
    """Coverage counts after a block; the chunk has the ends of its intervals."""
    intervals = predictions.intervals
    if intervals is None:
        return state
    after = {}
    for place, coverage in enumerate(intervals.coverages):
        names, rows = interval_columns(coverage), chunk.rows
        lower, upper = (rows.lower, rows.upper) if coverage == 0.9 else (chunk.interval_ends[name] for name in names)
        hits = intervals.covered[place].cpu()
        after[coverage] = count_coverage(state[coverage], hits, upper - lower, coverage)
    return after


def _counted(state: StreamScores | ClassScores, y: Tensor, rows: PredictedRows) -> StreamScores | ClassScores:
    """Scores after a block."""
    if isinstance(state, ClassScores):
        return update_class_scores(state, y, rows.probabilities, rows.log_prob)
    return count_scores(state, y, *rows[:5])


def _discrete_rows(
    y: Tensor,
    mean: Tensor,
    variance: Tensor,
    ends: Iterable[Tensor],
    log_prob: Tensor,
    crps: Tensor,
    probabilities: Tensor | None = None,
) -> PredictedRows:
    """Rows of discrete targets (B,), which lie inside their intervals where they equal an end."""
    lower, upper = ends
    inside = ((lower <= y) & (y <= upper)).double()
    shares = y.new_empty(y.shape[0], 0) if probabilities is None else probabilities
    return PredictedRows(mean, variance, log_prob, crps, inside, lower, upper, shares, torch.full_like(y, torch.nan))


def _on_host(distribution: StreamDistribution) -> NumberDistribution:
    """A distribution in float64 on the CPU, whose weights sum to one."""
    assert not isinstance(distribution, LatentMixture)
    if isinstance(distribution, WithPointMass):
        inner = _on_host(distribution.base)
        assert not isinstance(inner, WithPointMass)
        return WithPointMass(inner, distribution.at.cpu(), distribution.log_share.cpu())
    if isinstance(distribution, Recalibrated):
        base = _on_host(distribution.base)
        assert not isinstance(base, Recalibrated | WithPointMass)
        return Recalibrated(base, *(part.cpu() for part in distribution[1:]))
    parts = {name: value.double().cpu() for name, value in distribution._asdict().items()}
    parts["log_weights"] = parts["log_weights"] - logsumexp_over_experts(parts["log_weights"])
    return distribution._replace(**parts)


def _moments_and_crps(distribution: NumberDistribution, y: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and scores; in closed form for normal components."""
    if isinstance(distribution, WithPointMass):
        mean, variance, at_y = _moments_and_crps(distribution.base, y, tolerance)
        crps = distribution.crps(y, at_y, _moments_and_crps(distribution.base, distribution.at[0], tolerance)[2])
        return *distribution.mixed_moments(mean, variance), crps
    if isinstance(distribution, Recalibrated):
        base = distribution.base
        exact = crps_mixture(*base, y, tolerance=tolerance) if isinstance(base, Mixture) else None
        return distribution.moments_and_crps(y, exact)
    if isinstance(distribution, StudentTMixture):
        found = at_nodes(distribution)
        return found.mean, found.variance, crps_at_nodes(y, found, found.cdf, found.mean)
    return *distribution.moments(), crps_mixture(*distribution, y, tolerance=tolerance)


def score_table(scores: Scores, target_scale: float) -> dict[str, dict[str, float | None]]:
    """Each predictor's scores as plain numbers; ``None`` where no target was observed (or all are equal)."""
    table = {}
    for name, state in scores.items():
        found = summarize_classes(state) if isinstance(state, ClassScores) else summarize(state)
        values = {key: float(value) for key, value in found._asdict().items()}
        if not isinstance(state, ClassScores):
            values["coverage_90"] = values.pop("coverage")
            values["log_score_standardized"] = values["log_score"] + math.log(target_scale)
        table[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return table


def interval_table(coverages: Coverages) -> dict[str, dict[str, float | None]]:
    """Coverage of adaptive intervals as plain numbers by nominal coverage; ``None`` where there is no target."""
    table = {}
    for coverage, state in coverages.items():
        total, windows, finite = float(state.num_targets), float(state.num_windows), float(state.num_finite)
        table[f"{coverage:g}"] = {
            "coverage": float(state.num_covered) / total if total else None,
            "bound": IntervalLevels((coverage,)).bound(int(total)),
            "windows": windows,
            "windows_kept": float(state.num_kept),
            "mean_width": float(state.width) / finite if finite else None,
            "infinite": total - finite,
        }
    return table
