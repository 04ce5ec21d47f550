"""Derivatives in closed form against automatic ones, and the search for the mode against bisection."""

import itertools
import math
from functools import partial

import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import BernoulliLikelihood, StudentTLikelihood
from scipy import special

from gp_ensembles.filters.sites import LaplaceRule
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, Probit
from gp_ensembles.likelihoods.derivatives import known_derivatives, known_vector_derivatives
from gp_ensembles.likelihoods.response import log_prob
from gp_ensembles.numerics.derivatives import scalar_derivatives, vector_derivatives

LIKELIHOODS = {
    "logistic": (LogisticLikelihood(), [0.0, 1.0]),
    "probit": (BernoulliLikelihood(), [0.0, 1.0]),
    "poisson": (LogPoissonLikelihood(), [0.0, 1.0, 7.0, 2000.0]),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_they_are_the_automatic_ones(name):
    likelihood, targets = LIKELIHOODS[name]
    latent = torch.linspace(-30, 30, 121, dtype=torch.float64)
    known = known_derivatives(likelihood)
    for target in targets:
        y = torch.full_like(latent, target)
        want = scalar_derivatives(partial(log_prob, likelihood), latent, y)
        got = known.at(latent, y)
        torch.testing.assert_close(got.first, want.first, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(got.second, want.second, rtol=1e-10, atol=1e-13)


def slope(name, z, y):
    """Derivative of a log density in plain numbers."""
    if name == "logistic":
        return y - special.expit(z)
    if name == "poisson":
        return y - math.exp(z)
    sign = 2 * y - 1
    return sign * math.exp(-0.5 * z * z - special.log_ndtr(sign * z)) / math.sqrt(2 * math.pi)


def bisected_mode(name, mean, variance, y):
    """Where z - m - s l'(z) vanishes, by halving an interval."""
    reach = 1 + math.sqrt(variance)
    low, high = mean - reach, mean + reach
    while low - mean - variance * slope(name, low, y) > 0:
        low -= 2 * (high - low)
    while high - mean - variance * slope(name, high, y) < 0:
        high += 0.2 * (high - low)
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if middle - mean - variance * slope(name, middle, y) > 0 else (middle, high)
    return 0.5 * (low + high)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_mode_is_found_without_damping(name):
    """Also where plain Newton steps from the mean would go back and forth for ever."""
    likelihood, targets = LIKELIHOODS[name]
    rule = LaplaceRule(partial(log_prob, likelihood), known_derivatives(likelihood))
    for mean, variance, y in itertools.product((-20.0, -3.0, 0.0, 0.7, 9.0), (1e-3, 0.5, 4.0, 100.0), targets):
        want = bisected_mode(name, mean, variance, y)
        for dtype, close in ((torch.float64, 1e-9), (torch.float32, 3e-5)):
            sites = rule.solve(*(torch.tensor([value], dtype=dtype) for value in (mean, variance, y)))
            assert float(sites.point) == pytest.approx(want, rel=close, abs=close)


def test_any_other_likelihood_is_differentiated():
    assert known_derivatives(StudentTLikelihood()) is None


@pytest.mark.parametrize("link", [Logit(), Probit()])
def test_those_of_levels_are_the_automatic_ones(link):
    likelihood = OrdinalLikelihood(4, link, batch_shape=torch.Size([2]), scale_constraint=Positive()).double()
    likelihood.cut_points = torch.tensor([[-1.0, 0.0, 3.0], [-0.2, 0.1, 0.3]], dtype=torch.float64)
    likelihood.scale = torch.tensor([[1.0], [0.6]], dtype=torch.float64)
    assert known_derivatives(likelihood) is None  # gradients in the cut points may be wanted
    density = partial(log_prob, likelihood.requires_grad_(False))
    latent = torch.linspace(-12, 12, 49, dtype=torch.float64).expand(2, -1)
    with torch.no_grad():
        known = known_derivatives(likelihood)
        for level in range(4):
            y = torch.full_like(latent[0], level)
            want, got = scalar_derivatives(density, latent, y), known.at(latent, y)
            torch.testing.assert_close(got.first, want.first, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(got.second, want.second, rtol=1e-7, atol=1e-10)
        for variance in (1e-2, 1.0, 50.0):
            y = torch.arange(49).remainder(4).double()
            spread = torch.full_like(latent, variance)
            got = LaplaceRule(density, known).solve(latent, spread, y).point
            want = LaplaceRule(density).solve(latent, spread, y).point
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_those_of_the_softmax_are_the_automatic_ones():
    likelihood = MulticlassLikelihood(4)
    latent = 4 * torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(20).remainder(4).double().expand(3, -1)
    want, got = vector_derivatives(partial(log_prob, likelihood), latent, y), known_vector_derivatives(likelihood)
    torch.testing.assert_close((got.at(latent, y).first, got.at(latent, y).second), (want.first, want.second))
