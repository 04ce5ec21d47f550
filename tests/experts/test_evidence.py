"""Weight-space evidence against the dense density, golden values and gradients."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from gp_ensembles.experts.evidence import log_evidence
from gp_ensembles.numerics.cholesky import NumericalError

EXPERTS = ["linear", "poly2", "poly3", "poly4", "rbf", "rff_se", "hsgp_se", "hsgp_matern32"]


def problem(num_rows, num_features, num_experts=2):
    g = torch.Generator().manual_seed(0)
    Phi = torch.randn(num_experts, num_rows, num_features, generator=g, dtype=torch.float64)
    y = torch.randn(num_rows, generator=g, dtype=torch.float64)
    return Phi, y, torch.tensor([0.5, 2.0], dtype=torch.float64), torch.tensor([0.3, 1e-3], dtype=torch.float64)


@pytest.mark.parametrize(("num_rows", "num_features"), [(20, 5), (5, 20), (7, 7), (1, 1)])
def test_equals_the_dense_density(num_rows, num_features):
    Phi, y, prior, noise = problem(num_rows, num_features)
    got = log_evidence(Phi, y, prior, noise)
    for m in range(2):
        dense = float(prior[m]) * Phi[m] @ Phi[m].T + float(noise[m]) * torch.eye(num_rows, dtype=torch.float64)
        want = multivariate_normal(cov=dense.numpy()).logpdf(y.numpy())
        assert float(got[m]) == pytest.approx(float(want), rel=1e-9)


@pytest.mark.parametrize(("num_rows", "num_features"), [(9, 4), (4, 9)])
def test_gradients(num_rows, num_features):
    Phi, y, prior, noise = problem(num_rows, num_features)
    inputs = tuple(v.requires_grad_() for v in (Phi, prior.log(), noise.log()))

    def value(features, log_prior, log_noise):
        return log_evidence(features, y, log_prior.exp(), log_noise.exp())

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("place", [("golden",), ("shared", "golden", "doebe")], ids=["synthetic", "elevators"])
def test_golden(place, name, request):
    folder = request.getfixturevalue(place[0]).joinpath(*place[1:])
    numbers = np.load(folder / f"expert_{name}.npz")
    y = torch.as_tensor(np.load(next(folder.glob("data_*.npz")))["y"])[:300]
    Phi = torch.as_tensor(numbers["phi"])[:300]
    log_prior = torch.tensor(math.log(numbers["var_theta"]), dtype=torch.float64, requires_grad=True)
    log_noise = torch.tensor(math.log(numbers["var_eps"]), dtype=torch.float64, requires_grad=True)
    value = -log_evidence(Phi, y, log_prior.exp(), log_noise.exp())
    np.testing.assert_allclose(value.detach(), numbers["mnll_exact_300"], rtol=1e-10)
    gradients = torch.autograd.grad(value, (log_prior, log_noise))
    np.testing.assert_allclose(gradients[0], numbers["grad_mnll_exact_300_log_var_theta"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(gradients[1], numbers["grad_mnll_exact_300_log_var_eps"], rtol=1e-8, atol=1e-9)


def test_failure_is_said():
    Phi, y, prior, _ = problem(9, 4)
    with pytest.raises(NumericalError, match="expert 1"):
        log_evidence(Phi, y, prior, torch.tensor([0.1, -1e-3], dtype=torch.float64))
