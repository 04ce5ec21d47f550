"""Counts of three families against scipy, automatic derivatives, bisection and dense quadrature."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize, special

from gp_ensembles.filters.sites import LaplaceUpdate, LikelihoodRule
from gp_ensembles.likelihoods import CountLikelihood
from gp_ensembles.likelihoods.closed_forms import latent_density
from gp_ensembles.likelihoods.counts import FAMILIES
from gp_ensembles.likelihoods.predictive import GaussHermite
from gp_ensembles.likelihoods.response import log_prob
from gp_ensembles.numerics.derivatives import differentiate

F64 = torch.float64
SCALE, SIZES, INFLATION = math.log(3.0), (0.7, 40.0), 0.3
COUNTS = (0.0, 1.0, 7.0, 2000.0, 100_000.0)


def likelihood():
    """An expert of each family, and a second inflated one whose size is large."""
    made = CountLikelihood((*FAMILIES, "zero inflated")).to(F64)
    with torch.no_grad():
        made.log_scale.fill_(SCALE)
        made.free_log_size.copy_(torch.tensor([SIZES[0], SIZES[0], SIZES[0], SIZES[1]], dtype=F64).log().unsqueeze(-1))
        made.free_log_odds.fill_(math.log(INFLATION / (1 - INFLATION)))
    return made.requires_grad_(False)


def reference(expert, z, y):
    """Log probability by its formula in scipy's functions."""
    rate, size = np.exp(SCALE + z), SIZES[expert == 3]
    if expert == 0:
        return special.xlogy(y, rate) - rate - special.gammaln(y + 1)
    plain = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1)
    plain = plain + size * np.log(size / (size + rate)) + y * np.log(rate / (size + rate))
    if expert == 1:
        return plain
    return np.logaddexp(math.log(INFLATION), math.log(1 - INFLATION) + plain) if y == 0 else math.log(0.7) + plain


def slope(expert, z, y):
    """Its derivative in z by hand; that of a zero which may be inflated by the share that is not."""
    rate, size = np.exp(SCALE + z), SIZES[expert == 3]
    if expert == 0:
        return y - rate
    plain = size * (y - rate) / (size + rate)
    if expert == 1 or y > 0:
        return plain
    zero = (1 - INFLATION) * (size / (size + rate)) ** size
    return plain * zero / (zero + INFLATION)


