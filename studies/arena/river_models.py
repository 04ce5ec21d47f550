"""Online models of river: linear regression, forests, trees, nearest neighbors; logistic regression for classes."""

from collections.abc import Callable
from typing import Any, final

import numpy as np

from studies.arena.learners import Learner, errors_on_the_way
from studies.arena.optional import optional
from studies.arena.scores import Array

_SMOOTHINGS = (None, 0.999, 0.99)  # of Bayesian linear regression; the best of the warm-up is taken
_NOISE = 0.2  # standardized, of Bayesian linear regression
_ABSURD = 100.0  # standardized
_NEIGHBORS, _KEPT = 10, 1000
_LEAST_PROBABILITY = 0.01  # shared by all classes, so that none is impossible


@final
class RiverModel(Learner):
    """A river model of numbers, one row at a time.

    Args:
        makers: Make fresh models; that with the least squared error on the warm-up goes on. The first of them, which
            then learns all rows again, takes over should that one fail or say something absurd.
    """

    def __init__(self, makers: list[Callable[[], Any]]) -> None:
        self.makers = makers
        self.model: Any = None
        self.seen: list[tuple[dict[int, float], float]] = []

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        tried: list[tuple[float, int, Any, Array]] = []
        for make in self.makers:
            self.model, self.seen = make(), []
            errors = errors_on_the_way(self, X, y)
            loss = float(np.nanmean(errors**2))
            tried.append((loss if np.isfinite(loss) else np.inf, len(tried), self.model, errors))
        _, _, self.model, best = min(tried)
        return best

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        predicted = float(self.model.predict_one(_named(X)) or 0.0)
        if not abs(predicted) < _ABSURD and len(self.makers) > 1:
            self._start_again()
            predicted = float(self.model.predict_one(_named(X)))
        return np.array([predicted])

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        if not np.isnan(y[0]):
            self.seen.append((_named(X), float(y[0])))
            try:
                self.model.learn_one(*self.seen[-1])
            except np.linalg.LinAlgError:
                self._start_again()

    def _start_again(self) -> None:
        """Go on with the first kind of model: a covariance has forgotten its prior."""
        self.model = self.makers[0]()
        for row in self.seen:
            self.model.learn_one(*row)


@final
class RiverClassifier(Learner):
    """A river model of classes, one row at a time; one part in a hundred of the probability is shared by all classes.

    Args:
        make: Makes a fresh model.
        num_classes: C.
    """

    def __init__(self, make: Callable[[], Any], num_classes: int) -> None:
        self.model = make()
        self.num_classes = num_classes

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        for row in range(len(y)):
            self.learn(X[row : row + 1], y[row : row + 1])
        return np.full(len(y), np.nan)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        predicted = self.model.predict_proba_one(_named(X))
        return never_impossible(np.array([[float(predicted.get(label, 0.0)) for label in range(self.num_classes)]]))

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.model.learn_one(_named(X), int(y[0]))


def never_impossible(probabilities: Array) -> Array:
    """Probabilities (N, C), mixed with equal ones; equal ones where nothing was said.

    Example:
        >>> never_impossible(np.array([[1.0, 0.0], [0.0, 0.0]]))
        array([[0.995, 0.005],
               [0.5  , 0.5  ]])
    """
    total = probabilities.sum(1, keepdims=True)
    equal = np.full_like(probabilities, 1 / probabilities.shape[1])
    shares = np.where(total > 0, probabilities / np.where(total > 0, total, 1.0), equal)
    return (1 - _LEAST_PROBABILITY) * shares + _LEAST_PROBABILITY * equal


def bayesian_linear() -> Learner:
    """Bayesian linear regression with an intercept; its smoothing is chosen on the warm-up."""
    linear_model, compose = optional("river.linear_model"), optional("river.compose")

    def maker(smoothing: float | None) -> Callable[[], Any]:
        def make() -> Any:
            model = linear_model.BayesianLinearRegression(alpha=1, beta=_NOISE**-2, smoothing=smoothing)
            return compose.FuncTransformer(_with_intercept) | model

        return make

    return RiverModel([maker(smoothing) for smoothing in _SMOOTHINGS])


def adaptive_forest(seed: int) -> Learner:
    """Adaptive random forest of ten trees."""
    forest = optional("river.forest")
    return RiverModel([lambda: forest.ARFRegressor(n_models=10, seed=seed)])


def mondrian_forest(seed: int) -> Learner:
    """Aggregated Mondrian forest of ten trees."""
    forest = optional("river.forest")
    return RiverModel([lambda: forest.AMFRegressor(n_estimators=10, seed=seed)])


def adaptive_tree(seed: int) -> Learner:
    """Hoeffding adaptive tree."""
    tree = optional("river.tree")
    return RiverModel([lambda: tree.HoeffdingAdaptiveTreeRegressor(grace_period=100, seed=seed)])


def nearest_neighbors() -> Learner:
    """Ten nearest neighbors among the last 1 000 rows, weighed by distance."""
    neighbors = optional("river.neighbors")
    engine = neighbors.LazySearch
    return RiverModel(
        [
            lambda: neighbors.KNNRegressor(
                n_neighbors=_NEIGHBORS, aggregation_method="weighted_mean", engine=engine(window_size=_KEPT)
            )
        ]
    )


def forest_of_classes(seed: int, num_classes: int) -> Learner:
    """Adaptive random forest of ten trees for classes."""
    forest = optional("river.forest")
    return RiverClassifier(lambda: forest.ARFClassifier(n_models=10, seed=seed), num_classes)


def logistic(num_classes: int) -> Learner:
    """Logistic regression by stochastic gradients; one against the rest for more than two classes."""
    linear_model, optim, multiclass = (optional(f"river.{part}") for part in ("linear_model", "optim", "multiclass"))

    def make() -> Any:
        model = linear_model.LogisticRegression(optimizer=optim.SGD(0.05))
        return model if num_classes == 2 else multiclass.OneVsRestClassifier(model)

    return RiverClassifier(make, num_classes)


def _named(X: Array) -> dict[int, float]:
    return dict(enumerate(X[0].tolist()))


def _with_intercept(x: dict[int, float]) -> dict[int, float]:
    return {**x, -1: 1.0}
