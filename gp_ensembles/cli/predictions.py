"""Predictions of rows as plain numbers in the units of the target, and their scores."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.coverage import CoverageState, count_coverage
from gp_ensembles.distributions import LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.counts import PoissonCounts
from gp_ensembles.distributions.quadrature import at_nodes, crps_at_nodes
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.metrics.discrete import (
    ClassScores,
    init_class_scores,
    ranked_probability_of_counts,
    ranked_probability_of_poisson,
    ranked_probability_score,
    summarize_classes,
    update_class_scores,
)
from gp_ensembles.metrics.scores import covered, crps_mixture
from gp_ensembles.metrics.streaming import RowScores, StreamScores, count_scores, init_scores, summarize
from gp_ensembles.numerics.reductions import logsumexp_over_experts
from gp_ensembles.streaming.predictions import OnlinePredictions, StreamDistribution
from gp_ensembles.streaming.scales import Standardizer

MODEL = "model"
_CRPS_TOLERANCE = 1e-6  # per row, in standard deviations of the warm-up targets


class Chunk(NamedTuple):
    """Predictions of consecutive rows, each made before its target; float64, on the host, in the target's units.

    Attributes:
        first_row: Number of the first row, counting the data rows of the stream from one.
        y: Targets, shape (B,); NaN where missing.
        mean: Means, shape (B,).
        variance: Variances, shape (B,).
        lower: Lower ends of 90 % intervals, shape (B,); 5 % quantiles where intervals are not adaptive.
        upper: Upper ends, shape (B,); 95 % quantiles.
        log_prob: Log densities of the targets under the mixture, shape (B,); NaN where missing.
        pit: Probability integral transforms, shape (B,); NaN where missing.
        log_weights: Log weights before each target, shape (M, B).
        baselines: Log densities of the targets under each baseline, by name, each (B,).
        probabilities: Probabilities of the classes, shape (B, C); ``None`` for real targets and counts.
        interval_ends: Ends of adaptive intervals of other coverages, by name of their column, each (B,).
        inside: Whether each target lies in its 90 % interval, 0 or 1, shape (B,); NaN where missing. ``None`` for
            classes.
        time: Time of each row, shape (B,): seconds since 1970 (UTC) or numbers; ``None`` without a time column.
    """

    first_row: int
    y: Tensor
    mean: Tensor
    variance: Tensor
    lower: Tensor
    upper: Tensor
    log_prob: Tensor
    pit: Tensor
    log_weights: Tensor
    baselines: dict[str, Tensor]
    probabilities: Tensor | None = None
    interval_ends: dict[str, Tensor] = {}  # noqa: RUF012 (never written to)
    inside: Tensor | None = None
    time: Tensor | None = None

    def tail(self, num_skipped: int) -> "Chunk":
        """The chunk without its first rows."""
        if num_skipped == 0:
            return self
        kept = slice(num_skipped, None)
        rows = {name: part[..., kept] for name, part in self._asdict().items() if isinstance(part, Tensor)}
        if self.probabilities is not None:
            rows["probabilities"] = self.probabilities[kept]
        baselines = {name: part[kept] for name, part in self.baselines.items()}
        ends = {name: part[kept] for name, part in self.interval_ends.items()}
        first_row = self.first_row + num_skipped
        return self._replace(first_row=first_row, baselines=baselines, interval_ends=ends, **rows)


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


Scores = dict[str, StreamScores | ClassScores]
Coverages = dict[float, CoverageState]  # by the share that intervals are to cover


def empty_scores(like: Tensor, names: tuple[str, ...], *, is_class: bool = False) -> Scores:
    """Scores of the model and of each baseline before any row."""
    return {name: init_class_scores(like) if is_class else init_scores(like) for name in (MODEL, *names)}


def score_discrete_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    predictions: OnlinePredictions,
    baselines: dict[str, DiscreteRows],
    block_size: int,
) -> tuple[Scores, Chunk]:
    """Score a block of predicted classes, levels or counts; targets ``y`` (B,)."""
    mixture = predictions.distribution
    assert isinstance(mixture, LatentMixture)
    rows = rows_of_mixture(mixture, y.to(mixture.latent_mean), block_size)
    after = {MODEL: update_discrete(scores[MODEL], y, rows)}
    for name, simple in baselines.items():
        after[name] = update_discrete(scores[name], y, simple)
    nothing = torch.full_like(y, torch.nan)
    log_weights = predictions.log_weights.double().cpu()
    probabilities = rows.probabilities if rows.probabilities.shape[1] else None
    densities = {name: simple.log_prob for name, simple in baselines.items()}
    inside = None if isinstance(after[MODEL], ClassScores) else _inside(y, rows.lower, rows.upper)
    chunk = Chunk(
        first_row, y, rows.mean, rows.variance, rows.lower, rows.upper, rows.log_prob, nothing,
        log_weights - logsumexp_over_experts(log_weights), densities, probabilities, inside=inside,
    )  # fmt: skip
    return after, chunk


def score_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    predictions: OnlinePredictions,
    baselines: dict[str, StudentTMixture],
    scales: Standardizer,
) -> tuple[Scores, Chunk]:
    """Score a block of predicted numbers; targets ``y`` (B,)."""
    distribution = _on_host(predictions.distribution)
    state = scores[MODEL]
    assert isinstance(state, StreamScores)
    mean, variance, crps = _moments_and_crps(distribution, y, _CRPS_TOLERANCE * float(scales.y_scale))
    density, lower_tail = distribution.log_prob(y), distribution.cdf(y)
    lower, upper = distribution.quantile(y.new_tensor([[0.05], [0.95]]))
    inside = covered(lower_tail, 0.9)
    interval_ends: dict[str, Tensor] = {}
    intervals = predictions.intervals
    for place, coverage in enumerate(() if intervals is None else intervals.coverages):
        assert intervals is not None
        levels = intervals.levels[:, place].cpu()
        ends = distribution.quantile(levels)
        if coverage == 0.9:
            (lower, upper), inside = ends, intervals.covered[place].cpu()
        else:
            interval_ends.update(zip(interval_columns(coverage), ends, strict=True))
    rows = RowScores(mean, variance, density, crps, inside)
    after: Scores = {MODEL: count_scores(state, y, rows)}
    densities = {}
    for name, standardized in baselines.items():
        simple, state = standardized.rescale(scales.y_mean.cpu(), scales.y_scale.cpu()), scores[name]
        assert isinstance(state, StreamScores)
        moments = _moments_and_crps(simple, y, _CRPS_TOLERANCE * float(scales.y_scale))
        densities[name] = simple.log_prob(y)
        rows = RowScores(moments[0], moments[1], densities[name], moments[2], covered(simple.cdf(y), 0.9))
        after[name] = count_scores(state, y, rows)
    log_weights = predictions.log_weights.double().cpu()
    log_weights = log_weights - logsumexp_over_experts(log_weights)
    inside = torch.where(torch.isnan(y), torch.nan, inside.double())
    return after, Chunk(
        first_row, y, mean, variance, lower, upper, density, lower_tail, log_weights, densities,
        interval_ends=interval_ends, inside=inside,
    )  # fmt: skip


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
        names = interval_columns(coverage)
        lower, upper = (chunk.lower, chunk.upper) if coverage == 0.9 else (chunk.interval_ends[name] for name in names)
        hits = intervals.covered[place].cpu()
        after[coverage] = count_coverage(state[coverage], hits, upper - lower, coverage)
    return after


def _inside(y: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether targets (B,) lie between two ends, 0 or 1; NaN where missing."""
    return torch.where(torch.isnan(y), torch.nan, ((lower <= y) & (y <= upper)).double())


def _on_host(distribution: StreamDistribution) -> Mixture | StudentTMixture | Recalibrated:
    """A distribution in float64 on the CPU, whose weights sum to one."""
    assert not isinstance(distribution, LatentMixture)
    if isinstance(distribution, Recalibrated):
        base = _on_host(distribution.base)
        assert not isinstance(base, Recalibrated)
        return Recalibrated(base, *(part.cpu() for part in distribution[1:]))
    parts = {name: value.double().cpu() for name, value in distribution._asdict().items()}
    parts["log_weights"] = parts["log_weights"] - logsumexp_over_experts(parts["log_weights"])
    return distribution._replace(**parts)


def _moments_and_crps(
    distribution: Mixture | StudentTMixture | Recalibrated, y: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and scores; in closed form for normal components."""
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
            "bound": IntervalLevels((coverage,)).bound(coverage, int(total)),
            "windows": windows,
            "windows_kept": float(state.num_kept),
            "mean_width": float(state.width) / finite if finite else None,
            "infinite": total - finite,
        }
    return table
