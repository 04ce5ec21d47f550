"""Hyperparameters that series share: the sum of the evidences of each, by the evidence of one."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.empirical_bayes import LBFGS, get_vectors, set_vectors_
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.fitting import evidence_terms, fit_shared
from gp_ensembles.numerics.cholesky import NumericalError
from tests.fleet.instances import fourier

NUM_SERIES, NUM_ROWS, NOISE = 15, 80, 0.3


def series(generator):
    draw = {"generator": generator, "dtype": torch.float64}
    X = torch.randn(NUM_SERIES, NUM_ROWS, 2, **draw)
    y = torch.randn(NUM_SERIES, 1, **draw) * X[..., 0].sin() + NOISE * torch.randn(NUM_SERIES, NUM_ROWS, **draw)
    y[2, 50:], y[:, 5] = torch.nan, torch.nan
    return X, y


def two_kinds(seed):
    """Functions with noise of a fifth of their size; every second one changes ten times as fast as the others."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    num_series, num_rows = 40, 500
    rate = torch.tensor([0.6, 6.0], dtype=torch.float64).repeat(num_series // 2)
    X = torch.randn(num_rows, num_series, 1, **draw)
    phase = 2 * math.pi * torch.rand(num_series, **draw)
    return X, torch.sin(rate * X[..., 0] + phase) + 0.2 * torch.randn(num_rows, num_series, **draw)


def evidence_of_each(expert, X, y):
    bound = expert.bind()
    return evidence_terms(bound.features(X), y, bound.prior_variance, bound.noise)


def test_evidence_of_each_is_that_of_one_series(generator):
    X, y = series(generator)
    expert = GaussianExpert(fourier())
    found = evidence_of_each(expert, X, y)
    for s in range(NUM_SERIES):
        seen = ~y[s].isnan()
        torch.testing.assert_close(found[s], expert.log_evidence(X[s][seen], y[s][seen]), rtol=1e-10, atol=1e-9)


def test_the_fit_is_a_maximum_of_the_sum_and_finds_the_noise(generator):
    X, y = series(generator)
    expert = GaussianExpert(fourier())
    before = evidence_of_each(expert, X, y).sum(0).detach()
    fit = fit_shared(expert, X, y, FitSettings(LBFGS(loss_tolerance=1e-10), start_precision=0))
    best = evidence_of_each(expert, X, y).sum(0).detach()
    torch.testing.assert_close(fit.log_evidence, best)
    assert (best > before + 100).all()
    torch.testing.assert_close(
        expert.likelihood.noise.detach().sqrt().mean(), torch.tensor(NOISE).double(), rtol=0.05, atol=0
    )
    vectors = get_vectors(expert)
    for column in range(vectors.shape[1]):
        for step in (-0.05, 0.05):
            moved = vectors.clone()
            moved[:, column] += step
            set_vectors_(expert, moved)
            assert (evidence_of_each(expert, X, y).sum(0) < best + 1e-6).all()


def test_an_expert_whose_evidence_cannot_be_computed_is_named(generator):
    X, y = series(generator)
    stacked = stack_kernels([ScaleKernel(RBFKernel()).double() for _ in range(2)])
    expert = GaussianExpert(RandomFourierFeatures.from_kernel(stacked, 2, 20, generator=generator))
    with torch.no_grad():
        expert.features.kernel.raw_outputscale[1] = 1e20
    with pytest.raises(NumericalError, match="the evidence of expert 1 cannot be computed at its starting"):
        fit_shared(expert, torch.ones_like(X), y, FitSettings(LBFGS()))  # all features of all rows are alike


def test_a_fit_goes_around_places_where_the_evidence_cannot_be_computed():
    """A line search on these rows tries such places: length scales at which features of quick functions are alike."""
    X, y = two_kinds(1)
    X, y = X[:150, 1:20:2].reshape(-1, 1), y[:150, 1:20:2].flatten()
    fleet = Fleet(warmup=150)
    fleet.fit(list(range(10)) * 150, X, y)
    assert len(fleet.names) == 10
