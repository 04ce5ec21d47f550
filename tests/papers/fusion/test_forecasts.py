"""Forecasts as predictions against scipy's distributions, numerical integration, and bad input."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, interpolate, stats

from gp_ensembles.papers.fusion import PBHS, fit_fusion, forecasts
from gp_ensembles.papers.fusion.forecasts import moment_forecast, quantile_forecast, sample_forecast
from tests.papers.fusion.cases import line, seeded

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


def test_moments_beat_a_line_through_the_quantiles():
    """Of a skewed target: the density with the interpolation's moments scores better than least squares."""
    truth = stats.lognorm(0.5)
    y, z = truth.ppf((np.arange(2000) + 0.5) / 2000), stats.norm.ppf(LEVELS)
    slope, center = np.polyfit(z, truth.ppf(LEVELS), 1)
    found = quantile_forecast(truth.ppf(LEVELS)[None], LEVELS)
    ours = stats.norm.logpdf(y, float(found.mean), float(found.target_variance.sqrt())).mean()
    best = stats.norm.logpdf(y, y.mean(), y.std()).mean()
    assert best - 0.005 < ours < best  # 0.003 nats below the best normal density
    assert stats.norm.logpdf(y, center, slope).mean() < ours - 0.005


def test_draws_have_their_mean_and_unbiased_variance():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (7, 4))
    found = sample_forecast(draws)
    np.testing.assert_allclose(found.mean[0], draws.mean(0))
    np.testing.assert_allclose(found.target_variance[0], draws.var(0, ddof=1))


def test_one_normal_as_moments_quantiles_and_draws_gives_nearly_one_fusion():
    rng = np.random.default_rng(1)
    X, levels = line(60), np.array([0.1, 0.5, 0.9])
    x, zero = X.squeeze(-1).numpy(), np.zeros(60)
    y = X.squeeze(-1).sin() + 0.2 * torch.as_tensor(rng.normal(size=60))
    moments = ((x, zero + 0.3), (zero, zero + 0.8))
    kinds = {
        "moments": [moment_forecast(m, s) for m, s in moments],
        "quantiles": [quantile_forecast(stats.norm.ppf(levels, m[:, None], s[:, None]), levels) for m, s in moments],
        "draws": [sample_forecast(rng.normal(m, s, (4000, 60))) for m, s in moments],
    }
    fused = {}
    for name, experts in kinds.items():
        fused[name] = fit_fusion(PBHS(X, y, experts), generator=seeded()).predict(X, experts)
    for quantiles, moments in zip(kinds["quantiles"], kinds["moments"], strict=True):
        torch.testing.assert_close(quantiles.mean, moments.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(quantiles.variance, moments.variance, rtol=1e-9, atol=0)
    # Rounding differs by the processor and grows along the chains: then their Monte Carlo error remains.
    torch.testing.assert_close(fused["quantiles"].mean, fused["moments"].mean, rtol=0, atol=0.01)
    torch.testing.assert_close(fused["quantiles"].variance, fused["moments"].variance, rtol=0.03, atol=0)
    # Deviations of 4 000 draws: 0.8 / sqrt(4000) = 0.013 of the mean, 1.1 % of the standard deviation; three of each.
    torch.testing.assert_close(fused["draws"].mean, fused["moments"].mean, rtol=0, atol=0.04)
    torch.testing.assert_close(fused["draws"].variance, fused["moments"].variance, rtol=0.1, atol=0)


def test_far_quantiles_and_single_precision():
    q = torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float32)
    found = quantile_forecast(q, [0.1, 0.5, 0.9])
    assert found.mean.dtype == torch.float32
    mean, variance = forecasts.interpolated_moments(
        q.double() + 1e6, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    )
    assert float(mean) - 1e6 == pytest.approx(float(found.mean), abs=1e-5)
    assert float(variance) == pytest.approx(float(found.target_variance), rel=1e-5)


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
