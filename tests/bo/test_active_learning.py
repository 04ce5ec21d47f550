"""The variance left after an observation, against brute force."""

import math

import numpy as np
import torch
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Size

from gp_ensembles.bo import EnsembleModel, kernel_ensemble
from gp_ensembles.bo.acquisition import IntegratedVariance


def model():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(6, 1, generator=generator, dtype=torch.float64)
    Y = (6 * X).sin()
    parts = kernel_ensemble(X, num_features=20, smoothnesses=(math.inf, 0.5), generator=generator)
    for expert in parts.experts:
        expert.likelihood.noise = 0.2
    return EnsembleModel(X, Y, ensemble=parts)


def test_variance_left_is_that_of_conditioned_models():
    """The expectation over targets by quadrature under every expert, each target conditioned on for good."""
    ours = model()
    points = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    X = torch.tensor([[0.9]], dtype=torch.float64)
    posterior = ours.posterior(X, observation_noise=True)
    nodes, shares = np.polynomial.hermite_e.hermegauss(24)
    expected = 0.0
    for m, weight in enumerate(posterior.log_weights.exp().tolist()):
        mean, sd = float(posterior.component_mean[m, 0, 0]), float(posterior.component_variance[m, 0, 0].sqrt())
        for node, share in zip(nodes, shares / shares.sum(), strict=True):
            y = torch.tensor([[mean + sd * node]], dtype=torch.float64)
            left = ours.condition_on_observations(X, y).posterior(points).variance.mean()
            expected += weight * share * float(left)
    acquisition = IntegratedVariance(ours, points, SobolQMCNormalSampler(Size([4096]), seed=0))
    assert abs(float(acquisition(X.unsqueeze(0))) + expected) < 2e-3 * expected
    before = float(ours.posterior(points).variance.mean())
    assert expected < before
    pending = IntegratedVariance(ours, points, SobolQMCNormalSampler(Size([512]), seed=0), X_pending=X)
    assert float(pending(X.unsqueeze(0) - 0.5)) > float(acquisition(X.unsqueeze(0)))


def test_gradients_are_those_of_differences():
    ours = model()
    X = torch.tensor([[[0.3]], [[1.2]]], dtype=torch.float64, requires_grad=True)
    points = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(-1)
    assert torch.autograd.gradcheck(IntegratedVariance(ours, points, SobolQMCNormalSampler(Size([8]), seed=0)), (X,))
