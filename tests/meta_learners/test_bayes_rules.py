"""Averaging and switching against brute force in 60 digits and golden numbers."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, sticky_transition
from gp_ensembles.meta_learners.switching import group_transition
from tests.meta_learners.rules import BAYES, densities, each, random_transition, run
from tests.refusals import refused


def brute_force(rule, log_prob):
    """The recursion in 60-digit linear arithmetic: log weights before each target and log densities."""
    num_experts, num_steps = log_prob.shape
    with mpmath.workdps(60):
        start = rule.log_prior if rule.log_prior is not None else torch.zeros(num_experts)
        weights = [mpmath.exp(mpmath.mpf(float(w))) if w > -torch.inf else mpmath.mpf(0) for w in start]
        weights = [w / mpmath.fsum(weights) for w in weights]
        log = lambda w: float(mpmath.log(w)) if w > 0 else -math.inf  # noqa: E731
        before, scores = [], []
        for t in range(num_steps):
            if isinstance(rule, MarkovSwitching):
                Q = [[mpmath.mpf(float(value)) for value in row] for row in rule.transition]
                weights = [mpmath.fsum(q * w for q, w in zip(row, weights, strict=True)) for row in Q]
            before.append([log(w) for w in weights])
            p = [mpmath.exp(mpmath.mpf(float(v))) if v > -torch.inf else mpmath.mpf(0) for v in log_prob[:, t]]
            scores.append(log(mpmath.fsum(w * q for w, q in zip(weights, p, strict=True))))
            floor = getattr(rule, "prune_below", None) or 0.0
            joint = [w * q if w >= floor else mpmath.mpf(0) for w, q in zip(weights, p, strict=True)]
            total = mpmath.fsum(joint)
            if total > 0:
                weights = [j / total for j in joint]
            else:
                weights = [w if w >= floor else mpmath.mpf(0) for w in weights]
                weights = [w / mpmath.fsum(weights) for w in weights]
    return np.array(before).T, np.array(scores)


def check(rule, log_prob, rtol=1e-9, atol=1e-8):
    state, output = rule.update_block(rule.init(log_prob.shape[0], log_prob), log_prob)
    weights, scores = brute_force(rule, log_prob)
    np.testing.assert_allclose(output.log_weights, weights, rtol=rtol, atol=atol)
    np.testing.assert_allclose(output.log_prob, scores, rtol=rtol, atol=atol)
    return state, output


@each(BAYES)
def test_equals_brute_force_also_where_weights_underflow(rule):
    check(rule, densities(0, 40))
    check(rule, densities(1, 40, scale=400.0))


@each(BAYES)
def test_equals_brute_force_with_missing_and_impossible_targets(rule):
    log_prob = densities(2, 30)
    log_prob[:, 5] = 0.0
    log_prob[2, 7] = -torch.inf
    log_prob[:3, 9] = -torch.inf
    log_prob[:, 11] = -torch.inf  # nobody
    log_prob[3:, 13] = -torch.inf  # of the static rules' survivors, nobody
    state, output = check(rule, log_prob)
    assert output.log_prob[11] == -torch.inf
    assert not torch.isnan(state.log_weights).any()


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_experts=st.integers(1, 7), zeros=st.sampled_from([0.0, 0.5, 0.9]))
def test_any_transition_equals_brute_force(seed, num_experts, zeros):
    rule = MarkovSwitching(random_transition(seed, num_experts, zeros))
    check(rule, densities(seed + 1, 20, num_experts, scale=10.0 ** (seed % 4)))


def test_wrong_number_of_experts():
    like = densities(0, 1)
    for rule in (MarkovSwitching(sticky_transition(4, 0.9)), BayesianModelAveraging(torch.ones(4))):
        with pytest.raises(ValueError, match="built for 4 experts, but the ensemble has 6"):
            rule.init(6, like)
    with pytest.raises(ValueError, match="at least one expert"):
        BayesianModelAveraging().init(0, like)
    with pytest.raises(TypeError, match="floating point"):
        BayesianModelAveraging().init(2, torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="average weight"):
        BayesianModelAveraging(prune_below=0.5).init(2, like)


def test_bad_priors():
    for weights, message in (
        (torch.tensor([0.5, -0.5]), "expert 1 is -0.5"),
        (torch.tensor([0.5, torch.nan]), "expert 1 is nan"),
        (torch.zeros(2), "all prior weights are zero"),
        (torch.ones(2, 1), "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            BayesianModelAveraging(weights)
    refused(TypeError, "floating point", lambda: BayesianModelAveraging(torch.tensor([1, 2])))
    refused(ValueError, "prune_below", lambda: BayesianModelAveraging(prune_below=0.0))
    refused(ValueError, "built for 3 experts", lambda: MarkovSwitching(sticky_transition(3, 0.9), torch.ones(2)))


def test_bad_transitions():
    Q = sticky_transition(3, 0.9)
    negative, wide = Q.clone(), Q.clone()
    negative[1, 2] = -0.1
    wide[0, 1] += 0.01
    rows = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    for matrix, message in (
        (negative, "row 1, column 2"),
        (wide, r"column 1 of the transition sums to 1\.01"),
        (rows, "pass the transpose"),
        (Q[:2], "shape"),
        (Q * torch.nan, "row 0, column 0"),
    ):
        with pytest.raises(ValueError, match=message):
            MarkovSwitching(matrix)
    refused(TypeError, "floating point", lambda: MarkovSwitching(torch.eye(2, dtype=torch.int64)))


def test_transitions():
    for Q in (sticky_transition(1, 0.9), sticky_transition(5, 0.99), group_transition("abcab", 0.3)):
        torch.testing.assert_close(Q.sum(0), torch.ones(Q.shape[0], dtype=torch.float64))
    Q = group_transition("abcabcabcabc", 0.01)
    assert Q.shape == (12, 12)
    identity = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close((Q[:3, :3], Q[3:6, 9:]), (0.97 * identity, 0.01 * identity))
    for call, message in (
        (lambda: sticky_transition(3, 1.1), "probability"),
        (lambda: sticky_transition(0, 0.9), "at least one"),
        (lambda: group_transition([], 0.1), "at least one"),
        (lambda: group_transition("aaa", 0.6), "3 experts with the same label"),
        (lambda: group_transition("ab", -0.1), "out of range"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_pruned_experts_stay_dead_and_others_come_back():
    log_prob = torch.tensor([[0.0] * 10 + [-50.0] * 30, [-10.0] * 10 + [0.0] * 30], dtype=torch.float64)
    for rule, final in ((BayesianModelAveraging(), 0.0), (BayesianModelAveraging(prune_below=1e-16), 1.0)):
        state = rule.update_block(rule.init(2, log_prob), log_prob)[0]
        assert float(state.log_weights[0].exp()) == pytest.approx(final, abs=1e-12)


@pytest.fixture(params=["frozen", "doebe_synthetic", "doebe"], name="folder")
def _folder(request, golden):
    return golden if request.param == "frozen" else request.getfixturevalue("shared") / "golden" / request.param


def load(folder, name):
    with np.load(folder / name) as data:
        return {key: data[key] for key in data if data[key].dtype == np.float64}


def learned(rule, loglik):
    state, output = run(rule, torch.tensor(loglik.T))
    return state, output.log_weights.T.numpy(), output.log_prob.numpy()


@pytest.mark.parametrize("name", ["doebe6", "edoebe2x3"])
def test_golden_averaging_and_switching(folder, name):
    data, rule = load(folder, f"ensemble_{name}.npz"), None
    if "Q" in data:
        np.testing.assert_allclose(group_transition("abcabc", 0.01), data["Q"], rtol=0, atol=1e-15)
        rule = MarkovSwitching(torch.tensor(data["Q"]))
    rule = rule or BayesianModelAveraging(torch.tensor(data["w0"]))
    state, weights, scores = learned(rule, data["expert_loglik"])
    np.testing.assert_allclose(weights, data["log_w_prior"], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(state.log_weights, data["log_w_post"][-1], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(scores, data["log_score_mixture"], rtol=1e-8, atol=1e-9)


def test_golden_pruning(folder):
    data = load(folder, "ensemble_doebe6.npz")
    state, weights, _ = learned(BayesianModelAveraging(prune_below=1e-16), data["expert_loglik"])
    np.testing.assert_allclose(np.exp(weights), data["thresholded_w_prior"], rtol=1e-8, atol=0)
    np.testing.assert_allclose(state.log_weights.exp(), data["thresholded_w_post"][-1], rtol=1e-8, atol=0)


def test_golden_rules(folder):
    data = load(folder, "meta_learners.npz")
    share = torch.full((6, 6), 0.01 / 6, dtype=torch.float64) + 0.99 * torch.eye(6, dtype=torch.float64)
    for rule, key in (
        (BayesianModelAveraging(), "bma"),
        (MarkovSwitching(group_transition("abcabc", 0.01)), "switching_blockQ_0.01"),
        (MarkovSwitching(share), "switching_fixedshare_0.01"),
    ):
        _, weights, _ = learned(rule, data["expert_loglik"])
        np.testing.assert_allclose(weights, data[key], rtol=1e-8, atol=1e-8)
