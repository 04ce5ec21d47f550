"""Forecasts as predictions against scipy's distributions, numerical integration, and bad input."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, interpolate, stats

from gp_ensembles.papers.fusion.forecasts import moment_forecast, quantile_forecast, sample_forecast

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def test_means_and_deviations_have_the_log_density_of_scipy():
    mean, deviation, y = np.array([0.0, 2.0]), np.array([0.5, 3.0]), np.array([0.3, -1.0])
    found = moment_forecast(mean, deviation).log_prob(torch.as_tensor(y))
    np.testing.assert_allclose(found[0], stats.norm.logpdf(y, mean, deviation), rtol=1e-12)


def test_quantiles_of_a_normal_give_that_normal():
    for levels in ([0.1, 0.9], [0.01, 0.2, 0.3], LEVELS):
        mean, deviation = np.array([[0.0], [1e4], [-3.0]]), np.array([[1.0], [1e-2], [20.0]])
        found = quantile_forecast(stats.norm.ppf(levels, mean, deviation), levels)
        np.testing.assert_allclose(found.mean[0], mean[:, 0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.target_variance[0].sqrt(), deviation[:, 0], rtol=1e-6)


def moment(score, power, quantile):
    return float(quantile(score)) ** power * stats.norm.pdf(score)


def test_moments_are_those_of_the_interpolated_quantiles():
    for truth in (stats.gamma(2.0), stats.t(4), stats.lognorm(0.5), stats.uniform()):
        q, z = truth.ppf(LEVELS), stats.norm.ppf(LEVELS)

        # Linear between the levels and beyond them, by an independent code.
        quantile = interpolate.make_interp_spline(z, q, k=1)
        assert quantile(z) == pytest.approx(q)  # the interpolated quantiles are the given ones
        pieces = [-12.0, *z, 12.0]
        mean, square = (
            sum(integrate.quad(moment, low, high, (power, quantile))[0] for low, high in pairwise(pieces))
            for power in (1, 2)
        )
        found = quantile_forecast(q[None], LEVELS)
        assert float(found.mean) == pytest.approx(mean, abs=1e-7)
        assert float(found.target_variance) == pytest.approx(square - mean**2, rel=1e-6)


def test_draws_have_their_mean_and_unbiased_variance():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (7, 4))
    found = sample_forecast(draws)
    np.testing.assert_allclose(found.mean[0], draws.mean(0))
    np.testing.assert_allclose(found.target_variance[0], draws.var(0, ddof=1))


NAN = float("nan")


def test_bad_forecasts():
    for make, message in [
        (lambda: moment_forecast([0.0, 1.0], [1.0, 0.0]), "deviations must be positive and finite: row 1"),
        (lambda: moment_forecast([0.0, NAN], [1.0, 1.0]), "means must be finite: row 1"),
        (lambda: moment_forecast([0.0, 1.0], [1.0, 1.0, 1.0]), "2 means need as many"),
        (lambda: moment_forecast([[0.0]], [1.0]), "means must have shape"),
        (lambda: moment_forecast(["a"], [1.0]), "means must be numbers"),
        (lambda: quantile_forecast([[0.0, 1.0]], [0.0, 0.5]), "within"),
        (lambda: quantile_forecast([[0.0, 1.0]], [0.5, 0.5]), "increasing"),
        (lambda: quantile_forecast([[0.0]], [0.5]), "at least two"),
        (lambda: quantile_forecast([[0.0, 1.0, 2.0]], [0.1, 0.5]), "must have shape"),
        (lambda: quantile_forecast([[0.0, 1.0], [2.0, 1.0]], [0.1, 0.5]), "row 1 has 2 at 0.1 and 1 at 0.5"),
        (lambda: quantile_forecast([[0.0, 0.0]], [0.1, 0.5]), "quantiles of a row must differ"),
        (lambda: quantile_forecast([[0.0, float("inf")]], [0.1, 0.5]), "quantiles must be finite"),
        (lambda: sample_forecast(np.zeros((4, 2))), "too few"),
        (lambda: sample_forecast(np.zeros((9, 2))), "draws of a row must differ"),
        (lambda: sample_forecast(np.full((9, 2), NAN)), "draws must be finite"),
        (lambda: sample_forecast([1.0, 2.0]), "draws must have shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
