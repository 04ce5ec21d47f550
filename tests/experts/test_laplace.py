"""Experts with a likelihood: any of them against dense Laplace, one another, and their ensembles."""

import math

import pytest
import torch
from gpytorch import likelihoods
from scipy import integrate

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import LaplaceExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import StabilizedForgetting
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, Probit
from gp_ensembles.likelihoods.response import log_prob
from gp_ensembles.meta_learners import BayesianModelAveraging

N = 9


def targets(kind, seed=0):
    g = torch.Generator().manual_seed(seed)
    uniform = torch.rand(N, generator=g, dtype=torch.float64)
    return {
        "binary": (uniform > 0.4).double(),
        "levels": (3 * uniform).floor(),
        "count": (6 * uniform).floor(),
        "share": 0.05 + 0.9 * uniform,
        "real": 4 * uniform - 2,
    }[kind]


def batched(kind):
    return kind(batch_shape=torch.Size([2]))


LIKELIHOODS = {
    "logistic": (LogisticLikelihood, "binary"),
    "probit": (likelihoods.BernoulliLikelihood, "binary"),
    "poisson, exponential": (LogPoissonLikelihood, "count"),
    "poisson, softplus": (likelihoods.PoissonLikelihood, "count"),
    "negative binomial": (lambda: batched(likelihoods.NegativeBinomialLikelihood), "count"),
    "beta": (lambda: batched(likelihoods.BetaLikelihood), "share"),
    "student": (lambda: batched(likelihoods.StudentTLikelihood), "real"),
    "ordinal, probit": (lambda: OrdinalLikelihood(3, Probit(), batch_shape=torch.Size([2])), "levels"),
    "ordinal, logit": (lambda: OrdinalLikelihood(3, Logit(), batch_shape=torch.Size([2])), "levels"),
    "multiclass": (lambda: MulticlassLikelihood(3), "levels"),
}


