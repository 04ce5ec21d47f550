"""Sites of single targets: moments by quadrature, modes far away, and the limits of Newton's method."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, BetaLikelihood, NegativeBinomialLikelihood, StudentTLikelihood

from gp_ensembles import filters
from gp_ensembles.filters.latent import find_sites
from gp_ensembles.filters.sites import (
    ConvergenceWarning,
    LaplaceUpdate,
    LikelihoodRule,
    MomentMatchingUpdate,
    RobustRule,
    Site,
)
from gp_ensembles.filters.states import GaussianState
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, Probit
from gp_ensembles.likelihoods.closed_forms import latent_density
from gp_ensembles.likelihoods.response import log_prob
from tests.filters.oracles import rule_of

F = 2
MEANS = torch.tensor([-1.5, 0.0, 0.8], dtype=torch.float64)


def test_influence_of_an_outlier_is_bounded():
    prior, Phi = torch.ones(1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    rule = RobustRule(prior, 3 * prior)
    moves = []
    for size in (1.0, 10.0, 1e3, 1e6, 1e150):
        y = torch.tensor([size], dtype=torch.float64)
        moves.append(float(filters.update_block(filters.gaussian_state(prior, 1), Phi, y, None, rule)[0].mean))
    assert max(moves) < 3
    assert abs(moves[-1]) < 1e-100


def test_newton_says_when_it_hits_the_cap():
    """A density that grows faster than the prior falls: its mode lies at infinity."""
    rule = rule_of(lambda z, y: 5 * z**2 + 0 * y)
    one = torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(ConvergenceWarning, match="100 damped Newton steps for expert 0"):
        rule.solve(one, one, one[0])


def test_moments_that_are_lost_cost_the_others_nothing():
    """An expert that failed has no mode; that of the other one in its batch is found as by itself, in as few steps."""
    calls = []

    def log_density(z, y):
        calls.append(1)
        return -2.5 * torch.log1p((y - z) ** 2 / 4 / 0.1)

    rule, y = rule_of(log_density), torch.tensor([4.0], dtype=torch.float64)
    mean, variance = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0, dtype=torch.float64)
    with torch.no_grad():
        alone, needed = rule.solve(mean, variance, y), len(calls)
        calls.clear()
        for lost in (torch.nan, torch.inf):
            both = rule.solve(torch.cat([mean, mean + lost]), torch.cat([variance, variance]), y)
            torch.testing.assert_close(tuple(part[:1] for part in both), tuple(alone))
    assert len(calls) <= 4 * (needed + 10)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_beyond_the_cap_the_covariance_stays_positive(start):
    """At zero the slope vanishes though the curvature points the wrong way: a minimum is no mode."""
    rule = rule_of(lambda z, y: 5 * z**2 + 0 * y)
    one = torch.ones((), dtype=torch.float64)
    state = filters.gaussian_state(one, 1)
    state.moments[..., -1] = start
    Phi, y = torch.ones(3, 1, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(ConvergenceWarning):
        state, steps = filters.update_block(state, Phi, y, None, rule)
    assert bool((steps.variance > 0).all())
    assert float(state.covariance) > 0


def test_a_minimum_between_two_modes_is_left_for_one_of_them():
    """Two narrow peaks at -2 and 2 under a wide prior: their midpoint is level, and the worst of places."""
    rule = rule_of(lambda z, y: torch.logaddexp(-8 * (z - y) ** 2, -8 * (z + y) ** 2))
    mean, variance = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0, dtype=torch.float64)
    with torch.no_grad():
        sites = rule.solve(mean, variance, torch.tensor([2.0], dtype=torch.float64))
    point = float(mean + variance * sites.gradient)
    assert abs(abs(point) - 2 / (1 + 1 / (16 * 9))) < 1e-9
    assert float(variance - variance**2 * sites.curvature) > 0


def test_poisson_converges_from_anywhere():
    for y, mean in itertools.product((0.0, 3.0, 5000.0), (-30.0, 0.0, 12.0)):
        rule = LikelihoodRule(latent_density(LogPoissonLikelihood(), force_autograd=True))
        center, variance = (torch.full((1, 1), value, dtype=torch.float64) for value in (mean, 25.0))
        target = torch.tensor([y], dtype=torch.float64)
        with torch.no_grad():
            sites = rule.solve(center, variance, target)
        point = float(center + variance * sites.gradient)
        slope = y - math.exp(point) - (point - mean) / 25
        assert abs(slope) < 1e-6 * max(1, y)


def student(noise, freedom):
    likelihood = StudentTLikelihood().double()
    likelihood.noise, likelihood.deg_free = noise, freedom
    return likelihood


LIKELIHOODS = {
    "negative binomial": (NegativeBinomialLikelihood().double(), (0.0, 3.0, 20.0)),
    "logistic": (LogisticLikelihood(), (0.0, 1.0)),
    "probit": (BernoulliLikelihood(), (0.0, 1.0)),
    "poisson": (LogPoissonLikelihood(), (0.0, 3.0, 20.0)),
    "beta": (BetaLikelihood().double(), (0.02, 0.5, 0.9)),
    "ordinal, probit": (OrdinalLikelihood(4, Probit()).double(), (0.0, 1.0, 3.0)),
    "ordinal, logit": (OrdinalLikelihood(4, Logit()).double(), (0.0, 1.0, 3.0)),
    "student, wide noise": (student(1.0, 4.0), (0.0, 1.0, 4.0)),
    "student, noise a tenth": (student(0.1, 4.0), (0.0, 1.0, 2.0)),
}


def matched(density, mean, variance, y, num_nodes=32):
    """Mean and variance of each latent value after its target, by the rule."""
    gradient, curvature = rule_of(density, MomentMatchingUpdate(num_nodes)).solve(mean, variance, y)
    return mean + variance * gradient, variance - variance.square() * curvature


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


def softmax(z, y):
    return z.log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


def solve(rule, mean, covariance, y):
    """The site of one target (), by moments (*batch, C) and (*batch, C, C)."""
    gradient, curvature = rule.solve(mean.unsqueeze(-2), covariance.unsqueeze(-3), y.unsqueeze(-1))
    return Site(gradient.squeeze(-2), curvature.squeeze(-3))


def spread_out(size, scale, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * (0.5 * torch.diag(torch.ones(size, dtype=torch.float64)) + 0.5 * root @ root.mT / size)


def dense_moments(mean, covariance, y, num_places=121, reach=10):
    """Mean and covariance of a latent vector given its class: a trapezoidal rule over the whole space."""
    axis = torch.linspace(-reach, reach, num_places, dtype=torch.float64)
    whitened = torch.cartesian_prod(*[axis] * mean.shape[-1])
    latent = mean + whitened @ torch.linalg.cholesky(covariance).mT
    log_density = softmax(latent, y.expand(latent.shape[0])) - 0.5 * whitened.square().sum(-1)
    share = log_density.softmax(0).unsqueeze(-1)
    center = (share * latent).sum(0)
    return center, (share * (latent - center)).mT @ (latent - center)


@pytest.mark.parametrize(("num_classes", "y"), [(2, 0.0), (3, 1.0)])
def test_weights_after_a_row_have_their_exact_moments(num_classes, y):
    """All that a row says passes through its latent vector; what its precision says of two classes is left out."""
    target = torch.tensor([y], dtype=torch.float64)
    prior_mean = torch.linspace(-0.7, 0.9, num_classes * F, dtype=torch.float64).reshape(num_classes, F)
    prior = torch.stack([spread_out(F, 1.0, seed) for seed in range(num_classes)])
    phi = torch.tensor([0.8, -1.1], dtype=torch.float64)
    rule = rule_of(softmax, MomentMatchingUpdate(), num_classes)
    state = GaussianState(torch.cat([prior, prior_mean.unsqueeze(-1)], dim=-1))
    state, latent = filters.update_block(state, phi.unsqueeze(0), target, None, rule)
    before, spread = prior_mean @ phi, torch.diag(phi @ prior @ phi)
    torch.testing.assert_close((latent.mean[0], latent.variance[0]), (before, spread))
    center, after = dense_moments(before, spread, target)
    slope = (prior @ phi) / spread.diagonal().unsqueeze(-1)
    torch.testing.assert_close(state.mean, prior_mean + slope * (center - before).unsqueeze(-1), rtol=0, atol=5e-5)
    change = 1 / torch.linalg.inv(after).diagonal() - spread.diagonal()
    want = prior + change[:, None, None] * slope.unsqueeze(-1) * slope.unsqueeze(-2)
    torch.testing.assert_close(state.covariance, want, rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("num_classes", "scale", "surprise", "tolerance"),
    [
        (2, 1.0, 0.0, 1e-10),
        (2, 4.0, 5.0, 1e-6),
        (2, 25.0, 0.0, 1e-3),
        (2, 25.0, 5.0, 1e-3),
        (3, 1.0, 5.0, 1e-6),
        (3, 4.0, 0.0, 5e-5),
        (3, 25.0, 5.0, 6e-3),
    ],
)
def test_wide_priors_and_surprises_are_resolved(num_classes, scale, surprise, tolerance):
    """Errors in prior standard deviations and variances; fixed nodes are wrong by a third for a surprise."""
    covariance = spread_out(num_classes, scale, seed=2)
    mean = torch.zeros(num_classes, dtype=torch.float64)
    mean[1] = -surprise * scale**0.5
    y = torch.ones((), dtype=torch.float64)
    gradient, curvature = solve(rule_of(softmax, MomentMatchingUpdate(), num_classes), mean, covariance, y)
    center, after = dense_moments(mean, covariance, y)
    torch.testing.assert_close((mean + covariance @ gradient - center) / scale**0.5, 0 * mean, rtol=0, atol=tolerance)
    got = covariance - covariance @ curvature @ covariance
    torch.testing.assert_close((got - after) / scale, 0 * after, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("scale", "surprise", "tolerance"), [(1.0, 0.0, 1.5e-2), (4.0, 3.0, 1.5e-2), (9.0, 0.0, 2e-2)])
def test_sobol_nodes_are_good_to_two_per_cent(scale, surprise, tolerance):
    """Five classes have too many axes for a grid of the nodes that are allowed."""
    mean = torch.tensor([-surprise * scale**0.5, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    covariance = torch.diag(torch.full_like(mean, scale))
    sizes = []

    def counted(z, y):
        sizes.append(z.numel() // 5)
        return softmax(z, y)

    gradient, curvature = solve(rule_of(counted, MomentMatchingUpdate(), 5), mean, covariance, 0 * mean[0])
    assert max(sizes) <= 1024
    center, after = dense_moments(mean, covariance, 0 * mean[0], num_places=15, reach=6)
    torch.testing.assert_close((mean + scale * gradient - center) / scale**0.5, 0 * mean, rtol=0, atol=5e-3)
    got = covariance - covariance @ curvature @ covariance
    torch.testing.assert_close((got - after) / scale, 0 * after, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num_classes", [3, 5])
def test_a_class_far_out_of_reach_leaves_a_covariance(num_classes):
    """All the mass lies on one node at first; the moments must be those of a distribution all the same."""
    mean = torch.zeros(num_classes, dtype=torch.float64)
    mean[0] = -60.0
    covariance = torch.diag(torch.full_like(mean, 25.0))
    rule = rule_of(softmax, MomentMatchingUpdate(), num_classes)
    gradient, curvature = solve(rule, mean, covariance, 0 * mean[0])
    after = covariance - covariance @ curvature @ covariance
    assert float(torch.linalg.eigvalsh(0.5 * (after + after.mT))[0]) > 0.1
    assert float((mean + covariance @ gradient)[0]) > -45  # sure of the wrong class, a slope of one moves by 25


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("place", [0.3, 3.0, 9.0])
def test_a_sharp_density_between_the_nodes_is_found(noise, place):
    """Of a Gaussian density the posterior is known; at first all of its mass lies on one node."""
    mean = torch.zeros(2, dtype=torch.float64)
    covariance = spread_out(2, 1.0, seed=4)
    rule = rule_of(lambda z, y: -0.5 * (z - place).square().sum(-1) / noise + 0 * y, MomentMatchingUpdate(), 2)
    gradient, curvature = solve(rule, mean, covariance, mean[0])
    identity = torch.diag(torch.ones_like(mean))
    want = torch.linalg.inv(covariance + noise * identity)
    torch.testing.assert_close(gradient, want @ torch.full_like(mean, place), rtol=1e-3, atol=0)
    torch.testing.assert_close(covariance @ curvature @ covariance, covariance @ want @ covariance, rtol=1e-3, atol=0)


@pytest.mark.parametrize("takes", [torch.as_tensor, np.asarray])
@pytest.mark.parametrize(
    "density", [latent_density(MulticlassLikelihood(3), force_autograd=True), latent_density(MulticlassLikelihood(3))]
)
def test_newton_comes_back_from_where_the_softmax_is_flat(density, takes):
    """Sure of the wrong class, it has no curvature there: a full step goes far beyond the mode."""
    if takes is np.asarray and not density.takes_arrays:
        return
    y = torch.tensor(1.0, dtype=torch.float64)
    for scale, lead in itertools.product((1.0, 100.0, 1e4), (0.0, 5.0, 40.0, 300.0)):
        mean, covariance = torch.tensor([lead, 0.0, -lead], dtype=torch.float64), spread_out(3, scale, seed=3)
        with torch.no_grad():
            found = LikelihoodRule(density).solve(*map(takes, (mean[None], covariance[None], y[None])))
        gradient, curvature = (torch.as_tensor(part)[0] for part in found)
        probability = (mean + covariance @ gradient).softmax(-1)
        slope = torch.nn.functional.one_hot(y.long(), 3) - probability
        torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-6)
        falls = torch.diag(probability) - torch.outer(probability, probability)
        want = torch.linalg.solve(torch.diag(torch.ones_like(mean)) + falls @ covariance, falls)
        torch.testing.assert_close(curvature, want, rtol=1e-5, atol=1e-8)


def test_newton_for_vectors_says_when_it_hits_the_cap():
    """The second expert's density grows faster along one axis than the prior falls: its mode lies at infinity.

    What it learns is then what the other axis says, on which the density falls.
    """
    bend = torch.tensor([[[-1.0, -1.0]], [[5.0, -1.5]]], dtype=torch.float64)
    rule = rule_of(lambda z, y: (bend * z.square()).sum(-1) + 0 * y, num_latent=2)
    mean = torch.ones(2, 2, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(ConvergenceWarning, match="100 damped Newton steps for expert 1"):
        site = solve(rule, mean, torch.diag_embed(mean), mean[0, 0])
    falls = (-2 * bend[:, 0]).clamp_min(0)
    torch.testing.assert_close(site.curvature, torch.diag_embed(falls / (1 + falls)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("update", [LaplaceUpdate(), MomentMatchingUpdate()], ids=lambda update: type(update).__name__)
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_arrays_and_tensors_agree(update, scale):
    """Blocks of two classes, and of four by Laplace: whole blocks run on arrays where nothing is recorded."""
    for num_classes in (1, 4) if update == LaplaceUpdate() else (1,):
        rng = np.random.default_rng(num_classes)
        batch = (4, num_classes) if num_classes > 1 else (4,)
        root = torch.tensor(rng.normal(size=(*batch, 10, 12)) * scale)
        mean = torch.tensor(rng.normal(size=(*batch, 10)) * 3)
        y = torch.tensor(rng.integers(0, max(2, num_classes), 10) * 1.0)
        y[3::4] = torch.nan
        likelihood = LogisticLikelihood() if num_classes == 1 else MulticlassLikelihood(num_classes)
        rules = [LikelihoodRule(latent_density(likelihood, force_autograd=forced), update) for forced in (False, True)]
        factors = torch.linspace(1, 1.2, 10, dtype=torch.float64)
        for factor in (None, factors):
            with torch.no_grad():
                plain = find_sites(mean, root @ root.mT, factor, y, rules[0])
            for recorded in (find_sites(mean, root @ root.mT, factor, y, rule) for rule in rules):
                torch.testing.assert_close(plain, recorded, rtol=1e-8, atol=1e-9)
