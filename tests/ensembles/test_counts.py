"""Streams of counts: level with a table of frequencies and a recursive regression, whatever their size and spread."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import special, stats

from gp_ensembles import OnlineModel, StreamConfig, light
from gp_ensembles.distributions import LatentMixture, Mixture
from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.targets import CountTarget
from gp_ensembles.likelihoods import CountLikelihood, LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import GaussHermite

F64 = torch.float64
SPEC = replace(light, target=CountTarget(), bases=(LinearBasis(),))
WARM, ROWS = 150, 500


def streamed(X, y, spec=SPEC):
    model = OnlineModel(StreamConfig(spec, warmup=WARM, seed=0))
    return model, model.observe(torch.as_tensor(X), torch.as_tensor(y, dtype=F64))


def recursive_regression(X, y):
    """Mean log score of log-linear negative binomial regressions, recursive, averaged over sizes by their weights."""
    design = np.c_[np.ones(len(y)), (X - X[:WARM].mean(0)) / X[:WARM].std(0)]
    nodes, shares = np.polynomial.hermite_e.hermegauss(20)
    size, offset = np.geomspace(0.1, 1e4, 12), math.log(y[:WARM].mean())
    weights, total = np.zeros((12, design.shape[1])), np.zeros(12)
    covariance, scores = np.tile(np.eye(design.shape[1]), (12, 1, 1)), []
    for row, target in zip(design, y, strict=True):
        gain = covariance @ row
        mean, variance = weights @ row, gain @ row
        rate = np.exp(offset + mean[:, None] + np.sqrt(variance)[:, None] * nodes)
        log_prob = stats.nbinom.logpmf(target, size[:, None], size[:, None] / (size[:, None] + rate))
        log_prob = special.logsumexp(log_prob, b=shares / shares.sum(), axis=1)
        scores.append(special.logsumexp(total + log_prob) - special.logsumexp(total))
        total = total + log_prob
        z = mean.copy()
        for step in range(9):  # the last round gives the curvature at the mode
            rate = np.exp(offset + z)
            curvature = (1 + target / size) * rate / (1 + rate / size) ** 2
            slope = (target - rate) / (1 + rate / size)
            if step < 8:
                z = z - np.clip(((z - mean) / variance - slope) / (1 / variance + curvature), -2, 2)
        weights = weights + gain * ((z - mean) / variance)[:, None]
        shrink = curvature / (1 + curvature * variance)
        covariance = covariance - shrink[:, None, None] * gain[:, :, None] * gain[:, None, :]
    return np.mean(scores[WARM:])


def table_of_frequencies(y, top=60):
    counts, score = 0.5 + np.bincount(y[:WARM].astype(int), minlength=top).astype(float), 0.0
    for value in y[WARM:].astype(int):
        score += math.log(counts[value] / counts.sum())
        counts[value] += 1
    return score / (len(y) - WARM)


@pytest.mark.parametrize(("rate", "size"), [(0.3, 0.5), (20.0, 2.0), (3000.0, 20.0), (1e5, 1e9)])
def test_counts_of_every_size_and_spread(rate, size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2))
    true = rate * np.exp(0.4 * X[:, 0])
    y = rng.poisson(true * rng.gamma(size, 1 / size, ROWS)).astype(float)
    model, predictions = streamed(X, y)
    assert float(predictions.log_prob.mean()) > recursive_regression(X, y) - 0.05
    assert float((predictions.mean / torch.as_tensor(true[WARM:])).log().abs().median()) < (0.4 if rate < 1 else 0.15)
    assert bool(torch.isfinite(predictions.distribution.variance).all())
    best = model.online.names[int(model.online.log_weights.argmax())]
    assert best.endswith("poisson") == (size > 1e6)
    lower, upper = (predictions.distribution.quantile(level) for level in (0.05, 0.95))
    inside = (lower <= torch.as_tensor(y[WARM:])) & (torch.as_tensor(y[WARM:]) <= upper)
    assert float(inside.double().mean()) > 0.85


@pytest.mark.parametrize("sold", [6, 2000])
def test_intermittent_counts(sold):
    rng = np.random.default_rng(1)
    t = np.arange(900)
    y = np.where(rng.random(900) < 0.12, 1 + rng.poisson(sold, 900), 0).astype(float)
    model, predictions = streamed(np.c_[t % 7, np.sin(t)], y)
    if sold == 6:
        assert float(predictions.log_prob.mean()) > table_of_frequencies(y) - 0.03
    assert float(predictions.mean.median()) == pytest.approx(0.12 * (sold + 1), rel=0.35)
    assert model.online.names[int(model.online.log_weights.argmax())].endswith("zero inflated")


def test_families_can_be_left_out():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(ROWS, 1))
    model, _ = streamed(X, rng.poisson(5.0, ROWS), replace(SPEC, target=CountTarget(families=("negative binomial",))))
    assert {name.partition(" ")[2] for name in model.online.names if "static" in name} == {"negative binomial"}


def test_experts_without_weight_carry_no_moments():
    """Not even if theirs are infinite or missing, and not if their weight is positive and lost in round-off."""
    for tiny in (-math.inf, math.log(1e-20)):
        log_weights = torch.tensor([0.0, tiny], dtype=F64)
        for wild in (1e30, math.inf, math.nan):
            mean = torch.tensor([[1.0], [wild]], dtype=F64)
            assert [float(part) for part in Mixture(log_weights, mean, mean.abs()).moments()] == [1.0, 1.0]
        for likelihood in (LogPoissonLikelihood(), CountLikelihood(("poisson",) * 2).to(F64).requires_grad_(False)):
            response = Response(likelihood, GaussHermite(), 2, torch.Size([2]))
            latent = torch.tensor([[0.0], [300.0]], dtype=F64)
            mixture = LatentMixture(log_weights, latent, torch.tensor([[1e-12], [400.0]], dtype=F64), (response,))
            torch.testing.assert_close(mixture.moments(), (torch.ones(1, dtype=F64), torch.ones(1, dtype=F64)))
