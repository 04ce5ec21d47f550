"""Errors of rows left out, against models of all other rows, and the Student's t that is fitted to them."""

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from gp_ensembles.papers.sparse import DTC, FIC, VFE, GreedyBlocks, SparseGP, select_knots
from gp_ensembles.papers.sparse.regression import ExactGP
from gp_ensembles.papers.sparse.tails import Tails, copies_of, fit_tails, leave_one_out
from tests.papers.sparse.problems import rows

NOISE, CONSTANT, ONE = 0.09, 0.4, torch.ones(1, 1, dtype=torch.float64)


def settled(model):
    model.likelihood.noise, model.mean_module.constant = NOISE, CONSTANT
    model.covar_module.outputscale, model.covar_module.base_kernel.lengthscale = 1.7, 0.6
    return model


def kernel(first, second):
    """Matern-5/2 by its formula."""
    r = np.sqrt(5 * ((first[:, None] - second[None]) ** 2).sum(-1)) / 0.6
    return 1.7 * (1 + r + r**2 / 3) * np.exp(-r)


def left_out(prior, noise, open_, y, i, same=None):
    """Error and variance of row i and its copies by the normal distribution of all others, without the library."""
    rest = np.arange(len(y)) != i if same is None else ~same
    gain = prior[i, rest] @ np.linalg.inv(prior[np.ix_(rest, rest)] + np.diag(noise[rest]))
    error = y[~rest].mean() - CONSTANT - gain @ (y[rest] - CONSTANT)
    return error, prior[i, i] - gain @ prior[rest, i] + open_[i] + NOISE


def test_rows_left_out_of_an_exact_process():
    for has_twins in (False, True):
        X, y = rows(30, noise=0.3)
        if has_twins:
            X[7] = X[19] = X[3]
        model = settled(ExactGP(X, y, ScaleKernel(MaternKernel(nu=2.5))))
        places = torch.tensor([0, 3, 7, 25])
        got = leave_one_out(model, places)
        prior, nothing = kernel(X.numpy(), X.numpy()), np.zeros(len(y))
        want = np.array([left_out(prior, nothing + NOISE, nothing, y.numpy(), int(i)) for i in places]).T
        np.testing.assert_allclose(torch.stack(got).numpy(), want, rtol=1e-6, atol=1e-6)


def test_copies_left_out_together():
    """Against the distribution of all rows that are no copies, at the average of the copies."""
    X, y = rows(30, noise=0.3)
    X[7] = X[19] = X[3]
    y[7] = y[3] + 1.0
    places = torch.tensor([0, 3, 25])
    knots = torch.cat([X[:3], X[4:15]])
    for model in (ExactGP(X, y, ScaleKernel(MaternKernel(nu=2.5))), sparse(X, y, knots)):
        error, variance = leave_one_out(settled(model), places, copies_of(model))
        prior, open_ = kernel(X.numpy(), X.numpy()), np.zeros(len(y))
        if isinstance(model, SparseGP):
            between, own = kernel(knots.numpy(), X.numpy()), kernel(knots.numpy(), knots.numpy())
            full, prior = prior, between.T @ np.linalg.solve(own, between)
            open_ = full.diagonal() - prior.diagonal()
        for number, i in enumerate(places.tolist()):
            want = left_out(prior, NOISE + 0 * open_, open_, y.numpy(), i, (X[i] == X).all(-1).numpy())
            assert (float(error[number]), float(variance[number])) == pytest.approx(want, rel=1e-6)


def sparse(X, y, knots):
    return SparseGP(X, y, knots, ScaleKernel(MaternKernel(nu=2.5)), approximation=VFE, nugget=0.0)


# Functions without noise: name, function of rows in the unit cube, rows, columns.
EXACT = {
    "waves": (lambda x: np.sin(30 * x[:, 0]), 150, 1),
    "growth": (lambda x: np.exp(3 * x[:, 0]), 80, 1),
    "a plane": (lambda x: x @ np.array([1.0, -2.0, 3.0]), 200, 3),
    "a ridge": (lambda x: np.abs(x[:, 0] - 0.4) + x[:, 1], 150, 2),
    "whole numbers": (lambda x: np.sin(x[:, 0] / 2) + 0.1 * x[:, 1] ** 2, 400, 2),
    "copies": (lambda x: np.cos(4 * x[:, 0]) * x[:, 1], 300, 2),
    "five columns": (lambda x: np.sin(3 * x[:, 0] * x[:, 1]) + x[:, 2] ** 2 + x[:, 3] - x[:, 4], 250, 5),
}


