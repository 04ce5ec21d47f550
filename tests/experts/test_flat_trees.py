"""Flat trees predict what scikit-learn's own do, or are not used."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from gp_ensembles.experts.external_row import FlatTrees, predict_trees


def trained(X: np.ndarray, y: np.ndarray, **settings: object) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(max_iter=30, random_state=0, early_stopping=False, **settings).fit(X, y)


@pytest.mark.parametrize("has_gaps", [False, True])
def test_they_predict_what_the_model_does(has_gaps: bool) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(400, 4))
    y = np.sin(3 * X[:, 0]) + (X[:, 1] > 0) * X[:, 2]
    if has_gaps:
        X[draw.random(X.shape) < 0.2] = np.nan
    model, new = trained(X, y), draw.normal(size=(300, 4))
    new[::7, 1] = np.nan
    new[::11] = 1e300
    trees = FlatTrees.of(model, X)
    assert trees is not None
    assert np.array_equal(predict_trees(trees, new), model.predict(new))


def test_those_that_predict_something_else_are_not_used() -> None:
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(300, 2)), draw.normal(size=300)
    assert FlatTrees.of(trained(X, np.abs(y) + 0.1, loss="poisson"), X) is None  # sums are logarithms
    X[:, 1] = draw.integers(0, 4, 300)
    assert FlatTrees.of(trained(X, y, categorical_features=[1]), X) is None
    assert FlatTrees.of(object(), X) is None
