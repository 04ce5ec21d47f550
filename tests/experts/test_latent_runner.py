"""Experts with a likelihood in one ensemble: found together, they are what each is alone, row by row in plain loops."""

import math

import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, StudentTLikelihood

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.runners import RunnerBatches
from gp_ensembles.experts.laplace import LaplaceExpert, LatentRunner, join_latent
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.filters.sites import MomentMatchingUpdate
from gp_ensembles.likelihoods import LogPoissonLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit
from gp_ensembles.meta_learners import FixedShare

N, D = 37, 2


def ordinal(batch_shape, seed):
    likelihood = OrdinalLikelihood(3, Logit(), batch_shape=torch.Size(batch_shape)).double()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        likelihood.raw_cut_points += 0.2 * torch.randn(likelihood.raw_cut_points.shape, generator=g)
    return likelihood


MAKERS = {
    "logistic": lambda batch, seed: LogisticLikelihood(),
    "probit": lambda batch, seed: BernoulliLikelihood(),
    "counts": lambda batch, seed: LogPoissonLikelihood(),
    "levels": ordinal,
}


def stream(name, dtype=torch.float64):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3 if name in ("counts", "levels") else 2, (N,), generator=g).to(dtype)
    y[[0, 11, 12]] = torch.nan
    return X.to(dtype), y


def experts(name):
    """Five objects: two batches and three single ones, static, walking and forgetting."""
    prior = torch.tensor([0.5, 2.0], dtype=torch.float64)
    one = LinearFeatures(D, prior)
    other = LinearFeatures(D, torch.tensor(3.0, dtype=torch.float64))
    walk = CorrelatedWalk(torch.full((3, 3), 0.02, dtype=torch.float64))
    shared = MAKERS[name]((2,), 0)
    return [
        LaplaceExpert(one, shared),
        LaplaceExpert(one, shared, RandomWalk(torch.tensor([[0.1], [0.3]], dtype=torch.float64))),
        LaplaceExpert(other, MAKERS[name]((), 1), StabilizedForgetting(0.9)),
        LaplaceExpert(other, MAKERS[name]((), 2), walk),
        LaplaceExpert(other, MAKERS[name]((), 3), ExponentialForgetting(0.95)),
    ]


def build(name, rule=None):
    return OnlineEnsemble(Ensemble(experts(name), rule or FixedShare(0.05)))


def slopes(name, cuts, z, y):
    """First and second derivative of a log density, in plain numbers."""
    if name == "counts":
        return y - math.exp(z), -math.exp(z)
    if name == "probit":
        sign = 2 * y - 1
        ratio = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(-sign * z / math.sqrt(2)))
        return sign * ratio, -ratio * (sign * z + ratio)
    cuts = [-math.inf, *(cuts if name == "levels" else [0.0]), math.inf]
    lower, upper = (1 / (1 + math.exp(min(z - cut, 700.0))) for cut in cuts[int(y) : int(y) + 2])
    return lower + upper - 1, -lower * (1 - lower) - upper * (1 - upper)


def mode_and_curvature(name, cuts, mean, variance, y):
    """Of one latent value, by halving an interval: the log densities are concave."""
    low, high = mean - 40 * math.sqrt(variance), mean + 40 * math.sqrt(variance)
    for _ in range(90):
        z = 0.5 * (low + high)
        low, high = (low, z) if z - mean - variance * slopes(name, cuts, z, y)[0] > 0 else (z, high)
    return z, -slopes(name, cuts, z, y)[1]


def oracle(name, expert, m, X, y):
    """One expert by itself in F dimensions, one row at a time: latent means, variances, and the last moments."""
    Phi = expert.features(X).detach()
    Phi = Phi if m is None else Phi[m]
    prior = expert.features.prior_variance.detach()
    prior = prior if m is None else prior[m]
    identity = torch.eye(Phi.shape[-1], dtype=torch.float64)
    mean, covariance = torch.zeros(Phi.shape[-1], dtype=torch.float64), prior * identity
    cuts = None
    if name == "levels":
        cuts = (expert.likelihood.cut_points if m is None else expert.likelihood.cut_points[m]).tolist()
    means, variances = [], []
    for phi, target in zip(Phi, y, strict=True):
        if isinstance(expert.transition, RandomWalk):
            covariance = covariance + float(expert.transition.variance[m]) * identity
        elif isinstance(expert.transition, CorrelatedWalk):
            covariance = covariance + expert.transition.covariance
        elif isinstance(expert.transition, ExponentialForgetting):
            covariance = covariance / 0.95
        elif isinstance(expert.transition, StabilizedForgetting):
            mean, covariance = math.sqrt(0.9) * mean, 0.9 * covariance + 0.1 * prior * identity
        means.append(phi @ mean)
        variances.append(phi @ covariance @ phi)
        if not torch.isnan(target):
            mode, curvature = mode_and_curvature(name, cuts, float(means[-1]), float(variances[-1]), float(target))
            cross = covariance @ phi
            mean = mean + cross * (mode - means[-1]) / variances[-1]
            covariance = covariance - torch.outer(cross, cross) * curvature / (1 + curvature * variances[-1])
    return torch.stack(means), torch.stack(variances), mean, covariance


@pytest.mark.parametrize("name", MAKERS)
def test_together_they_are_plain_loops(name, monkeypatch):
    X, y = stream(name)
    online, run = build(name), []
    condition = RunnerBatches.condition

    def conditioned(batches, group, rows):
        run.append((group, [type(runner) for _, runner in batches.batches]))
        return condition(batches, group, rows)

    monkeypatch.setattr(RunnerBatches, "condition", conditioned)
    steps = online.observe(X, y).experts
    assert all(group is not None and set(runners) == {LatentRunner} for group, runners in run)
    assert run
    number = 0
    for expert, state in zip(online.ensemble.experts, online.state.experts, strict=True):
        for m in range(2) if expert.batch_shape else [None]:
            means, variances, mean, covariance = oracle(name, expert, m, X, y)
            torch.testing.assert_close(steps.latent_mean[number], means, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(steps.latent_variance[number], variances, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(state.mean if m is None else state.mean[m], mean, rtol=1e-9, atol=1e-9)
            own = state.covariance if m is None else state.covariance[m]
            torch.testing.assert_close(own, covariance, rtol=1e-9, atol=1e-9)
            number += 1


def test_what_differs_is_not_joined():
    features = LinearFeatures(D, torch.tensor(1.0, dtype=torch.float64))
    plain = LaplaceExpert(features, LogisticLikelihood()).bind()
    assert join_latent([plain, plain]) is not None
    for other in (
        LaplaceExpert(features, BernoulliLikelihood()),
        LaplaceExpert(features, LogisticLikelihood(), latent_update=MomentMatchingUpdate()),
        LaplaceExpert(features, StudentTLikelihood().double()),
    ):
        assert join_latent([plain, other.bind()]) is None
