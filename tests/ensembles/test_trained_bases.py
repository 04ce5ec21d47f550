"""Frequencies and centers that are fitted, and experts whose hyperparameters are moved at random."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from gp_ensembles.ensembles.bases import FourierBasis, OptimizedFourierBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings, fitted_experts
from gp_ensembles.experts import LBFGS, GaussianExpert
from gp_ensembles.experts.empirical_bayes import GaussianPerturbation, get_vectors, perturb_hyperparameters
from gp_ensembles.features import LinearFeatures

MOVED = FitSettings(LBFGS(max_iterations=10), num_samples=3, perturbation=GaussianPerturbation(1e-4))


def rows(num_rows=80):
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(num_rows, 2, dtype=torch.float64, generator=generator)
    y = (2 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, dtype=torch.float64, generator=generator)
    return X, (y - y.mean()) / y.std()


def fitted(basis, fit, seed=0):
    X, y = rows()
    generator = torch.Generator().manual_seed(seed)
    maps = basis.build(X, generator=generator)
    [(_, expert)] = fitted_experts(maps, X, y, fit, generator, False)
    return expert


def test_perturbed_hyperparameters_are_independent_normals(generator):
    expert = GaussianExpert(LinearFeatures(2, torch.tensor([1.0, 3.0], dtype=torch.float64)))
    modes, num_samples, variance = get_vectors(expert), 4000, 1e-3
    samples = perturb_hyperparameters(expert, num_samples, variance, generator=generator)
    draws = get_vectors(samples).reshape(2, num_samples, -1) - modes.unsqueeze(1)
    errors = 5 / math.sqrt(num_samples)  # five standard errors
    assert float(draws.mean(1).abs().max()) < errors * math.sqrt(variance)
    for one in draws:
        covariance = torch.cov(one.T) / variance
        expected = torch.eye(len(covariance), dtype=torch.float64)
        torch.testing.assert_close(covariance, expected, rtol=0, atol=errors * math.sqrt(2))
    torch.testing.assert_close(get_vectors(expert), modes, rtol=0, atol=0)
    for bad in ((0, 1e-3), (2, 0.0), (2, math.nan)):
        with pytest.raises(ValueError, match="num_samples and variance must be positive"):
            perturb_hyperparameters(expert, *bad)


@pytest.mark.parametrize(
    "basis", [OptimizedFourierBasis(12), RadialBasis(6, train_centers=True)], ids=["frequencies", "centers"]
)
def test_evidence_of_fitted_features_is_that_of_a_normal(basis):
    """Evidence by the density of all targets, features by hand from what was fitted; and fitting moved it uphill."""
    X, y = rows()
    start = fitted(basis, FitSettings(method=None, num_samples=1))
    expert = fitted(basis, FitSettings(LBFGS(max_iterations=10), num_samples=1, start_precision=0.0))
    inputs = X.numpy()
    for number in range(3):
        one = expert.take(torch.tensor([number]))
        noise = float(one.likelihood.noise.detach())
        if isinstance(basis, OptimizedFourierBasis):
            angles = inputs @ one.features.frequencies.detach().numpy()[0].T
            Phi = np.hstack([np.sin(angles), np.cos(angles)]) * math.sqrt(2 / 12)
            variances = float(one.features.prior_variance.detach()) * np.ones(12)
        else:
            bumps, linear = one.features.parts
            scaled = (inputs[:, None, :] - bumps.centers.detach().numpy()[0]) / bumps.lengthscale.detach().numpy()[0]
            Phi = np.hstack([np.exp(-0.5 * (scaled**2).sum(-1)), linear(X).detach().numpy()[0]])
            shares = [float(part.prior_variance.detach()) for part in (bumps, linear)]
            variances = np.repeat(shares, [6, Phi.shape[1] - 6])
        covariance = Phi * variances @ Phi.T + noise * np.eye(len(y))
        expected = multivariate_normal(np.zeros(len(y)), covariance).logpdf(y.numpy())
        found = float(one.log_evidence(X, y).detach())
        assert found == pytest.approx(expected, abs=1e-7)
        assert found > float(start.take(torch.tensor([number])).log_evidence(X, y).detach())


@pytest.mark.parametrize("kind", [True, False])
def test_centers_move_only_if_they_are_trained(kind):
    settings = (FitSettings(method, num_samples=1) for method in (None, LBFGS(max_iterations=10)))
    bases = (fitted(RadialBasis(6, train_centers=kind), one).features.parts[0] for one in settings)
    start, found = (bumps.centers for bumps in bases)
    moved = (found - start).detach().abs().amax((-1, -2))
    assert bool((moved > 1e-3).all()) if kind else not bool(moved.any())


def test_of_several_starts_the_one_with_the_most_evidence_stays():
    """Evidence by the density of all targets under the features of each."""
    (X, y), basis = rows(), FourierBasis(12, starts=(9.0, 0.3, 2.0))
    settings = FitSettings(LBFGS(max_iterations=2), num_samples=1, start_precision=0.0)
    every = fitted(basis, settings)
    numbers = (every.features(X), every.features.prior_variance, every.likelihood.noise.reshape(3))
    Phi, variance, noise = (number.detach().numpy() for number in numbers)
    covariances = variance[:, None, None] * Phi @ Phi.swapaxes(1, 2) + noise[:, None, None] * np.eye(len(y))
    best = int(np.argmax([multivariate_normal(np.zeros(len(y)), one).logpdf(y.numpy()) for one in covariances]))
    assert best > 0
    kept = fitted(basis, replace(settings, best_start=True))
    assert torch.equal(get_vectors(kept), get_vectors(every)[[best]])
    assert fitted(basis, replace(settings, best_start=True, method=None)).num_experts == 3


def test_the_optimum_stands_first_and_others_are_near():
    for basis in (OptimizedFourierBasis(12), RadialBasis(6, train_centers=True)):
        optimum = get_vectors(fitted(basis, replace(MOVED, num_samples=1)))
        vectors = get_vectors(fitted(basis, MOVED)).reshape(3, 3, -1)
        assert torch.equal(vectors[:, 0], optimum)
        steps = vectors[:, 1:] - vectors[:, :1]
        spread = float(steps.square().mean() / 1e-4)
        assert abs(spread - 1) < 5 * math.sqrt(2 / steps.numel())
