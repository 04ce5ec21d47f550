"""statsforecast's automatic models of a series, selected again every so many rows and carried forward in between."""

import warnings
from collections.abc import Callable
from typing import Any, final

import numpy as np

from studies.arena.baselines import found_season
from studies.arena.learners import Learner, predicted_then_learned
from studies.arena.optional import optional
from studies.arena.scores import Array

_LONGEST_SEASON = 24
_SCORED = 100  # warm-up rows at its end whose errors make the first band


@final
class SeriesModel(Learner):
    """A model of the last values of the target; the inputs are not looked at.

    Args:
        make: Makes a model for a length of season.
        window: Rows that it is chosen on; it is carried forward from the first of them.
        period: Rows between two choices.
    """

    def __init__(self, make: Callable[[int], Any], window: int = 1000, period: int = 1000) -> None:
        self.make = make
        self.window = window
        self.period = period
        self.season = 1
        self.values: list[float] = []
        self.rows_since_fit = 0
        self.model: Any = None

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        season = found_season(y)
        self.season = season if season <= _LONGEST_SEASON else 1
        first, errors = max(len(y) - _SCORED, len(y) // 2), np.full(len(y), np.nan)
        self.values = _filled(y[:first]).tolist()
        self._fit()
        errors[first:] = y[first:] - predicted_then_learned(self, X[first:], y[first:])
        self._fit()
        return errors

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        if self.rows_since_fit >= self.period:
            self._fit()
        past = np.array(self.values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = float(self.model.forward(past, h=1)["mean"][0])
        return np.array([predicted if np.isfinite(predicted) else past[-1]])

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.values.append(self.values[-1] if np.isnan(y[0]) else float(y[0]))
        self.rows_since_fit += 1

    def _fit(self) -> None:
        self.values = self.values[-self.window :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = self.make(self.season).fit(np.array(self.values))
        self.rows_since_fit = 0


def auto_arima() -> Learner:
    """AutoARIMA."""
    models = optional("statsforecast.models")
    return SeriesModel(lambda season: models.AutoARIMA(season_length=season, approximation=True))


def auto_ets() -> Learner:
    """AutoETS."""
    models = optional("statsforecast.models")
    return SeriesModel(lambda season: models.AutoETS(season_length=season))


def _filled(y: Array) -> Array:
    """Missing values as the one before them; zero, the mean, at the start."""
    filled, last = y.copy(), 0.0
    for row, value in enumerate(y):
        last = last if np.isnan(value) else float(value)
        filled[row] = last
    return filled