def features():
    centers = torch.randn(3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return RadialBasisFeatures(centers, torch.tensor([[1.0], [2.0]], dtype=torch.float64))


def inputs(seed=1):
    return torch.randn(N, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name, **settings):
    make, kind = LIKELIHOODS[name]
    return LaplaceExpert(features(), make(), **settings), inputs(), targets(kind)


def newton(objective, theta):
    """The mode by damped steps with torch's own derivatives, and the Hessian there."""
    for _ in range(100):
        gradient, hessian = torch.func.grad(objective)(theta), torch.func.hessian(objective)(theta)
        largest = torch.linalg.eigvalsh(hessian).max()
        if largest > -1e-9:
            hessian = hessian - (largest + 1) * torch.diag(torch.ones_like(theta))
        step, share = -torch.linalg.solve(hessian, gradient), 1.0
        height = objective(theta)
        lowest = height - 1e-13 * (1 + height.abs())  # at the mode a good step may lose by rounding
        while objective(theta + share * step) < lowest and share > 1e-10:
            share /= 2
        theta = theta + share * step
        if step.abs().max() < 1e-9:  # the next one would be its square
            break
    return theta, torch.func.hessian(objective)(theta)


def dense_newton(expert, m, phi, y, mean, covariance):
    """Mode and inverse Hessian over all weights."""
    alone = expert.take(torch.tensor([m]))
    precision = torch.linalg.inv(covariance)

    def objective(theta):
        if expert.num_latent > 1:
            latent = (theta.reshape(expert.num_latent, -1) @ phi)[None, None]
        else:
            latent = (theta @ phi)[None, None]
        fit = log_prob(alone.likelihood, latent, y[None])
        return fit.sum() - 0.5 * (theta - mean) @ precision @ (theta - mean)

    theta, hessian = newton(objective, mean)
    links = torch.ones(phi.shape[-1], phi.shape[-1], dtype=torch.float64)
    kept = torch.block_diag(*[links] * expert.num_latent)  # of the precision; what links classes is left out
    return theta.detach(), torch.linalg.inv(-hessian * kept).detach()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_updates_are_dense_newton(name):
    expert, X, y = build(name, transition=StabilizedForgetting(0.95))
    X, y = X[:4], y[:4]
    y[2] = torch.nan
    with torch.no_grad():
        state, steps = expert.update(expert.init(), X, y)
    Phi = expert.features(X).detach()
    prior = expert.features.prior_variance.detach()
    for m in range(2):
        size = state.mean[m].numel()
        identity = torch.diag(torch.ones(size, dtype=torch.float64))
        mean, covariance = torch.zeros(size, dtype=torch.float64), prior[m] * identity
        for t in range(4):
            mean, covariance = math.sqrt(0.95) * mean, 0.95 * covariance + 0.05 * prior[m] * identity
            latent = mean.reshape(expert.num_latent, -1) @ Phi[m, t]
            got = steps.latent_mean[m, t].reshape(-1)
            torch.testing.assert_close(got, latent, rtol=1e-8, atol=1e-8)
            if not torch.isnan(y[t]):
                mean, covariance = dense_newton(expert, m, Phi[m, t], y[t], mean, covariance)
        own = state.covariance[m] if expert.num_latent == 1 else torch.block_diag(*state.covariance[m])
        torch.testing.assert_close((state.mean[m].flatten(), own), (mean, covariance), rtol=1e-7, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_evidence_is_dense_laplace_with_exact_gradients(name):
    expert, X, y = build(name)
    value = expert.log_evidence(X, y)
    Phi, prior = expert.features(X).detach(), expert.features.prior_variance.detach()
    for m in range(2):
        alone = expert.take(torch.tensor([m]))
        size = Phi.shape[-1] * expert.num_latent

        def objective(theta, alone=alone, m=m):
            latent, penalty = Phi[m] @ theta.reshape(alone.num_latent, -1).mT, 0.5 * theta @ theta / prior[m]
            if alone.num_latent == 1:
                return log_prob(alone.likelihood, latent.mT, y).sum() - penalty
            each = [log_prob(LogisticLikelihood(), z, (y == c).double()).sum() for c, z in enumerate(latent.mT)]
            return sum(each) - penalty

        theta, hessian = newton(objective, torch.zeros(size, dtype=torch.float64))
        want = objective(theta) - 0.5 * torch.logdet(-prior[m] * hessian)
        torch.testing.assert_close(value[m].detach(), want.detach(), rtol=1e-8, atol=1e-8)

    parameters = [p for p in expert.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value.sum(), parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            index = tuple(size - 1 for size in parameter.shape)
            keep = parameter[index].clone()
            ends = []
            for shift in (1e-5, -1e-5):
                parameter[index] = keep + shift
                ends.append(expert.log_evidence(X, y).sum())
            parameter[index] = keep
            assert float(gradient[index]) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-5)


def test_evidence_of_one_target_is_close_to_the_integral():
    """Laplace's approximation is no identity, but for one logistic target it is good to a few per cent."""
    expert = LaplaceExpert(LinearFeatures(1, torch.tensor(0.5, dtype=torch.float64)), LogisticLikelihood())
    X, y = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    variance = 0.5 * float(expert.features(X).square().sum().detach())

    def integrand(z):
        return math.exp(-0.5 * z * z / variance) / math.sqrt(2 * math.pi * variance) / (1 + math.exp(-z))

    exact = math.log(integrate.quad(integrand, -20, 20)[0])
    assert float(expert.log_evidence(X, y).detach()) == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("poisson, softplus", 0.5, "0.5"), ("multiclass", 3.0, "3"), ("student", math.inf, "inf")],
)
def test_impossible_targets_are_refused_and_nothing_changes(name, value, words):
    expert, X, y = build(name)
    y[5] = value
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    before = [tensor.clone() for tensor in online.state_dict().values()]
    with pytest.raises(ValueError, match=f"{words} in row 5"):
        online.observe(X, y)
    assert all(torch.equal(a, b) for a, b in zip(before, online.state_dict().values(), strict=True))


def mixture(name, **settings):
    expert, X, y = build(name, **settings)
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(X, y)
    return online.predict(X)


def test_draws_have_the_predicted_frequencies_of_classes():
    predicted = mixture("multiclass")
    before = torch.random.get_rng_state()
    draws = predicted.sample(20_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(draws[:3], predicted.sample(20_000, generator=torch.Generator().manual_seed(0))[:3])
    shares = torch.stack([(draws == c).double().mean(0) for c in range(3)], dim=-1)
    torch.testing.assert_close(shares, predicted.class_probabilities, atol=0.02, rtol=0)
