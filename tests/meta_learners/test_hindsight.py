"""Best expert and mixture against brute force, and the bounds on what rules lose to them."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    SoftBayes,
    averaging_bound,
    best_expert,
    best_fixed_mixture,
    exponentiated_gradient_bound,
    fixed_share_bound,
    soft_bayes_bound,
)
from gp_ensembles.metrics import best_switching_path
from gp_ensembles.numerics.cholesky import NumericalError


def densities(seed, num_experts, num_steps, scale=1.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(num_experts, num_steps)) * scale)


def mixture(weights, log_prob):
    return (weights.log().unsqueeze(1) + log_prob).logsumexp(0)


def test_best_expert():
    log_prob = densities(0, 5, 40)
    result = best_expert(log_prob)
    sums = log_prob.sum(1)
    assert float(result.log_prob.sum()) == float(sums.max())
    torch.testing.assert_close(result.log_prob, log_prob[result.expert])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_experts=st.integers(1, 8),
    num_steps=st.integers(1, 60),
    scale=st.sampled_from([1e-3, 0.3, 2.0, 30.0, 500.0]),
)
def test_no_mixture_is_better_by_more_than_the_gap(seed, num_experts, num_steps, scale):
    log_prob = densities(seed, num_experts, num_steps, scale)
    result = best_fixed_mixture(log_prob)
    assert result.weights.min() >= 0
    assert float(result.weights.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(result.log_prob, mixture(result.weights, log_prob))
    rivals = torch.distributions.Dirichlet(torch.full((num_experts,), 0.3, dtype=torch.float64)).sample((200,))
    rivals = torch.cat([rivals, torch.eye(num_experts, dtype=torch.float64), 0.99 * result.weights + 0.01 * rivals])
    totals = (rivals.log().unsqueeze(-1) + log_prob).logsumexp(1).sum(1)
    assert result.gap <= 1e-9
    assert totals.max() <= result.log_prob.sum() + num_steps * 1e-9 + 1e-9 * scale * num_steps


def test_best_mixture_of_two_by_a_fine_grid():
    log_prob = densities(1, 2, 100, 2.0)
    grid = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    totals = torch.log(grid.unsqueeze(1) * log_prob[0].exp() + (1 - grid.unsqueeze(1)) * log_prob[1].exp()).sum(1)
    result = best_fixed_mixture(log_prob, tolerance=1e-12)
    assert float(result.weights[0]) == pytest.approx(float(grid[totals.argmax()]), abs=1e-5)
    assert result.num_iterations < 30


def test_best_mixture_ignores_missing_and_impossible_targets():
    log_prob = densities(2, 4, 50)
    holes = torch.cat([log_prob, torch.zeros(4, 20, dtype=torch.float64)], 1)
    holes = torch.cat([holes, torch.full((4, 1), -torch.inf, dtype=torch.float64)], 1)
    torch.testing.assert_close(best_fixed_mixture(holes).weights, best_fixed_mixture(log_prob).weights)
    result = best_fixed_mixture(holes)
    assert (result.log_prob[50:70].abs() < 1e-12).all()
    assert result.log_prob[-1] == -torch.inf
    nothing = best_fixed_mixture(torch.zeros(3, 5, dtype=torch.float64))
    torch.testing.assert_close(nothing.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_best_mixture_of_experts_that_are_alike():
    log_prob = densities(3, 3, 80)
    twice = torch.cat([log_prob, log_prob[:1], log_prob[:1]])
    alone, together = best_fixed_mixture(log_prob), best_fixed_mixture(twice)
    torch.testing.assert_close(alone.log_prob.sum(), together.log_prob.sum())


def test_best_mixture_says_when_it_is_not_done():
    with pytest.raises(NumericalError, match="after 1 passes"):
        best_fixed_mixture(densities(4, 6, 90, 3.0), max_iterations=1)


def test_bad_input():
    for function in (best_expert, best_fixed_mixture):
        with pytest.raises(ValueError, match="at least one expert"):
            function(torch.zeros(0, 4))
        bad = densities(8, 3, 4)
        bad[1, 2] = torch.nan
        with pytest.raises(NumericalError, match="expert 1 at step 2"):
            function(bad)
    with pytest.raises(ValueError, match="tolerance"):
        best_fixed_mixture(densities(8, 3, 4), tolerance=0.0)


def against(rule, num_experts, num_steps, ratio):
    """Densities chosen against a rule: the expert with the least weight is right, all others wrong by a factor."""
    like = torch.zeros(num_experts, 1, dtype=torch.float64)
    state, columns = rule.init(num_experts, like), []
    for _ in range(num_steps):
        column = torch.full_like(like, -math.log(ratio))
        column[rule.log_weights(state).argmin()] = 0.0
        columns.append(column)
        state = rule.update_block(state, column)[0]
    return torch.cat(columns, 1)


def streams(rule, num_experts, num_steps, ratio):
    rng = np.random.default_rng(num_experts)
    reach = math.log(ratio)
    yield torch.tensor(rng.uniform(-reach, 0, size=(num_experts, num_steps)))
    yield torch.tensor(-reach * (rng.random((num_experts, num_steps)) < 0.5))
    yield torch.tensor(-reach * (np.arange(num_steps) % num_experts != np.arange(num_experts)[:, None]))
    yield torch.tensor(-reach * (np.arange(num_steps) * num_experts // num_steps != np.arange(num_experts)[:, None]))
    yield against(rule, num_experts, num_steps, ratio)


def loss_to(rule, log_prob, rival):
    output = rule.update_block(rule.init(log_prob.shape[0], log_prob), log_prob)[1]
    return float(rival - output.log_prob.sum())


@pytest.mark.parametrize("ratio", [1.5, 50.0, 1e12])
@pytest.mark.parametrize("num_experts", [1, 2, 6])
def test_regret_is_within_its_bound(num_experts, ratio):
    T = 240
    for rate in (None, 0.02, 0.3):
        rule = SoftBayes(rate)
        for log_prob in streams(rule, num_experts, T, ratio):
            rival = best_fixed_mixture(log_prob).log_prob.sum()
            assert loss_to(rule, log_prob, rival) <= soft_bayes_bound(num_experts, T, rate) + 1e-6
    rule = BayesianModelAveraging()
    for log_prob in streams(rule, num_experts, T, ratio):
        assert loss_to(rule, log_prob, best_expert(log_prob).log_prob.sum()) <= averaging_bound(num_experts) + 1e-9
    for share in (0.002, 0.05):
        rule = FixedShare(share)
        for log_prob in streams(rule, num_experts, T, ratio):
            for allowed in (0, 1, 4, 8):
                path = best_switching_path(log_prob, allowed)
                total = log_prob[path, torch.arange(T)].sum()
                bound = max(fixed_share_bound(num_experts, T, used, share) for used in range(allowed + 1))
                assert loss_to(rule, log_prob, total) <= bound + 1e-9
    for rate, share in ((0.01, 1e-3), (0.1, 0.0), (1.0, 0.01)):
        rule = ExponentiatedGradient(rate, share)
        for log_prob in streams(rule, num_experts, T, ratio):
            rival = best_fixed_mixture(log_prob).log_prob.sum()
            bound = exponentiated_gradient_bound(num_experts, T, rate, share, ratio)
            assert loss_to(rule, log_prob, rival) <= bound + 1e-6


def test_soft_bayes_bound_is_below_its_short_form():
    for num_experts, num_steps in itertools.product((2, 5, 40), (1, 10, 1000)):
        log, first = math.log(num_experts), math.sqrt(math.log(num_experts) / (2 * num_experts))
        short = 2 * math.sqrt(2 * num_experts * num_steps * log) + log * (1 + math.log(num_steps)) / (4 - 4 * first)
        assert soft_bayes_bound(num_experts, num_steps) <= short


def test_averaging_bound_is_tight():
    log_prob = torch.zeros(4, 30, dtype=torch.float64)
    log_prob[1:] = -10.0
    assert loss_to(BayesianModelAveraging(), log_prob, best_expert(log_prob).log_prob.sum()) == pytest.approx(
        averaging_bound(4), abs=1e-9
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: averaging_bound(0), "at least one expert"),
        (lambda: fixed_share_bound(2, 10, 10, 0.1), "cannot switch 10 times"),
        (lambda: fixed_share_bound(2, 10, 1, 1.0), "share"),
        (lambda: exponentiated_gradient_bound(2, 10, 0.0, 0.0, 2.0), "learning rate"),
        (lambda: soft_bayes_bound(2, 0), "one step"),
        (lambda: soft_bayes_bound(2, 10, 1.5), "between 0 and 1"),
    ],
)
def test_bad_bounds(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_rule_that_never_shares_has_no_switching_bound():
    assert fixed_share_bound(3, 10, 1, 0.0) == math.inf
    assert fixed_share_bound(3, 10, 0, 0.0) == pytest.approx(math.log(3))
