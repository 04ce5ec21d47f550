"""Fixed functions and the bound of the regret to them: dense algebra, scipy, exact identities of Bayesian learners."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import metrics
from gp_ensembles.filters import gaussian_state, update_block
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.meta_learners.base import weigh_observed
from gp_ensembles.numerics import normal
from studies.ie_gp.bounds import batch_estimate, static_bound, switching_bound

SEEDS = st.integers(0, 10_000)


def run_rule(rule, log_prob):
    return weigh_observed(rule, rule.init(log_prob.shape[0], log_prob), log_prob, log_prob.isnan().all(0))[1].log_prob


def regression(seed, num_experts=3, num_steps=25, num_features=4, missing=True):
    rng = np.random.default_rng(seed)
    Phi = torch.tensor(rng.normal(size=(num_experts, num_steps, num_features)) * np.exp(rng.normal()))
    y = torch.tensor(rng.normal(size=num_steps) * np.exp(rng.normal()) + rng.normal())
    if missing:
        y[rng.random(num_steps) < 0.2] = torch.nan
    noise, prior_variance = (torch.tensor(np.exp(2 * rng.normal(size=num_experts))) for _ in range(2))
    return Phi, y, noise, prior_variance


def filtered(Phi, y, noise, prior_variance):
    """One-step log densities of experts that learn row by row."""
    return update_block(gaussian_state(prior_variance, Phi.shape[-1]), Phi, y, None, noise)[1].log_prob


def test_batch_estimate_equals_normal_equations_and_scipy():
    Phi, y, noise, prior_variance = regression(3)
    estimate = batch_estimate(Phi, y, noise, prior_variance)
    seen = ~torch.isnan(y)
    for m in range(3):
        design, identity = Phi[m, seen], torch.eye(4, dtype=torch.float64)
        precision = design.T @ design / noise[m] + identity / prior_variance[m]
        weights = torch.linalg.solve(precision, design.T @ y[seen] / noise[m])
        torch.testing.assert_close(estimate.weights[m], weights, rtol=1e-10, atol=1e-12)
        expected = scipy.stats.norm.logpdf(y[seen], design @ weights, math.sqrt(noise[m]))
        np.testing.assert_allclose(estimate.log_prob[m, seen], expected, rtol=1e-10)
        cost = weights @ weights / (2 * prior_variance[m]) + torch.logdet(precision * prior_variance[m]) / 2
        torch.testing.assert_close(estimate.cost[m], cost, rtol=1e-10, atol=0)
    assert bool(estimate.log_prob[:, ~seen].isnan().all())
    alone = batch_estimate(Phi[1], y, noise[1], prior_variance[1])
    torch.testing.assert_close(tuple(alone), tuple(field[1] for field in estimate), equal_nan=True)
    shared = batch_estimate(Phi[1], y, noise, prior_variance)  # one design, three experts
    torch.testing.assert_close(tuple(alone), tuple(field[1] for field in shared), equal_nan=True)


@settings(max_examples=40)
@given(seed=SEEDS)
def test_batch_cost_is_the_regret_of_learning_row_by_row(seed):
    problem = regression(seed)
    estimate = batch_estimate(*problem)
    regret = (estimate.log_prob - filtered(*problem)).nansum(-1)
    torch.testing.assert_close(regret, estimate.cost, rtol=1e-7, atol=1e-8)


def test_batch_estimate_of_a_singular_design():
    Phi, y, noise, prior_variance = regression(5, missing=False)
    Phi[..., 3] = Phi[..., 2]
    Phi[..., 1] = 0.0
    estimate = batch_estimate(Phi, y, noise * 1e-8, prior_variance)
    assert all(bool(field.isfinite().all()) for field in estimate)
    torch.testing.assert_close(estimate.weights[:, 2], estimate.weights[:, 3], rtol=1e-5, atol=1e-5)
    assert float(estimate.weights[:, 1].abs().max()) == 0.0


@settings(max_examples=60)
@given(seed=SEEDS, adversarial=st.booleans(), exact=st.booleans())
def test_ensemble_stays_below_the_static_bound(seed, adversarial, exact):
    Phi, y, noise, prior_variance = regression(seed)
    if adversarial:  # large targets whose signs change against every model
        y = y.abs() * 20 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(13)[:25]
    estimate = batch_estimate(Phi, y, noise, prior_variance)
    own = run_rule(BayesianModelAveraging(), filtered(Phi, y, noise, prior_variance))
    weights = estimate.weights
    if not exact:  # any other function, too
        weights = weights + torch.tensor(np.random.default_rng(seed).normal(size=weights.shape))
    seen = ~torch.isnan(y)
    rivals = normal.log_prob(y, (Phi @ weights.unsqueeze(-1)).squeeze(-1), noise.unsqueeze(-1))
    sizes = (Phi.square().sum(-1) * seen).sum(-1) / seen.sum()
    bounds = static_bound(weights.square().sum(-1), prior_variance, noise, 4, int(seen.sum()), sizes, 3)
    regrets = torch.stack([metrics.cumulative_regret(own, rival)[-1] for rival in rivals])
    assert bool((regrets <= bounds + 1e-9 * (1 + regrets.abs())).all())
    best = int(rivals.nansum(-1).argmax())
    assert float(metrics.cumulative_regret(own, metrics.best_expert(rivals).log_prob)[-1]) == float(regrets[best])
    determinant = estimate.cost - 0.5 * estimate.weights.square().sum(-1) / prior_variance
    tight = 0.5 * weights.square().sum(-1) / prior_variance + determinant
    assert bool((regrets <= tight + math.log(3) + 1e-9 * (1 + regrets.abs())).all())
    assert bool((tight + math.log(3) <= bounds + 1e-9 * bounds).all())


def test_static_bound_is_met_by_orthogonal_features():
    size, prior_variance, noise = 2.0, torch.tensor(0.7), torch.tensor(0.3)
    Phi = size * torch.diag(torch.ones(5, dtype=torch.float64)).repeat(4, 1)
    y = torch.linspace(-3, 3, 20, dtype=torch.float64)
    prior_variance, noise = prior_variance.double(), noise.double()
    estimate = batch_estimate(Phi, y, noise, prior_variance)
    norm2, mean_size = estimate.weights.square().sum(), Phi.square().sum(-1).mean()
    bound = static_bound(norm2, prior_variance, noise, 5, 20, mean_size, 1)
    torch.testing.assert_close(estimate.cost, bound, rtol=1e-12, atol=0)


@pytest.mark.parametrize("stay", [0.05, 0.3, 0.99])
def test_the_switching_bound_counts_switches_and_stays(stay):
    expected = math.log(3) - 2 * math.log((1 - stay) / 2) - 7 * math.log(stay)
    assert switching_bound(3, 10, 2, stay) == pytest.approx(expected, rel=1e-12)


def test_the_switching_bound_of_a_chain_that_never_stays_or_always_does():
    assert switching_bound(3, 10, 9, 0.0) == pytest.approx(math.log(3) + 9 * math.log(2), rel=1e-12)
    assert switching_bound(3, 10, 8, 0.0) == math.inf == switching_bound(3, 10, 1, 1.0)
    with pytest.raises(ValueError, match="stay must be a probability"):
        switching_bound(3, 10, 1, -0.1)
