"""Sites: every rule, blocking and transition against loops over F-dimensional Newton, quadrature and closed forms."""

import math

import pytest
import torch

from gp_ensembles import filters
from gp_ensembles.filters.sites import RobustRule
from tests.filters.oracles import advance, in_blocks, rule_of

M, N, F = 2, 6, 3
LIKELIHOODS = {
    "logistic": lambda z, y: torch.nn.functional.logsigmoid((2 * y - 1) * z),
    "probit": lambda z, y: torch.special.log_ndtr((2 * y - 1) * z),
    "poisson": lambda z, y: y * z - z.exp() - torch.lgamma(y + 1),
    "student": lambda z, y: -2.5 * torch.log1p((y - z) ** 2 / 4 / 0.1),
    "gaussian": lambda z, y: -0.5 * ((y - z) ** 2 / 0.3 + math.log(2 * math.pi * 0.3)),
}
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
    rule, change = rule_of(LIKELIHOODS[name]), TRANSITIONS[transition]

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
        rule = rule_of(LIKELIHOODS["gaussian"])
        state, latent = filters.update_block(filters.gaussian_state(prior, F), Phi, y, None, rule)
    torch.testing.assert_close((state.moments, latent.mean), (want.moments, steps.mean))
    torch.testing.assert_close(latent.variance + 0.3, steps.variance)


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


def test_gradients_flow_through_the_sites():
    Phi, y, prior = problem()
    rule = rule_of(LIKELIHOODS["logistic"])

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
