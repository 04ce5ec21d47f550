"""A fitted fusion in BoTorch: its posterior is the predictive mixture, its gradients those of finite differences."""

import copy
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from botorch.acquisition import qSimpleRegret, qUpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from linear_operator.utils.warnings import NumericalWarning
from scipy import stats

from gp_ensembles.bo import EnsembleModel
from gp_ensembles.bo.outcomes import normal_like
from gp_ensembles.papers.fusion import (
    BHS,
    PBHS,
    FourierPrior,
    FusedModel,
    HetGP,
    LaplaceApproximation,
    MoGPE,
    PoGPE,
    fit_fusion,
    predict_experts,
)
from gp_ensembles.papers.fusion.experts import TabulatedExpert
from gp_ensembles.papers.fusion.joint import predict_jointly


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


# Several points, and further rows


def drawn_weights(fitted, X):
    """Weights of the draws (S,), and of the experts under each (S, K, N), normalized for linear pools."""
    return fitted.log_weights.exp(), fitted.model.log_weights(fitted.theta, X).exp()


def test_linear_pools_choose_an_expert_at_each_point(data, experts):
    """All K^q choices, one after another, in every draw."""
    X, y = data
    model = BHS(X[20:], y[20:], predict_experts(experts, X[20:]), prior())
    fitted = fit_fusion(model, LaplaceApproximation(num_draws=5), generator=torch.Generator().manual_seed(2))
    at = torch.tensor([[0.1], [0.15], [0.8]], dtype=torch.float64)
    posterior = FusedModel(fitted, experts).posterior(at, observation_noise=True)
    shown = [expert.posterior(at, observation_noise=True) for expert in experts]
    means = [one.mean.squeeze(-1).detach() for one in shown]
    covariances = [one.distribution.covariance_matrix.detach() for one in shown]
    draws, weights = drawn_weights(fitted, at)
    mean, second = torch.zeros(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    for s in range(5):
        for choice in itertools.product(range(2), repeat=3):
            share = draws[s] * math.prod(float(weights[s, k, i]) for i, k in enumerate(choice))
            mu = torch.stack([means[k][i] for i, k in enumerate(choice)])
            spread = torch.zeros(3, 3, dtype=torch.float64)
            for i, j in itertools.product(range(3), repeat=2):
                if choice[i] == choice[j]:
                    spread[i, j] = covariances[choice[i]][i, j]
            mean += share * mu
            second += share * (spread + torch.outer(mu, mu))
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.covariance, second - torch.outer(mean, mean))
    torch.testing.assert_close(posterior.variance.squeeze(-1), (second - torch.outer(mean, mean)).diagonal())
    alone = FusedModel(fitted, experts).posterior(at.unsqueeze(-2), observation_noise=True)
    torch.testing.assert_close(posterior.mean, alone.mean.squeeze(-2))
    torch.testing.assert_close(posterior.variance, alone.variance.squeeze(-2))
    one = FusedModel(fitted, experts).posterior(at[:2], observation_noise=True)
    samples = SobolQMCNormalSampler(torch.Size([2**15]), seed=0)(one).squeeze(-1).detach()
    third = one.mean.squeeze(-1) + one.variance.squeeze(-1).sqrt()  # beyond moments: the chance of both being large
    exact = torch.zeros((), dtype=torch.float64)
    for s in range(5):
        for i, j in itertools.product(range(2), repeat=2):
            spread = torch.diag_embed(torch.stack([covariances[i][0, 0], covariances[j][1, 1]]))
            if i == j:
                spread = covariances[i][:2, :2]
            mu = torch.stack([means[i][0], means[j][1]])
            limits = ((mu - third.detach()) * 1.0).numpy()
            chance = stats.multivariate_normal(np.zeros(2), spread.numpy()).cdf(limits)
            exact += draws[s] * weights[s, i, 0] * weights[s, j, 1] * chance
    found = (samples > third).all(-1).double().mean()
    assert float(found) == pytest.approx(float(exact.detach()), abs=0.01)


