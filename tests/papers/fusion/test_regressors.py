"""Regressors as experts: scales against their maximum likelihood, and what they must not have seen."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gp_ensembles.papers.fusion import PBHS, fit_fusion, fuse, predict_experts
from gp_ensembles.papers.fusion.regressors import cross_fit, log_linear, scale_regressors
from tests.papers.fusion.cases import inputs, normal, seeded


def rows(number, seed, uneven=False):
    X = inputs(number, 2, seed)
    size = (2.0 * X[:, 0]).exp() if uneven else 1.0
    return X, 3.0 * X[:, 1] - X[:, 0] + 0.2 * size * normal(number, seed=seed + 100)


def line(X, y):
    return LinearRegression().fit(X.numpy(), y.numpy())


def test_a_constant_scale_is_the_error_of_held_out_rows():
    X, y = rows(200, 0)
    regressor = line(X[:100], y[:100])
    expert = scale_regressors([regressor], X[100:], y[100:]).experts[0]
    error = y[100:].numpy() - regressor.predict(X[100:].numpy())
    predicted = expert.predict(X)
    np.testing.assert_allclose(predicted.target_variance[0], np.full(200, np.mean(error**2)), rtol=1e-9)
    np.testing.assert_allclose(predicted.mean[0], regressor.predict(X.numpy()))


def test_a_scale_depends_on_the_input_where_errors_do():
    X, y = rows(400, 1, uneven=True)
    expert = scale_regressors([line(X[:200], y[:200])], X[200:], y[200:]).experts[0]
    assert bool(expert.slope.abs().max() > 0)
    grid = torch.tensor([[-0.8, 0.0], [0.8, 0.0]], dtype=torch.float64)
    low, high = expert.predict(grid).target_variance[0].sqrt().tolist()
    # The truth is 0.2 exp(2 x): 0.040 and 0.99; the slopes have a prior that makes them smaller.
    assert 0.028 < low < 0.1
    assert 0.7 < high < 1.4


def test_log_linear_scales_maximize_their_likelihood():
    X, y = rows(60, 2, uneven=True)
    error = y - y.mean()
    level, slope = log_linear(X, error)

    def loss(b):
        eta = b[0] + X.numpy() @ b[1:]
        return 0.5 * (eta + error.numpy() ** 2 * np.exp(-eta)).sum() + 0.5 * (b[1:] ** 2).sum()

    best = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose([float(level), *slope.tolist()], best.x, atol=1e-4)


@pytest.mark.parametrize("kind", [BayesianRidge(), GaussianProcessRegressor(RBF() + WhiteKernel(0.1))])
def test_stated_deviations_are_used_up_to_a_factor(kind):
    X, y = rows(90, 3)
    regressor = kind.fit(X[:40].numpy(), y[:40].numpy())
    expert = scale_regressors([regressor], X[40:], y[40:]).experts[0]
    mean, deviation = regressor.predict(X.numpy(), return_std=True)
    ratio = expert.predict(X).target_variance[0] / torch.as_tensor(deviation) ** 2
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio), rtol=1e-8, atol=0)
    np.testing.assert_allclose(expert.predict(X).mean[0], mean)


def test_cross_fit_predicts_each_row_without_its_target():
    X, y = rows(40, 4)
    folds = torch.arange(40) % 4
    found = cross_fit([LinearRegression()], X, y, folds)
    for fold in range(4):
        inside = folds == fold
        expected = line(X[~inside], y[~inside]).predict(X[inside].numpy())
        np.testing.assert_allclose(found.predictions.mean[0, inside], expected)
    changed = y.clone()
    changed[folds == 0] += 5.0
    again = cross_fit([LinearRegression()], X, changed, folds)
    torch.testing.assert_close(again.predictions.mean[:, folds == 0], found.predictions.mean[:, folds == 0])
    np.testing.assert_allclose(found.experts[0].predict(X).mean[0], line(X, y).predict(X.numpy()))


def test_cross_fit_leaves_the_regressors_as_they_were():
    X, y = rows(40, 5)
    pipeline = make_pipeline(StandardScaler(), KNeighborsRegressor(3))
    cross_fit([pipeline], X, y, generator=seeded(0))
    with pytest.raises(Exception, match="not fitted"):
        pipeline.predict(X.numpy())


def test_fitted_regressors_go_straight_into_a_fusion():
    X, y = rows(260, 6)
    regressors = [line(X[:60], y[:60]), KNeighborsRegressor(5).fit(X[:60].numpy(), y[:60].numpy())]
    fitted = fit_fusion(PBHS(X[60:160], y[60:160], regressors), generator=seeded(0))
    test_X, test_y = X[160:], y[160:]
    experts = fitted.model.experts
    nlpd = -float(fitted.predict(test_X).log_prob(test_y).mean())
    alone = -predict_experts(experts, test_X).log_prob(test_y).mean(1)
    assert nlpd < float(alone.min()) + 0.1
    torch.testing.assert_close(fitted.predict(test_X, experts).mean, fitted.predict(test_X).mean)
    assert fuse([*experts], space="y", X=test_X).mean.shape == (100,)


def test_bad_regressors_and_rows():
    X, y = rows(40, 7)
    good, exact = line(X[:20], y[:20]), KNeighborsRegressor(1).fit(X.numpy(), y.numpy())
    for call, error, message in [
        (lambda: scale_regressors([good, "model"], X, y), TypeError, "expert 1, a str, is not a regressor"),
        (lambda: scale_regressors([good], X[:4], y[:4]), ValueError, "too few to learn the scale"),
        (lambda: scale_regressors([good], X, y[:39]), ValueError, r"shape \(40,\) as the inputs, got \(39,\)"),
        (lambda: scale_regressors([], X, y), ValueError, "at least one regressor"),
        (lambda: cross_fit([good], X, y, torch.zeros(40)), ValueError, "at least two values"),
        (lambda: fuse([good], space="y", X=X), TypeError, "scale_regressors"),
        (lambda: scale_regressors([exact], X, y), ValueError, "expert 0, a KNeighborsRegressor, has no errors"),
    ]:
        with pytest.raises(error, match=message):
            call()