@pytest.mark.filterwarnings("ignore:.* exact copies")
@pytest.mark.parametrize("name", EXACT)
def test_intervals_without_noise_hold_nine_of_ten(name):
    """Errors are anywhere below the least noise; in places that come again, and in new ones next to copies."""
    function, number, num_columns = EXACT[name]
    rng, limit = np.random.default_rng(11), 12
    x, at = rng.uniform(size=(number, num_columns)), rng.uniform(size=(600, num_columns))
    if name == "whole numbers":
        x, at = np.floor(limit * x), np.floor(limit * at)
    if name == "copies":
        x = np.repeat(x[: number // 3], 3, 0)
    found = select_knots(torch.tensor(x), torch.tensor(function(x)), generator=torch.Generator().manual_seed(0))
    predicted = found.predict(torch.tensor(at))
    lower, upper = (predicted.quantile(level).numpy().ravel() for level in (0.05, 0.95))
    truth = function(at)
    assert 0.85 <= np.mean((lower <= truth) & (truth <= upper)) <= 0.95


def test_rows_left_out_of_a_sparse_process():
    for approximation in (VFE, FIC, DTC):
        X, y = rows(30, noise=0.3)
        model = settled(SparseGP(X, y, X[:6] + 0.05, ScaleKernel(MaternKernel(nu=2.5)), approximation=approximation))
        model.nugget = 0.0
        knots = model.knots.detach().numpy()
        between, own = kernel(knots, X.numpy()), kernel(knots, knots)
        prior = between.T @ np.linalg.solve(own, between)
        unexplained = 1.7 - prior.diagonal()
        noise = NOISE + unexplained * (approximation == FIC)
        # Whether predictions have what the knots leave open, as the approximation itself says.
        open_ = unexplained * float(approximation.predictive(2 * ONE, ONE) > 0)
        places = torch.tensor([0, 5, 29])
        want = np.array([left_out(prior, noise + 0 * unexplained, open_, y.numpy(), int(i)) for i in places]).T
        np.testing.assert_allclose(torch.stack(leave_one_out(model, places)).numpy(), want, rtol=1e-6, atol=1e-6)


def test_the_fit_is_the_most_likely_of_its_degrees_of_freedom():
    X, y = rows(120, 1, noise=0.3)
    model = settled(ExactGP(X, y, ScaleKernel(MaternKernel(nu=2.5))))
    model.train_y[::15] += 3.0
    tails = fit_tails(model)
    error, variance = leave_one_out(model, torch.arange(120))
    z = (error / variance.sqrt()).numpy()
    grid = product((3, 4, 5, 8, 32, 1e9), np.geomspace(0.5, 1.5, 100))
    value, df, scale = max((scipy.stats.t(df, scale=scale).logpdf(z).sum(), df, scale) for df, scale in grid)
    assert (tails.degrees_of_freedom, tails.scale) == (df, pytest.approx(scale, rel=0.01))
    assert scipy.stats.t(tails.degrees_of_freedom, scale=tails.scale).logpdf(z).sum() >= value
    with pytest.raises(ValueError, match="max_rows must be positive"):
        fit_tails(model, max_rows=0)


def normal(model, X):
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    return torch.distributions.Normal(posterior.mean.flatten(), posterior.variance.flatten().sqrt())


@torch.no_grad()
def test_normal_errors_keep_normal_predictions():
    X, y = rows(150, 2, noise=0.3)
    model = select_knots(X, y).model
    tails = fit_tails(model)
    assert tails.degrees_of_freedom >= 11
    test_X, test_y = rows(300, 3, noise=0.3)
    plain = normal(model, test_X).log_prob(test_y)
    assert float((tails.predict(model, test_X).log_prob(test_y) - plain).mean()) > -0.01
    exact = Tails(math.inf, 1.0).predict(model, test_X)
    torch.testing.assert_close(exact.log_prob(test_y), plain)


@torch.no_grad()
def test_heavy_tails_are_found_and_pay():
    X, y = rows(300, 4, noise=0.3)
    heavy = torch.from_numpy(scipy.stats.t(2.5).rvs(600, random_state=6)) * 0.3
    test_X, test_y = rows(300, 6, noise=0.3)
    found = select_knots(X, y + heavy[:300])
    model = found.model
    tails = fit_tails(model, max_rows=200, generator=torch.Generator().manual_seed(0))
    test_y = test_y + heavy[300:]
    gain = tails.predict(model, test_X).log_prob(test_y) - normal(model, test_X).log_prob(test_y)
    assert tails.degrees_of_freedom <= 8
    assert float(gain.mean()) > 0.05
    assert found.tails == fit_tails(model)
    whole = found.tails.predict(model, test_X).log_prob(test_y)
    assert torch.equal(found.predict(test_X).log_prob(test_y), whole)


@pytest.mark.parametrize("max_knots", [5, 40])
def test_a_selection_predicts_by_itself_a_row_at_a_time(monkeypatch, max_knots):
    X, y = rows(40, 7, noise=0.3)
    found = select_knots(X, y, strategy=GreedyBlocks(max_knots=max_knots, fit_iterations=10, polish_iterations=0))
    whole = found.predict(X)
    monkeypatch.setattr("gp_ensembles.papers.sparse.tails.ROWS", 7)
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(found.predict(X), name), getattr(whole, name), rtol=1e-6, atol=1e-6)


def test_predictions_in_small_units_are_the_same():
    """GPyTorch rounds variances up to 1e-10: more than the noise of targets in such units."""
    X, y = rows(60, noise=0.3)
    scores = []
    for scale in (1.0, 2.0**-40):
        found = select_knots(X[:40], scale * y[:40])
        scores.append(float(found.predict(X[40:]).log_prob(scale * y[40:]).mean()) + math.log(scale))
    assert scores[1:] == pytest.approx(scores[:1], abs=0.01)  # the searches end elsewhere by round-off
