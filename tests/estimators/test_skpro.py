"""The probabilistic regressor of skpro: its own checks, and the same numbers as the estimator behind it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.distributions import Mixture
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.estimators.scikit_learn import OnlineRegressor

pytest.importorskip("skpro", reason="skpro is an optional extra")
import pandas as pd
from skpro.utils import check_estimator

from gp_ensembles.estimators.skpro import Predicted, PredictiveDistribution, SkproRegressor

LINEAR = replace(oebe, bases=(LinearBasis(),))


def table(num_rows=120):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(num_rows, 2)), columns=["wind", "sun"], index=np.arange(5, 5 + num_rows))
    y = 3 * X[["wind"]].to_numpy() - X[["sun"]].to_numpy() + 10 + 0.3 * rng.normal(size=(num_rows, 1))
    return X, pd.DataFrame(y, columns=["power"], index=X.index)


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.filterwarnings("ignore")  # skpro's own
@pytest.mark.parametrize("kind", [PredictiveDistribution, SkproRegressor])
def test_skpros_own_checks(kind):
    results = check_estimator(kind, raise_exceptions=False, verbose=False)
    assert len(results) > 50
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


def test_a_mixture_is_that_of_scipy_in_every_function_and_slice():
    mean = np.array([[0.0, 1.0, 2.0], [0.5, -2.0, 3.0]])
    deviation = np.array([[1.0, 0.5, 2.0], [0.1, 1.5, 1.0]])
    weights = np.array([0.3, 0.7])
    mixture = Mixture(torch.as_tensor(weights).log(), torch.as_tensor(mean), torch.as_tensor(deviation**2))
    predicted = PredictiveDistribution(Predicted(mixture), index=pd.Index([3, 1, 4]), columns=pd.Index(["load"]))
    x = np.array([[0.2], [-1.0], [2.5]])
    parts = stats.norm(mean, deviation)
    np.testing.assert_allclose(predicted.pdf(x).to_numpy()[:, 0], weights @ parts.pdf(x.T), rtol=1e-12)
    np.testing.assert_allclose(predicted.cdf(x).to_numpy()[:, 0], weights @ parts.cdf(x.T), rtol=1e-12)
    np.testing.assert_allclose(predicted.mean().to_numpy()[:, 0], weights @ mean, rtol=1e-12)
    expected = weights @ (deviation**2 + mean**2) - (weights @ mean) ** 2
    np.testing.assert_allclose(predicted.var().to_numpy()[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(predicted.cdf(predicted.ppf(np.full((3, 1), 0.2))).to_numpy(), 0.2, rtol=1e-9)
    turned = predicted.iloc[[2, 0]]
    assert turned.index.tolist() == [4, 3]
    np.testing.assert_array_equal(turned.mean().to_numpy(), predicted.mean().to_numpy()[[2, 0]])
    np.testing.assert_array_equal(turned.pdf(x[[2, 0]]).to_numpy(), predicted.pdf(x).to_numpy()[[2, 0]])
    assert predicted.iat[1, 0].mean() == predicted.mean().iat[1, 0]


def test_the_same_numbers_as_the_estimator_behind_it():
    X, y = table()
    ours = SkproRegressor(LINEAR, warmup=40, random_state=0).fit(X[:80], y[:80]).update(X[80:100], y[80:100])
    behind = OnlineRegressor(LINEAR, 40, 0).fit(X[:80], y[:80].to_numpy()[:, 0])
    behind.partial_fit(X[80:100], y[80:100].to_numpy()[:, 0])
    mean, std = behind.predict(X[100:], return_std=True)
    np.testing.assert_array_equal(ours.predict(X[100:]).to_numpy()[:, 0], mean)
    predicted = ours.predict_proba(X[100:])
    assert predicted.index.equals(X.index[100:])
    assert predicted.columns.tolist() == ["power"]
    np.testing.assert_allclose(np.sqrt(predicted.var().to_numpy()[:, 0]), std, rtol=1e-12)
    log_prob = behind.log_prob(X[100:], y[100:].to_numpy()[:, 0])
    np.testing.assert_allclose(predicted.log_pdf(y[100:]).to_numpy()[:, 0], log_prob, rtol=1e-12)
    ends = ours.predict_interval(X[100:], coverage=[0.9, 0.5])
    lower, upper = behind.predict_interval(X[100:], 0.9)
    np.testing.assert_array_equal(ends["power", 0.9, "lower"], lower)
    np.testing.assert_array_equal(ends["power", 0.9, "upper"], upper)
    assert (ends["power", 0.5, "lower"] > lower).all()
