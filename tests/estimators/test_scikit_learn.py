"""The scikit-learn door: its own conventions, and the same numbers as the ensemble behind it."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gp_ensembles.data import Standardizer
from gp_ensembles.ensembles.bases import LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.estimators.scikit_learn import OnlineRegressor

small = replace(
    e_doebe,
    bases=(LinearBasis(), RadialBasis(num_centers=10, starts=(0.7,))),
    fit_settings=FitSettings(num_samples=1),
    random_walk_variances=(1e-3,),
)


def table(num_rows=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 3)) * [1.0, 10.0, 0.1] + [0.0, 100.0, 5.0]
    return X, 50 + 3 * np.sin(X[:, 0]) + 0.2 * X[:, 1] + 0.1 * rng.normal(size=num_rows)


@parametrize_with_checks([OnlineRegressor(small, warmup=60, random_state=0)])
def test_conventions(estimator, check):
    check(estimator)


def test_equals_the_ensemble_behind_it():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=3).fit(X, y)
    mean, std = model.predict(X[:20], return_std=True)
    rows, targets = torch.from_numpy(X), torch.from_numpy(y)
    standardizer = Standardizer.fit(rows[:60], targets[:60])
    warm, stream = standardizer.transform(rows[:60], targets[:60]), standardizer.transform(rows[60:], targets[60:])
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    online = small.fit(*warm, generator=torch.Generator().manual_seed(seed))
    online.observe(*stream)
    mixture = online.predict(standardizer.transform_inputs(rows[:20]))
    np.testing.assert_allclose(mean, standardizer.inverse_mean(mixture.mean), rtol=1e-9)
    np.testing.assert_allclose(std, standardizer.y_scale * mixture.stddev, rtol=1e-9)
    assert model.score(X[60:], y[60:]) > 0.9
    assert sum(model.expert_weights_.values()) == pytest.approx(1.0)


def test_fit_equals_partial_fit_in_pieces():
    X, y = table()
    whole = OnlineRegressor(small, warmup=60, random_state=0).fit(X, y)
    pieces = OnlineRegressor(small, warmup=60, random_state=0)
    for start in range(0, 150, 7):
        pieces.partial_fit(X[start : start + 7], y[start : start + 7])
    np.testing.assert_allclose(pieces.predict(X), whole.predict(X), rtol=1e-9)


def test_before_the_warm_up_it_predicts_the_running_mean():
    X, y = table()
    model = OnlineRegressor(small, warmup=60).partial_fit(X[:20], y[:20])
    mean, std = model.predict(X[:2], return_std=True)
    np.testing.assert_allclose(mean, y[:20].mean())
    np.testing.assert_allclose(std, y[:20].std(ddof=1))
    assert model.expert_weights_ == {}


def test_missing_targets_quantiles_samples_and_constant_columns():
    X, y = table()
    X = np.column_stack([X, np.ones(150)])
    y[[3, 70, 71]] = np.nan
    model = OnlineRegressor(small, warmup=60, random_state=0).partial_fit(X, y)
    low, high = model.predict_quantiles(X[:30], [0.05, 0.95])
    samples = model.sample_y(X[:30], n_samples=4000, random_state=0)
    assert samples.shape == (30, 4000)
    np.testing.assert_allclose(np.quantile(samples, 0.95, axis=1), high, atol=0.2)
    assert np.all(low < high)


def test_pickle_clone_and_pipeline():
    X, y = table()
    model = make_pipeline(StandardScaler(), OnlineRegressor(small, warmup=60, random_state=0)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), model.predict(X))


def test_bad_input_changes_nothing():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=0).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="shape"):
        model.partial_fit(X, y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(X * np.nan, y)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], y)
    with pytest.raises(ValueError, match="inf"):
        model.partial_fit(X, y + np.inf)
    np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="at least 10"):
        OnlineRegressor(small, warmup=60).fit(X[:6], y[:6])
    with pytest.raises(ValueError, match="constant"):
        OnlineRegressor(small, warmup=60).fit(np.ones((80, 2)), y[:80])
