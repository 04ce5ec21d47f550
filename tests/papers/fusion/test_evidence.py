"""Type-II maximum likelihood: gradients by differences, the exact evidence of a Gaussian model, bad input."""

import pytest
import torch
from scipy.optimize import minimize

from gp_ensembles.papers.fusion.laplace import LaplaceApproximation, LaplaceEvidence, maximize_evidence
from gp_ensembles.papers.fusion.models import HetGP, MoGPE
from tests.papers.fusion.cases import LinearGaussian, fourier_prior, line, normal, seeded


def prior(prior_stddev=0.5, seed=0):
    return fourier_prior(3, 0.5, seed, amplitude=0.8, prior_stddev=prior_stddev)


def data(num_rows=25):
    X = line(num_rows)
    return X, 2 * (4 * X.squeeze(-1)).sin() + 0.2 * normal(num_rows, seed=4)


def test_a_gaussian_model():
    """The maximum of the exact marginal likelihood."""
    model = LinearGaussian(*data(), prior(), 0.05)
    found = maximize_evidence(model, generator=seeded())
    logs = found.hyperparameters["mean"]
    assert found.converged
    assert found.log_evidence == pytest.approx(float(model.evidence(logs)), abs=1e-7)
    best = minimize(lambda x: -float(model.evidence(torch.as_tensor(x))), logs.numpy(), method="Nelder-Mead")
    assert found.log_evidence == pytest.approx(-best.fun, abs=1e-3)


@pytest.mark.parametrize("kind", ["het", pytest.param("mogpe", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:the posterior is far from normal")  # the modes do, wherever they are
def test_gradient_against_differences(kind, monkeypatch):
    # Differences need the modes to the last bit.
    monkeypatch.setattr("gp_ensembles.papers.fusion.laplace.MIN_GAIN", 1e-14)
    X, y = data()
    if kind == "het":
        model = HetGP(X, y, prior(), prior(seed=1))
    else:
        model = MoGPE(X, y, 2, prior(), prior(None, seed=1), prior(seed=2))
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
