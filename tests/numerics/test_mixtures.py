"""Mixtures of normals against scipy, mpmath, quadrature and the laws of probability."""

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.numerics import NumericalError, mixtures


def random_mixture(seed, num_components, num_rows, spread=1.0):
    rng = np.random.default_rng(seed)
    log_weights = torch.tensor(rng.normal(size=(num_components, num_rows)) * spread).log_softmax(0)
    mean = torch.tensor(rng.normal(size=(num_components, num_rows)) * 2)
    variance = torch.tensor(np.exp(rng.normal(size=(num_components, num_rows))))
    return log_weights, mean, variance


def test_density_distribution_and_moments_equal_scipy():
    log_weights, mean, variance = random_mixture(0, 5, 7)
    y = torch.linspace(-3, 3, 7, dtype=torch.float64)
    parts = scipy.stats.norm(mean.numpy(), variance.sqrt().numpy())
    weights = log_weights.exp().numpy()
    density = (weights * parts.pdf(y.numpy())).sum(0)
    below = (weights * parts.cdf(y.numpy())).sum(0)
    np.testing.assert_allclose(mixtures.log_prob(log_weights, mean, variance, y), np.log(density), rtol=1e-12)
    np.testing.assert_allclose(mixtures.cdf(log_weights, mean, variance, y), below, rtol=1e-13)
    center, spread = mixtures.moments(log_weights, mean, variance)
    for n in range(7):
        pdf = lambda x, n=n: float((weights[:, n] * scipy.stats.norm.pdf(x, mean[:, n], variance[:, n] ** 0.5)).sum())  # noqa: E731
        first = scipy.integrate.quad(lambda x, pdf=pdf: x * pdf(x), -60, 60, limit=400, points=[0])[0]
        second = scipy.integrate.quad(lambda x, pdf=pdf: x * x * pdf(x), -60, 60, limit=400, points=[0])[0]
        assert float(center[n]) == pytest.approx(first, abs=1e-8)
        assert float(spread[n]) == pytest.approx(second - first**2, rel=1e-7)


def test_lower_tail_is_exact():
    one = torch.zeros(1, 1, dtype=torch.float64)
    for z in (-5.0, -8.0, -20.0, -37.0):
        exact = float(mpmath.ncdf(z))
        assert float(mixtures.cdf(one, one, one + 1, one[0] + z)) == pytest.approx(exact, rel=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), num_components=st.integers(1, 6), exponent=st.floats(-300, -0.01), upper=st.booleans()
)
def test_quantile_inverts_the_distribution_function(seed, num_components, exponent, upper):
    log_weights, mean, variance = random_mixture(seed, num_components, 5, spread=10.0)
    p = 1 - 10**exponent if upper else 10**exponent
    if p in (0.0, 1.0):
        return
    root = mixtures.icdf(log_weights, mean, variance, mean.new_tensor(p))
    if p <= 0.5:
        reached, target = mixtures.cdf(log_weights, mean, variance, root), p
    else:
        reached, target = mixtures.cdf(log_weights, -mean, variance, -root), 1 - p
    np.testing.assert_allclose(reached, target, rtol=1e-10)


def test_quantiles_in_the_extremes():
    log_weights = torch.tensor([[0.0], [-300 * np.log(10)]], dtype=torch.float64)
    mean = torch.tensor([[0.0], [-1e7]], dtype=torch.float64)
    variance = torch.tensor([[1e-6], [1e6]], dtype=torch.float64)
    p = torch.tensor([[0.5], [0.975], [1e-3], [5e-301]], dtype=torch.float64)
    root = mixtures.icdf(log_weights, mean, variance, p).squeeze(1)
    expected = [0.0, 1e-3 * scipy.stats.norm.ppf(0.975), 1e-3 * scipy.stats.norm.ppf(1e-3), -1e7]
    np.testing.assert_allclose(root, expected, rtol=1e-9, atol=1e-18)
    center, spread = mixtures.moments(log_weights, mean, variance)
    assert float(center) == pytest.approx(-1e-293)
    assert float(spread) == pytest.approx(1e-6)
    far = mixtures.log_prob(log_weights, mean, variance, mean.new_tensor([-1e7]))
    assert float(far) == pytest.approx(-300 * np.log(10) + scipy.stats.norm.logpdf(0, scale=1e3))


def test_ends_and_bad_probabilities():
    one = torch.zeros(1, 2, dtype=torch.float64)
    ends = mixtures.icdf(one, one, one + 1, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == [-torch.inf, torch.inf]
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            mixtures.icdf(one, one, one + 1, one.new_tensor(bad))
    with pytest.raises(NumericalError, match="no quantiles"):
        mixtures.icdf(one, one, one * torch.nan, one.new_tensor(0.5))
    with pytest.raises(NumericalError, match="no quantiles"):
        mixtures.icdf(one - torch.inf, one, one + 1, one.new_tensor(0.5))


def test_gradients():
    log_weights, mean, variance = (t.requires_grad_() for t in random_mixture(3, 3, 2))
    y = torch.tensor([0.2, -0.4], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.2, 0.9], dtype=torch.float64, requires_grad=True)
    inputs = (log_weights, mean, variance)
    assert torch.autograd.gradcheck(mixtures.log_prob, (*inputs, y))
    assert torch.autograd.gradcheck(mixtures.moments, inputs)
    assert torch.autograd.gradcheck(mixtures.cdf, (*inputs, y))
    free = lambda logits, *rest: mixtures.icdf(logits.log_softmax(0), *rest)  # noqa: E731
    assert torch.autograd.gradcheck(free, (*inputs, p))


def test_draws_follow_the_mixture_and_are_reparametrized(generator):
    log_weights, mean, variance = random_mixture(4, 3, 2)
    draws = mixtures.rsample(log_weights, mean.requires_grad_(), variance, 20_000, generator=generator)
    for n in range(2):
        column = (log_weights[:, n : n + 1], mean[:, n : n + 1].detach(), variance[:, n : n + 1])
        law = lambda x, column=column: mixtures.cdf(*column, torch.tensor(x)[:, None]).squeeze(1).numpy()  # noqa: E731
        assert scipy.stats.kstest(draws[:, n].detach().numpy(), law).pvalue > 1e-3
    (gradient,) = torch.autograd.grad(draws.sum(), mean)
    assert float(gradient.sum()) == 40_000
    again = torch.Generator().manual_seed(20240502)
    repeated = mixtures.rsample(log_weights, mean, variance, 20_000, generator=again)
    torch.testing.assert_close(repeated, draws, rtol=0, atol=0)
    with pytest.raises(ValueError, match="at least one"):
        mixtures.rsample(log_weights, mean, variance, 0)
