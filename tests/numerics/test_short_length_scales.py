"""Functions that change fast: their length scales are found by evidence, and every door predicts them."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import gp_ensembles as gpe
from gp_ensembles.numerics.short_length_scales import REACH, evidence_of_scales, short_length_scales
from gp_ensembles.papers.quadrature import Budget, RegressionProblem
from gp_ensembles.papers.quadrature.prior import default_prior


def waves(cycles, column=0):
    return lambda x: np.sin(2 * np.pi * cycles * x[:, column])


# Name, function, rows, columns, noise. More oscillations than a search from half of the range finds.
FAST = {
    "8 waves in 100 rows": (waves(8), 100, 1, 0.02),
    "16 waves, half of it noise": (waves(16), 400, 1, 0.5),
    "40 waves": (waves(40), 600, 1, 0.1),
    "one fast column, one slow": (lambda x: waves(9)(x) + x[:, 1], 300, 2, 0.05),
    "waves across the plane": (lambda x: np.sin(12 * np.pi * (x[:, 0] + x[:, 1])), 600, 2, 0.05),
    "a fast column of six": (lambda x: waves(8, 2)(x) + x[:, 1], 500, 6, 0.05),
}
SLOW = {
    "one wave": (waves(1), 300, 1, 0.1),
    "six columns": (lambda x: np.sin(5 * x[:, 2]) + x[:, 1], 300, 6, 0.1),
    "noise": (lambda x: 0 * x[:, 0], 500, 3, 1.0),
}


def rows(function, number, num_columns, noise):
    rng = np.random.default_rng(5)
    x = rng.uniform(size=(number, num_columns))
    return x, function(x) + noise * rng.normal(size=number)


@pytest.mark.parametrize("name", FAST)
def test_scales_of_fast_functions_are_short_where_they_are_fast(name):
    x, y = rows(*FAST[name])
    found = short_length_scales(torch.tensor(1e3 * x), torch.tensor(7 + 1e-3 * y))
    assert found is not None
    assert found.min() < 1e3 * REACH
    if "fast column of six" in name:
        assert found.argmin() == 2
        assert (found > 1e3 * REACH).sum() == 5


@pytest.mark.parametrize("name", SLOW)
def test_nothing_is_found_where_no_short_scale_is_needed(name):
    x, y = map(torch.tensor, rows(*SLOW[name]))
    assert short_length_scales(x, y) is None
    assert short_length_scales(x, torch.full_like(y, 3.0)) is None


def test_the_evidence_is_that_of_a_normal_distribution():
    """At the best noise of a ratio, found by SciPy's search over dense densities of two blocks."""
    rng = np.random.default_rng(0)
    x, y, scale = rng.uniform(size=(2, 12, 1)), rng.normal(size=(2, 12)), 0.2
    kernel = np.exp(-0.5 * ((x - x.swapaxes(1, 2)) / scale) ** 2)

    def loss(log_noise, ratio):
        covariances = np.exp(log_noise) * (np.eye(12) + ratio * kernel)
        return -sum(stats.multivariate_normal(cov=c).logpdf(t) for c, t in zip(covariances, y, strict=True))

    best = max(-optimize.minimize_scalar(loss, args=(10.0**power,)).fun for power in range(-2, 8))
    ours = evidence_of_scales(torch.tensor(x), torch.tensor(y), torch.tensor([[scale]], dtype=torch.float64))
    assert float(ours[0]) == pytest.approx(best, abs=1e-6)


def kernels(X, y, at):
    problem, source = RegressionProblem(X, y, default_prior(X, y, 1)), torch.Generator().manual_seed(0)
    return gpe.marginalize(problem, Budget(evaluations=60, draws=0), generator=source).predict(at).mean


def online(X, y, at):
    source = torch.Generator().manual_seed(0)
    return gpe.EnsembleModel(X, y.unsqueeze(-1), generator=source).posterior(at).mean


DOORS = {
    "exact": lambda X, y, at: gpe.ExactEnsembleModel(X, y.unsqueeze(-1)).fit().posterior(at).mean,
    "online": online,
    "knots": lambda X, y, at: gpe.select_knots(X, y).predict(at).mean,
    "kernels": kernels,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "name", ["8 waves in 100 rows", *(pytest.param(name, marks=pytest.mark.slow) for name in FAST)]
)
def test_models_and_knots_predict_fast_functions(name, door):
    """Their own errors are near those of scikit-learn from a good start, which at half of the noise has one of .23."""
    function, number, num_columns, noise = FAST[name]
    x, y = rows(function, number, num_columns, noise)
    at = np.random.default_rng(1).uniform(0.05, 0.95, (200, num_columns))
    mean = DOORS[door](*map(torch.tensor, (x, y, at))).detach().numpy().ravel()
    assert np.sqrt(np.mean((mean - function(at)) ** 2)) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_the_default_predicts_fast_functions(name):
    function, number, num_columns, noise = FAST[name]
    x, y = rows(function, number, num_columns, noise)
    at = np.random.default_rng(1).uniform(0.05, 0.95, (200, num_columns))
    error = gpe.OnlineRegressor(random_state=0).fit(x, y).predict(at) - function(at)
    assert np.sqrt(np.mean(error**2)) < 0.05 + 0.5 * noise
