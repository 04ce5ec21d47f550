"""Variances of fixed kernels: dense densities on a grid, in many digits where smooth kernels need them, chain rule."""

import math

import mpmath
import pytest
import torch
from gpytorch.priors import GammaPrior

from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary
from gp_ensembles.ensembles.build import FitSettings, fitted_experts
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.empirical_bayes import fit_fixed_kernels, has_fixed_kernels
from gp_ensembles.numerics.profiled_evidence import best_variances, evidence_at, profile

FLOOR = 1e-6


def rows(num_rows=60, width=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = width * torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)
    y = (5 * X[:, 0] / width).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, y - y.mean()


def dictionary(X, num_features=20, seed=0):
    ((_, features),) = KernelDictionary(num_features).build(X, generator=torch.Generator().manual_seed(seed))
    return GaussianExpert(features)


def dense(Phi, y, prior, noise):
    """The log density of all targets together, in 60 digits."""
    with mpmath.workdps(60):
        design = mpmath.matrix(Phi.tolist())
        targets = mpmath.matrix(y.tolist())
        covariance = mpmath.mpf(prior) * design * design.T + mpmath.mpf(noise) * mpmath.eye(len(y))
        factor = mpmath.cholesky(covariance)
        white = mpmath.lu_solve(factor, targets)
        half = mpmath.fsum(mpmath.log(factor[i, i]) for i in range(len(y)))
        return float(-mpmath.fsum(value**2 for value in white) / 2 - half - len(y) * mpmath.log(2 * mpmath.pi) / 2)


@torch.no_grad()
def test_the_evidence_at_any_variances_is_the_dense_one():
    X, y = rows(20)
    Phi = dictionary(X, 8).features(X)
    found = profile(Phi, y)
    for noise, ratio in ((1e-6, 1e12), (0.01, 1e9), (0.3, 2.0), (1.0, 1e-5)):
        value = evidence_at(found, Phi.new_tensor(noise), Phi.new_tensor(ratio).expand(11))[0]
        for m in (0, 5, 10):
            assert float(value[m]) == pytest.approx(dense(Phi[m], y, noise * ratio, noise), rel=1e-6, abs=1e-6)


def test_slopes_are_those_of_differences():
    X, y = rows()
    found = profile(dictionary(X).features(X).detach(), y)
    logs = torch.tensor([math.log(0.2), math.log(3.0)], dtype=torch.float64)
    _, by_noise, by_ratio = evidence_at(found, logs[0].exp(), logs[1].exp())
    for slope, step in ((by_noise, torch.tensor([1e-5, 0.0])), (by_ratio, torch.tensor([0.0, 1e-5]))):
        above, below = ((logs + sign * step).exp() for sign in (1, -1))
        values = [evidence_at(found, *ends)[0] for ends in (above, below)]
        difference = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("width", [0.05, 1.0, 30.0])
def test_no_variances_on_a_grid_of_dense_densities_have_more_evidence(width):
    X, y = rows(30, width)
    Phi = dictionary(X).features(X)
    best_noise, best_prior, evidence = best_variances(profile(Phi, y), FLOOR)
    noise = torch.logspace(-3, 0.5, 13, dtype=torch.float64)[:, None, None, None]
    prior = torch.logspace(-5, 5, 21, dtype=torch.float64)[:, None, None]
    for m in (0, 5, 10):
        covariance = prior * Phi[m] @ Phi[m].mT + noise * torch.eye(30, dtype=torch.float64)
        density = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance, validate_args=False)
        assert float(evidence[m]) >= float(density.log_prob(y).max()) - 1e-6
        own = dense(Phi[m], y, float(best_prior[m]), float(best_noise[m]))
        assert float(evidence[m]) == pytest.approx(own, abs=1e-6, rel=1e-7)


def test_the_rows_one_after_another_say_what_they_say_together():
    """The chain rule: the filter keeps its digits at the priors that smooth kernels of narrow inputs get."""
    X, y = rows(200, 0.1)
    y[7] = math.nan
    expert = dictionary(X, 30)
    evidence = fit_fixed_kernels(expert, X, y)
    assert float((expert.features.prior_variance / expert.likelihood.noise.squeeze(-1)).detach().max()) > 1e8
    state, total = expert.init(), 0.0
    for some, targets in zip(X.split(16), y.split(16), strict=True):
        state, steps = expert.update(state, some, targets)
        total = total + steps.log_prob.nansum(-1)
    torch.testing.assert_close(total.detach(), evidence, rtol=0, atol=1e-4)


def test_the_noise_has_its_bound_where_features_explain_all():
    X, _ = rows(12)
    expert = dictionary(X, 40)
    evidence = fit_fixed_kernels(expert, X, (3 * X[:, 0]).sin())
    assert bool(evidence.isfinite().all())
    assert bool((expert.likelihood.noise >= FLOOR).all())
    assert float(expert.likelihood.noise.detach().min()) < 2 * FLOOR
    assert bool(expert.likelihood.noise_covar.raw_noise.isfinite().all())
    fit_fixed_kernels(expert, X, torch.zeros(12, dtype=torch.float64))
    assert bool(expert.features.prior_variance.isfinite().all())


def test_ensembles_fit_fixed_kernels_so_and_others_by_climbing():
    X, y = rows(100)
    generator = torch.Generator().manual_seed(0)
    maps = KernelDictionary(10).build(X, generator=generator) + FourierBasis(10).build(X, generator=generator)
    fixed, free = (expert for _, expert in fitted_experts(maps, X, y, FitSettings(num_samples=1), None, False))
    assert has_fixed_kernels(fixed)
    assert not has_fixed_kernels(free)
    _, prior_variance, _ = best_variances(profile(fixed.features(X).detach(), y), FLOOR)
    torch.testing.assert_close(fixed.features.prior_variance, prior_variance, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="other than noise and scale"):
        fit_fixed_kernels(free, X, y)
    maps = KernelDictionary(10).build(X, generator=generator)
    ((_, kept),) = fitted_experts(maps, X, y, FitSettings(None, num_samples=1), None, False)
    assert bool((kept.likelihood.noise == 0.5).all())


def test_an_expert_with_a_prior_of_its_own_is_not_profiled():
    expert = dictionary(rows()[0])
    expert.likelihood.noise_covar.register_prior("noise_prior", GammaPrior(2.0, 1.0), "noise")
    assert not has_fixed_kernels(expert)
