"""Simple baselines: the previous value, the value one season ago, and recursive linear regression."""

from collections import deque
from typing import final

import numpy as np

from studies.arena.learners import Learner, errors_on_the_way
from studies.arena.scores import Array

_LEAST_CORRELATION = 0.2  # of a season
_RIDGE = 0.1  # precision of every coefficient before the first row


@final
class SeasonalNaive(Learner):
    """The value of a season ago; a missing one is what was said for it.

    Args:
        season: Rows of a season: 1 is the previous value; ``None``: found on the warm-up rows.
    """

    def __init__(self, season: int | None = None) -> None:
        self.season = season
        self.values: deque[float] = deque()

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        if self.season is None:
            self.season = found_season(y)
        self.values = deque([0.0] * self.season, maxlen=self.season)
        return errors_on_the_way(self, X, y)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        return np.array([self.values[0]])

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.values.append(self.values[0] if np.isnan(y[0]) else float(y[0]))


@final
class RecursiveLinear(Learner):
    r"""Recursive least squares on the inputs and an intercept, with a small ridge.

    .. math:: k = P \phi / (1 + \phi^\top P \phi), \quad w \leftarrow w + k (y - \phi^\top w), \quad
              P \leftarrow P - k \phi^\top P
    """

    def __init__(self) -> None:
        self.weights = np.zeros(0)
        self.covariance = np.zeros((0, 0))

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        width = 1 + X.shape[1]
        self.weights, self.covariance = np.zeros(width), np.eye(width) / _RIDGE
        return errors_on_the_way(self, X, y)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        return np.array([_features(X) @ self.weights])

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        if np.isnan(y[0]):
            return
        features = _features(X)
        spread = self.covariance @ features
        gain = spread / (1 + features @ spread)
        self.weights = self.weights + gain * (float(y[0]) - features @ self.weights)
        self.covariance -= np.outer(gain, spread)


@final
class Lagged(Learner):
    """A learner that gets the last values of the target as further inputs; a missing one is the one before it.

    Args:
        inner: The learner.
        num_lags: How many last values.
    """

    def __init__(self, inner: Learner, num_lags: int) -> None:
        self.inner = inner
        self.values = deque([0.0] * num_lags, maxlen=num_lags)

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        rows = []
        for row in range(len(y)):
            rows.append(self._features(X[row : row + 1]))
            self._append(y[row])
        return self.inner.warm_up(np.concatenate(rows), y)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        return self.inner.predict(self._features(X))

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.inner.learn(self._features(X), y)
        self._append(y[0])

    def _features(self, X: Array) -> Array:
        return np.concatenate([X, np.array([self.values])], axis=1)

    def _append(self, value: float) -> None:
        self.values.append(self.values[-1] if np.isnan(value) else float(value))


def found_season(y: Array) -> int:
    """The lag at which the autocorrelation has its highest peak, after a straight line is taken away; 1 if none.

    A peak is a lag whose autocorrelation is above those around it and above 0.2, at most a third of the rows.

    Args:
        y: Targets (N,); NaN where missing.

    Example:
        >>> found_season(np.sin(2 * np.pi * np.arange(200) / 12)), found_season(np.arange(200.0))
        (12, 1)
    """
    rows = np.arange(len(y))
    seen = ~np.isnan(y)
    rest = np.where(seen, y - np.polyval(np.polyfit(rows[seen], y[seen], 1), rows), 0.0)
    power = float(rest @ rest)
    if power <= 1e-12 * len(y):
        return 1
    most = len(y) // 3
    correlation = np.array([rest[lag:] @ rest[: len(y) - lag] for lag in range(most + 2)]) / power
    peaks = [
        (correlation[lag], lag)
        for lag in range(2, most + 1)
        if correlation[lag] > max(correlation[lag - 1], correlation[lag + 1], _LEAST_CORRELATION)
    ]
    return max(peaks)[1] if peaks else 1


def _features(X: Array) -> Array:
    return np.concatenate([[1.0], X[0]])
