"""Best expert and mixture against brute force, and the bounds on what rules lose to them."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import meta_learners as meta
from gp_ensembles.meta_learners.switching import group_transition
from gp_ensembles.metrics import best_expert, best_fixed_mixture, best_switching_path
from gp_ensembles.metrics.regret_bounds import (
    averaging_bound,
    exponentiated_gradient_bound,
    fixed_share_bound,
    forgetting_bound,
    newton_bound,
    path_prior_bound,
    soft_bayes_bound,
)
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


def test_best_expert_has_the_fewest_impossible_targets():
    lost = -torch.inf
    log_prob = torch.tensor([[lost, lost, 9.0], [lost, -5.0, 0.0], [-4.0, lost, 0.0]], dtype=torch.float64)
    assert (int(best_expert(log_prob).expert), int(best_expert(log_prob[:1].repeat(2, 1)).expert)) == (2, 0)


@settings(max_examples=40)
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


def test_best_mixture_says_when_it_is_not_done():
    with pytest.raises(NumericalError, match="after 1 passes"):
        best_fixed_mixture(densities(4, 6, 90, 3.0), max_iterations=1)


def test_bad_input():
    for function in (best_expert, best_fixed_mixture):
        with pytest.raises(ValueError, match="at least one expert"):
            function(torch.zeros(0, 4))
        bad = densities(8, 3, 4)
        bad[1, 2] = torch.nan
        with pytest.raises(ValueError, match="row 2 of expert 1"):
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
    T = 60
    for rate in (None, 0.02, 0.3):
        rule = meta.SoftBayes(rate)
        for log_prob in streams(rule, num_experts, T, ratio):
            rival = best_fixed_mixture(log_prob).log_prob.sum()
            assert loss_to(rule, log_prob, rival) <= soft_bayes_bound(num_experts, T, rate) + 1e-6
    rule = meta.BayesianModelAveraging()
    for log_prob in streams(rule, num_experts, T, ratio):
        assert loss_to(rule, log_prob, best_expert(log_prob).log_prob.sum()) <= averaging_bound(num_experts) + 1e-9
    for share in (0.002, 0.05):
        rule = meta.FixedShare(share)
        for log_prob in streams(rule, num_experts, T, ratio):
            for allowed in (0, 1, 4, 8):
                path = best_switching_path(log_prob, allowed).path
                total = log_prob[path, torch.arange(T)].sum()
                bound = max(fixed_share_bound(num_experts, T, used, share) for used in range(allowed + 1))
                assert loss_to(rule, log_prob, total) <= bound + 1e-9
    # Around the rate at which the bound is smallest, so that it is below what could be lost anyhow.
    best_rate = math.sqrt(8 * math.log(max(num_experts, 2)) / T) / (ratio - 1)
    for rate, share in ((best_rate, 0.0), (best_rate, 1e-4), (4 * best_rate, 0.0), (best_rate / 4, 1e-3)):
        rule = meta.ExponentiatedGradient(rate, share)
        for log_prob in streams(rule, num_experts, T, ratio):
            rival = best_fixed_mixture(log_prob).log_prob.sum()
            bound = exponentiated_gradient_bound(num_experts, T, rate, share, ratio)
            assert loss_to(rule, log_prob, rival) <= bound + 1e-6


def largest_legal_beta(ratio):
    return 2 * (ratio - 1 - math.log(ratio)) / (ratio - 1) ** 2 * (1 - 1e-9)


@pytest.mark.parametrize("ratio", [1.01, 5.0, 50.0])
@pytest.mark.parametrize("num_experts", [1, 2, 6])
def test_newton_regret_is_within_its_bound(num_experts, ratio):
    T = 60
    most = largest_legal_beta(ratio)
    # delta below one is a smaller step of another beta: 1 + 1 / most = 0.8 (1 + 1 / beta)
    other = 1 / ((1 + 1 / most) / 0.8 - 1)
    for beta, delta, share in ((most, 1.0, 1e-6), (most, 1.0, 0.02), (most / 5, 1.0, 1 / T), (other, 0.8, 1e-3)):
        rule = meta.OnlineNewton(beta, delta, share)
        bound = newton_bound(num_experts, T, beta, delta, share, ratio)
        assert bound < math.inf
        for log_prob in streams(rule, num_experts, T, ratio):
            assert loss_to(rule, log_prob, best_fixed_mixture(log_prob).log_prob.sum()) <= bound + 1e-6


def test_newton_bound_without_a_bound_on_the_densities():
    num_experts, T, share = 3, 150, 0.05
    beta = largest_legal_beta(num_experts / share)
    rule = meta.OnlineNewton(beta, 1.0, share)
    bound = newton_bound(num_experts, T, beta, 1.0, share, math.inf)
    for log_prob in streams(rule, num_experts, T, 1e12):
        assert loss_to(rule, log_prob, best_fixed_mixture(log_prob).log_prob.sum()) <= bound
    assert bound < math.inf
    assert newton_bound(num_experts, T, 1.01 * beta, 1.0, share, math.inf) == math.inf
    assert newton_bound(num_experts, T, beta, 1.0, 0.0, math.inf) == math.inf
    assert newton_bound(num_experts, T, 1.0, 0.5, share, 2.0) == math.inf  # no step at all


TRANSITIONS = {
    "sticky": meta.sticky_transition(6, 0.9),
    "groups": group_transition(["a", "b", "a", "c", "a", "b"], 0.05),
    "edoebe": group_transition("abcabc", 0.02),
    "any": torch.tensor(np.random.default_rng(0).dirichlet(np.full(6, 0.3), size=6).T),
}


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize(("prior", "ratio"), [(None, 1e12), (torch.arange(1.0, 7.0, dtype=torch.float64), 2.0)])
def test_switching_loses_no_more_than_the_prior_of_a_sequence(name, prior, ratio):
    T, Q = 60, TRANSITIONS[name]
    rule, steps, rng = meta.MarkovSwitching(Q, prior), torch.arange(60), np.random.default_rng(1)
    for log_prob in streams(rule, 6, T, ratio):
        paths = [best_switching_path(log_prob, allowed).path for allowed in (0, 1, 5)]
        for _ in range(5):  # sequences that the transition itself makes
            path = [int(rng.integers(6))]
            while len(path) < T:
                path.append(int(rng.choice(6, p=(Q[:, path[-1]] / Q[:, path[-1]].sum()).numpy())))
            paths.append(torch.tensor(path))
        for path in paths:
            assert loss_to(rule, log_prob, log_prob[path, steps].sum()) <= path_prior_bound(Q, path, prior) + 1e-9


@pytest.mark.parametrize("name", TRANSITIONS)
def test_switching_loses_just_that_where_one_sequence_is_right(name):
    Q, prior = TRANSITIONS[name], torch.arange(1.0, 7.0, dtype=torch.float64)
    path = torch.tensor([2, 2, int(Q[:, 2].topk(2).indices[1]), 2, 2])
    log_prob = torch.full((6, 5), -torch.inf, dtype=torch.float64)
    log_prob[path, torch.arange(5)] = 0.0
    for weights in (None, prior):
        bound = path_prior_bound(Q, path, weights)
        assert loss_to(meta.MarkovSwitching(Q, weights), log_prob, 0.0) == pytest.approx(bound, abs=1e-9)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_experts=st.integers(2, 4), num_steps=st.integers(1, 5))
def test_prior_of_sequences_is_a_distribution(seed, num_experts, num_steps):
    rng = np.random.default_rng(seed)
    Q = torch.tensor(rng.dirichlet(np.full(num_experts, 0.5), size=num_experts).T)
    prior = torch.tensor(rng.gamma(1.0, size=num_experts))
    paths = itertools.product(range(num_experts), repeat=num_steps)
    assert sum(math.exp(-path_prior_bound(Q, torch.tensor(path), prior)) for path in paths) == pytest.approx(1)


def test_prior_of_a_sequence_has_the_special_cases():
    for path in ([0, 0, 0, 0], [0, 1, 1, 2], [2, 1, 2, 1]):
        used = int(np.count_nonzero(np.diff(path)))
        value = path_prior_bound(meta.sticky_transition(3, 1 - 0.3 + 0.3 / 3), torch.tensor(path))
        assert value == pytest.approx(fixed_share_bound(3, 4, used, 0.3))
    assert path_prior_bound(group_transition("abab", 0.1), torch.tensor([0, 1])) == math.inf
    assert path_prior_bound(group_transition("abab", 0.1), torch.tensor([0, 2])) == pytest.approx(math.log(40))


@pytest.mark.slow
@pytest.mark.parametrize("forgetting", [1.0, 0.99, 0.7, 0.05])
@pytest.mark.parametrize("num_experts", [1, 2, 6])
@pytest.mark.parametrize("ratio", [1.5, 50.0, 1e12])
def test_forgetting_loses_no_more_than_its_bound(forgetting, num_experts, ratio):
    T = 120
    rule = meta.DynamicModelAveraging(forgetting)
    for log_prob in streams(rule, num_experts, T, ratio):
        for allowed in (0, 1, 5):
            path = best_switching_path(log_prob, allowed).path
            used = int((path[1:] != path[:-1]).sum())
            bound = forgetting_bound(num_experts, T, used, forgetting, ratio)
            assert loss_to(rule, log_prob, log_prob[path, torch.arange(T)].sum()) <= bound + 1e-9


@pytest.mark.parametrize("forgetting", [0.99, 0.7, 0.05])
@pytest.mark.parametrize("num_experts", [2, 6])
def test_forgetting_can_lose_its_whole_bound(forgetting, num_experts):
    T, others = 30, num_experts - 1
    u = np.linspace(0, 1, 1_000_001)[1:-1]
    doubt = np.log(u + others ** (1 - forgetting) * u ** (1 - forgetting) * (1 - u) ** forgetting)
    bound = forgetting_bound(num_experts, T, 0, forgetting, math.inf)
    assert bound == pytest.approx(math.log(num_experts) + (T - 1) * doubt.max(), abs=1e-8)
    assert bound <= (1 + (T - 1) * (1 - forgetting)) * math.log(num_experts)
    # The first expert is kept at the worst weight, and proved right at the end.
    worst = u[doubt.argmax()]
    odds = math.log(worst / ((1 - worst) / others))
    lead = torch.full((T,), (1 - forgetting) * odds, dtype=torch.float64)
    lead[0], lead[-1] = odds, 60.0
    log_prob = torch.zeros(num_experts, T, dtype=torch.float64)
    log_prob[1:] = -lead
    assert loss_to(meta.DynamicModelAveraging(forgetting), log_prob, 0.0) == pytest.approx(bound, abs=1e-8)


def alternating(num_experts, num_steps, ratio, until):
    """Experts are right by turns, then the last one for good."""
    right = np.arange(num_steps) % num_experts
    right[until:] = num_experts - 1
    return torch.tensor(-math.log(ratio) * (right != np.arange(num_experts)[:, None]))


def share_of_bound(rule, log_prob, bound):
    return loss_to(rule, log_prob, best_fixed_mixture(log_prob).log_prob.sum()) / bound


@pytest.mark.parametrize(("num_experts", "reached"), [(2, 0.8), (6, 0.65)])
def test_gradient_bound_is_nearly_met(num_experts, reached):
    T, ratio = 2000, 1.01
    rate = math.sqrt(8 * math.log(num_experts) / T) / (ratio - 1)
    bound = exponentiated_gradient_bound(num_experts, T, rate, 0.0, ratio)
    log_prob = alternating(num_experts, T, ratio, 3 * T // 4)
    assert reached < share_of_bound(meta.ExponentiatedGradient(rate, 0.0), log_prob, bound) <= 1


@pytest.mark.parametrize("ratio", [2.0, 50.0])
def test_gradient_bound_is_of_the_right_size_for_large_factors(ratio):
    rate = math.sqrt(8 * math.log(2) / 2000) / (ratio - 1)
    bound = exponentiated_gradient_bound(2, 2000, rate, 0.0, ratio)
    assert 0.3 < share_of_bound(meta.ExponentiatedGradient(rate, 0.0), alternating(2, 2000, ratio, 0), bound) <= 1


def test_soft_bayes_bound_is_nearly_met_at_a_high_rate():
    rule = meta.SoftBayes(0.9)
    assert 0.8 < share_of_bound(rule, against(rule, 20, 240, 1e30), soft_bayes_bound(20, 240, 0.9)) <= 1


def test_anytime_soft_bayes_bound_is_of_the_right_size():
    log_prob = alternating(2, 240, 1e3, 0)  # one expert is right from the start
    assert 0.33 < share_of_bound(meta.SoftBayes(), log_prob, soft_bayes_bound(2, 240)) <= 1


def test_newton_bound_is_nearly_met():
    beta = largest_legal_beta(2.0)
    rule = meta.OnlineNewton(beta, 1.0, 1e-6)
    bound = newton_bound(2, 500, beta, 1.0, 1e-6, 2.0)
    assert 0.7 < share_of_bound(rule, against(rule, 2, 500, 2.0), bound) <= 1


def test_soft_bayes_bound_is_below_its_short_form():
    for num_experts, num_steps in itertools.product((2, 5, 40), (1, 10, 1000)):
        log, first = math.log(num_experts), math.sqrt(math.log(num_experts) / (2 * num_experts))
        short = 2 * math.sqrt(2 * num_experts * num_steps * log) + log * (1 + math.log(num_steps)) / (4 - 4 * first)
        assert soft_bayes_bound(num_experts, num_steps) <= short


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: averaging_bound(0), "at least one expert"),
        (lambda: fixed_share_bound(2, 10, 10, 0.1), "cannot switch 10 times"),
        (lambda: fixed_share_bound(2, 10, 1, 1.0), "share"),
        (lambda: exponentiated_gradient_bound(2, 10, 0.0, 0.0, 2.0), "learning rate"),
        (lambda: exponentiated_gradient_bound(2, 10, 0.1, 0.0, 0.5), "factor at least one"),
        (lambda: forgetting_bound(2, 10, 0, 0.0, 2.0), "forgetting"),
        (lambda: forgetting_bound(2, 10, 10, 0.9, 2.0), "cannot switch 10 times"),
        (lambda: newton_bound(2, 10, 0.0, 1.0, 0.1, 2.0), "beta must be positive"),
        (lambda: newton_bound(2, 10, 0.1, 1.0, 1.0, 2.0), "share"),
        (lambda: path_prior_bound(meta.sticky_transition(2, 0.9), torch.tensor([0, 2])), "indices 0 to 1"),
        (lambda: path_prior_bound(meta.sticky_transition(2, 0.9), torch.tensor([], dtype=torch.int64)), "one step"),
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
