"""Every transition in the experts whose recursions are their own: unknown noise, several outputs, several classes."""

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.experts import LaplaceExpert, StudentTExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.likelihoods import MulticlassLikelihood
from tests.filters.oracles import advance

M, N, D = 2, 7, 2
F = D + 1  # the linear map has an intercept
PRIOR = torch.tensor([0.5, 3.0], dtype=torch.float64)
# No two of its entries are alike, so that no mix-up of axes can hide.
GENERIC = torch.tensor([[0.09, 0.02, -0.01], [0.02, 0.05, 0.03], [-0.01, 0.03, 0.14]], dtype=torch.float64)
FACTORS = torch.tensor([0.8, 0.97], dtype=torch.float64)
TRANSITIONS = {
    "static": None,
    "walk": RandomWalk(0.05),
    "walk of each expert": RandomWalk(torch.tensor([[0.02], [0.1]], dtype=torch.float64)),
    "walk of each feature": RandomWalk(torch.tensor([0.0, 0.03, 0.2], dtype=torch.float64)),
    "correlated walk": CorrelatedWalk(GENERIC),
    "correlated walk of each expert": CorrelatedWalk(torch.stack([GENERIC, 2 * GENERIC.flip(0, 1)])),
    "forgetting": ExponentialForgetting(0.9),
    "forgetting of each expert": ExponentialForgetting(FACTORS),
    "stabilized": StabilizedForgetting(0.9),
    "stabilized of each expert": StabilizedForgetting(FACTORS),
}


def moved(transition, mean, covariance, m):
    return [value.numpy() for value in advance(transition, *map(torch.from_numpy, (mean, covariance)), PRIOR, m)]


def problem(seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    return X, torch.randn(N, generator=g, dtype=torch.float64), LinearFeatures(D, PRIOR.clone())


def rows_of(features, X):
    Phi = features(X).detach()
    return Phi.expand(M, *Phi.shape[-2:]).numpy()


def assert_near(got, want, tolerance=1e-9):
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", TRANSITIONS)
def test_unknown_noise(name):
    X, y, features = problem()
    y[[0, 4]] = torch.nan
    change = TRANSITIONS[name]
    expert = StudentTExpert(features, transition=change)
    with torch.no_grad():
        state, steps = expert.update(expert.init(), X, y)
        ahead = expert.bind().predict(state, expert.features(X[:1]))
    Phi = rows_of(features, X)
    for m in range(M):
        prior = float(PRIOR[m])
        mean, V = np.zeros(F), prior * np.eye(F)
        a, b = (float(value.detach()[m]) for value in (expert.noise.concentration, expert.noise.rate))
        for t in range(N):
            mean, V = moved(change, mean, V, m)
            phi = Phi[m, t]
            u = 1 + phi @ V @ phi
            law = stats.t(2 * a, loc=phi @ mean, scale=np.sqrt(b / a * u))
            assert_near(steps.mean[m, t], law.mean())
            assert_near(steps.variance[m, t], law.var())
            if not torch.isnan(y[t]):
                assert_near(steps.log_prob[m, t], law.logpdf(float(y[t])))
                error, gain = float(y[t]) - phi @ mean, V @ phi / u
                mean, V = mean + gain * error, V - np.outer(gain, phi @ V)
                a, b = a + 0.5, b + 0.5 * error**2 / u
        assert_near(state.moments[m], np.c_[V, mean])
        assert_near(state.concentration[m], a)
        assert_near(state.rate[m], b)
        mean, V = moved(change, mean, V, m)
        assert_near(ahead.mean[m, 0], Phi[m, 0] @ mean)
        assert_near(ahead.variance[m, 0], b / (a - 1) * (1 + Phi[m, 0] @ V @ Phi[m, 0]))


def newton(design, label, mean, covariance):
    """Mode and inverse Hessian over the weights of all classes for one softmax row, design (C, C F)."""
    precision = np.linalg.inv(covariance)
    hot = np.eye(design.shape[0])[label]

    def slope_and_bend(theta):
        odds = np.exp(design @ theta - (design @ theta).max())
        share = odds / odds.sum()
        slope = design.T @ (hot - share) - precision @ (theta - mean)
        return slope, precision + design.T @ (np.diag(share) - np.outer(share, share)) @ design

    theta = mean
    for _ in range(50):
        slope, bend = slope_and_bend(theta)
        theta = theta + np.linalg.solve(bend, slope)
    assert np.abs(slope_and_bend(theta)[0]).max() < 1e-10
    return theta, np.linalg.inv(slope_and_bend(theta)[1])


def moved_classes(change, mean, covariance, m, num_classes):
    """Each class by itself."""
    mean, covariance = mean.copy(), covariance.copy()
    for c in range(num_classes):
        own = slice(c * F, (c + 1) * F)
        mean[own], covariance[own, own] = moved(change, mean[own], covariance[own, own], m)
    return mean, covariance


@pytest.mark.parametrize("name", TRANSITIONS)
def test_several_classes(name):
    """Of the precision after a target what links classes is left out."""
    X, _, features = problem()
    y = torch.tensor([0.0, 2.0, torch.nan, 1.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    change = TRANSITIONS[name]
    expert = LaplaceExpert(features, MulticlassLikelihood(3), change)
    with torch.no_grad():
        state, steps = expert.update(expert.init(), X, y)
        ahead = expert.bind().predict(state, expert.features(X[:2]))
    Phi = rows_of(features, X)
    for m in range(M):
        prior = float(PRIOR[m])
        mean, covariance = np.zeros(3 * F), prior * np.eye(3 * F)
        for t in range(N):
            mean, covariance = moved_classes(change, mean, covariance, m, 3)
            design = np.kron(np.eye(3), Phi[m, t])
            assert_near(steps.latent_mean[m, t], design @ mean, 1e-7)
            assert_near(steps.latent_variance[m, t], design @ covariance @ design.T, 1e-7)
            if not torch.isnan(y[t]):
                mean, covariance = newton(design, int(y[t]), mean, covariance)
                covariance = np.linalg.inv(np.linalg.inv(covariance) * np.kron(np.eye(3), np.ones((F, F))))
        assert_near(state.mean[m].flatten(), mean, 1e-7)
        assert_near(torch.block_diag(*state.covariance[m]), covariance, 1e-7)
        mean, covariance = moved_classes(change, mean, covariance, m, 3)
        for row in range(2):
            design = np.kron(np.eye(3), Phi[m, row])
            assert_near(ahead.latent_mean[m, row], design @ mean, 1e-7)
            assert_near(ahead.latent_variance[m, row], design @ covariance @ design.T, 1e-7)
