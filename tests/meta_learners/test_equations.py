"""First-order and Newton rules against their equations in 60 digits, brute force and golden numbers."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import meta_learners as meta
from gp_ensembles.numerics.simplex_path import Growth
from tests.meta_learners.rules import FIRST_ORDER, SECOND_ORDER, densities, each, run
from tests.numerics.test_simplex_path import by_hand


def step_of(rule, num_experts):
    """(w, p, t) -> weights after target t, in mpmath, straight from the equations."""
    mp, one = mpmath.mpf, mpmath.mpf(1)

    def bayes(w, p):
        total = mpmath.fsum(a * b for a, b in zip(w, p, strict=True))
        return [a * b / total for a, b in zip(w, p, strict=True)]

    def shared(w, share):
        return [(one - mp(share)) * a + mp(share) / num_experts for a in w]

    if isinstance(rule, meta.FixedShare):
        return lambda w, p, t: shared(bayes(w, p), rule.share)
    if isinstance(rule, meta.DynamicModelAveraging):

        def dynamic(w, p, t):
            flat = [a ** mp(rule.forgetting) if a > 0 else mp(0) for a in bayes(w, p)]
            return [a / mpmath.fsum(flat) for a in flat]

        return dynamic
    if isinstance(rule, meta.ExponentiatedGradient):

        def gradient(w, p, t):
            total = mpmath.fsum(a * b for a, b in zip(w, p, strict=True))
            moved = [a * mpmath.exp(mp(rule.learning_rate) * b / total) for a, b in zip(w, p, strict=True)]
            return shared([a / mpmath.fsum(moved) for a in moved], rule.share)

        return gradient
    if rule.learning_rate is not None:
        alpha = mp(rule.learning_rate)
        return lambda w, p, t: [(one - alpha) * a + alpha * v for a, v in zip(w, bayes(w, p), strict=True)]

    def anytime(w, p, t):
        now, then = (mpmath.sqrt(mpmath.log(num_experts) / (2 * num_experts * s)) for s in (t, t + 1))
        moved = [(one - now) * a + now * v for a, v in zip(w, bayes(w, p), strict=True)]
        ratio = then / now if num_experts > 1 else one
        return [ratio * a + (one - ratio) / num_experts for a in moved]

    return anytime


def brute_force(rule, log_prob):
    """Log weights before each target and log densities; a target impossible under all that live is missing."""
    num_experts, num_steps = log_prob.shape
    with mpmath.workdps(60):
        log = lambda w: float(mpmath.log(w)) if w > 0 else -math.inf  # noqa: E731
        weights = [mpmath.mpf(1) / num_experts] * num_experts
        step, before, scores = step_of(rule, num_experts), [], []
        for t in range(num_steps):
            before.append([log(w) for w in weights])
            p = [mpmath.exp(mpmath.mpf(float(v))) if v > -torch.inf else mpmath.mpf(0) for v in log_prob[:, t]]
            total = mpmath.fsum(a * b for a, b in zip(weights, p, strict=True))
            scores.append(log(total))
            weights = step(weights, p if total > 0 else [mpmath.mpf(1)] * num_experts, t + 1)
    return np.array(before).T, np.array(scores)


def check(rule, log_prob):
    state, output = run(rule, log_prob)
    weights, scores = brute_force(rule, log_prob)
    np.testing.assert_allclose(output.log_weights, weights, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(output.log_prob, scores, rtol=1e-9, atol=1e-8)
    return state, output


@each(FIRST_ORDER)
def test_first_order_rules_equal_their_equations(rule):
    for scale in (0.3, 3.0, 30.0):
        check(rule, densities(0, 30, scale=scale))


@each({name: make for name, make in FIRST_ORDER.items() if "no share" not in name})
def test_first_order_rules_equal_their_equations_where_weights_underflow(rule):
    check(rule, densities(1, 20, scale=400.0))


@each(FIRST_ORDER)
def test_first_order_rules_with_missing_and_impossible_targets(rule):
    log_prob = densities(2, 20, scale=1.0)
    log_prob[:, 5] = 0.0
    log_prob[2, 7] = -torch.inf
    log_prob[:3, 9] = -torch.inf
    log_prob[:, 11] = -torch.inf
    log_prob[3:, 13] = -torch.inf
    state, output = check(rule, log_prob)
    assert output.log_prob[11] == -torch.inf
    assert not torch.isnan(state.log_weights).any()


@settings(max_examples=30)
@given(
    name=st.sampled_from(sorted(FIRST_ORDER)),
    seed=st.integers(0, 10**6),
    num_experts=st.integers(1, 7),
    scale=st.sampled_from([1e-3, 1.0, 10.0]),
)
def test_any_first_order_rule_equals_its_equations(name, seed, num_experts, scale):
    check(FIRST_ORDER[name](), densities(seed, 12, num_experts, scale))


def test_ratios_beyond_every_number_take_their_exact_limit():
    rule = meta.ExponentiatedGradient(learning_rate=1.0, share=0.0)
    prior = torch.tensor([0.0, -3000.0, -3000.0], dtype=torch.float64)
    state = rule.init(3, prior)._replace(log_weights=prior - prior.logsumexp(0))
    # Both lost experts explain the target by a ratio of exp(3000), exactly alike: they share in proportion.
    log_prob = torch.tensor([[-1e5], [0.0], [0.0]], dtype=torch.float64)
    after = rule.update_block(state, log_prob)[0].log_weights.exp()
    torch.testing.assert_close(after, torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64))
    # A difference of a millionth in the log density is enough at such a ratio.
    log_prob[2] = -1e-6
    after = rule.update_block(state, log_prob)[0].log_weights.exp()
    torch.testing.assert_close(after, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))


def newton_by_hand(rule, log_prob):
    """The Newton rules as written, projected by brute force over all supports: weights before each target."""
    p = np.exp(log_prob - log_prob.max(0))
    if isinstance(rule, meta.OnlineNewton):
        growth, epsilon = Growth(1.0, 0.0, rule.delta * (1 + 1 / rule.beta), False, rule.share), 1.0
    else:
        refill, epsilon = (1 - rule.discount) * rule.epsilon, rule.epsilon
        growth = Growth(rule.discount, refill, 1 / rule.beta, True, rule.share)
    return by_hand(p.T, growth, epsilon)[0][:-1].T


@each(SECOND_ORDER)
def test_newton_rules_equal_their_equations(rule):
    for num_experts, scale in itertools.product((1, 2, 5), (0.3, 2.0)):
        log_prob = densities(3, 40, num_experts, scale)
        output = run(rule, log_prob)[1]
        weights = newton_by_hand(rule, log_prob.numpy())
        np.testing.assert_allclose(output.log_weights.exp(), weights, rtol=0, atol=1e-9)
        torch.testing.assert_close(output.log_prob, (output.log_weights + log_prob).logsumexp(0))


@each(SECOND_ORDER)
def test_newton_rules_take_impossible_targets_for_missing(rule):
    log_prob = densities(4, 20)
    log_prob[:, 6] = -torch.inf
    log_prob[1:4, 9] = -torch.inf
    missing = log_prob.clone()
    missing[:, 6] = 0.0
    (state, output), (other, plain) = run(rule, log_prob), run(rule, missing)
    torch.testing.assert_close((state, output.log_weights), (other, plain.log_weights))
    assert output.log_prob[6] == -torch.inf


def test_an_impossible_target_under_the_current_weights_is_survived_without_a_share():
    rule = meta.DiscountedOnlineNewton(share=0.0)
    log_prob = torch.tensor([[0.0] * 30, [-2000.0] * 30, [-3000.0] * 30], dtype=torch.float64)
    state = run(rule, log_prob)[0]
    torch.testing.assert_close(state.log_weights.exp(), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    impossible = torch.tensor([[-torch.inf], [0.0], [0.0]], dtype=torch.float64)
    after, output = rule.update_block(state, impossible)
    assert output.log_prob[0] == -torch.inf
    torch.testing.assert_close(after.log_weights, state.log_weights)


@pytest.mark.parametrize("folder", ["frozen", "doebe_synthetic", "doebe"])
def test_golden_rules(folder, golden, request):
    path = golden if folder == "frozen" else request.getfixturevalue("shared") / "golden" / folder
    with np.load(path / "meta_learners.npz") as data:
        log_prob = torch.tensor(data["expert_loglik"].T)
        for rule, key in (
            (meta.DynamicModelAveraging(0.99), "dma_0.99"),
            (meta.FixedShare(0.01), "switching_fixedshare_0.01"),
            (meta.ExponentiatedGradient(0.01, 0.0), "eg_eta0.01"),
            (meta.ExponentiatedGradient(0.1, 0.0), "eg_eta0.1"),
            (meta.ExponentiatedGradient(1.0, 0.0), "eg_eta1"),
            (meta.ExponentiatedGradient(), "eg_share_eta0.01_delta1e-3"),
            (meta.SoftBayes(), "softbayes_anytime"),
        ):
            weights = run(rule, log_prob)[1].log_weights.T
            np.testing.assert_allclose(weights, data[key], rtol=1e-8, atol=1e-8, err_msg=key)
        for newton, key in (
            (meta.OnlineNewton(), "ons_delta0.8_beta0.01_eta0.01"),
            (meta.DiscountedOnlineNewton(share=0.0), "dons_beta1_gamma0.99"),
        ):
            weights = run(newton, log_prob)[1].log_weights.exp().T
            np.testing.assert_allclose(weights, data[key], rtol=0, atol=1e-9, err_msg=key)