def test_log_linear_pools_have_exact_marginals_and_the_correlation_of_the_average(data, experts):
    X, y = data
    model = PBHS(X[20:], y[20:], predict_experts(experts, X[20:]), prior())
    fitted = fit_fusion(model, LaplaceApproximation(num_draws=5), generator=torch.Generator().manual_seed(2))
    at = torch.tensor([[0.1], [0.15], [0.8]], dtype=torch.float64)
    posterior = FusedModel(fitted, experts).posterior(at)
    alone = FusedModel(fitted, experts).posterior(at.unsqueeze(-2))
    torch.testing.assert_close(posterior.component_mean, alone.component_mean.movedim(0, 1).squeeze(-2))
    torch.testing.assert_close(posterior.component_variance.squeeze(-1), alone.component_variance[:, :, 0, 0].mT)
    _, weights = drawn_weights(fitted, at)
    covariances = [expert.posterior(at).distribution.covariance_matrix.detach() for expert in experts]
    for s in range(5):
        shares = torch.stack([weights[s, k] / covariances[k].diagonal() for k in range(2)])
        shares = shares / shares.sum(0)
        average = sum(torch.outer(shares[k], shares[k]) * covariances[k] for k in range(2))
        root = average.diagonal().sqrt()
        own = posterior.component_covariance[s, 0]
        deviation = own.diagonal().sqrt()
        torch.testing.assert_close(own / torch.outer(deviation, deviation), average / torch.outer(root, root))


