"""Overflow codes through every interface: what is learned is what is learned from empty cells."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.estimators.scikit_learn import OnlineClassifier, OnlineRegressor

SMALL = replace(oebe, bases=(LinearBasis(),), target=RealTarget())
CODE, WARM, NUM_ROWS = 2.0**63, 60, 200


def table(num_rows=NUM_ROWS):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(num_rows, 3)) * [1e-2, 1.0, 300.0]
    y = 7 + 50 * X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=num_rows)
    spoiled, gaps = X.copy(), X.copy()
    is_bad = rng.random(num_rows) < 0.06
    spoiled[is_bad, 1], gaps[is_bad, 1] = CODE, np.nan
    return spoiled, gaps, y, int(is_bad.sum())


def test_scikit_learn():
    spoiled, gaps, y, num_bad = table()
    models = [
        OnlineRegressor(SMALL, WARM, 0).fit(X[:150], y[:150]).partial_fit(X[150:], y[150:]) for X in (spoiled, gaps)
    ]
    means = [model.predict(X) for model, X in zip(models, (spoiled, gaps), strict=True)]
    np.testing.assert_allclose(*means, rtol=1e-9)
    assert models[0].model_.anomaly_counts.bad_rows == num_bad
    labels = np.where(y > 7, "up", "down")
    ours = [OnlineClassifier(SMALL, WARM, 0).fit(X, labels).predict_proba(X) for X in (spoiled, gaps)]
    np.testing.assert_allclose(*ours, rtol=1e-7)
    with pytest.raises(ValueError, match="warm-up standard deviations"):
        OnlineRegressor(SMALL, WARM, 0, on_bad_row="refuse").fit(gaps, y).predict(np.full((1, 3), CODE))


def test_river():
    river = pytest.importorskip("gp_ensembles.estimators.river", reason="river is an optional extra")
    spoiled, gaps, y, num_bad = table()
    found = []
    for X in (spoiled, gaps):
        model = river.RiverRegressor(SMALL, warmup=WARM)
        for row, target in zip(X, y, strict=True):
            x = dict(zip("abc", row.tolist(), strict=True))
            found.append(model.predict_one(x))
            model.learn_one(x, float(target))
        assert model.anomaly_counts.bad_rows == (num_bad if X is spoiled else 0)
    np.testing.assert_allclose(found[:NUM_ROWS], found[NUM_ROWS:], rtol=1e-9)
    model = river.RiverRegressor(SMALL, warmup=WARM)
    for number in range(50):  # a code among the targets of the warm-up is not in their mean
        model.learn_one({"a": float(number)}, 1e300 if number == 20 else 3.0 + number % 2)
    assert model.predict_one({"a": 1.0}) == pytest.approx(3.5, abs=0.1)


@pytest.mark.filterwarnings("ignore")  # those of skpro and sktime
def test_skpro_and_sktime():
    spoiled, gaps, y, _ = table()
    skpro = pytest.importorskip("gp_ensembles.estimators.skpro", reason="skpro is an optional extra")
    frames = [pd.DataFrame(X, columns=list("abc")) for X in (spoiled, gaps)]
    means = [skpro.SkproRegressor(SMALL, WARM, 0).fit(X, pd.DataFrame({"y": y})).predict(X).to_numpy() for X in frames]
    np.testing.assert_allclose(*means, rtol=1e-9)
    sktime = pytest.importorskip("gp_ensembles.estimators.sktime", reason="sktime is an optional extra")
    index = pd.period_range("2020-01-01", periods=NUM_ROWS, freq="D")
    series = []
    for X in frames:
        model = sktime.SktimeForecaster(SMALL, WARM, num_paths=20)
        model.fit(pd.Series(y[:150], index[:150]), X[:150].set_index(index[:150]), fh=[1, 2])
        model.update(pd.Series(y[150:190], index[150:190]), X[150:190].set_index(index[150:190]))
        series.append(model.predict(X=X[190:192].set_index(index[190:192])).to_numpy())
    np.testing.assert_allclose(*series, rtol=1e-9)
