"""Moments of one latent value by moving nodes against a dense trapezoidal rule, for every kind of likelihood."""

from functools import partial

import pytest
import torch
from gpytorch.likelihoods import BetaLikelihood, NegativeBinomialLikelihood, StudentTLikelihood

from gp_ensembles.experts.latent_update import MomentMatchingUpdate
from gp_ensembles.likelihoods import LogPoissonLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import Logit, Probit
from gp_ensembles.likelihoods.response import log_prob

MEANS = torch.tensor([-1.5, 0.0, 0.8], dtype=torch.float64)


def student(noise, freedom):
    likelihood = StudentTLikelihood().double()
    likelihood.noise, likelihood.deg_free = noise, freedom
    return likelihood


LIKELIHOODS = {
    "negative binomial": (NegativeBinomialLikelihood().double(), (0.0, 3.0, 20.0)),
    "poisson": (LogPoissonLikelihood(), (0.0, 3.0, 20.0)),
    "beta": (BetaLikelihood().double(), (0.02, 0.5, 0.9)),
    "ordinal, probit": (OrdinalLikelihood(4, Probit()).double(), (0.0, 1.0, 3.0)),
    "ordinal, logit": (OrdinalLikelihood(4, Logit()).double(), (0.0, 1.0, 3.0)),
    "student, wide noise": (student(1.0, 4.0), (0.0, 1.0, 4.0)),
    "student, noise a tenth": (student(0.1, 4.0), (0.0, 1.0, 2.0)),
}


def matched(density, mean, variance, y, num_nodes=32):
    """Mean and variance of each latent value after its target, by the rule."""
    sites = MomentMatchingUpdate(num_nodes).rule(density, mean).solve(mean, variance, y)
    after = variance / (1 + sites.precision * variance)
    return (mean + variance * sites.shift) / (1 + sites.precision * variance), after


def dense(density, mean, variance, y):
    """The same by 20001 equal steps over ten prior standard deviations each way."""
    place = torch.linspace(-10, 10, 20_001, dtype=torch.float64).unsqueeze(-1)
    latent = mean + variance.sqrt() * place
    share = (density(latent, y) - 0.5 * place.square()).softmax(0)
    center = (share * latent).sum(0)
    return center, (share * (latent - center).square()).sum(0)


def errors(name, variance, y, num_nodes=32):
    """Largest error of the mean in posterior standard deviations, and of the variance relative to itself."""
    density = partial(log_prob, LIKELIHOODS[name][0])
    spread, target = torch.full_like(MEANS, variance), torch.full_like(MEANS, y)
    with torch.no_grad():
        mean, after = matched(density, MEANS, spread, target, num_nodes)
        center, want = dense(density, MEANS, spread, target)
    return float(((mean - center) / want.sqrt()).abs().max()), float((after / want - 1).abs().max())


def worst(name, variance, num_nodes=32):
    """Over targets, the larger of the two errors."""
    return max(max(errors(name, variance, y, num_nodes)) for y in LIKELIHOODS[name][1])


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "student, noise a tenth"])
def test_smooth_likelihoods_are_matched(name):
    for variance, tolerance in ((0.3, 1e-9), (1.0, 1e-7), (4.0, 2e-4)):
        assert worst(name, variance) < tolerance


def test_heavy_tails_narrower_than_the_prior_are_matched_to_two_per_cent_and_resolved_by_more_nodes():
    """The posterior has a sharp peak on a wide foot, and nodes that fit the one are too few for the other."""
    for variance, tolerance in ((0.3, 5e-4), (1.0, 1e-2), (4.0, 2e-2)):
        assert worst("student, noise a tenth", variance) < tolerance
        assert worst("student, noise a tenth", variance, num_nodes=100) < 1e-4


@pytest.mark.parametrize(("name", "y"), [("beta", 0.999), ("poisson", 400.0)])
def test_sure_targets_far_from_a_wide_prior_are_found(name, y):
    """Nodes where the prior is would see one point of the posterior only."""
    assert max(errors(name, 25.0, y)) < 0.02
