"""Divergences against quadrature and torch, the paper's averages by their definitions, medians against numpy."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from gp_ensembles import metrics
from gp_ensembles.metrics.scores import aukl

SEEDS = st.integers(0, 10_000)


def moments(seed, num_rows=7, spread=1.0):
    rng = np.random.default_rng(seed)
    mean, other_mean = torch.tensor(spread * rng.normal(size=(2, num_rows)))
    variance, other_variance = torch.tensor(np.exp(spread * rng.normal(size=(2, num_rows))))
    return mean, variance, other_mean, other_variance


def divergence(mean, variance, other_mean, other_variance):
    """Point by point: averages of one point each."""
    return aukl(*(values.unsqueeze(-1) for values in (mean, variance, other_mean, other_variance)))


def test_divergence_equals_quadrature_of_its_definition():
    mean, variance, other_mean, other_variance = moments(0)
    found = divergence(mean, variance, other_mean, other_variance)
    for n in range(len(mean)):
        p = scipy.stats.norm(float(mean[n]), math.sqrt(variance[n]))
        q = scipy.stats.norm(float(other_mean[n]), math.sqrt(other_variance[n]))
        reach = 12 * p.std()
        exact = scipy.integrate.quad(
            lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), p.mean() - reach, p.mean() + reach, epsabs=1e-11
        )[0]
        assert float(found[n]) == pytest.approx(exact, abs=1e-9)


@settings(max_examples=50)
@given(seed=SEEDS, spread=st.sampled_from([1e-3, 1.0, 5.0]))
def test_divergence_equals_torch_is_not_negative_and_zero_for_itself(seed, spread):
    mean, variance, other_mean, other_variance = moments(seed, 20, spread)
    found = divergence(mean, variance, other_mean, other_variance)
    exact = kl_divergence(Normal(mean, variance.sqrt()), Normal(other_mean, other_variance.sqrt()))
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)
    assert bool((found >= 0).all())
    assert not bool(divergence(mean, variance, mean, variance).any())


def test_tiny_divergences_keep_their_digits():
    one = torch.ones(1, dtype=torch.float64)
    share = 1e-7  # KL is share^2 / 4 to first order, 1e-15 relative to terms of order one
    found = float(divergence(one, one * (1 + share), one, one))
    assert found == pytest.approx(share**2 / 4, rel=1e-2)


def test_the_average_runs_over_the_last_axis_and_noise_is_added_to_both():
    mean, variance, other_mean, other_variance = moments(3, 12)
    stacked = torch.stack([mean, other_mean])
    found = aukl(stacked, variance, other_mean, other_variance)
    each = divergence(mean, variance, other_mean, other_variance)
    assert found.shape == (2,)
    assert float(found[0]) == pytest.approx(float(each.sum()) / 12)
    noise = (mean.new_tensor(0.3), mean.new_tensor(0.7))
    targets = aukl(mean, variance, other_mean, other_variance, noise=noise)
    exact = divergence(mean, variance + 0.3, other_mean, other_variance + 0.7).mean()
    assert float(targets) == pytest.approx(float(exact))


@pytest.mark.parametrize("which", [1, 3])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_variances_that_are_not_positive_are_refused(which, value):
    given_moments = [values.clone() for values in moments(0)]
    given_moments[which][2] = value
    with pytest.raises(ValueError, match="positive variances"):
        aukl(*given_moments)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 30])
def test_the_median_is_numpy_s_over_observed_rows(num_rows):
    rng = np.random.default_rng(num_rows)
    log_prob, y = rng.normal(size=(3, num_rows)), rng.normal(size=num_rows)
    if num_rows > 2:
        y[1] = np.nan
    found = metrics.median_mnlp(torch.tensor(log_prob), torch.tensor(y))
    np.testing.assert_allclose(found.numpy(), np.median(-log_prob[:, ~np.isnan(y)], axis=-1), rtol=1e-12)


def test_a_median_of_nothing_is_missing_and_outliers_do_not_move_it():
    log_prob = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    assert math.isnan(float(metrics.median_mnlp(log_prob, torch.full_like(log_prob, torch.nan))))
    missed = torch.tensor([-1.0, -2.0, -1e9], dtype=torch.float64)
    y = torch.zeros_like(log_prob)
    assert float(metrics.median_mnlp(log_prob, y)) == float(metrics.median_mnlp(missed, y)) == 2.0
    assert float(metrics.log_score(missed, y)) < -1e8


def test_errors_are_standardized_by_the_sample_deviation():
    rng = np.random.default_rng(4)
    mean, y = rng.normal(size=(2, 9)), rng.normal(size=9) + 3
    found = metrics.sample_srmse(torch.tensor(mean), torch.tensor(y))
    exact = np.sqrt(np.mean((y - mean) ** 2, axis=-1)) / np.std(y, ddof=1)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-13)
    ratio = metrics.nmse(torch.tensor(mean), torch.tensor(y)).sqrt() / found
    np.testing.assert_allclose(ratio.numpy(), math.sqrt(9 / 8), rtol=1e-13)
    missing = torch.tensor(np.append(y, np.nan))
    longer = torch.tensor(np.append(mean, np.full((2, 1), 1e6), axis=-1))
    torch.testing.assert_close(metrics.sample_srmse(longer, missing), found)
    assert math.isnan(float(metrics.sample_srmse(torch.zeros(1), torch.zeros(1))))
