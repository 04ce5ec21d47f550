"""Point masses of series' targets: the location of each, and its probability from a Markov chain of labels.

See :mod:`gp_ensembles.streaming.point_mass`; here the probability depends on past targets but not on inputs.
"""

import torch
from torch import Tensor

from gp_ensembles.calibration.frequency import FrequencyState, init_frequency, mix_frequency, update_frequency
from gp_ensembles.calibration.labels import LabelState, init_labels, predict_labels, step_labels, update_labels
from gp_ensembles.distributions import WithPointMass
from gp_ensembles.fleet.arrivals import batches
from gp_ensembles.fleet.predictions import SeriesDistribution
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.point_mass import find_point, point_labels, without_point
from gp_ensembles.streaming.predictions import Intervals

# The point, NaN for none; the chain's four counts, the probabilities of its last label, whether it was seen; counts and
# weights of the frequency.
_SIZE = 12


def no_point(zero: Tensor) -> Tensor:
    """Packed state of a series without a point mass, (12,), in the dtype of ``zero``."""
    return torch.cat([zero.new_full((1,), torch.nan), zero.new_zeros(_SIZE - 1)])


def point_of(y: Tensor, config: StreamConfig) -> tuple[Tensor, Tensor]:
    """Packed state of a series after warm-up targets (N,), (12,), and the targets that are not at the point."""
    at = find_point(y, config)
    if at is None:
        return no_point(y[:0]), y
    labels = point_labels(y, at)
    chain, _ = update_labels(init_labels(2, y.new_zeros(())), labels)
    return torch.cat([y.new_tensor([at]), _packed(chain, init_frequency(labels))]), without_point(y, at)


def learn_points(points: Tensor, y: Tensor, series: Tensor) -> Tensor:
    """Learn targets (N,) of series (N,) in any order; returns log probabilities of the point before each, (N,).

    The packed states (S, 12) change in place; results are minus infinity where a series has no point.
    """
    log_share = torch.full_like(y, -torch.inf)
    has_point = (~points[series, 0].isnan()).nonzero().flatten()
    for places, numbers in batches(series[has_point], lengths=(1,)):
        rows = has_point[numbers.squeeze(-1)]
        own = points[places]
        labels = point_labels(y[rows], own[:, 0])
        chain, found = step_labels(_chain(own), labels)
        frequency, share = update_frequency(_frequency(own), found[:, 1].exp(), labels)
        log_share[rows] = share.log()
        points[places, 1:] = _packed(chain, frequency)
    return log_share


def next_shares(points: Tensor) -> Tensor:
    """Log probabilities (S,) that the next target is at the point, for packed series (S, 12)."""
    share = mix_frequency(_frequency(points), predict_labels(_chain(points))[:, 1].exp())
    return torch.where(points[:, 0].isnan(), -torch.inf, share.log())


def with_points(base: SeriesDistribution, points: Tensor, log_share: Tensor) -> SeriesDistribution:
    """Distributions of rows (N,) with the point masses of packed series (N, 12); the base if none has a point."""
    if bool(points[:, 0].isnan().all()):
        return base
    assert not isinstance(base, WithPointMass)
    return WithPointMass(base, points[:, 0].unsqueeze(0), log_share.unsqueeze(0))


def with_central_levels(distribution: SeriesDistribution, intervals: Intervals, y: Tensor | None) -> Intervals:
    """Intervals of rows (N,), at central levels if there is a point: levels cannot adapt to an atom."""
    if not isinstance(distribution, WithPointMass):
        return intervals
    at, share = distribution.at[0], distribution.log_share[0].exp()
    tails = (1 - share.new_tensor(intervals.coverages)) / 2
    central = torch.stack([tails, 1 - tails]).unsqueeze(-1)
    levels = torch.where(at.isnan(), intervals.levels, central)
    if y is None:
        return intervals._replace(levels=levels)
    up_to = distribution.cdf(y)
    below = up_to - torch.where(y == at, share, 0.0)
    covered = torch.where(y.isnan(), torch.nan, ((up_to >= levels[0]) & (below <= levels[1])).to(up_to))
    return intervals._replace(levels=levels, covered=torch.where(at.isnan(), intervals.covered, covered))


def _chain(points: Tensor) -> LabelState:
    return LabelState(points[:, 1:5].unflatten(-1, (2, 2)), points[:, 5:7], points[:, 7])


def _frequency(points: Tensor) -> FrequencyState:
    return FrequencyState(points[:, 8:10], points[:, 10:])


def _packed(chain: LabelState, frequency: FrequencyState) -> Tensor:
    """The packed numbers of series, (..., 11)."""
    return torch.cat([chain.counts.flatten(-2), chain.last, chain.is_seen.unsqueeze(-1), *frequency], dim=-1)