def test_linear_pools_learn_one_row_after_another(data, experts):
    """Densities of every draw by the fusion itself, experts by BoTorch."""
    model = BHS(data[0][20:], data[1][20:], predict_experts(experts, data[0][20:]), prior())
    stacked = fit_fusion(model, LaplaceApproximation(num_draws=30), generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(5)
    X = torch.rand(3, 1, dtype=torch.float64, generator=generator)
    y = torch.randn(3, 1, dtype=torch.float64, generator=generator)
    after = FusedModel(stacked, experts).condition_on_observations(X, y)
    assert (after.batch_shape, len(after.data.Y)) == (torch.Size(), 23)
    learned, log_weights = experts, stacked.log_weights
    for x, target in zip(X.split(1), y.split(1), strict=True):
        parts = stacked.model.components(stacked.theta, x, predict_experts(learned, x))
        normal = torch.distributions.Normal(parts.mean, parts.variance.sqrt())
        log_weights = log_weights + (parts.log_weights + normal.log_prob(target)).logsumexp(-2).squeeze(-1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # GPyTorch's, about its caches
            learned = [expert.condition_on_observations(x, target) for expert in learned]
    at = data[0][:4]
    mixture = stacked.model.predictive(
        stacked.theta, at, predict_experts(learned, at), draw_log_weights=log_weights
    )  # fmt: skip
    posterior = after.posterior(at.unsqueeze(-2), observation_noise=True)
    torch.testing.assert_close(posterior.mean.flatten(), mixture.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(posterior.variance.flatten(), mixture.variance, rtol=1e-6, atol=1e-6)
    density = torch.stack([posterior.density(at.unsqueeze(-2) + shift) for shift in (0.0, 0.3)]).flatten(1)
    wanted = torch.stack([mixture.log_prob(at.squeeze(-1) + shift).exp() for shift in (0.0, 0.3)])
    torch.testing.assert_close(density, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [False, True])
def test_log_linear_pools_are_conditioned_normal_distributions(known, data, experts):
    """Every draw at the rows and the points together, conditioned in numpy; draws weighed by scipy's densities."""
    model = PBHS(data[0][20:], data[1][20:], predict_experts(experts, data[0][20:]), prior())
    fitted = fit_fusion(model, LaplaceApproximation(num_draws=6), generator=torch.Generator().manual_seed(2))
    ours = FusedModel(fitted, experts)
    both = torch.tensor([[0.1], [0.45], [1.2], [0.15], [0.9]], dtype=torch.float64)
    y = torch.tensor([[0.7], [-0.2], [-0.5]], dtype=torch.float64)
    noise = torch.tensor([[0.1], [0.2], [0.05]], dtype=torch.float64) if known else None
    lead = (None,) if known else ()  # known noise is that of imagined rows
    after = ours.condition_on_observations(both[:3][lead], y[lead], noise=noise)
    after = after.posterior(both[3:], observation_noise=not known)
    before = ours.posterior(both, observation_noise=not known)
    expected, weights = [], []
    for s in range(6):
        mu, C = (part[s].detach().squeeze().numpy() for part in (before.component_mean, before.component_covariance))
        seen = C[:3, :3] + (np.diag(noise.flatten().numpy()) if known else 0.0)
        gain = np.linalg.solve(seen, C[:3, 3:]).T
        expected.append((mu[3:] + gain @ (y.flatten().numpy() - mu[:3]), C[3:, 3:] - gain @ C[:3, 3:]))
        density = stats.multivariate_normal(mu[:3], seen).pdf(y.flatten().numpy())
        weights.append(float(fitted.log_weights[s].exp()) * density)
    weights = np.array(weights) / np.sum(weights)
    np.testing.assert_allclose(after.log_weights.detach().exp().flatten(), weights, atol=1e-7)
    means, covariances = after.component_mean.detach().squeeze(), after.component_covariance.detach().squeeze()
    for s, (mu, C) in enumerate(expected):
        np.testing.assert_allclose(means[s], mu, atol=1e-7)
        np.testing.assert_allclose(covariances[s], C, atol=1e-7)


@pytest.mark.parametrize(("kind", "tolerance"), [(PBHS, 1e-6), (BHS, 0.3)])
def test_the_mean_after_a_fantasy_is_on_average_that_before(kind, tolerance, data, experts):
    """Over a grid of all fantasies with their densities; in deviations. Exact for log-linear pools, as documented."""
    for seen, asked in ((0.95, 0.9), (1.3, 1.2), (0.1, 0.15), (0.5, 0.5)):
        model = kind(data[0][20:], data[1][20:], predict_experts(experts, data[0][20:]), prior())
        fitted = fit_fusion(model, LaplaceApproximation(num_draws=30), generator=torch.Generator().manual_seed(2))
        ours, X, at = FusedModel(fitted, experts), *(torch.full((1001, 1, 1), x).double() for x in (seen, asked))
        with torch.no_grad():
            target, before = ours.posterior(X[0], observation_noise=True), ours.posterior(at[0])
            steps = torch.linspace(-9.0, 9.0, 1001, dtype=torch.float64).reshape(-1, 1, 1)
            values = target.mean + steps * target.variance.sqrt()
            share = target.density(values).flatten()
            after = ours.condition_on_observations(X, values).posterior(at).mean.flatten()
        bias = (share / share.sum() * after).sum() - before.mean.squeeze()
        assert abs(float(bias)) < tolerance * float(before.variance.sqrt())


@pytest.mark.parametrize("kind", [BHS, PBHS])
def test_a_fantasy_that_moves_leaves_its_parent(kind, data, experts):
    X, y = data
    pair = [experts[0], (experts[1], experts[1].likelihood)]
    model = kind(X[20:], y[20:], pair, prior())
    parent = FusedModel(fit_fusion(model, LaplaceApproximation(num_draws=4)))
    before = parent.posterior(X[:3]).mean
    fantasy = parent.condition_on_observations(X[:1].expand(2, 1, 1) + 0.01, y[:1].expand(2, 1, 1))
    wanted = fantasy.posterior(X[:3]).mean
    moved = fantasy.float()
    torch.testing.assert_close(moved.posterior(X[:3].float()).mean.double(), wanted, rtol=1e-2, atol=1e-2)
    assert parent.posterior(X[:3]).mean.dtype == torch.float64
    torch.testing.assert_close(parent.posterior(X[:3]).mean, before, rtol=0, atol=0)
    assert next(parent.experts[0].parameters()).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:the posterior is far from normal")  # of products, whose weights and noises trade
@pytest.mark.parametrize("kind", [MoGPE, PoGPE, HetGP])
def test_models_that_learn_their_experts_weigh_their_draws(data, kind):
    X, y = data
    priors = [prior(seed=seed) for seed in (1, 2, 3)]
    fusion = HetGP(X, y, *priors[:2]) if kind is HetGP else kind(X, y, 2, *priors)
    generator = torch.Generator().manual_seed(0)
    fitted = fit_fusion(fusion, LaplaceApproximation(num_draws=6), generator=generator)
    ours = FusedModel(fitted)
    new_X, new_y = X[:3] + 0.01, torch.randn(4, 3, 1, dtype=torch.float64, generator=generator)
    fantasies = ours.condition_on_observations(new_X, new_y)
    at = X[:2] + 0.2
    assert fantasies.posterior(at).rsample(torch.Size([5])).shape == (5, 4, 2, 1)
    parts = fusion.components(fitted.theta, new_X)
    for s in range(4):
        normal = torch.distributions.Normal(parts.mean, parts.variance.sqrt())
        density = (parts.log_weights + normal.log_prob(new_y[s].squeeze(-1))).logsumexp(-2).sum(-1)
        mixture = fusion.predictive(fitted.theta, at, draw_log_weights=fitted.log_weights + density)
        torch.testing.assert_close(fantasies.posterior(at).mean[s].squeeze(-1), mixture.mean)
        torch.testing.assert_close(fantasies.posterior(at).variance[s].squeeze(-1), mixture.variance)
    draws = SobolQMCNormalSampler(torch.Size([2**14]), seed=0)(ours.posterior(at)).squeeze(-1)
    covariance = normal_like(ours.posterior(at)).distribution.covariance_matrix
    torch.testing.assert_close(draws.mT.cov(), covariance, rtol=0, atol=0.05 * float(covariance.diagonal().mean()))
    single = copy.deepcopy(ours).float().posterior(at.float())
    torch.testing.assert_close(single.mean.double(), ours.posterior(at).mean, rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match="leave noise= out"):
        ours.condition_on_observations(new_X.unsqueeze(0), new_y[:1], noise=torch.ones_like(new_y[0]))
    with pytest.raises(UnsupportedError, match="observation_noise=True"):
        ours.posterior(at, observation_noise=torch.ones_like(at))


def test_experts_of_every_kind_predict_jointly(data, experts):
    """Mixtures and pairs of GPyTorch's as experts; one expert alone is itself."""
    X, y = data
    ensemble = EnsembleModel(X[:20], y[:20], generator=torch.Generator().manual_seed(0))
    at = X[:3].unsqueeze(0)
    shown = predict_jointly(ensemble, at)
    torch.testing.assert_close(shown.covariance.squeeze(-3), ensemble.posterior(at).covariance.squeeze(-3))
    gp = experts[0]
    pair = predict_jointly((gp, gp.likelihood), at)
    torch.testing.assert_close(pair.mean, predict_jointly(gp, at).mean)
    torch.testing.assert_close(pair.noise, predict_jointly(gp, at).noise)
    model = BHS(X[20:], y[20:], predict_experts([gp], X[20:]), prior())
    alone = FusedModel(fit_fusion(model, LaplaceApproximation(num_draws=4)), [gp])
    torch.testing.assert_close(alone.posterior(at).mean, gp.posterior(at).mean)
    torch.testing.assert_close(
        alone.posterior(at).component_covariance.squeeze(), gp.posterior(at).distribution.covariance_matrix.squeeze()
    )
    assert alone.num_experts == 1


@pytest.mark.parametrize("kind", [BHS, PBHS])
def test_a_fusion_of_experts_brings_them_along(kind, data, experts):
    """The experts that were weighed are those that predict; several points are optimized together."""
    X, y = data
    fitted = fit_fusion(
        kind(X[20:], y[20:], experts, prior()),
        LaplaceApproximation(num_draws=8),
        generator=torch.Generator().manual_seed(2),
    )
    model, named = FusedModel(fitted), FusedModel(fitted, experts)
    at = X[:3].unsqueeze(0)
    torch.testing.assert_close(model.posterior(at).mean, named.posterior(at).mean, rtol=0, atol=0)
    assert model.posterior(at).rsample(torch.Size([4])).shape == (4, 1, 3, 1)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qUpperConfidenceBound(model, beta=1.0, sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # jitter of nearly equal points
        points, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8, options={"maxiter": 5})
    assert points.shape == (2, 1)
    assert float(value.detach()) >= float(acquisition(X[:2].unsqueeze(0)).detach())


def test_forecasts_cannot_predict_new_inputs(stacked, data, experts):
    with pytest.raises(ValueError, match="from a table of predictions: give its experts"):
        FusedModel(stacked)
    X, y = data
    mixed = [experts[0], predict_experts(experts[1:], X[20:])]
    with pytest.raises(ValueError, match=r"experts \[1\] are forecasts of other rows"):
        FusedModel(fit_fusion(PBHS(X[20:], y[20:], mixed, prior()), LaplaceApproximation(num_draws=4)))
