"""Derivatives in closed form against automatic ones, and the search for the mode against bisection."""

import itertools
import math
from functools import partial

import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import BernoulliLikelihood
from scipy import special

from gp_ensembles.filters.sites import LikelihoodRule
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, Probit
from gp_ensembles.likelihoods.closed_forms import latent_density
from gp_ensembles.likelihoods.response import log_prob
from gp_ensembles.numerics.derivatives import differentiate

LIKELIHOODS = {
    "logistic": (LogisticLikelihood(), [0.0, 1.0]),
    "probit": (BernoulliLikelihood(), [0.0, 1.0]),
    "poisson": (LogPoissonLikelihood(), [0.0, 1.0, 7.0, 2000.0]),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_they_are_the_automatic_ones(name):
    likelihood, targets = LIKELIHOODS[name]
    latent = torch.linspace(-30, 30, 121, dtype=torch.float64)
    known = latent_density(likelihood)
    for target in targets:
        y = torch.full_like(latent, target)
        want = differentiate(partial(log_prob, likelihood), latent, y)
        got = known.derivatives(latent, y)
        torch.testing.assert_close(known.log_prob(latent, y), log_prob(likelihood, latent, y), rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(got[0], want[0], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(got[1], want[1], rtol=1e-10, atol=1e-13)


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
    rule = LikelihoodRule(latent_density(likelihood))
    for mean, variance, y in itertools.product((-20.0, -3.0, 0.0, 0.7, 9.0), (1e-3, 0.5, 4.0, 100.0), targets):
        want = bisected_mode(name, mean, variance, y)
        for dtype, close in ((torch.float64, 1e-9), (torch.float32, 3e-5)):
            site = rule.solve(*(torch.tensor([value], dtype=dtype) for value in (mean, variance, y)))
            assert mean + variance * float(site.gradient) == pytest.approx(want, rel=close, abs=close)


@pytest.mark.parametrize("link", [Logit(), Probit()])
def test_those_of_levels_are_the_automatic_ones(link):
    likelihood = OrdinalLikelihood(4, link, batch_shape=torch.Size([2]), scale_constraint=Positive()).double()
    likelihood.cut_points = torch.tensor([[-1.0, 0.0, 3.0], [-0.2, 0.1, 0.3]], dtype=torch.float64)
    likelihood.scale = torch.tensor([[1.0], [0.6]], dtype=torch.float64)
    assert latent_density(likelihood).start is None  # gradients in the cut points may be wanted
    automatic = latent_density(likelihood.requires_grad_(False), force_autograd=True)
    latent = torch.linspace(-12, 12, 49, dtype=torch.float64).expand(2, -1)
    with torch.no_grad():
        known = latent_density(likelihood)
        for level in range(4):
            y = torch.full_like(latent[0], level)
            want, got = automatic.derivatives(latent, y), known.derivatives(latent, y)
            torch.testing.assert_close(got[0], want[0], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(got[1], want[1], rtol=1e-7, atol=1e-10)
        for variance in (1e-2, 1.0, 50.0):
            y = torch.arange(49).remainder(4).double()
            spread = torch.full_like(latent, variance)
            got, want = (
                latent + spread * LikelihoodRule(d).solve(latent, spread, y).gradient for d in (known, automatic)
            )
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_those_of_the_softmax_are_the_automatic_ones():
    likelihood = MulticlassLikelihood(4)
    latent = 4 * torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(20).remainder(4).double().expand(3, -1)
    known, density = latent_density(likelihood), partial(log_prob, likelihood)
    torch.testing.assert_close(known.log_prob(latent, y), density(latent, y), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(known.derivatives(latent, y), differentiate(density, latent, y, 4))
