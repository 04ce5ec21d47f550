"""A fitted fusion in BoTorch: its posterior is the predictive mixture, its gradients those of finite differences."""

import pytest
import torch
from botorch.acquisition import qSimpleRegret, qUpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel

from gp_ensembles.fusion import (
    BHS,
    PBHS,
    FourierPrior,
    FusedModel,
    LaplaceApproximation,
    MoGPE,
    TabulatedExpert,
    fit_fusion,
    predict_experts,
)


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, dtype=torch.float64, generator=generator)
    y = torch.sin(6.0 * X) + 0.1 * torch.randn(40, 1, dtype=torch.float64, generator=generator)
    return X, (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def experts(data):
    X, y = data
    return [
        SingleTaskGP(X[rows], y[rows], covar_module=RBFKernel(), outcome_transform=None).eval()
        for rows in (slice(0, 10), slice(10, 20))
    ]


def prior(num=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return FourierPrior(torch.randn(num, 1, dtype=torch.float64, generator=generator) / 0.3)


@pytest.fixture(scope="module", params=[BHS, PBHS])
def stacked(request, data, experts):
    X, y = data
    model = request.param(X[20:], y[20:], predict_experts(experts, X[20:]), prior())
    generator = torch.Generator().manual_seed(2)
    return fit_fusion(model, LaplaceApproximation(num_draws=30), generator=generator)


def test_the_posterior_is_the_predictive_mixture(stacked, data, experts):
    X = data[0][:5]
    model = FusedModel(stacked, experts)
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    mixture = stacked.predict(X, predict_experts(experts, X))
    assert posterior.mean.shape == (5, 1, 1)
    assert torch.allclose(posterior.mean.flatten(), mixture.mean)
    assert torch.allclose(posterior.variance.flatten(), mixture.variance)
    silent = model.posterior(X.unsqueeze(-2))
    assert bool((silent.variance < posterior.variance).all())


def test_models_that_learn_their_experts(data):
    X, y = data
    fusion = MoGPE(X, y, 2, prior(seed=1), prior(seed=2), prior(seed=3))
    generator = torch.Generator().manual_seed(0)
    fitted = fit_fusion(fusion, LaplaceApproximation(num_draws=20), generator=generator)
    posterior = FusedModel(fitted).posterior(X[:3].unsqueeze(-2))
    mixture = fitted.predict(X[:3])
    assert torch.allclose(posterior.mean.flatten(), mixture.mean)
    assert torch.allclose(posterior.variance.flatten(), mixture.variance)


def test_gradients_in_the_inputs(stacked, experts):
    model = FusedModel(stacked, experts)
    x = torch.tensor([[[0.37]]], dtype=torch.float64, requires_grad=True)
    posterior = model.posterior(x)
    value = posterior.mean.sum() + posterior.variance.sum()
    (slope,) = torch.autograd.grad(value, x)
    step = 1e-5
    ends = []
    for sign in (1.0, -1.0):
        there = model.posterior(x.detach() + sign * step)
        ends.append(float((there.mean + there.variance).detach()))
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-6)


def test_acquisition_functions_are_optimized(stacked, experts):
    model = FusedModel(stacked, experts)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for acquisition in (qUpperConfidenceBound(model, beta=0.1), qSimpleRegret(model)):
        point, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=16)
        assert point.shape == (1, 1)
        assert bool(value.isfinite())


def test_wrong_questions_are_refused(stacked, data, experts):
    model, X = FusedModel(stacked, experts), data[0]
    with pytest.raises(BotorchTensorDimensionError, match=r"\(..., q, 1\)"):
        model.posterior(torch.zeros(3, 1, 2, dtype=torch.float64))
    with pytest.raises(BotorchTensorDimensionError, match="1 output"):
        model.posterior(X[:1], output_indices=[1])
    table = [TabulatedExpert(X, X.squeeze(-1), X.squeeze(-1).square() + 1.0)] * 2
    with pytest.raises(UnsupportedError, match="one point at a time"):
        FusedModel(stacked, table).posterior(X[:3])
    assert FusedModel(stacked, table).posterior(X[:3].unsqueeze(-2)).mean.shape == (3, 1, 1)
    with pytest.raises(ValueError, match="2 experts here, got 1"):
        FusedModel(stacked, experts[:1])
