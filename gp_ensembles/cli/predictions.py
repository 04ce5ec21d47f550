"""From an ensemble's standardized mixtures to what a user reads: numbers in the units of the target."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.baselines import NormalPrediction
from gp_ensembles.cli.discrete import DiscreteRows, rows_of_mixture, update_discrete
from gp_ensembles.distributions.latent_mixture import LatentMixture
from gp_ensembles.distributions.student_t_mixture import StudentTMixture, as_normal_mixture
from gp_ensembles.ensembles.predictions import EnsemblePredictions
from gp_ensembles.metrics import ClassScores, init_class_scores, summarize_classes
from gp_ensembles.metrics.scores import pit
from gp_ensembles.metrics.streaming import StreamScores, init_scores, summarize, update_scores
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.normal import log_prob as normal_log_prob
from gp_ensembles.numerics.reductions import logsumexp_over_experts

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


class Units(NamedTuple):
    """Shift and scale that take a standardized target back to the user's units."""

    shift: float
    scale: float


Scores = dict[str, StreamScores | ClassScores]


def empty_scores(like: Tensor, names: tuple[str, ...], *, is_class: bool = False) -> Scores:
    """Scores of the model and of each baseline before any row."""
    return {name: init_class_scores(like) if is_class else init_scores(like) for name in (MODEL, *names)}


def score_discrete_block(
    scores: Scores,
    first_row: int,
    y: Tensor,
    predictions: EnsemblePredictions,
    baselines: dict[str, DiscreteRows],
    block_size: int,
) -> tuple[Scores, Chunk]:
    """Score a block of predicted classes, levels or counts.

    Args:
        scores: Scores before the block.
        first_row: Number of its first row.
        y: Targets, shape (B,), float64; NaN where missing.
        predictions: The ensemble's.
        baselines: The baselines'.
        block_size: Rows computed at once.

    Returns:
        Scores after the block, and its predictions.
    """
    mixture = predictions.mixture
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
    predictions: EnsemblePredictions,
    baselines: dict[str, NormalPrediction],
    units: Units,
) -> tuple[Scores, Chunk]:
    """Turn a block of predictions into the user's units and score it.

    Args:
        scores: Scores before the block.
        first_row: Number of its first row.
        y: Targets in the user's units, shape (B,), float64; NaN where missing.
        predictions: The ensemble's, standardized.
        baselines: The baselines', standardized.
        units: From standardized to the user's.

    Returns:
        Scores after the block, and its predictions.
    """
    original = predictions.mixture
    assert not isinstance(original, LatentMixture)
    mixture = as_normal_mixture(original)
    log_weights = mixture.log_weights.double().cpu()
    log_weights = log_weights - logsumexp_over_experts(log_weights)
    mean = mixture.component_mean.double().cpu() * units.scale + units.shift
    variance = mixture.component_variance.double().cpu() * units.scale**2
    parts = log_weights, mean, variance
    tolerance = _CRPS_TOLERANCE * units.scale
    state = scores[MODEL]
    assert isinstance(state, StreamScores)
    after: Scores = {MODEL: update_scores(state, y, *parts, crps_tolerance=tolerance)}
    densities = {}
    certain = y.new_zeros(1, 1)
    for name, normal in baselines.items():
        center, spread = normal.mean * units.scale + units.shift, normal.variance * units.scale**2
        state = scores[name]
        assert isinstance(state, StreamScores)
        after[name] = update_scores(state, y, certain, center.unsqueeze(0), spread.unsqueeze(0))
        densities[name] = normal_log_prob(y, center, spread)
    center, spread = mixtures.moments(*parts)
    lower, upper = mixtures.icdf(*parts, y.new_tensor([[0.05], [0.95]]))
    density = mixtures.log_prob(*parts, y)
    if isinstance(original, StudentTMixture):  # its tails are heavier than those of the normals that stand for it
        targets = ((y - units.shift) / units.scale).to(original.component_mean)
        exact = original.log_prob(targets).double().cpu() - math.log(units.scale)
        correction = torch.where(torch.isnan(y), 0.0, exact - density).sum()
        model = after[MODEL]
        after[MODEL] = model._replace(log_prob=model.log_prob + correction)
        density = exact
    chunk = Chunk(first_row, y, center, spread, lower, upper, density, pit(*parts, y), log_weights, densities)
    return after, chunk


def score_table(scores: Scores, units: Units) -> dict[str, dict[str, float | None]]:
    """Each predictor's scores as plain numbers; ``None`` where no target was observed (or all are equal)."""
    table = {}
    for name, state in scores.items():
        if isinstance(state, ClassScores):
            values = {key: float(value) for key, value in summarize_classes(state)._asdict().items()}
            table[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
            continue
        values = {key: float(value) for key, value in summarize(state)._asdict().items()}
        values["coverage_90"] = values.pop("coverage")
        values["log_score_standardized"] = values["log_score"] + math.log(units.scale)
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
