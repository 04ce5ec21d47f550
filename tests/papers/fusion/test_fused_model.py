"""A fitted fusion in BoTorch: its posterior is the predictive mixture, its gradients those of finite differences."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from scipy import stats

from gp_ensembles.bo import EnsembleModel
from gp_ensembles.papers.fusion import FourierPrior, FusedModel, LaplaceApproximation, fit_fusion, predict_experts
from gp_ensembles.papers.fusion.experts import ExpertPredictions, PredictiveExpert
from gp_ensembles.papers.fusion.fused_model import predict_jointly
from gp_ensembles.papers.fusion.models import BHS, PBHS, HetGP, MoGPE, PoGPE
from tests.papers.fusion.cases import F64, normal, quiet, seeded


@pytest.fixture(scope="module")
def data():
    X = torch.rand(40, 1, dtype=F64, generator=seeded())
    y = torch.sin(6.0 * X) + 0.1 * normal(40, 1)
    return X, (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def experts(data):
    X, y = data
    return [
        SingleTaskGP(X[rows], y[rows], covar_module=RBFKernel(), outcome_transform=None).eval()
        for rows in (slice(0, 10), slice(10, 20))
    ]


def prior(seed=1):
    return FourierPrior(normal(4, 1, seed=seed) / 0.3)


def stack(kind, data, experts, num_draws=5, *, predicted=True):
    """A fusion of the experts by the second half of the rows."""
    X, y = (part[20:] for part in data)
    model = kind(X, y, predict_experts(experts, X) if predicted else experts, prior())
    return fit_fusion(model, LaplaceApproximation(num_draws=num_draws), generator=seeded(2))


@pytest.fixture(scope="module", params=[BHS, PBHS])
def stacked(request, data, experts):
    return stack(request.param, data, experts, 30)


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


class Pointwise(PredictiveExpert):
    def predict(self, X):
        mean = X[:, 0].unsqueeze(0)
        return ExpertPredictions(mean, mean.square() + 1.0, 0.0 * mean)


def test_wrong_questions_are_refused(stacked, data, experts):
    X = data[0]
    pointwise = [Pointwise()] * 2
    with pytest.raises(UnsupportedError, match="one point at a time"):
        FusedModel(stacked, pointwise).posterior(X[:3])
    assert FusedModel(stacked, pointwise).posterior(X[:3].unsqueeze(-2)).mean.shape == (3, 1, 1)
    with pytest.raises(ValueError, match="2 experts here, got 1"):
        FusedModel(stacked, experts[:1])
    with pytest.raises(ValueError, match="from a table of predictions: give its experts"):
        FusedModel(stacked)
    mixed = [experts[0], predict_experts(experts[1:], X[20:])]
    with pytest.raises(ValueError, match=r"experts \[1\] are forecasts of other rows"):
        FusedModel(stack(PBHS, data, mixed, 4, predicted=False))


# Several points, and further rows


def drawn_weights(fitted, X):
    """Weights of the draws (S,), and of the experts under each (S, K, N), normalized for linear pools."""
    return fitted.log_weights.exp(), fitted.model.log_weights(fitted.theta, X).exp()


def test_linear_pools_choose_an_expert_at_each_point(data, experts):
    """All K^q choices, one after another, in every draw."""
    fitted = stack(BHS, data, experts)
    model, at = FusedModel(fitted, experts), torch.tensor([[0.1], [0.15], [0.8]], dtype=F64)
    posterior = model.posterior(at, observation_noise=True)
    shown = [expert.posterior(at, observation_noise=True) for expert in experts]
    means = torch.stack([one.mean.squeeze(-1).detach() for one in shown])
    covariances = torch.stack([one.distribution.covariance_matrix.detach() for one in shown])
    draws, weights = drawn_weights(fitted, at)
    mean, second = torch.zeros(3, dtype=F64), torch.zeros(3, 3, dtype=F64)

    def chosen(choice):
        """Means of the points, each by its expert, and covariances of those that have the same."""
        k, i = torch.tensor(choice), torch.arange(len(choice))
        return means[k, i], covariances[k][i, i, : len(i)] * (k.unsqueeze(-1) == k)

    for s in range(5):
        for choice in itertools.product(range(2), repeat=3):
            share = draws[s] * math.prod(float(weights[s, k, i]) for i, k in enumerate(choice))
            mu, spread = chosen(choice)
            mean += share * mu
            second += share * (spread + torch.outer(mu, mu))
    assert model.num_experts == 2
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.covariance.squeeze(-3), second - torch.outer(mean, mean))
    torch.testing.assert_close(posterior.variance.squeeze(-1), (second - torch.outer(mean, mean)).diagonal())
    alone = model.posterior(at.unsqueeze(-2), observation_noise=True)
    torch.testing.assert_close(posterior.mean, alone.mean.squeeze(-2))
    torch.testing.assert_close(posterior.variance, alone.variance.squeeze(-2))


def test_log_linear_pools_have_exact_marginals_and_the_correlation_of_the_average(data, experts):
    fitted = stack(PBHS, data, experts)
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
    stacked = stack(BHS, data, experts, 30)
    X, y = torch.rand(3, 1, dtype=F64, generator=seeded(5)), normal(3, 1, seed=6)
    after = FusedModel(stacked, experts).condition_on_observations(X, y)
    assert (after.batch_shape, len(after.data.Y)) == (torch.Size(), 23)
    learned, log_weights = experts, stacked.log_weights
    for x, target in zip(X.split(1), y.split(1), strict=True):
        parts = stacked.model.components(stacked.theta, x, predict_experts(learned, x))
        component = torch.distributions.Normal(parts.mean, parts.variance.sqrt())
        log_weights = log_weights + (parts.log_weights + component.log_prob(target)).logsumexp(-2).squeeze(-1)
        with quiet():  # GPyTorch warns about its caches
            learned = [expert.condition_on_observations(x, target) for expert in learned]
    at = data[0][:4]
    predictions = predict_experts(learned, at)
    mixture = stacked.model.predictive(stacked.theta, at, predictions, draw_log_weights=log_weights)
    posterior = after.posterior(at.unsqueeze(-2), observation_noise=True)
    torch.testing.assert_close(posterior.mean.flatten(), mixture.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(posterior.variance.flatten(), mixture.variance, rtol=1e-6, atol=1e-6)
    density = torch.stack([posterior.density(at.unsqueeze(-2) + shift) for shift in (0.0, 0.3)]).flatten(1)
    wanted = torch.stack([mixture.log_prob(at.squeeze(-1) + shift).exp() for shift in (0.0, 0.3)])
    torch.testing.assert_close(density, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [False, True])
def test_log_linear_pools_are_conditioned_normal_distributions(known, data, experts):
    """Every draw at the rows and the points together, conditioned in numpy; draws weighed by scipy's densities."""
    fitted = stack(PBHS, data, experts, 6)
    ours = FusedModel(fitted, experts)
    both = torch.tensor([[0.1], [0.45], [1.2], [0.15], [0.9]], dtype=torch.float64)
    y = torch.tensor([[0.7], [-0.2], [-0.5]], dtype=torch.float64)
    noise = torch.tensor([[0.1], [0.2], [0.05]], dtype=torch.float64) if known else None
    lead = (None,) if known else ()  # known noise is that of fantasies
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
    ours = FusedModel(stack(kind, data, experts, 30), experts)
    for seen, asked in ((0.95, 0.9), (1.3, 1.2), (0.1, 0.15), (0.5, 0.5)):
        X, at = (torch.full((1001, 1, 1), x).double() for x in (seen, asked))
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
    fitted = stack(kind, data, pair, 4, predicted=False)
    parent, before = FusedModel(fitted), FusedModel(fitted, pair).posterior(X[:3]).mean
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
    fitted = fit_fusion(fusion, LaplaceApproximation(num_draws=6), generator=seeded())
    ours, mixture = FusedModel(fitted), fitted.predict(X[:3])
    assert ours.num_experts == (12 if kind is MoGPE else 6)
    posterior = ours.posterior(X[:3].unsqueeze(-2))
    torch.testing.assert_close(posterior.mean.flatten(), mixture.mean)
    torch.testing.assert_close(posterior.variance.flatten(), mixture.variance)
    new_X, new_y = X[:3] + 0.01, normal(4, 3, 1, seed=1)
    fantasies = ours.condition_on_observations(new_X, new_y)
    at = X[:2] + 0.2
    assert fantasies.posterior(at).rsample(torch.Size([5])).shape == (5, 4, 2, 1)
    parts = fusion.components(fitted.theta, new_X)
    for s in range(4):
        component = torch.distributions.Normal(parts.mean, parts.variance.sqrt())
        density = (parts.log_weights + component.log_prob(new_y[s].squeeze(-1))).logsumexp(-2).sum(-1)
        mixture = fusion.predictive(fitted.theta, at, draw_log_weights=fitted.log_weights + density)
        torch.testing.assert_close(fantasies.posterior(at).mean[s].squeeze(-1), mixture.mean)
        torch.testing.assert_close(fantasies.posterior(at).variance[s].squeeze(-1), mixture.variance)
    draws = SobolQMCNormalSampler(torch.Size([2**14]), seed=0)(ours.posterior(at)).squeeze(-1)
    covariance = ours.posterior(at).distribution.covariance_matrix
    torch.testing.assert_close(draws.mT.cov(), covariance, rtol=0, atol=0.05 * float(covariance.diagonal().mean()))
    single = copy.deepcopy(ours).float().posterior(at.float())
    torch.testing.assert_close(single.mean.double(), ours.posterior(at).mean, rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match="leave noise= out"):
        ours.condition_on_observations(new_X.unsqueeze(0), new_y[:1], noise=torch.ones_like(new_y[0]))
    with pytest.raises(UnsupportedError, match="cannot be built from a data set"):
        FusedModel.construct_inputs(None)
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
    alone = FusedModel(stack(BHS, data, [gp], 4), [gp]).posterior(at)
    torch.testing.assert_close(alone.mean, gp.posterior(at).mean)
    covariance = gp.posterior(at).distribution.covariance_matrix
    torch.testing.assert_close(alone.component_covariance.squeeze(), covariance.squeeze())
