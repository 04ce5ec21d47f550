"""Predictions of a model on a stream: distributions, log densities and intervals, and those during the warm-up."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import check_coverages
from gp_ensembles.distributions import LatentMixture, Mixture, Recalibrated, WithPointMass
from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.distributions.table import distribution_text, shape_of
from gp_ensembles.engine.predictions import AnyMixture
from gp_ensembles.ensembles.targets import LevelTarget, Target
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.likelihoods.predictive import GaussHermite
from gp_ensembles.numerics.display import band_html, predictions_head, prints_fields, text_html
from gp_ensembles.numerics.gpytorch_types import Likelihood

StreamDistribution = AnyMixture | Recalibrated | WithPointMass


@prints_fields
class Intervals(NamedTuple):
    """Adaptive intervals of R rows, see :class:`~gp_ensembles.calibration.IntervalLevels`.

    Attributes:
        coverages: Target coverages, C of them.
        levels: Probabilities at their lower and upper ends, shape (2, C, R).
        covered: Whether each target lies inside, 0 or 1, shape (C, R); NaN where it is missing.
    """

    coverages: tuple[float, ...]
    levels: Tensor
    covered: Tensor


class OnlinePredictions(NamedTuple):
    """Predictions of the rows of a call that come after the warm-up, each made before its target was seen.

    Attributes:
        distribution: Predictive distributions of R rows in the units of the target; float64 for real numbers.
        log_prob: Log densities of the targets, shape (R,), in nats; NaN where a target is missing.
        log_weights: Log weights of the experts before each target, shape (M, R).
        first_row: Place in the call of the first of these rows, counted from 0: after the warm-up it is 0, before it
            there are no rows.
        intervals: Adaptive intervals; ``None`` where there are none.
    """

    distribution: StreamDistribution
    log_prob: Tensor
    log_weights: Tensor
    first_row: int
    intervals: Intervals | None = None

    @property
    def mean(self) -> Tensor:
        """Means, shape (R,); see :attr:`Distribution.mean <gp_ensembles.distributions.Distribution.mean>`."""
        return self.distribution.mean

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, noise included, shape (R,)."""
        return self.distribution.stddev

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the interval of each row, shape (R,) each, from what came before its target.

        Args:
            coverage: One of the shares that the model's config names. Where there are no adaptive intervals any share
                will do: the ends are the distribution's own quantiles.

        Raises:
            ValueError: If the config does not name it.
        """
        if self.intervals is None:
            check_coverages((coverage,))
            return self.distribution.quantile((1 - coverage) / 2), self.distribution.quantile((1 + coverage) / 2)
        lower, upper = self.intervals.levels[:, coverage_place(coverage, self.intervals.coverages)]
        return self.distribution.quantile(lower), self.distribution.quantile(upper)

    def __repr__(self) -> str:
        rows = range(self.first_row, self.first_row + self.log_weights.shape[1])
        return distribution_text(self._head(), self.distribution, rows)

    def _head(self) -> str:
        shape = shape_of(self.distribution)
        return predictions_head("OnlinePredictions", shape, self.log_weights.shape[0], self.log_prob)

    def _repr_html_(self) -> str:
        """The last rows as a band, for notebooks; several outputs and classes without an order have only the text."""
        if self.mean.ndim > 1 or self.mean.numel() < 2:
            return text_html(repr(self))
        return band_html(self._head(), self.mean, self.stddev)


def coverage_place(coverage: float, coverages: tuple[float, ...]) -> int:
    """The index of a coverage among those of a config."""
    check_coverages((coverage,))
    if coverage not in coverages:
        named = ", ".join(f"{share:g}" for share in coverages)
        raise ValueError(
            f"there is no interval of coverage {coverage:g}: coverages of the config are {named}; add it there"
        )
    return coverages.index(coverage)


_CERTAIN = 1e-12  # latent variance of a known distribution


def running_mixture(target: Target, y: Tensor, num_rows: int) -> AnyMixture:
    """The distribution of the targets so far, y (N,) or (N, O), for each of a number of rows."""
    if target.is_real:
        columns = y.unsqueeze(-1) if y.ndim == 1 else y
        moments = [_moments(column[~column.isnan()]) for column in columns.unbind(-1)]
        mean, variance = (torch.stack(part).reshape(y.shape[1:]) for part in zip(*moments, strict=True))
        shape = (1, num_rows, *y.shape[1:])
        return Mixture(y.new_zeros(1), mean.expand(shape), variance.expand(shape))
    seen = y[~y.isnan()]
    if target.num_labels is None:
        rate = (seen.sum() + 0.5) / max(seen.numel(), 1)
        return _latent(LogPoissonLikelihood(), rate.log(), num_rows)
    frequencies = torch.bincount(seen.long(), minlength=target.num_labels).to(y) + 1
    frequencies = frequencies / frequencies.sum()
    if isinstance(target, LevelTarget):
        ordinal = OrdinalLikelihood(target.num_levels, Probit()).to(y)
        ordinal.cut_points = torch.special.ndtri(frequencies.cumsum(0)[:-1])
        return _latent(ordinal.requires_grad_(False), y.new_zeros(()), num_rows)
    if target.num_labels == 2 and target.is_ordered:
        return _latent(LogisticLikelihood(), torch.logit(frequencies[1]), num_rows)
    return _latent(MulticlassLikelihood(target.num_labels), frequencies.log(), num_rows)


def class_distribution(probabilities: Tensor) -> LatentMixture:
    """The distribution of classes with these probabilities (1, C), of N = 1 rows."""
    if probabilities.shape[1] == 2:
        return _latent(LogisticLikelihood(), torch.logit(probabilities[0, 1]), 1)
    return _latent(MulticlassLikelihood(probabilities.shape[1]), probabilities[0].log(), 1)


def no_predictions(target: Target, y: Tensor, num_experts: int) -> OnlinePredictions:
    """Predictions of no row, at the end of a call of targets (N,) that were all of the warm-up."""
    empty = y.new_zeros(max(num_experts, 1), 0)
    return OnlinePredictions(running_mixture(target, y, 0), empty[0], empty, y.shape[0])


def _moments(seen: Tensor) -> tuple[Tensor, Tensor]:
    mean = seen.mean() if seen.numel() else seen.new_zeros(())
    variance = seen.var() if seen.numel() > 1 else seen.new_ones(())
    return mean, torch.where(variance > 0, variance, torch.ones_like(variance))


def _latent(likelihood: Likelihood, value: Tensor, num_rows: int) -> LatentMixture:
    """One expert that is certain of its latent value, a scalar or a vector."""
    mean = value.expand(1, num_rows, *value.shape)
    variance = torch.full_like(mean, _CERTAIN)
    if value.ndim:
        variance = torch.diag_embed(variance)
    response = Response(likelihood, GaussHermite(), 1, torch.Size([1]))
    return LatentMixture(value.new_zeros(1), mean, variance, (response,))
