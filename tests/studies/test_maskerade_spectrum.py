"""The variational sparse spectrum: its expectations by sampling, its bound by the evidence of fixed frequencies."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from studies.maskerade.variational_spectrum import VariationalSpectrum, fit, start_spectrum

GENERATOR_SEED = 0


def problem(num_rows: int = 12, num_inputs: int = 2, num_frequencies: int = 3) -> tuple:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    X = torch.rand(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    y = (5.0 * X.sum(-1)).sin()
    spectrum = start_spectrum(X, num_frequencies, 0.3, generator)
    return X, y - y.mean(), spectrum._replace(log_sd=spectrum.log_sd + 2.0), generator  # frequencies far from points


def features(spectrum: VariationalSpectrum, frequencies: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    """Cosines, then sines, of drawn frequencies (S, K, D) at rows (N, D), shape (S, N, 2K)."""
    phase = 2.0 * math.pi * ((X.unsqueeze(1) - spectrum.places) * frequencies.unsqueeze(1)).sum(-1)
    scale = (spectrum.log_outputscale.exp() / frequencies.shape[1]).sqrt()
    return scale * torch.cat([phase.cos(), phase.sin()], -1)


def drawn(spectrum: VariationalSpectrum, count: int, generator: torch.Generator) -> torch.Tensor:
    normals = torch.randn(count, *spectrum.mean.shape, generator=generator, dtype=torch.float64)
    return spectrum.mean + spectrum.log_sd.exp() * normals


def evidence(spectrum: VariationalSpectrum, drawn_features: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    noise = spectrum.log_noise.exp() * torch.eye(len(y), dtype=torch.float64)
    covariance = drawn_features @ drawn_features.mT + noise
    return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def test_with_known_frequencies_the_bound_is_the_evidence_of_random_features():
    X, y, spectrum, _ = problem()
    points = spectrum._replace(log_sd=torch.full_like(spectrum.log_sd, -25.0))
    exact = evidence(points, features(points, points.mean.unsqueeze(0), X), y)
    assert float(points.bound(X, y) + points.divergence()) == pytest.approx(float(exact), rel=1e-8)


def test_the_divergence_is_that_of_normals():
    _, _, spectrum, _ = problem()
    prior_sd = (-spectrum.log_lengthscale).exp() / (2.0 * math.pi)
    q = torch.distributions.Normal(spectrum.mean, spectrum.log_sd.exp())
    p = torch.distributions.Normal(torch.zeros_like(spectrum.mean), prior_sd.expand_as(spectrum.mean))
    assert float(spectrum.divergence()) == pytest.approx(float(torch.distributions.kl_divergence(q, p).sum()))


def test_the_bound_is_below_the_evidence_by_importance_sampling():
    X, y, spectrum, generator = problem(8, 1, 2)
    for one in (spectrum, fit(spectrum, X, y, 30)[0]._replace(log_noise=torch.tensor(-1.0, dtype=torch.float64))):
        draws = drawn(one, 20_000, generator)
        q = torch.distributions.Normal(one.mean, one.log_sd.exp())
        p = torch.distributions.Normal(0.0, (-one.log_lengthscale).exp() / (2.0 * math.pi))
        ratio = (p.log_prob(draws) - q.log_prob(draws)).sum((-2, -1))
        log_evidence = (evidence(one, features(one, draws, X), y) + ratio).logsumexp(0) - math.log(len(draws))
        assert float(one.bound(X, y)) < float(log_evidence) + 0.05


def test_predictions_have_the_moments_of_sampled_frequencies_and_coefficients():
    X, y, spectrum, generator = problem()
    test_X = torch.rand(4, 2, generator=generator, dtype=torch.float64)
    draws = drawn(spectrum, 100_000, generator)
    at_train = features(spectrum, draws, X)
    noise = spectrum.log_noise.exp()
    # the best posterior of the coefficients, from sampled expectations
    precision = (at_train.mT @ at_train).mean(0) + noise * torch.eye(6, dtype=torch.float64)
    mean = torch.linalg.solve(precision, at_train.mean(0).mT @ y)
    factor = torch.linalg.cholesky(noise * torch.linalg.inv(precision))
    fresh = drawn(spectrum, 100_000, generator)
    coefficients = mean + torch.randn(100_000, 6, generator=generator, dtype=torch.float64) @ factor.mT
    values = (features(spectrum, fresh, test_X) @ coefficients.unsqueeze(-1)).squeeze(-1)
    found = spectrum.predict(X, y, test_X)
    torch.testing.assert_close(found.mean, values.mean(0), atol=0.02, rtol=0)
    covariance = torch.cov(values.mT) + noise * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(found.covariance_matrix, covariance, atol=0.02, rtol=0.02)


def test_a_fit_raises_the_bound_and_predicts():
    X, y, spectrum, _ = problem(40, 1, 10)
    fitted, count = fit(start_spectrum(X, 10, 0.3, torch.Generator().manual_seed(1)), X, y, 100)
    assert count <= 130  # a line search that has begun is finished
    assert float(fitted.bound(X, y)) > float(spectrum.bound(X, y)) + 10.0
    error = fitted.predict(X, y, X).mean - y
    assert float(error.square().mean().sqrt()) < 0.1
