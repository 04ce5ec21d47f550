"""Boosted trees, retrained on all past rows every so many rows: LightGBM and scikit-learn's."""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from studies.arena.learners import Learner
from studies.arena.optional import optional
from studies.arena.river_models import never_impossible
from studies.arena.scores import Array

PERIOD = 500
TREES, LEAVES, RATE = 300, 31, 0.05
Trained = Callable[[Array], Array]
Train = Callable[[Array, Array], Trained]


@final
class Retrained(Learner):
    """A model of a whole table, trained on all past rows at the end of the warm-up and every so many rows after that.

    Errors in the warm-up are those of models of its first half, for the third quarter, and of its first three
    quarters, for the last.

    Args:
        train: Trains a model.
        period: Rows between two trainings.
    """

    def __init__(self, train: Train, period: int = PERIOD) -> None:
        self.train = train
        self.rows_at_once = period
        self.period = period
        self.rows_since_training = 0
        self.parts: list[tuple[Array, Array]] = []
        self.model: Trained | None = None

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        errors = np.full(len(y), np.nan)
        for start, stop in ((len(y) // 2, 3 * len(y) // 4), (3 * len(y) // 4, len(y))):
            errors[start:stop] = y[start:stop] - self._trained(X[:start], y[:start])(X[start:stop])
        self.parts = [(X, y)]
        self.model = self._trained(X, y)
        return errors

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        if self.model is None or self.rows_since_training >= self.period:
            self.rows_since_training = 0
            self.model = self._trained(*(np.concatenate(part) for part in zip(*self.parts, strict=True)))
        return self.model(X)

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.parts.append((X, y))
        self.rows_since_training += len(y)

    def _trained(self, X: Array, y: Array) -> Trained:
        seen = ~np.isnan(y)
        return self.train(X[seen], y[seen])


@final
class RetrainedClassifier(Learner):
    """The same for classes; probabilities (N, C) instead of means.

    Args:
        train: Trains a model.
        period: Rows between two trainings.
    """

    def __init__(self, train: Train, period: int = PERIOD) -> None:
        self.inner = Retrained(train, period)
        self.rows_at_once = period

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        self.inner.learn(X, y)
        self.inner.predict(X[:1])
        return np.full(len(y), np.nan)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        return never_impossible(self.inner.predict(X))

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.inner.learn(X, y)


def lightgbm_train(seed: int) -> Train:
    """LightGBM, 300 trees of at most 31 leaves, learning rate 0.05, one thread."""
    return lambda X, y: _lightgbm(X, y, {"objective": "regression", "seed": seed})


def lightgbm_classes(seed: int, num_classes: int) -> Train:
    """The same for classes."""
    if num_classes > 2:
        return lambda X, y: _lightgbm(X, y, {"objective": "multiclass", "num_class": num_classes, "seed": seed})

    def train(X: Array, y: Array) -> Trained:
        model = _lightgbm(X, y, {"objective": "binary", "seed": seed})
        return lambda rows: np.stack([1 - model(rows), model(rows)], axis=-1)

    return train


def histogram_train(seed: int) -> Train:
    """scikit-learn's histogram gradient boosting with the same settings."""

    def train(X: Array, y: Array) -> Trained:
        model = HistGradientBoostingRegressor(
            max_iter=TREES,
            max_leaf_nodes=LEAVES,
            learning_rate=RATE,
            early_stopping=False,
            random_state=seed,
        )
        with threadpool_limits(1):
            model.fit(X, y)
        return lambda rows: _predicted(model, rows)

    return train


def _predicted(model: Any, X: Array) -> Array:
    with threadpool_limits(1):
        predicted: Array = model.predict(X)
    return predicted


def _lightgbm(X: Array, y: Array, settings: dict[str, Any]) -> Trained:
    lightgbm = optional("lightgbm")
    common = {"num_leaves": LEAVES, "learning_rate": RATE, "num_threads": 1, "verbosity": -1}
    model = lightgbm.train({**common, **settings}, lightgbm.Dataset(X, y), num_boost_round=TREES)
    return lambda rows: np.asarray(model.predict(rows, num_threads=1))
