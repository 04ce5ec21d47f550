r"""Structural experts selected by the evidence of a warm-up: linear, changing and fast changing trends.

The Bayesian information criterion decides whether the slope is a random walk and whether it is damped: log evidence
minus :math:`\frac12 \log N` for each additional parameter. A short warm-up has little information on slow changes,
such as those of the slope, and a variance estimated as zero stays zero. Therefore a second expert has a slope
and season that vary as fast as the evidence allows.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.structural import StructuralExpert

_LOSS = 1.0  # nats of evidence: models up to e times less likely than the best are not ruled out
_DAMPINGS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_FACTORS = (10.0, 10**0.5, 10**0.25, 10**0.125)  # for variances, from one round of the search to the next
_MOST_ROUNDS = 8  # per factor
_HALF_DECADES = tuple(10.0 ** (k / 2) for k in range(-18, 0))
_LEAST = (1e-7, 1e-8, 1e-9, 1e-10)  # variances of noise, level, season and slope: negligible in standardized units
# Starting points of the search for a linear trend, and, with these slopes, for a changing one.
_NOISES, _LEVELS, _SEASONS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4), (1e-1, 1e-3, 1e-5), (1e-2, 1e-3, 1e-4, 1e-5, 1e-7)
_SLOPES, _SOME_DAMPINGS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), (0.5, 0.8, 0.95)
_MORE = (1.0, 10.0, 100.0)  # a damped slope has larger steps
# With a faster slope or season, noise and level have less to explain.
_LESS_NOISE, _LESS_LEVEL = (0.1, 10**-0.5, 1.0), (1e-3, 0.1, 10**-0.5, 1.0)


class _Point(NamedTuple):
    """Variances of noise and of steps of level, season and slope, and the damping of the slope."""

    noise: float
    level: float
    season: float
    slope: float
    damping: float


class _Found(NamedTuple):
    point: _Point
    evidence: float


class _Series(NamedTuple):
    """The warm-up."""

    y: Tensor
    season: int | None
    num_inputs: int

    def experts(self, points: Sequence[_Point]) -> StructuralExpert:
        """A batch of experts with these variances."""
        numbers = self.y.new_tensor(points)
        return StructuralExpert(numbers[:, :3], self.season, self.num_inputs, self.y.shape[0], numbers[:, 3:])

    def evidence(self, points: Sequence[_Point]) -> list[float]:
        """Log evidence of each point."""
        found = self.experts(points).log_evidence(self.y.new_zeros(self.y.shape[0], self.num_inputs), self.y)
        return found.nan_to_num(nan=-math.inf).tolist()

    def best(self, points: Sequence[_Point]) -> _Found:
        """The point with the highest evidence."""
        evidence = self.evidence(points)
        return max(map(_Found, points, evidence), key=lambda found: found.evidence)


@torch.no_grad()
def fit_trends(y: Tensor, season: int | None, num_inputs: int) -> list[tuple[str, StructuralExpert]]:
    """Structural experts by name, including one whose slope and season vary as fast as the warm-up allows.

    Shapes: ``y`` (N,); returns (1,).
    """
    series, worth = _Series(y, season, num_inputs), 0.5 * math.log(y.shape[0])
    straight = _searched(series, _grid((0.0,) if season is None else _SEASONS, (0.0,)), (1.0,))
    starts = _with_less([straight.point._replace(slope=slope) for slope in _SLOPES])
    walking = _searched(series, [*starts, *_grid((straight.point.season,), _SLOPES)], (1.0,))
    straight = _searched(series, [straight.point, walking.point._replace(slope=0.0)], (1.0,))
    starts += _with_less([walking.point._replace(slope=walking.point.slope * more) for more in _MORE])
    some = [point._replace(damping=damping) for point in starts for damping in _SOME_DAMPINGS]
    damped = _searched(series, some, _DAMPINGS)
    changing = walking if walking.evidence >= damped.evidence - worth else damped
    is_straight = straight.evidence >= changing.evidence - worth * (1 if changing is walking else 2)
    found = straight if is_straight else changing
    fast = _fastest(series, found)
    named = [] if season is None else [("trend and season", straight.point)]
    named += [] if is_straight else [("changing trend", changing.point)]
    named += [] if fast in [point for _, point in named] else [("fast changing trend", fast)]
    return [(name, series.experts([point])) for name, point in named]


def _searched(series: _Series, starts: Sequence[_Point], dampings: tuple[float, ...]) -> _Found:
    """Coordinate search from the best starting point, in one or two coordinates at a time, with decreasing steps."""
    best = series.best(starts)
    for factor in _FACTORS:
        for _ in range(_MOST_ROUNDS):
            after = series.best(_around(best.point, factor, dampings))
            if after.evidence <= best.evidence:
                break
            best = after
    return best


def _around(point: _Point, factor: float, dampings: tuple[float, ...]) -> list[_Point]:
    """Neighbors that differ in one or two coordinates: variances by a factor, the damping by one grid position."""
    place = dampings.index(point.damping)
    points = set()
    for moves in itertools.product((-1, 0, 1), repeat=5):
        if sum(map(abs, moves)) > 2:
            continue
        noise, level, season, slope = (
            max(value * factor**move, least) if value else 0.0
            for value, move, least in zip(point[:4], moves[:4], _LEAST, strict=True)
        )
        damping = dampings[min(max(place + moves[4], 0), len(dampings) - 1)]
        points.add(_Point(noise, level, season, slope, damping))
    return sorted(points)


def _grid(seasons: Sequence[float], slopes: Sequence[float]) -> list[_Point]:
    return [_Point(*values) for values in itertools.product(_NOISES, _LEVELS, seasons, slopes, (1.0,))]


def _with_less(points: Sequence[_Point]) -> list[_Point]:
    """Each point with smaller noise and level variances, as a faster slope or season explains part of them."""
    return [
        point._replace(noise=max(point.noise * less, _LEAST[0]), level=max(point.level * lower, _LEAST[1]))
        for point in points
        for less, lower in itertools.product(_LESS_NOISE, _LESS_LEVEL)
    ]


def _fastest(series: _Series, found: _Found) -> _Point:
    """The largest variances of slope and season, separately, that the evidence does not rule out."""

    def largest(of: Callable[[float], _Point], now: float) -> float:
        values = [now, *(value for value in _HALF_DECADES if value > 1.1 * now)]
        evidence = series.y.new_tensor(
            series.evidence(_with_less([of(value) for value in values])), dtype=torch.float64
        )
        profile = evidence.reshape(len(values), -1).amax(1)
        least = max(float(profile.max()), found.evidence) - _LOSS
        return max((value for value, one in zip(values, profile.tolist(), strict=True) if one >= least), default=now)

    best = found.point
    slope = largest(lambda value: best._replace(slope=value), best.slope)
    season = best.season
    if series.season is not None:
        season = largest(lambda value: best._replace(season=value), best.season)
    fast = best._replace(slope=slope, season=season)
    return fast if fast == best else series.best(_with_less([fast])).point
