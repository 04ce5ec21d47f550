"""Predictions of every model keep their second derivatives at observed rows and at knots, where optima like to be."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch.autograd.functional import hessian, jacobian

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.papers.fusion import BHS, FourierPrior, FusedModel, fit_fusion, predict_experts
from gp_ensembles.papers.quadrature import Budget, RegressionProblem, marginalize
from gp_ensembles.papers.sparse import GreedyBlocks, select_knots

pytestmark = pytest.mark.processor

STEP = 1e-5  # of central differences of the gradient; functions of exact GPs bend sharply at the rows they know


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(4)
    X = torch.rand(24, 2, generator=generator, dtype=torch.float64)
    y = (5 * X[:, 0]).sin() * X[:, 1] + 0.05 * torch.randn(24, generator=generator, dtype=torch.float64)
    return X, y


def kernel(base):
    return ScaleKernel(base.double().initialize(lengthscale=0.4)).double()


def random_features(X, y):
    return EnsembleModel(X, y.unsqueeze(-1), generator=torch.Generator().manual_seed(0))


def knots_of(base):
    def build(X, y):
        strategy = GreedyBlocks(max_knots=8, polish_iterations=0)
        return select_knots(X, y, kernel(base()), strategy=strategy).model

    return build


def quadrature(X, y):
    generator = torch.Generator().manual_seed(0)
    return marginalize(RegressionProblem(X, y), Budget(12, draws=0), generator=generator).model()


def fused(X, y):
    experts = [knots_of(RBFKernel)(X[:12], y[:12]), knots_of(lambda: MaternKernel(2.5))(X[:12], y[:12])]
    role = FourierPrior.from_kernel(kernel(RBFKernel()), 2, 10, generator=torch.Generator().manual_seed(1))
    model = BHS(X[12:], y[12:], predict_experts(experts, X[12:]), role)
    return FusedModel(fit_fusion(model, generator=torch.Generator().manual_seed(0)), experts)


def exact_processes(X, y):
    return ExactEnsembleModel(X, y.unsqueeze(-1)).fit()


MODELS = {
    "random features": random_features,
    "exact processes": exact_processes,
    "knots, RBF": knots_of(RBFKernel),
    "knots, Matern": knots_of(lambda: MaternKernel(2.5)),
    "kernel quadrature": quadrature,
    "fused": fused,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_hessians_are_differences_of_gradients(name, rows):
    X, y = rows
    model = MODELS[name](X, y)
    places = [X[0], X[13]]  # of the first and of the last half, which a fused model learns for itself
    places += list(model.knots.detach()[:2]) if hasattr(model, "knots") else []

    def moments(place):
        posterior = model.posterior(place.reshape(1, 2))
        return torch.stack([posterior.mean.reshape(()), posterior.variance.reshape(())])

    axes = STEP * torch.eye(2, dtype=torch.float64)
    for place in places:
        found = torch.stack([hessian(lambda x, k=k: moments(x)[k], place) for k in range(2)])
        after, before = (torch.stack([jacobian(moments, place + s * axis) for axis in axes], -1) for s in (1, -1))
        expected = (after - before) / (2 * STEP)
        scale = float(expected.abs().max())
        assert scale > 1e-4
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)
