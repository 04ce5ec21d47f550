"""Bands around point predictions, made from past errors only."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from studies.arena.scores import LEVEL, Array, LocationScale, student_log_density

_DEGREES = (2.0, 3.0, 5.0, 10.0, 30.0)
_MEMORIES = (0.9, 0.97, 0.99, 0.998)
_FLOOR = 1e-3  # of scales: repeated targets are not predicted with certainty
_EM_STEPS = 15
_BURN_IN = 20  # rows of an exponentially weighted mean that are not judged


class Points(NamedTuple):
    """One-step-ahead point predictions of a stream.

    Attributes:
        warm_X: Inputs of the warm-up rows, shape (N0, D).
        warm_errors: Errors there, each made before its target was learned, shape (N0,); NaN where there is none.
        X: Inputs of the scored rows, shape (N, D).
        y: Their targets, shape (N,).
        mean: Predictions of these, shape (N,).
    """

    warm_X: Array
    warm_errors: Array
    X: Array
    y: Array
    mean: Array

    @property
    def errors(self) -> Array:
        """All errors in the order of time, shape (N0 + N,); NaN where there is none."""
        return np.concatenate([self.warm_errors, self.y - self.mean])


class Band(ABC):
    """Makes predictive distributions of point predictions: that of a row from the errors of the rows before it."""

    @abstractmethod
    def around(self, points: Points) -> LocationScale:
        """Distributions of the scored rows, shape (N,)."""


@final
class FollowingBand(Band):
    r"""Student's t with a scale that follows past errors by exponential weighting.

    .. math:: y_t \sim m_t + c \sqrt{q_t}\, t_\nu, \qquad q_{t+1} = \lambda q_t + (1 - \lambda) \min(e_t^2, 25 q_t)

    Memory, degrees of freedom and factor are those of largest likelihood on the last errors, chosen at the end of the
    warm-up and every so many rows after that.

    Args:
        period: Rows between two choices.
        window: Errors they look at.
    """

    def __init__(self, period: int = 500, window: int = 1000) -> None:
        self.period = period
        self.window = window

    def around(self, points: Points) -> LocationScale:
        """See :meth:`Band.around`."""
        errors, first = points.errors, len(points.warm_errors)
        squares = followed_squares(errors, _MEMORIES)
        scales, degrees = np.empty(len(points.y)), np.empty(len(points.y))
        for start in range(0, len(points.y), self.period):
            now = first + start
            past = slice(max(0, now - self.window), now)
            choices = [(*_fitted(errors[past], q[past]), memory) for memory, q in enumerate(squares)]
            _, df, factor, memory = max(choices)
            rows = slice(start, min(start + self.period, len(points.y)))
            scales[rows] = factor * np.sqrt(squares[memory, first + rows.start : first + rows.stop])
            degrees[rows] = df
        return LocationScale(points.mean, np.maximum(scales, _FLOOR), degrees)


@final
class RecentBand(Band):
    """The errors of the last rows: normal ones, or Student's t with intervals from their empirical quantiles.

    Args:
        is_normal: A normal distribution with their mean square, in place of a fitted Student's t.
        window: How many errors.
        period: Rows between two fits; quantiles are those of the very last errors.
    """

    def __init__(self, is_normal: bool = False, window: int = 500, period: int = 50) -> None:
        self.is_normal = is_normal
        self.window = window
        self.period = period

    def around(self, points: Points) -> LocationScale:
        """See :meth:`Band.around`."""
        return self.scaled(points, np.ones(len(points.warm_errors) + len(points.y)))

    def scaled(self, points: Points, scales: Array) -> LocationScale:
        """The same for errors that are divided by scales (N0 + N,), each known before its row."""
        errors, first, num_rows = points.errors / scales, len(points.warm_errors), len(points.y)
        factor, df = np.empty(num_rows), np.full(num_rows, np.inf)
        for start in range(0, num_rows, self.period):
            recent, rows = _last(errors[: first + start], self.window), slice(start, start + self.period)
            if self.is_normal:
                factor[rows] = max(np.sqrt(np.mean(recent**2)), _FLOOR)
            else:
                df[rows], factor[rows] = fitted_student(recent)
        scale = np.maximum(factor * scales[first:], _FLOOR)
        if self.is_normal:
            return LocationScale(points.mean, scale, df)
        ends = np.array([_conformal(_last(errors[: first + row], self.window)) for row in range(num_rows)])
        lower, upper = points.mean + ends.T * scales[first:]
        return LocationScale(points.mean, scale, df, lower, upper)


@final
class ScaleModelBand(Band):
    """A second model says how large errors are at an input: it learns the logarithms of past errors' sizes.

    Errors over the scales that it said for them, before it had learned them, are treated as by :class:`RecentBand`.

    Args:
        train: Trains such a model on inputs and targets; returns its predictions as a function of inputs.
        period: Rows between two trainings, on all past errors.
        fewest: Errors without which scales are one.
    """

    def __init__(
        self, train: Callable[[Array, Array], Callable[[Array], Array]], period: int = 500, fewest: int = 300
    ) -> None:
        self.train = train
        self.period = period
        self.fewest = fewest

    def around(self, points: Points) -> LocationScale:
        """See :meth:`Band.around`."""
        errors, X = points.errors, np.concatenate([points.warm_X, points.X])
        first, scales = len(points.warm_errors), np.ones(len(points.errors))
        sizes = np.log(np.abs(errors) + _FLOOR)
        for start in range(first, len(errors), self.period):
            known = np.flatnonzero(~np.isnan(sizes[:start]))
            rows = slice(start, start + self.period)
            if len(known) < self.fewest:
                typical = np.exp(sizes[known].mean()) if len(known) else 1.0
                scales[rows] = typical
                scales[:first] = typical if start == first else scales[:first]
                continue
            if start == first:  # the scales of errors in the warm-up come from the errors of the other half
                for half, other in ((known[::2], known[1::2]), (known[1::2], known[::2])):
                    scales[half] = np.exp(self.train(X[other], sizes[other])(X[half]))
            scales[rows] = np.exp(self.train(X[known], sizes[known])(X[rows]))
        return RecentBand().scaled(points, np.maximum(scales, _FLOOR))


def followed_squares(errors: Array, memories: tuple[float, ...]) -> Array:
    """Exponentially weighted means of squares before each error, shape (K, N); an error beyond five counts as five.

    Example:
        >>> followed_squares(np.array([1.0, 2.0, 0.0]), (0.5,))
        array([[1. , 1. , 2.5]])
    """
    keep = np.array(memories)
    q, is_first = np.ones(len(keep)), True
    found = np.empty((len(keep), len(errors)))
    for row, error in enumerate(errors):
        found[:, row] = q
        if is_first and not np.isnan(error):
            q, is_first = np.full(len(keep), max(error**2, _FLOOR**2)), False
        elif not np.isnan(error):
            q = np.maximum(keep * q + (1 - keep) * np.minimum(error**2, 25 * q), _FLOOR**2)
    return found


def fitted_student(errors: Array) -> tuple[float, float]:
    """Degrees of freedom and scale of Student's t of largest likelihood, by expectation maximization.

    Example:
        >>> df, scale = fitted_student(np.random.default_rng(0).standard_normal(5000))
        >>> df, round(scale, 1)
        (30.0, 1.0)
    """
    _, df, scale = _fitted(errors, np.ones(len(errors)))
    return df, scale


def _fitted(errors: Array, squares: Array) -> tuple[float, float, float]:
    """Log likelihood, degrees of freedom and factor of largest likelihood of errors over roots of squares."""
    seen = ~np.isnan(errors)
    seen[: _BURN_IN if seen.sum() > 4 * _BURN_IN else 0] = False
    z, log_roots = errors[seen] / np.sqrt(squares[seen]), float(np.log(squares[seen]).sum() / 2)
    best = (-np.inf, _DEGREES[0], 1.0)
    for df in _DEGREES:
        scale = max(float(np.sqrt(np.mean(z**2))), _FLOOR) if len(z) else 1.0
        for _ in range(_EM_STEPS if len(z) else 0):
            scale = max(float(np.sqrt(np.mean((df + 1) * z**2 / (df + (z / scale) ** 2)))), _FLOOR)
        likelihood = float(student_log_density(z / scale, np.array(df)).sum()) - len(z) * np.log(scale) - log_roots
        best = max(best, (likelihood, df, scale))
    return best


def _last(errors: Array, window: int) -> Array:
    """The last errors that there are."""
    known = errors[-2 * window :]
    known = known[~np.isnan(known)][-window:]
    return known if len(known) else np.ones(1)


def _conformal(errors: Array) -> tuple[float, float]:
    """Lower and upper order statistics that cover a further exchangeable error with the level."""
    ordered = np.sort(errors)
    rank = int(np.floor((len(ordered) + 1) * (1 - LEVEL) / 2))
    low = max(rank, 1) - 1
    return float(ordered[low]), float(ordered[-1 - low])
