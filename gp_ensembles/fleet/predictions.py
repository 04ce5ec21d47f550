"""Predictions of a fleet for the rows of a call."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions import Mixture, Recalibrated, StudentTMixture, WithPointMass
from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.numerics.display import predictions_head
from gp_ensembles.streaming.predictions import coverage_place

SeriesDistribution = Mixture | StudentTMixture | Recalibrated | WithPointMass


class FleetPredictions(NamedTuple):
    """Predictions of the N rows of a call, each made before its target was seen.

    Rows of a series in its warm-up are not predicted: they are NaN, as are those of a series that is set aside.

    Attributes:
        log_prob: Log densities of the targets, in nats, shape (N,); also NaN where a target is missing.
        rows: Numbers of the R predicted rows, shape (R,).
        distribution: Predictive distributions of these rows, in units of their targets; ``None`` if there are none.
        coverages: Target coverages of the intervals, C of them.
        levels: Probabilities at the lower and upper ends of their intervals, shape (2, C, R).
        covered: Whether each target lies inside, 0 or 1, shape (C, N); NaN where it is missing.
        waiting: Series of the call that are still in their warm-up; only from ``predict``.

    Example:
        >>> import torch
        >>> from gp_ensembles.fleet import Fleet
        >>> y = torch.zeros(2, dtype=torch.float64)
        >>> # the warm-up has started
        >>> predictions = Fleet(warmup=30).observe(["north", "south"], y.unsqueeze(-1), y)
        >>> predictions.interval()[0]
        tensor([nan, nan], dtype=torch.float64)
    """

    log_prob: Tensor
    rows: Tensor
    distribution: SeriesDistribution | None
    coverages: tuple[float, ...]
    levels: Tensor
    covered: Tensor
    waiting: tuple[Hashable, ...] = ()

    @property
    def mean(self) -> Tensor:
        """Means in the units of each target, shape (N,); see :meth:`moments`."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variances, noise included, shape (N,); see :meth:`moments`."""
        return self.moments()[1]

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and variances, (N,) each; for recalibrated distributions they are integrals, computed on request."""
        if self.distribution is None:
            return self._of_all(), self._of_all()
        mean, variance = self.distribution.moments()
        return self._of_all(mean), self._of_all(variance)

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the interval of each row, shape (N,) each.

        Raises:
            ValueError: If ``coverage`` is not among the fleet's coverages.
        """
        place = coverage_place(coverage, self.coverages)
        if self.distribution is None:
            return self._of_all(), self._of_all()
        lower, upper = (self._of_all(quantile_each(self.distribution, ends)) for ends in self.levels[:, place])
        return lower, upper

    def _of_all(self, values: Tensor | None = None) -> Tensor:
        """Expand values of predicted rows (R,) to all rows (N,), with NaN elsewhere."""
        whole = torch.full_like(self.log_prob, torch.nan)
        return whole if values is None else whole.index_copy(0, self.rows, values)

    def __repr__(self) -> str:
        num = 0 if self.distribution is None else _base(self.distribution).component_mean.shape[0]
        head = predictions_head("FleetPredictions", self.log_prob.shape, num, self.log_prob)
        if self.distribution is None:
            return f"{head}, all of them in the warm-up"
        return distribution_text(head, self.distribution, self.rows.tolist())


def empty_predictions(y: Tensor, coverages: tuple[float, ...]) -> FleetPredictions:
    """Predictions of rows (N,) of which none is predicted: all NaN."""
    num = len(coverages)
    none, rows = torch.full_like(y, torch.nan), torch.zeros(0, dtype=torch.int64, device=y.device)
    return FleetPredictions(none, rows, None, coverages, y.new_zeros(2, num, 0), none.expand(num, -1).clone())


def merge_predictions(parts: Sequence[tuple[Tensor, FleetPredictions]], y: Tensor) -> FleetPredictions:
    """Merge predictions of a call of N rows from parts: row numbers and predictions of each."""
    waiting = tuple(name for _, part in parts for name in part.waiting)
    whole = empty_predictions(y, parts[0][1].coverages)._replace(waiting=waiting)
    for here, part in parts:
        whole.log_prob.index_copy_(0, here, part.log_prob)
        whole.covered.index_copy_(-1, here, part.covered)
    distributions = [part.distribution for _, part in parts if part.distribution is not None]
    if not distributions:
        return whole
    rows = torch.cat([here[part.rows] for here, part in parts])
    order = rows.argsort()
    levels = torch.cat([part.levels for _, part in parts], dim=-1)[..., order]
    merged = merge_distributions(distributions, order)
    return whole._replace(rows=rows[order], levels=levels, distribution=merged)


def merge_distributions(parts: Sequence[SeriesDistribution], order: Tensor) -> SeriesDistribution:
    """Concatenate distributions of all parts, reordered by (N,)."""
    first = parts[0]
    if any(isinstance(part, WithPointMass) for part in parts):
        return _merge_point_masses([_with_point_mass(part) for part in parts], order)
    assert not isinstance(first, WithPointMass)
    if isinstance(first, Recalibrated):
        maps = torch.cat([part.map_log_weights for part in parts if isinstance(part, Recalibrated)], dim=1)[:, order]
        base = merge_distributions([_base(part) for part in parts], order)
        assert isinstance(base, Mixture | StudentTMixture)
        return first._replace(base=base, map_log_weights=maps)
    return type(first)(*(torch.cat(field, dim=1)[:, order] for field in zip(*parts, strict=True)))


def _merge_point_masses(parts: Sequence[WithPointMass], order: Tensor) -> WithPointMass:
    at = torch.cat([part.at for part in parts], dim=1)[:, order]
    log_share = torch.cat([part.log_share for part in parts], dim=1)[:, order]
    base = merge_distributions([part.base for part in parts], order)
    assert not isinstance(base, WithPointMass)
    return WithPointMass(base, at, log_share)


def _with_point_mass(part: SeriesDistribution) -> WithPointMass:
    if isinstance(part, WithPointMass):
        return part
    nowhere = torch.full_like(_base(part).component_mean[:1], torch.nan)
    return WithPointMass(part, nowhere, torch.full_like(nowhere, -torch.inf))


def quantile_each(distribution: SeriesDistribution, levels: Tensor) -> Tensor:
    """Quantiles of rows (R,), each at its own probability (R,); NaN if a distribution is NaN."""
    known = _base(distribution).mean.isfinite().nonzero().flatten()
    found = torch.full_like(levels, torch.nan)
    if len(known):
        found[known] = merge_distributions([distribution], known).quantile(levels[known])
    return found


def _base(distribution: SeriesDistribution) -> Mixture | StudentTMixture:
    while isinstance(distribution, Recalibrated | WithPointMass):
        distribution = distribution.base
    return distribution
