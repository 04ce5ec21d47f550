"""Counts: what normal latent values are expected to say, against quadrature."""

import math

import torch
from gpytorch.distributions import MultivariateNormal
from scipy import integrate, stats

from gp_ensembles.likelihoods import LogPoissonLikelihood


def test_expected_log_probability_is_the_integral():
    means, deviations, counts = [-2.0, 0.0, 1.5], [0.1, 1.0, 0.7], [0.0, 3.0, 40.0]
    latent = MultivariateNormal(torch.tensor(means).double(), torch.tensor(deviations).double().square().diag())
    found = LogPoissonLikelihood().expected_log_prob(torch.tensor(counts).double(), latent)
    for value, mean, deviation, count in zip(found.tolist(), means, deviations, counts, strict=True):
        integral, _ = integrate.quad(
            lambda z, m=mean, s=deviation, k=count: stats.norm.pdf(z, m, s) * stats.poisson.logpmf(k, math.exp(z)),
            mean - 10 * deviation,
            mean + 10 * deviation,
        )  # fmt: skip
        assert abs(value - integral) < 1e-7 * abs(integral)
