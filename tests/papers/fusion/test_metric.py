"""The metric of a Laplace approximation: an oracle in whitened coordinates, where it is used, and what it brings."""

import pytest
import torch

from gp_ensembles.papers.fusion import HMC, PBHS, MoGPE, fit_fusion
from gp_ensembles.papers.fusion.chees import HMCSettings, sample_hmc
from gp_ensembles.papers.fusion.diagnostics import rank_rhat
from gp_ensembles.papers.fusion.fitted import FittedFusion
from gp_ensembles.papers.fusion.forecasts import moment_forecast
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.inference import find_modes
from gp_ensembles.papers.fusion.laplace import covariance_factor
from gp_ensembles.papers.fusion.leapfrog import evaluate, leapfrog
from tests.papers.fusion.cases import F64, fourier_prior, inputs, mcse_mean, normal, quiet, seeded


def stacking(prior_stddev=None, number=120):
    """P-BHS of three forecasts, each good in a third of the inputs."""
    X, noise = inputs(number, seed=3), normal(4, number, seed=4)
    y = (4.0 * X[:, 0]).sin() + 0.1 * noise[3]
    sizes = torch.stack([(X[:, 0] - center).abs() + 0.1 for center in (-0.8, 0.0, 0.8)])
    experts = [moment_forecast(y + size * one, 0.5) for size, one in zip(sizes, noise[:3], strict=True)]
    return PBHS(X, y, experts, fourier_prior(15, 0.5, seed=5, prior_stddev=prior_stddev))


def test_steps_with_a_factor_are_steps_in_whitened_coordinates():
    F, (theta, momentum) = normal(3, 3), normal(2, 2, 3, seed=1)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=F64)

    def density(theta):
        return -theta.cosh().sum(-1) - 0.1 * theta.prod(-1)

    whitened = (F * scale).mT  # theta = z @ whitened
    start = evaluate(lambda z: density(z @ whitened), theta @ torch.linalg.inv(whitened))
    expected, expected_momentum = leapfrog(
        lambda z: density(z @ whitened), start, momentum, 0.1 * torch.ones_like(scale), 5
    )
    found, found_momentum = leapfrog(density, evaluate(density, theta), momentum, 0.1 * scale, 5, F)
    torch.testing.assert_close(found.theta, expected.theta @ whitened)
    torch.testing.assert_close(found_momentum, expected_momentum)


def test_the_factor_is_that_of_the_covariance():
    model = stacking()
    mode = find_modes(model, 2, 500, generator=seeded()).point[0]
    precision = -torch.autograd.functional.hessian(model.log_joint, mode)
    values, directions = torch.linalg.eigh(precision)
    covariance = directions @ torch.diag(1.0 / values.abs().clamp(min=1.0)) @ directions.mT
    F = covariance_factor(model.log_joint, mode, model.prior_stddev)
    torch.testing.assert_close(F @ F.mT, covariance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("prior_stddev", [None, 0.3])
def test_hyperparameters_are_held(prior_stddev):
    model = stacking(prior_stddev)
    found = find_modes(model, 3, 100, held_at=model.prior_mean, generator=seeded())
    if prior_stddev is not None:
        held = model.unpack(found.point)["weights_hyperparameters"]
        torch.testing.assert_close(held, model.priors["weights"].log_hyperparameters.expand_as(held))
    assert float(found.value.amax() - found.value.amin()) < 1e-3


@pytest.mark.slow
def test_chains_of_one_mode_agree():
    with quiet():  # of Pareto shapes of single rows
        fitted = fit_fusion(stacking(), HMC(16, HMCSettings(120, 100)), generator=seeded())
    report = fitted.report.diagnostics
    assert fitted.posterior.chains.state.factor is not None
    assert report.rhat < 1.05
    assert int(report.divergences.sum()) == 0


def test_chains_of_a_mixture_have_no_common_metric():
    model = stacking()
    prior = FourierPrior(torch.ones_like(model.X[:4]))
    mixture = MoGPE(model.X, model.y, 2, prior, prior, prior)
    with quiet():
        found = HMC(8, HMCSettings(4, 4), start_iterations=20).infer(mixture, generator=seeded())
    assert found.chains.state.factor is None


@pytest.mark.slow
@pytest.mark.broad
def test_sampled_hyperparameters_against_chains_without_a_metric():
    """Log length scale and amplitude: means within five standard errors of long runs of the plain sampler."""
    model = stacking(0.5, number=30)
    with quiet():
        found = HMC(16, HMCSettings(300, 200)).infer(model, generator=seeded()).chains
        start = 0.1 * model.draw_prior(16, generator=seeded(1)) + 0.9 * model.prior_mean
        plain = sample_hmc(model.log_joint, start, HMCSettings(600, 400), generator=seeded(2))
    parts = [draws.theta[..., -2:] for draws in (found, plain)]
    assert float(rank_rhat(parts[0]).max()) < 1.1
    error = sum(mcse_mean(part).square() for part in parts).sqrt()
    difference = parts[0].mean((0, 1)) - parts[1].mean((0, 1))
    assert bool((difference.abs() < 5 * error).all()), (difference, error)
    spread = [part.flatten(0, 1).std(0) for part in parts]
    torch.testing.assert_close(*spread, rtol=0.15, atol=0)


@pytest.mark.parametrize("prior_stddev", [None, 0.3])
def test_saved_chains_go_on_with_their_metric(prior_stddev, tmp_path):
    model, inference = stacking(prior_stddev, number=40), HMC(4, HMCSettings(6, 10))
    with quiet():
        fitted = fit_fusion(model, inference, generator=seeded())
        fitted.save(tmp_path / "fusion.npz")
        loaded = FittedFusion.load(tmp_path / "fusion.npz", model, inference=inference)
        torch.testing.assert_close(loaded.posterior.chains.state.factor, fitted.posterior.chains.state.factor)
        one, other = fitted.sample_more(3), loaded.sample_more(3)
    torch.testing.assert_close(one.posterior.chains.theta, other.posterior.chains.theta, rtol=0, atol=0)
