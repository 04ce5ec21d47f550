"""Weights learned online: one row against quadrature on a grid, symmetries, missing targets, bad input, a stream."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.experts.latent_update import LaplaceUpdate, MomentMatchingUpdate
from gp_ensembles.features import ConstantFeatures, RandomFourierFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.fusion import OnlineFusion
from gp_ensembles.fusion.online import OnlineLinearPool, OnlineLogLinearPool

POOLS = {"linear": OnlineLinearPool, "log-linear": OnlineLogLinearPool}
PRIOR = 1.7


def constant():
    return ConstantFeatures(1, torch.tensor(PRIOR, dtype=torch.float64))


def waves(num_features=20, seed=0):
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.5, 4.0
    return RandomFourierFeatures.from_kernel(kernel, 1, num_features, generator=torch.Generator().manual_seed(seed))


def predictions(num_experts, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(num_experts, rows, generator=generator, dtype=torch.float64)
    variance = 0.2 + torch.rand(num_experts, rows, generator=generator, dtype=torch.float64)
    return mean, variance, torch.randn(rows, generator=generator, dtype=torch.float64)


def density(name, latent, mean, variance, y):
    """Density of a target under a pool at latent values (..., L), from the definition."""
    normal = torch.exp(-0.5 * (y - mean) ** 2 / variance) / torch.sqrt(2 * math.pi * variance)
    if name == "linear":
        logits = torch.cat([latent, torch.zeros_like(latent[..., :1])], -1)
        return (logits.softmax(-1) * normal).sum(-1)
    weights = latent.exp() / mean.shape[0]
    precision = (weights / variance).sum(-1)
    center = (weights * mean / variance).sum(-1) / precision
    return torch.sqrt(precision / (2 * math.pi)) * torch.exp(-0.5 * precision * (y - center) ** 2)


def grid(dim, points=161, width=9.0):
    axis = torch.linspace(-width, width, points, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


@pytest.mark.parametrize(("name", "num_experts"), [("linear", 2), ("linear", 3), ("log-linear", 2)])
def test_one_target_teaches_what_quadrature_says(name, num_experts):
    fusion = OnlineFusion(constant(), num_experts, pool=POOLS[name]())
    mean, variance, y = predictions(num_experts, 1)
    X = torch.zeros(1, 1, dtype=torch.float64)
    state, before = fusion.update(fusion.init(), X, mean, variance, y)
    latent = grid(fusion.num_latent)
    prior = torch.exp(-0.5 * latent.square().sum(-1) / PRIOR)
    likelihood = density(name, latent, mean[:, 0], variance[:, 0], y[0])
    posterior = prior * likelihood / (prior * likelihood).sum()
    expected = posterior @ latent
    spread = (latent * posterior.unsqueeze(-1)).mT @ latent - torch.outer(expected, expected)
    assert torch.allclose(state.mean, expected, atol=1e-4)
    assert torch.allclose(state.covariance, spread, atol=1e-3)
    evidence = float((prior * likelihood).sum() / prior.sum())
    assert float(before.log_prob(y)) == pytest.approx(math.log(evidence), abs=1e-4)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("latent_update", [MomentMatchingUpdate(), LaplaceUpdate()], ids=["moments", "Laplace"])
def test_exchanging_experts_exchanges_their_weights(name, latent_update):
    mean, variance, y = predictions(2, 12)
    X = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(-1)
    weights = []
    for order in ([0, 1], [1, 0]):
        fusion = OnlineFusion(waves(), 2, pool=POOLS[name](), latent_update=latent_update)
        state, _ = fusion.update(fusion.init(), X, mean[order], variance[order], y)
        found, shares = fusion.log_weights(state, X)
        weights.append((found.exp() * shares[:, None, None]).sum(0)[order])
    assert torch.allclose(weights[0], weights[1], atol=1e-6)


@pytest.mark.parametrize("name", POOLS)
def test_blocks_are_rows_one_by_one(name):
    mean, variance, y = predictions(3, 6)
    X = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(-1)
    fusion = OnlineFusion(waves(8), 3, pool=POOLS[name](), transition=RandomWalk(torch.tensor(0.01).double()))
    whole, predicted = fusion.update(fusion.init(), X, mean, variance, y)
    state, log_prob = fusion.init(), []
    for t in range(6):
        row = slice(t, t + 1)
        ahead = fusion.predict(state, X[row], mean[:, row], variance[:, row])
        state, same = fusion.update(state, X[row], mean[:, row], variance[:, row], y[row])
        assert torch.allclose(ahead.log_prob(y[row]), same.log_prob(y[row]), atol=1e-8)
        log_prob.append(same.log_prob(y[row]))
    assert torch.allclose(state.moments, whole.moments, atol=1e-10)
    assert torch.allclose(predicted.log_prob(y), torch.cat(log_prob), atol=1e-8)


@pytest.mark.parametrize("name", POOLS)
def test_a_stream_teaches_where_each_expert_is_right(name):
    generator = torch.Generator().manual_seed(0)
    X = 4.0 * torch.rand(300, 1, dtype=torch.float64, generator=generator) - 2.0
    y = 0.3 * torch.randn(300, dtype=torch.float64, generator=generator)
    left = X[:, 0] < 0
    mean = torch.stack([torch.where(left, 0.0, 2.0), torch.where(left, 2.0, 0.0)]).double()  # right on one side each
    variance = torch.full_like(mean, 0.09)
    fusion = OnlineFusion(waves(30), 2, pool=POOLS[name]())
    _, predicted = fusion.update(fusion.init(), X, mean, variance, y)
    scores = predicted.log_prob(y)
    best = torch.distributions.Normal(torch.zeros_like(y), 0.3).log_prob(y)
    even = fusion.predict(fusion.init(), X, mean, variance).log_prob(y)
    assert float((best - scores)[150:].mean()) < 0.25
    assert float(scores[150:].mean()) > float(even[150:].mean()) + 0.2


def test_missing_targets_teach_nothing():
    mean, variance, y = predictions(2, 3)
    fusion = OnlineFusion(waves(), 2)
    start = fusion.init()
    state, _ = fusion.update(
        start, torch.zeros(3, 1, dtype=torch.float64), mean, variance, torch.full_like(y, torch.nan)
    )
    assert torch.equal(state.moments, start.moments)


MEAN, VARIANCE, Y = predictions(2, 3)
INPUTS = torch.zeros(3, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((INPUTS, MEAN[:1], VARIANCE, Y), "experts, rows"),
        ((INPUTS, MEAN, VARIANCE[:, :2], Y), "experts, rows"),
        ((INPUTS, MEAN, 0.0 * VARIANCE, Y), "variances positive"),
        ((INPUTS, MEAN * torch.nan, VARIANCE, Y), "must be finite"),
        ((INPUTS, MEAN, VARIANCE, Y[:2]), "a target for each of 3 rows"),
        ((INPUTS, MEAN, VARIANCE, Y * torch.inf), "row 0 is infinite"),
    ],
)
def test_bad_rows_are_refused(arguments, message):
    fusion = OnlineFusion(waves(), 2)
    with pytest.raises(ValueError, match=message):
        fusion.update(fusion.init(), *arguments)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="num_experts must be at least 2"):
        OnlineFusion(waves(), 1)
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2])).double()
    with pytest.raises(ValueError, match="no batch"):
        OnlineFusion(RandomFourierFeatures.from_kernel(kernel, 1, 6), 2)


def test_an_outlier_far_from_all_teaches_as_a_far_one_does():
    """Both experts' log densities are astronomic, and only their difference counts."""
    mean = torch.tensor([[0.0], [0.0]], dtype=torch.float64)
    fusion = OnlineFusion(constant(), 2)
    X = torch.zeros(1, 1, dtype=torch.float64)
    states = []
    for deviations in (30.0, 1e6, 1e12):
        variance = torch.tensor([[1.0], [1.01]], dtype=torch.float64)
        state, _ = fusion.update(fusion.init(), X, mean, variance, torch.tensor([deviations], dtype=torch.float64))
        states.append(float(state.covariance))
    assert states[1] < PRIOR
    assert states[2] == pytest.approx(states[1], rel=1e-6)
    with pytest.raises(ValueError, match="no expert has a finite log density"):
        fusion.update(fusion.init(), X, mean, variance, torch.tensor([1e200], dtype=torch.float64))
