"""Type-II maximum likelihood: gradients by differences, the exact evidence of a Gaussian model, bad input."""

import math
from typing import final

import pytest
import torch
from scipy.optimize import minimize

from gp_ensembles.papers.fusion.base import FusionModel, LatentFunctions, PredictiveComponents
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.laplace import LaplaceApproximation, LaplaceEvidence, maximize_evidence
from gp_ensembles.papers.fusion.models import HetGP, MoGPE


@final
class Regression(FusionModel):
    """Known noise about one function, so that Laplace's evidence is exact."""

    num_experts = 1
    noise = 0.05

    def __init__(self, X, y, prior):
        super().__init__(X, y, {"mean": LatentFunctions(prior, 1)})

    def log_likelihood(self, theta):
        residual = self.y - self.values(theta)["mean"].squeeze(-2)
        return -0.5 * residual.square() / self.noise - 0.5 * math.log(2 * math.pi * self.noise)

    def weigh(self, values, like):
        return torch.zeros_like(values["mean"])

    def combine(self, X, values, log_weights, predictions):
        return PredictiveComponents(log_weights, values["mean"], torch.full_like(values["mean"], self.noise))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def prior(prior_stddev=0.5, num_frequencies=3, seed=0):
    frequencies = torch.randn(num_frequencies, 1, dtype=torch.float64, generator=seeded(seed))
    return FourierPrior(frequencies, 0.5, 0.8, prior_stddev=prior_stddev)


def data(num_rows=25):
    X = torch.linspace(-1, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    noise = torch.randn(num_rows, dtype=torch.float64, generator=seeded(4))
    return X, 2 * (4 * X.squeeze(-1)).sin() + 0.2 * noise


def marginal(model, hyperparameters):
    basis = model.functions["mean"].prior.basis(model.X, hyperparameters)
    covariance = basis.mT @ basis + model.noise * torch.eye(len(model.y), dtype=torch.float64)
    return torch.distributions.MultivariateNormal(torch.zeros_like(model.y), covariance).log_prob(model.y)


def test_a_gaussian_model():
    """The maximum of the exact marginal likelihood."""
    model = Regression(*data(), prior())
    found = maximize_evidence(model, generator=seeded())
    logs = found.hyperparameters["mean"]
    assert found.converged
    assert found.log_evidence == pytest.approx(float(marginal(model, logs)), abs=1e-7)
    best = minimize(lambda x: -float(marginal(model, torch.as_tensor(x))), logs.numpy(), method="Nelder-Mead")
    assert found.log_evidence == pytest.approx(-best.fun, abs=1e-3)


@pytest.mark.parametrize("kind", ["het", pytest.param("mogpe", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:the posterior is far from normal")  # the modes do, wherever they are
def test_gradient_against_differences(kind, monkeypatch):
    # Differences need the modes to the last bit.
    monkeypatch.setattr("gp_ensembles.papers.fusion.laplace.MIN_GAIN", 1e-14)
    X, y = data()
    makers = {
        "het": lambda: HetGP(X, y, prior(), prior(seed=1)),
        "mogpe": lambda: MoGPE(X, y, 2, prior(), prior(None, seed=1), prior(seed=2)),
    }
    model = makers[kind]()
    modes = LaplaceApproximation(num_restarts=4, num_draws=20).infer(model, generator=seeded())
    evidence = LaplaceEvidence(model, modes.theta.mean(0))
    eta = modes.theta.mean(0)[evidence.hyperparameters].unsqueeze(0).requires_grad_()
    (gradient,) = torch.autograd.grad(evidence(eta).sum(), eta)
    mode = evidence.mode

    def at(index, change):
        evidence.mode = mode
        moved = eta.detach().clone()
        moved[0, index] += change
        return float(evidence(moved))

    def difference(index, step):
        return (at(index, step) - at(index, -step)) / (2 * step)

    for index in range(eta.shape[1]):
        # Richardson's extrapolation.
        expected = (4 * difference(index, 1e-3) - difference(index, 2e-3)) / 3
        assert float(gradient[0, index]) == pytest.approx(expected, rel=1e-3, abs=2e-3)


@pytest.mark.slow
def test_more_than_the_start():
    """The evidence of the model fixed at what is found is what was reported, and beats the starting values."""
    X, y = data()
    noise = prior(None, seed=1)
    found = maximize_evidence(HetGP(X, y, prior(), noise), generator=seeded())
    inference = LaplaceApproximation(num_restarts=8)
    fixed, start = (
        inference.infer(HetGP(X, y, one, noise), generator=seeded()).report.log_evidence
        for one in (prior().fixed_at(found.hyperparameters["mean"]), prior(None))
    )
    assert fixed == pytest.approx(found.log_evidence, abs=1e-3)
    assert fixed > start


def test_nothing_is_sampled():
    X, y = data()
    with pytest.raises(ValueError, match="samples no hyperparameters"):
        maximize_evidence(HetGP(X, y, prior(None), prior(None)))
