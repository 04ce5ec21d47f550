"""The divergence of knots from the exact model, against quadrature and torch."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from studies.knots.scores import aukl

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
