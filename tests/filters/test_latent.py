"""Sites: every rule, blocking and transition against loops over F-dimensional Newton, quadrature and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from gp_ensembles import filters
from gp_ensembles.experts import GaussianExpert, RobustExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters.sites import ConvergenceWarning, LaplaceRule, MomentMatchingRule, RobustRule
from tests.filters.oracles import advance, in_blocks

M, N, F = 2, 6, 3
LIKELIHOODS = {
    "logistic": lambda z, y: torch.nn.functional.logsigmoid((2 * y - 1) * z),
    "probit": lambda z, y: torch.special.log_ndtr((2 * y - 1) * z),
    "poisson": lambda z, y: y * z - z.exp() - torch.lgamma(y + 1),
    "student": lambda z, y: -2.5 * torch.log1p((y - z) ** 2 / 4 / 0.1),
    "gaussian": lambda z, y: -0.5 * ((y - z) ** 2 / 0.3 + math.log(2 * math.pi * 0.3)),
}
CONCAVE = [name for name in LIKELIHOODS if name != "student"]
TRANSITIONS = {
    "static": None,
    "walk": filters.RandomWalk(0.05),
    "correlated": filters.CorrelatedWalk(torch.full((F, F), 0.02, dtype=torch.float64)),
    "forgetting": filters.ExponentialForgetting(0.9),
    "stabilized": filters.StabilizedForgetting(torch.tensor([0.9, 0.97], dtype=torch.float64)),
}


def problem(missing=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(M, N, F, generator=g, dtype=torch.float64)
    y = torch.randint(0, 2, (N,), generator=g).double()
    y[list(missing)] = torch.nan
    return Phi, y, torch.tensor([0.5, 3.0], dtype=torch.float64)


def full_newton(log_density, phi, y, mean, covariance):
    """The mode in all F weights and the inverse Hessian there, by damped Newton with torch's own Hessian."""
    precision = torch.linalg.inv(covariance)

    def objective(theta):
        return log_density(phi @ theta, y) - 0.5 * (theta - mean) @ precision @ (theta - mean)

    theta = mean.clone()
    for _ in range(200):
        gradient = torch.func.grad(objective)(theta)
        hessian = torch.func.hessian(objective)(theta)
        largest = torch.linalg.eigvalsh(hessian).max()
        if largest > -1e-9:
            hessian = hessian - (largest + 1) * torch.eye(F, dtype=torch.float64)
        step = -torch.linalg.solve(hessian, gradient)
        if step.abs().max() < 1e-9:  # the next would be its square: below, differences of the objective are rounding
            theta = theta + step
            break
        share = 1.0
        while objective(theta + share * step) < objective(theta) and share > 1e-12:
            share /= 2
        theta = theta + share * step
    return theta, torch.linalg.inv(-torch.func.hessian(objective)(theta))


def pairs():
    """Every likelihood with every transition; make test takes all of either with one of the other."""
    for name in LIKELIHOODS:
        for transition in TRANSITIONS:
            is_first = name == "logistic" or transition == "walk"
            yield pytest.param(name, transition, marks=() if is_first else pytest.mark.slow)


@pytest.mark.parametrize(("name", "transition"), list(pairs()))
def test_laplace_is_newton_in_all_weights(name, transition):
    Phi, y, prior = problem((4,))
    rule, change = LaplaceRule(LIKELIHOODS[name]), TRANSITIONS[transition]

    def learn(state, rows):
        return filters.update_block(state, Phi[:, rows], y[rows], change, rule, prior_variance=prior)

    with torch.no_grad():
        results = [in_blocks(learn, filters.gaussian_state(prior, F), sizes) for sizes in ((1,) * N, (3, 3), (N,))]
    for m in range(M):
        mean, covariance = torch.zeros(F, dtype=torch.float64), prior[m] * torch.eye(F, dtype=torch.float64)
        for t in range(N):
            mean, covariance = advance(change, mean, covariance, prior, m)
            phi = Phi[m, t]
            for _, latent in results:
                assert float(latent.mean[m, t]) == pytest.approx(float(phi @ mean), abs=1e-8)
                assert float(latent.variance[m, t]) == pytest.approx(float(phi @ covariance @ phi), abs=1e-8)
            if not torch.isnan(y[t]):
                mean, covariance = full_newton(LIKELIHOODS[name], phi, y[t], mean, covariance)
        for state, _ in results:
            torch.testing.assert_close((state.mean[m], state.covariance[m]), (mean, covariance), rtol=1e-8, atol=1e-8)


