"""Predictions of a fleet for the rows of a call."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.calibration.levels import LevelsOutput
from gp_ensembles.distributions import Mixture, StudentTMixture
from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.numerics.display import predictions_head


class FleetPredictions(NamedTuple):
    """Predictions of the N rows of a call, each made before its target was seen.

    Rows of a series in its warm-up are not predicted: they are NaN, as are those of a series that is set aside.

    Attributes:
        mean: Means in the units of each target, shape (N,).
        variance: Variances, noise included, shape (N,).
        log_prob: Log densities of the targets, in nats, shape (N,); also NaN where a target is missing.
        rows: Numbers of the R predicted rows, shape (R,).
        distribution: Predictive distributions of these rows; ``None`` where there are none.
        coverages: Target coverages of the intervals, C of them.
        levels: Probabilities at the lower and upper ends of their intervals, shape (2, C, R).
        covered: Whether each target lies inside, 0 or 1, shape (C, N); NaN where it is missing.

    Example:
        >>> import torch
        >>> from gp_ensembles.fleet import Fleet
        >>> y = torch.zeros(2, dtype=torch.float64)
        >>> # the warm-up has started
        >>> predictions = Fleet(warmup=30).observe(["north", "south"], y.unsqueeze(-1), y)
        >>> predictions.interval()[0]
        tensor([nan, nan], dtype=torch.float64)
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    rows: Tensor
    distribution: Mixture | StudentTMixture | None
    coverages: tuple[float, ...]
    levels: Tensor
    covered: Tensor

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the interval of each row, shape (N,) each.

        Raises:
            ValueError: If it is none of the fleet's coverages.
        """
        place = coverage_index(coverage, self.coverages)
        ends = torch.full((2, len(self.mean)), torch.nan, dtype=self.mean.dtype, device=self.mean.device)
        if self.distribution is not None:
            for end, levels in zip(ends, self.levels[:, place], strict=True):
                end[self.rows] = quantile_each(self.distribution, levels)
        return ends[0], ends[1]

    def __repr__(self) -> str:
        num = 0 if self.distribution is None else self.distribution.component_mean.shape[0]
        head = predictions_head("FleetPredictions", self.mean.shape, num, self.log_prob)
        if self.distribution is None:
            return f"{head}, all of them in the warm-up"
        return distribution_text(head, self.distribution, self.rows.tolist())

    def filled(
        self, distribution: Mixture | StudentTMixture, log_prob: Tensor, output: LevelsOutput
    ) -> "FleetPredictions":
        """These predictions with those of its R rows, whose numbers are written into its tensors."""
        predicted = distribution.mean, distribution.variance, log_prob, output.covered
        for old, new in zip((self.mean, self.variance, self.log_prob, self.covered), predicted, strict=True):
            old.index_copy_(-1, self.rows, new)
        return self._replace(distribution=distribution, levels=output.levels)


def empty_predictions(y: Tensor, rows: Tensor, coverages: tuple[float, ...]) -> FleetPredictions:
    """Predictions of rows (N,) before any is filled in, of which (R,) will be."""
    none = torch.full_like(y, torch.nan)
    levels = y.new_zeros(2, len(coverages), 0)
    covered = none.expand(len(coverages), -1).clone()
    return FleetPredictions(none, none.clone(), none.clone(), rows, None, coverages, levels, covered)


def merge_predictions(parts: Sequence[tuple[Tensor, FleetPredictions]], y: Tensor) -> FleetPredictions:
    """Predictions of a call of N rows from parts: numbers of the rows of each, and their predictions."""
    rows = torch.cat([here[part.rows] for here, part in parts])
    order = rows.argsort()
    whole = empty_predictions(y, rows[order], parts[0][1].coverages)
    for here, part in parts:
        for old, new in zip(whole[:3], part[:3], strict=True):
            old.index_copy_(-1, here, new)
        whole.covered.index_copy_(-1, here, part.covered)
    levels = torch.cat([part.levels for _, part in parts], dim=-1)[..., order]
    distributions = [part.distribution for _, part in parts if part.distribution is not None]
    if not distributions:
        return whole._replace(levels=levels)
    return whole._replace(levels=levels, distribution=merge_distributions(distributions, order))


def merge_distributions(parts: Sequence[Mixture | StudentTMixture], order: Tensor) -> Mixture | StudentTMixture:
    """Distributions of the rows of all parts, in an order (N,)."""
    return type(parts[0])(*(torch.cat(field, dim=1)[:, order] for field in zip(*parts, strict=True)))


def coverage_index(coverage: float, coverages: tuple[float, ...]) -> int:
    """The index of a coverage among those of a fleet.

    Raises:
        ValueError: If it is none of them.
    """
    if coverage not in coverages:
        raise ValueError(f"there is no interval of coverage {coverage:g}; those of the fleet are {coverages}")
    return coverages.index(coverage)


def quantile_each(distribution: Mixture | StudentTMixture, levels: Tensor) -> Tensor:
    """Quantiles of rows (R,) at probabilities of their own (R,); NaN where a distribution is."""
    known = distribution.mean.isfinite().nonzero().flatten()
    found = torch.full_like(levels, torch.nan)
    if len(known) == 0:
        return found
    some = type(distribution)(*(part[:, known] for part in distribution))  # weights are those of each row
    found[known] = some.quantile(levels[known])
    return found
