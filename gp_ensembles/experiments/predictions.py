"""From an ensemble's standardised mixtures to what a user reads: numbers in the units of the target."""

import math
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.ensembles.ensemble import EnsemblePredictions
from gp_ensembles.experiments.baselines import NormalPrediction
from gp_ensembles.metrics.calibration import pit
from gp_ensembles.metrics.pointwise import gaussian_log_prob
from gp_ensembles.metrics.streaming import StreamScores, init_scores, summarise, update_scores
from gp_ensembles.numerics import mixtures

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
        )


class Units(NamedTuple):
    """Shift and scale that take a standardised target back to the user's units."""

    shift: float
    scale: float


Scores = dict[str, StreamScores]


def empty_scores(like: Tensor, names: tuple[str, ...]) -> Scores:
    """Scores of the model and of each baseline before any row."""
    return {name: init_scores(like) for name in (MODEL, *names)}


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
        predictions: The ensemble's, standardised.
        baselines: The baselines', standardised.
        units: From standardised to the user's.

    Returns:
        Scores after the block, and its predictions.
    """
    mixture = predictions.mixture
    log_weights = mixture.log_weights.double().cpu()
    log_weights = log_weights - log_weights.logsumexp(0)
    mean = mixture.component_mean.double().cpu() * units.scale + units.shift
    variance = mixture.component_variance.double().cpu() * units.scale**2
    parts = log_weights, mean, variance
    tolerance = _CRPS_TOLERANCE * units.scale
    after = {MODEL: update_scores(scores[MODEL], y, *parts, crps_tolerance=tolerance)}
    densities = {}
    certain = y.new_zeros(1, 1)
    for name, normal in baselines.items():
        centre, spread = normal.mean * units.scale + units.shift, normal.variance * units.scale**2
        after[name] = update_scores(scores[name], y, certain, centre.unsqueeze(0), spread.unsqueeze(0))
        densities[name] = gaussian_log_prob(centre, spread, y)
    centre, spread = mixtures.moments(*parts)
    lower, upper = mixtures.icdf(*parts, y.new_tensor([[0.05], [0.95]]))
    density = mixtures.log_prob(*parts, y)
    chunk = Chunk(first_row, y, centre, spread, lower, upper, density, pit(*parts, y), log_weights, densities)
    return after, chunk


def score_table(scores: Scores, units: Units) -> dict[str, dict[str, float | None]]:
    """Each predictor's scores as plain numbers; ``None`` where no target was observed (or all are equal)."""
    table = {}
    for name, state in scores.items():
        values = {key: float(value) for key, value in summarise(state)._asdict().items()}
        values["coverage_90"] = values.pop("coverage")
        values["log_score_standardized"] = values["log_score"] + math.log(units.scale)
        table[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return table


def pack_scores(scores: Scores) -> dict[str, dict[str, Tensor]]:
    """Scores as plain containers."""
    return {name: dict(state._asdict()) for name, state in scores.items()}


def unpack_scores(packed: dict[str, dict[str, Tensor]]) -> Scores:
    """What :func:`pack_scores` wrote."""
    return {name: StreamScores(**state) for name, state in packed.items()}