def test_a_gaussian_site_is_the_gaussian_filter():
    Phi, y, prior = problem((0, N - 1))
    noise = torch.tensor([0.3, 0.3], dtype=torch.float64)
    want, steps = filters.textbook_filter(filters.gaussian_state(prior, F), Phi, y, noise)
    with torch.no_grad():
        rule = LaplaceRule(LIKELIHOODS["gaussian"])
        state, latent = filters.update_block(filters.gaussian_state(prior, F), Phi, y, None, rule)
    torch.testing.assert_close((state.moments, latent.mean), (want.moments, steps.mean))
    torch.testing.assert_close(latent.variance + 0.3, steps.variance)


NODES, WEIGHTS = (torch.tensor(x) for x in np.polynomial.hermite_e.hermegauss(60))


@pytest.mark.parametrize("name", CONCAVE)
def test_moment_matching_has_the_exact_moments(name):
    """After one target, the latent value has the posterior's mean and variance by adaptive quadrature."""
    log_density = LIKELIHOODS[name]
    rule = MomentMatchingRule(log_density, NODES, WEIGHTS / WEIGHTS.sum())
    mean = torch.tensor([0.3, -1.2], dtype=torch.float64)
    variance = torch.tensor([0.4, 2.0], dtype=torch.float64)
    y = torch.ones(1, dtype=torch.float64)
    sites = rule.solve(mean.unsqueeze(-1), variance.unsqueeze(-1), y)
    for m in range(2):

        def density(z, power, m=m):
            prior = math.exp(-0.5 * (z - float(mean[m])) ** 2 / float(variance[m]))
            return z**power * prior * math.exp(float(log_density(torch.tensor(z, dtype=torch.float64), y[0])))

        settings = {"epsabs": 1e-13, "limit": 200}
        total, first, second = (integrate.quad(density, -12, 12, (power,), **settings)[0] for power in range(3))
        after = 1 / (1 / float(variance[m]) + float(sites.precision[m]))
        assert after == pytest.approx(second / total - (first / total) ** 2, rel=1e-8)
        shifted = after * (float(mean[m]) / float(variance[m]) + float(sites.shift[m]))
        assert shifted == pytest.approx(first / total, rel=1e-8, abs=1e-9)


def test_the_robust_rule_is_its_equations():
    Phi, y, prior = problem()
    y = 10 * y
    noise, threshold = torch.tensor([0.2, 0.4]).double(), torch.tensor([2.0, 3.0]).double()
    state, latent = filters.update_block(filters.gaussian_state(prior, F), Phi, y, None, RobustRule(noise, threshold))
    for m in range(M):
        mean, covariance = torch.zeros(F, dtype=torch.float64), prior[m] * torch.eye(F, dtype=torch.float64)
        for t in range(N):
            phi = Phi[m, t]
            error, variance = y[t] - phi @ mean, phi @ covariance @ phi
            assert float(latent.variance[m, t]) == pytest.approx(float(variance), rel=1e-9)
            weight = 1 / (1 + error**2 / (threshold[m] ** 2 * (variance + noise[m])))
            gain = covariance @ phi / (variance + noise[m] / weight)
            mean, covariance = mean + gain * error, covariance - torch.outer(gain, phi @ covariance)
        torch.testing.assert_close((state.mean[m], state.covariance[m]), (mean, covariance))


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
    rule = LaplaceRule(lambda z, y: 5 * z**2 + 0 * y)
    one = torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad(), pytest.warns(ConvergenceWarning, match="100 damped Newton steps for expert 0"):
        rule.solve(one, one, one[0])


