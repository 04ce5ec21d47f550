"""Inputs, experts and priors that the tests share, a model in closed form, and Monte Carlo standard errors."""

import math
import warnings
from typing import final

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.papers.fusion.base import FusionModel, PredictiveComponents
from gp_ensembles.papers.fusion.diagnostics import mean_ess
from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.function_priors import FourierPrior

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def quiet():
    """Without the warnings of so few draws or restarts, which are not what is tested."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=seeded(seed))


def inputs(num_rows, num_inputs=1, seed=0):
    return torch.rand(num_rows, num_inputs, dtype=F64, generator=seeded(seed)) * 2 - 1


def line(num_rows):
    return torch.linspace(-1, 1, num_rows, dtype=F64).unsqueeze(-1)


def made_up_experts(num_experts, num_rows, seed=3):
    mean, variance, noise = normal(3, num_experts, num_rows, seed=seed)
    return ExpertPredictions(mean, variance.exp(), noise.exp())


def without_noise(mean, variance):
    return ExpertPredictions(mean, variance, torch.zeros_like(mean))


def fourier_prior(num_frequencies=2, lengthscale=0.5, seed=0, **choices):
    return FourierPrior(normal(num_frequencies, 1, seed=seed), lengthscale, **choices)


def rbf(lengthscale=0.5, amplitude=1.0):
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = amplitude**2, lengthscale
    return kernel


def spoil(values, at, value):
    values = values.clone()
    values[at] = value
    return values


def mcse_mean(draws):
    """Standard error of the mean of all draws (C, S, ...), shape (...)."""
    return draws.flatten(0, 1).std(dim=0) / mean_ess(draws).sqrt()


@final
class LinearGaussian(FusionModel):
    """Targets with known noise about a function of one prior: everything is known in closed form."""

    num_experts = 1

    def __init__(self, X, y, prior, noise):
        super().__init__(X, y, {"mean": (prior, 1)})
        self.noise = noise

    def log_likelihood(self, theta):
        residual = self.y - self.values(theta)["mean"].squeeze(-2)
        return -0.5 * residual.square() / self.noise - 0.5 * math.log(2 * math.pi * self.noise)

    def weigh(self, values):
        return torch.zeros_like(values["mean"])

    def combine(self, X, values, log_weights, predictions):
        return PredictiveComponents(log_weights, values["mean"], torch.full_like(values["mean"], self.noise))

    def posterior(self):
        """Mean and covariance."""
        basis = self.priors["mean"].basis(self.X)
        covariance = torch.linalg.inv(basis @ basis.mT / self.noise + torch.eye(len(basis), dtype=F64))
        return covariance @ basis @ self.y / self.noise, covariance

    def evidence(self, hyperparameters=None):
        basis = self.priors["mean"].basis(self.X, hyperparameters)
        marginal = basis.mT @ basis + self.noise * torch.eye(len(self.y), dtype=F64)
        return torch.distributions.MultivariateNormal(torch.zeros_like(self.y), marginal).log_prob(self.y)
