"""Active learning for mixtures against brute force."""

import math
from itertools import pairwise

import numpy as np
import torch
from botorch.sampling.normal import SobolQMCNormalSampler
from scipy import integrate, stats
from torch import Size

from gp_ensembles.bo import EnsembleModel, kernel_ensemble
from gp_ensembles.bo.acquisition import ExpertInformation, IntegratedVariance, MixtureEntropy


def model():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(6, 1, generator=generator, dtype=torch.float64)
    Y = (6 * X).sin()
    parts = kernel_ensemble(X, num_features=20, smoothnesses=(math.inf, 0.5), generator=generator)
    for expert in parts.experts:
        expert.likelihood.noise = 0.2
    return EnsembleModel(X, Y, ensemble=parts)


def entropy(weights, mean, sd):
    def density(x):
        return float((weights * stats.norm.pdf(x, mean, sd)).sum())

    def integrand(x):
        p = density(x)
        return -p * math.log(p) if p > 0 else 0.0

    edges = np.sort(np.concatenate([mean + k * sd for k in (-9, -1, 1, 9)]))
    return sum(integrate.quad(integrand, a, b, epsabs=1e-11)[0] for a, b in pairwise(edges))


def test_entropies_are_integrals():
    ours = model()
    X = torch.tensor([[[0.05]], [[0.5]], [[1.4]]], dtype=torch.float64)
    for noise in (False, True):
        posterior = ours.posterior(X, observation_noise=noise)
        weights = posterior.log_weights.exp().detach().numpy()
        means, sds = posterior.component_mean[..., 0, 0], posterior.component_variance[..., 0, 0].sqrt()
        exact = [entropy(weights, m, s) for m, s in zip(means.numpy(), sds.numpy(), strict=True)]
        np.testing.assert_allclose(MixtureEntropy(ours, noise)(X), exact, atol=1e-4)
    own = [float((weights * stats.norm.entropy(m, s)).sum()) for m, s in zip(means.numpy(), sds.numpy(), strict=True)]
    information = ExpertInformation(ours)(X)
    np.testing.assert_allclose(information, np.array(exact) - own, atol=1e-4)
    assert bool((information > -1e-6).all())
    assert bool((information < math.log(2)).all())


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
    assert torch.autograd.gradcheck(MixtureEntropy(ours), (X,))
    assert torch.autograd.gradcheck(ExpertInformation(ours), (X,))
    assert torch.autograd.gradcheck(IntegratedVariance(ours, points, SobolQMCNormalSampler(Size([8]), seed=0)), (X,))