def test_moments_that_are_lost_cost_the_others_nothing():
    """An expert that failed has no mode; that of the other one in its batch is found as by itself, in as few steps."""
    calls = []

    def log_density(z, y):
        calls.append(1)
        return LIKELIHOODS["student"](z, y)

    rule, y = LaplaceRule(log_density), torch.tensor([4.0], dtype=torch.float64)
    mean, variance = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0, dtype=torch.float64)
    with torch.no_grad():
        alone, needed = rule.solve(mean, variance, y), len(calls)
        calls.clear()
        for lost in (torch.nan, torch.inf):
            both = rule.solve(torch.cat([mean, mean + lost]), torch.cat([variance, variance]), y)
            torch.testing.assert_close((both.point[:1], both.precision[:1]), (alone.point, alone.precision))
    assert len(calls) <= 4 * (needed + 10)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_beyond_the_cap_the_covariance_stays_positive(start):
    """At zero the slope vanishes though the curvature points the wrong way: a minimum is no mode."""
    rule = LaplaceRule(lambda z, y: 5 * z**2 + 0 * y)
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
    rule = LaplaceRule(lambda z, y: torch.logaddexp(-8 * (z - y) ** 2, -8 * (z + y) ** 2))
    mean, variance = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0, dtype=torch.float64)
    with torch.no_grad():
        sites = rule.solve(mean, variance, torch.tensor([2.0], dtype=torch.float64))
    point = float(sites.point)
    assert abs(abs(point) - 2 / (1 + 1 / (16 * 9))) < 1e-9
    assert float(1 + sites.precision * variance) > 0


def test_poisson_converges_from_anywhere():
    for y, mean in itertools.product((0.0, 3.0, 5000.0), (-30.0, 0.0, 12.0)):
        rule = LaplaceRule(LIKELIHOODS["poisson"])
        center, variance = (torch.full((1, 1), value, dtype=torch.float64) for value in (mean, 25.0))
        target = torch.tensor([y], dtype=torch.float64)
        with torch.no_grad():
            sites = rule.solve(center, variance, target)
        slope = y - math.exp(float(sites.point)) - (float(sites.point) - mean) / 25
        assert abs(slope) < 1e-6 * max(1, y)


def test_gradients_flow_through_the_sites():
    Phi, y, prior = problem()
    rule = LaplaceRule(LIKELIHOODS["logistic"])

    def total(p):
        _, latent = filters.update_block(filters.gaussian_state(p, F), Phi[:, :5], y[:5], None, rule)
        return (latent.mean + latent.variance).sum()

    leaf = prior.clone().requires_grad_()
    numeric = []
    for m in range(M):
        shift = torch.zeros(M, dtype=torch.float64)
        shift[m] = 1e-5
        numeric.append((total(prior + shift) - total(prior - shift)) / 2e-5)
    torch.testing.assert_close(torch.autograd.grad(total(leaf), leaf)[0], torch.stack(numeric), rtol=1e-4, atol=1e-6)


def test_a_robust_expert_loses_little_to_outliers():
    g = torch.Generator().manual_seed(5)
    X = torch.randn(800, 3, generator=g, dtype=torch.float64)
    clean = X.sum(-1) + 0.1 * torch.randn(800, generator=g, dtype=torch.float64)
    dirty = clean.clone()
    hit = torch.rand(800, generator=g) < 0.05
    dirty[hit] = 50 * torch.randn(int(hit.sum()), generator=g, dtype=torch.float64)
    losses = {}
    for kind in (GaussianExpert, RobustExpert):
        expert = kind(LinearFeatures(3, torch.tensor(1.0, dtype=torch.float64)))
        expert.likelihood.noise = torch.tensor([0.01], dtype=torch.float64)
        for name, y in (("clean", clean), ("dirty", dirty)):
            with torch.no_grad():
                _, steps = expert.update(expert.init(), X, y)
            losses[kind, name] = float((steps.mean - clean).square()[100:].mean())
    cost = {kind: losses[kind, "dirty"] - losses[kind, "clean"] for kind in (GaussianExpert, RobustExpert)}
    assert cost[RobustExpert] < 0.1 * cost[GaussianExpert]