@pytest.mark.parametrize("y", COUNTS)
def test_densities_and_derivatives(y):
    """Of a zero that may be inflated, second derivatives are cut off at zero."""
    made, z = likelihood(), torch.linspace(-6, 12, 37, dtype=F64).expand(4, -1)
    target = torch.full((37,), y, dtype=F64)
    want = torch.stack([torch.as_tensor(reference(expert, z[0].numpy(), y)) for expert in range(4)])
    torch.testing.assert_close(log_prob(made, z, target), want, rtol=1e-10, atol=1e-9)
    density = latent_density(made)
    first, second = differentiate(partial(log_prob, made), z, target)
    got = density.derivatives(z, target)
    torch.testing.assert_close(got[0], first, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(got[1], second.clamp_max(0.0), rtol=1e-8, atol=1e-8)
    for column in (0, 20):  # one row as arrays
        arrays = density.derivatives(z[:, column].numpy(), y), density.log_prob(z[:, column].numpy(), y)
        np.testing.assert_allclose(arrays[0], [part[:, column] for part in got], rtol=1e-12)
        np.testing.assert_allclose(arrays[1], want[:, column], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("y", COUNTS)
@pytest.mark.parametrize("mean", [-5.0, 0.0, 6.0])
@pytest.mark.parametrize("variance", [1e-3, 0.5, 9.0])
def test_modes(y, mean, variance):
    """The slope of the log posterior vanishes there; concave ones have no other such point."""
    made = likelihood()
    rule = LikelihoodRule(latent_density(made), LaplaceUpdate())
    m, s = torch.full((4, 1), mean, dtype=F64), torch.full((4, 1), variance, dtype=F64)
    site = rule.solve(m, s, torch.tensor([y], dtype=F64))
    assert bool((site.curvature >= 0).all())
    for expert, mode in enumerate((m + s * site.gradient).squeeze(-1).tolist()):

        def rising(z, expert=expert):
            return slope(expert, z, y) - (z - mean) / variance

        if expert < 2 or y > 0:
            assert mode == pytest.approx(optimize.brentq(rising, -60, 60), rel=1e-7, abs=1e-7)
        else:
            assert rising(mode) == pytest.approx(0, abs=1e-5 / variance)


def test_modes_of_large_counts_under_priors_that_say_nothing():
    """Where numbers of 1e12 cancel, the search ends all the same: at the logarithm of the share of the mean."""
    made = CountLikelihood(FAMILIES[:2]).to(F64)
    with torch.no_grad():
        made.log_scale.fill_(math.log(1e5))
        made.free_log_size.fill_(math.log(200))
    y, m = torch.linspace(8e4, 13e4, 400, dtype=F64).round(), torch.linspace(-2, 8, 400, dtype=F64).expand(2, -1)
    s = torch.full_like(m, 1.27e7)
    with torch.no_grad():
        site = LikelihoodRule(latent_density(made)).solve(m, s, y)
    torch.testing.assert_close(m + s * site.gradient, (y / 1e5).log().expand(2, -1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("variance", [0.01, 0.5, 1.0])
def test_predictions(variance):
    made, rule = likelihood(), GaussHermite(32)
    z = torch.linspace(-9, 9, 4001, dtype=F64)
    shares = torch.exp(-0.5 * z.square())
    shares = (shares / shares.sum()).reshape(-1, 1, 1)
    mean, spread = torch.full((4, 1), 0.4, dtype=F64), torch.full((4, 1), variance, dtype=F64)
    latent = (0.4 + math.sqrt(variance) * z).reshape(-1, 1, 1).expand(-1, 4, 1)
    exact = made(latent)
    first = (shares * exact.mean).sum(0)
    second = (shares * (exact.variance + exact.mean.square())).sum(0) - first.square()
    torch.testing.assert_close(rule.moments(made, mean, spread), (first, second), rtol=1e-9, atol=0)
    for y in (0.0, 2.0, 15.0):
        target = torch.tensor([y], dtype=F64)
        want = (shares * log_prob(made, latent, target).exp()).sum(0).log()
        torch.testing.assert_close(rule.log_prob(made, mean, spread, target), want, rtol=0, atol=1e-6)


def test_draws_have_its_moments():
    made = likelihood()
    torch.manual_seed(0)
    exact = made(torch.zeros(4, 1, dtype=F64))
    draws = exact.sample((40_000,))
    torch.testing.assert_close(draws.mean(0), exact.mean, rtol=0.03, atol=0)
    torch.testing.assert_close(draws.var(0), exact.variance, rtol=0.08, atol=0)


def test_moments_never_overflow():
    for dtype in (F64, torch.float32):
        made, far = likelihood().to(dtype), torch.full((4, 1), 400.0, dtype=dtype)
        for moments in (GaussHermite().moments(made, far, far), (made(far).mean, made(far).variance)):
            assert all(bool(torch.isfinite(part).all()) for part in moments)


def test_starting_values():
    made = CountLikelihood(FAMILIES).requires_grad_(False)
    made.start_from_(torch.tensor([0.0, 0.0, 0.0, 8.0, math.nan, 12.0]))
    assert made.log_scale.exp().flatten().tolist() == pytest.approx([4.0, 4.0, 10.0])
    assert made.families == FAMILIES
    assert float(made.parts.log_odds[2].sigmoid()) == pytest.approx(0.6 - math.exp(-4))
    with pytest.raises(ValueError, match="families of counts are poisson, negative binomial, zero inflated"):
        CountLikelihood(("normal",))
    with pytest.raises(ValueError, match="3 families do not fit"):
        CountLikelihood(FAMILIES, torch.Size([2]))
