"""From an ensemble's predictive distributions to what a user reads: numbers in the units of the target, and scores."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.baselines import NormalPrediction
from gp_ensembles.cli.discrete import DiscreteRows, rows_of_mixture, update_discrete
from gp_ensembles.distributions import LatentMixture, StudentTMixture
from gp_ensembles.ensembles.predictions import AnyMixture
from gp_ensembles.metrics.discrete import ClassScores, init_class_scores, summarize_classes
from gp_ensembles.metrics.scores import covered, crps_mixture
from gp_ensembles.metrics.streaming import (
    RowScores,
    StreamScores,
    count_scores,
    init_scores,
    summarize,
    update_scores,
)
from gp_ensembles.numerics.normal import log_prob as normal_log_prob
from gp_ensembles.numerics.reductions import logsumexp_over_experts
from gp_ensembles.streaming import Standardizer

MODEL = "model"
_CRPS_TOLERANCE = 1e-6  # per row, in standard deviations of the warm-up targets


class Chunk(NamedTuple):
    """Predictions of consecutive rows, each made before its target; float64, on the host, in the target's units.

    Attributes:
        first_row: Number of the first row, counting the data rows of the stream from one.
        y: Targets, shape (B,); NaN where missing.
        mean: Means, shape (B,).
        variance: Variances, shape (B,).
        lower: 5 % quantiles, shape (B,).
        upper: 95 % quantiles, shape (B,).
        log_prob: Log densities of the targets under the mixture, shape (B,); NaN where missing.
        pit: Probability integral transforms, shape (B,); NaN where missing.
        log_weights: Log weights in force before each target, shape (M, B).
        baselines: Log densities of the targets under each baseline, by name, each (B,).
        probabilities: Probabilities of the classes, shape (B, C); ``None`` for real targets and counts.
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

    def tail(self, num_skipped: int) -> "Chunk":
        """The chunk without its first rows."""
        if num_skipped == 0:
            return self
        return Chunk(
            self.first_row + num_skipped,
            self.y[num_skipped:],
            self.mean[num_skipped:],
            self.variance[num_skipped:],
            self.lower[num_skipped:],
            self.upper[num_skipped:],
            self.log_prob[num_skipped:],
            self.pit[num_skipped:],
            self.log_weights[:, num_skipped:],
            {name: part[num_skipped:] for name, part in self.baselines.items()},
            None if self.probabilities is None else self.probabilities[num_skipped:],
        )


Scores = dict[str, StreamScores | ClassScores]


def empty_scores(like: Tensor, names: tuple[str, ...], *, is_class: bool = False) -> Scores:
    """Scores of the model and of each baseline before any row."""
    return {name: init_class_scores(like) if is_class else init_scores(like) for name in (MODEL, *names)}


def score_discrete_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    mixture: AnyMixture,
    baselines: dict[str, DiscreteRows],
    block_size: int,
) -> tuple[Scores, Chunk]:
    """Score a block of predicted classes, levels or counts.

    Args:
        scores: Scores before the block.
        first_row: Number of its first row.
        y: Targets, shape (B,), float64; NaN where missing.
        mixture: The ensemble's predictions.
        baselines: The baselines'.
        block_size: Rows computed at once.

    Returns:
        Scores after the block, and its predictions.
    """
    assert isinstance(mixture, LatentMixture)
    rows = rows_of_mixture(mixture, y.to(mixture.latent_mean), block_size)
    after = {MODEL: update_discrete(scores[MODEL], y, rows)}
    for name, simple in baselines.items():
        after[name] = update_discrete(scores[name], y, simple)
    nothing = torch.full_like(y, torch.nan)
    log_weights = mixture.log_weights.double().cpu()
    probabilities = rows.probabilities if rows.probabilities.shape[1] else None
    densities = {name: simple.log_prob for name, simple in baselines.items()}
    chunk = Chunk(
        first_row, y, rows.mean, rows.variance, rows.lower, rows.upper, rows.log_prob, nothing,
        log_weights - logsumexp_over_experts(log_weights), densities, probabilities,
    )  # fmt: skip
    return after, chunk


def score_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    mixture: AnyMixture,
    baselines: dict[str, NormalPrediction],
    scales: Standardizer,
) -> tuple[Scores, Chunk]:
    """Score a block of predicted numbers.

    Args:
        scores: Scores before the block.
        first_row: Number of its first row.
        y: Targets in the user's units, shape (B,), float64; NaN where missing.
        mixture: The ensemble's predictions, in the same units.
        baselines: The baselines', standardized.
        scales: From standardized to the user's units.

    Returns:
        Scores after the block, and its predictions.
    """
    assert not isinstance(mixture, LatentMixture)
    mixture = mixture._replace(**{name: value.double().cpu() for name, value in mixture._asdict().items()})
    log_weights = mixture.log_weights - logsumexp_over_experts(mixture.log_weights)
    mixture = mixture._replace(log_weights=log_weights)
    state = scores[MODEL]
    assert isinstance(state, StreamScores)
    mean, variance = mixture.moments()
    density, lower_tail = mixture.log_prob(y), mixture.cdf(y)
    normals = mixture.as_normals() if isinstance(mixture, StudentTMixture) else mixture  # no closed form of the CRPS
    crps = crps_mixture(*normals, y, tolerance=_CRPS_TOLERANCE * float(scales.y_scale))
    rows = RowScores(mean, variance, density, crps, covered(lower_tail, 0.9))
    after: Scores = {MODEL: count_scores(state, y, rows)}
    densities = {}
    certain = y.new_zeros(1, 1)
    for name, normal in baselines.items():
        center, spread = scales.inverse_mean(normal.mean), scales.inverse_variance(normal.variance)
        state = scores[name]
        assert isinstance(state, StreamScores)
        after[name] = update_scores(state, y, certain, center.unsqueeze(0), spread.unsqueeze(0))
        densities[name] = normal_log_prob(y, center, spread)
    lower, upper = mixture.quantile(y.new_tensor([[0.05], [0.95]]))
    chunk = Chunk(first_row, y, mean, variance, lower, upper, density, lower_tail, log_weights, densities)
    return after, chunk


def score_table(scores: Scores, target_scale: float) -> dict[str, dict[str, float | None]]:
    """Each predictor's scores as plain numbers; ``None`` where no target was observed (or all are equal)."""
    table = {}
    for name, state in scores.items():
        if isinstance(state, ClassScores):
            values = {key: float(value) for key, value in summarize_classes(state)._asdict().items()}
            table[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
            continue
        values = {key: float(value) for key, value in summarize(state)._asdict().items()}
        values["coverage_90"] = values.pop("coverage")
        values["log_score_standardized"] = values["log_score"] + math.log(target_scale)
        table[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return table


def pack_scores(scores: Scores) -> dict[str, dict[str, Tensor]]:
    """Scores as plain containers."""
    return {name: dict(state._asdict()) for name, state in scores.items()}


def unpack_scores(packed: dict[str, dict[str, Tensor]]) -> Scores:
    """What :func:`pack_scores` wrote."""
    return {
        name: ClassScores(**state) if "errors" in state else StreamScores(**state) for name, state in packed.items()
    }
