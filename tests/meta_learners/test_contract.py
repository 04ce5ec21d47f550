"""Every weight rule against its equations in 60 digits, and the contract they all keep."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    OnlineNewton,
    ReferenceAveraging,
    SoftBayes,
    sticky_transition,
)
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.cholesky import NumericalError

M = 6

FIRST_ORDER = {
    "dynamic averaging": lambda: DynamicModelAveraging(0.9),
    "dynamic averaging, no forgetting": lambda: DynamicModelAveraging(1.0),
    "fixed share": lambda: FixedShare(0.05),
    "fixed share, none": lambda: FixedShare(0.0),
    "gradient": lambda: ExponentiatedGradient(),
    "gradient, fast": lambda: ExponentiatedGradient(2.0, 0.05),
    "gradient, no share": lambda: ExponentiatedGradient(0.3, 0.0),
    "soft": lambda: SoftBayes(),
    "soft, fixed rate": lambda: SoftBayes(0.3),
}
SECOND_ORDER = {
    "newton": lambda: OnlineNewton(),
    "newton, slow": lambda: OnlineNewton(beta=1.0, delta=0.5, share=0.1),
    "discounted": lambda: DiscountedOnlineNewton(),
    "discounted, quick": lambda: DiscountedOnlineNewton(beta=0.5, discount=0.8, epsilon=3.0, share=0.01),
}
NEW = {**FIRST_ORDER, **SECOND_ORDER}
RULES = {
    "averaging": lambda: BayesianModelAveraging(),
    "switching": lambda: MarkovSwitching(sticky_transition(M, 0.95)),
    "combined": lambda: CombinedRules([FixedShare(0.05), SoftBayes(0.1)], over=FixedShare(0.02)),
    "combined, newton": lambda: CombinedRules([BayesianModelAveraging(), OnlineNewton()], BayesianModelAveraging()),
    "beside references": lambda: ReferenceAveraging(FixedShare(0.05), range(M)),
    **NEW,
}
SECOND = tuple(SECOND_ORDER)


@pytest.fixture(params=RULES, name="rule")
def _rule(request):
    return RULES[request.param]()


@pytest.fixture(params=FIRST_ORDER, name="first")
def _first(request):
    return FIRST_ORDER[request.param]()


@pytest.fixture(params=SECOND_ORDER, name="second")
def _second(request):
    return SECOND_ORDER[request.param]()


def densities(seed, num_steps, num_experts=M, scale=3.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(num_experts, num_steps)) * scale - 1)


def run(rule, log_prob):
    return rule.update_block(rule.init(log_prob.shape[0], log_prob), log_prob)


def step_of(rule, num_experts):
    """(w, p, t) -> weights after target t, in mpmath, straight from the equations."""
    mp, one = mpmath.mpf, mpmath.mpf(1)

    def bayes(w, p):
        total = mpmath.fsum(a * b for a, b in zip(w, p, strict=True))
        return [a * b / total for a, b in zip(w, p, strict=True)]

    def shared(w, share):
        return [(one - mp(share)) * a + mp(share) / num_experts for a in w]

    if isinstance(rule, FixedShare):
        return lambda w, p, t: shared(bayes(w, p), rule.share)
    if isinstance(rule, DynamicModelAveraging):

        def dynamic(w, p, t):
            flat = [a ** mp(rule.forgetting) if a > 0 else mp(0) for a in bayes(w, p)]
            return [a / mpmath.fsum(flat) for a in flat]

        return dynamic
    if isinstance(rule, ExponentiatedGradient):

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


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_first_order_rules_equal_their_equations(first, scale):
    check(first, densities(0, 30, scale=scale))


@pytest.mark.parametrize("name", [name for name in FIRST_ORDER if "no share" not in name])
def test_first_order_rules_equal_their_equations_where_weights_underflow(name):
    check(FIRST_ORDER[name](), densities(1, 20, scale=400.0))


def test_first_order_rules_with_missing_and_impossible_targets(first):
    log_prob = densities(2, 20, scale=1.0)
    log_prob[:, 5] = 0.0
    log_prob[2, 7] = -torch.inf
    log_prob[:3, 9] = -torch.inf
    log_prob[:, 11] = -torch.inf
    log_prob[3:, 13] = -torch.inf
    state, output = check(first, log_prob)
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
    rule = ExponentiatedGradient(learning_rate=1.0, share=0.0)
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


def newton_by_hand(rule, log_prob, project):
    """The Newton rules as written, in numpy with a projection by brute force: weights before each target."""
    p = np.exp(log_prob - log_prob.max(0))
    p = np.where(np.isnan(p), 1.0, p)
    num_experts = p.shape[0]
    w = v = np.full(num_experts, 1 / num_experts)
    A = np.eye(num_experts) * getattr(rule, "epsilon", 1.0)
    b, before = np.zeros(num_experts), []
    for x in p.T:
        before.append(w)
        g = x / (w @ x)
        if isinstance(rule, OnlineNewton):
            A = A + np.outer(g, g)
            b = b + (1 + 1 / rule.beta) * g
            v = project(rule.delta * np.linalg.solve(A, b), A)
        else:
            A = rule.discount * A + (1 - rule.discount) * rule.epsilon * np.eye(num_experts) + np.outer(g, g)
            v = project(v + np.linalg.solve(A, g) / rule.beta, A)
        w = (1 - rule.share) * v + rule.share / num_experts
    return np.array(before).T


def project_by_brute_force(point, matrix):
    """The nearest of the minima on the planes of all supports that are inside."""
    best, value = None, np.inf
    for mask in itertools.product([False, True], repeat=len(point)):
        S = np.flatnonzero(mask)
        if len(S) == 0:
            continue
        K = np.block([[matrix[np.ix_(S, S)], np.ones((len(S), 1))], [np.ones((1, len(S))), np.zeros((1, 1))]])
        solution = np.linalg.solve(K, np.append(matrix[S] @ point, 1.0))[:-1]
        w = np.zeros(len(point))
        w[S] = solution
        distance = (w - point) @ matrix @ (w - point)
        if solution.min() >= 0 and distance < value:
            best, value = w, distance
    return best


@pytest.mark.parametrize("num_experts", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_newton_rules_equal_their_equations(second, num_experts, scale):
    log_prob = densities(3, 40, num_experts, scale)
    output = run(second, log_prob)[1]
    weights = newton_by_hand(second, log_prob.numpy(), project_by_brute_force)
    np.testing.assert_allclose(output.log_weights.exp(), weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(output.log_prob, (output.log_weights + log_prob).logsumexp(0))


def test_newton_rules_take_impossible_targets_for_missing(second):
    log_prob = densities(4, 20)
    log_prob[:, 6] = -torch.inf
    log_prob[1:4, 9] = -torch.inf
    missing = log_prob.clone()
    missing[:, 6] = 0.0
    (state, output), (other, plain) = run(second, log_prob), run(second, missing)
    torch.testing.assert_close(state, other)
    torch.testing.assert_close(output.log_weights, plain.log_weights)
    assert output.log_prob[6] == -torch.inf


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, 50), max_size=6), name=st.sampled_from(sorted(NEW)), seed=st.integers(0, 99))
def test_any_blocking_is_equal(cuts, name, seed):
    rule, log_prob = NEW[name](), densities(seed, 50, scale=2.0 if name in SECOND else 30.0)
    if "no share" in name:
        log_prob = log_prob / 30
    log_prob[:, 20] = 0.0
    log_prob[1, 30] = -torch.inf
    whole_state, whole = run(rule, log_prob)
    state, outputs = rule.init(M, log_prob), []
    for start, stop in itertools.pairwise(sorted({0, 50, *cuts})):
        torch.testing.assert_close(
            rule.log_weights(state).exp(), whole.log_weights[:, start].exp(), rtol=1e-9, atol=1e-9
        )
        state, output = rule.update_block(state, log_prob[:, start:stop])
        outputs.append(output)
    torch.testing.assert_close(torch.cat([o.log_weights for o in outputs], 1), whole.log_weights, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(torch.cat([o.log_prob for o in outputs]), whole.log_prob, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.memory, whole_state.memory, rtol=1e-8, atol=1e-8)
    assert int(state.num_seen) == int(whole_state.num_seen) == 50


def test_empty_block_changes_nothing(rule):
    state = rule.init(M, densities(0, 1))
    after, output = rule.update_block(state, densities(0, 1)[:, :0])
    assert output.log_weights.shape == (M, 0)
    assert output.log_prob.shape == (0,)
    torch.testing.assert_close(after, state, rtol=0, atol=0)


@pytest.mark.parametrize("t", [0, 17, 39])
def test_weights_never_see_their_own_target(rule, t):
    log_prob = densities(3, 40)
    changed = log_prob.clone()
    changed[:, t] = densities(4, 1)[:, 0] * 5
    changed[0, t] = -torch.inf
    before, after = run(rule, log_prob)[1], run(rule, changed)[1]
    torch.testing.assert_close(after.log_weights[:, : t + 1], before.log_weights[:, : t + 1])
    torch.testing.assert_close(after.log_prob[:t], before.log_prob[:t])
    assert not torch.allclose(after.log_prob[t:], before.log_prob[t:])


@pytest.mark.parametrize("scale", [0.1, 3.0, 50.0])
def test_weights_sum_to_one(rule, scale):
    log_prob = densities(5, 200, scale=scale)
    state, output = run(rule, log_prob)
    total = output.log_weights.logsumexp(0)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-11)
    assert float(rule.log_weights(state).logsumexp(0)) == pytest.approx(0, abs=1e-11)
    torch.testing.assert_close(output.log_prob, (output.log_weights + log_prob).logsumexp(0))


def test_permutation_equivariance(rule):
    log_prob, order = densities(6, 50, scale=1.0), torch.tensor([3, 1, 5, 0, 2, 4])
    (plain_state, plain), (state, permuted) = run(rule, log_prob), run(rule, log_prob[order])
    torch.testing.assert_close(permuted.log_weights.exp(), plain.log_weights[order].exp(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(permuted.log_prob, plain.log_prob)
    torch.testing.assert_close(
        rule.log_weights(state).exp(), rule.log_weights(plain_state)[order].exp(), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("num_steps", [1, 64])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_finite_at_extreme_log_densities(rule, num_steps, scale):
    log_prob = densities(7, num_steps, scale=scale) - 1e6
    log_prob[1] += scale
    state, output = run(rule, log_prob)
    assert torch.isfinite(output.log_prob).all()
    assert not torch.isnan(output.log_weights).any()
    assert not torch.isnan(state.log_weights).any()
    if scale == 1.0:  # weights see differences only
        shifted = run(rule, log_prob + 1e6)[1]
        torch.testing.assert_close(shifted.log_weights, output.log_weights, rtol=1e-6, atol=1e-6)


def test_missing_target_teaches_nothing(rule):
    state = run(rule, densities(8, 9))[0]
    after, output = rule.update_block(state, state.log_weights.new_zeros(M, 1))
    assert float(output.log_prob) == pytest.approx(0, abs=1e-12)
    fresh = rule.update_block(rule.init(M, densities(8, 1)), densities(8, 1) * 0)[0]  # equal weights stay equal
    torch.testing.assert_close(fresh.log_weights.exp(), torch.full((M,), 1 / M, dtype=torch.float64))
    order = output.log_weights[:, 0].argsort()
    assert (after.log_weights[order].diff() >= -1e-12).all()  # sharing and forgetting keep the order of experts
    if isinstance(rule, OnlineNewton | DiscountedOnlineNewton):
        torch.testing.assert_close(after.log_weights.exp(), state.log_weights.exp(), rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("wrong_default_dtype")
@pytest.mark.parametrize("num_steps", [1, 50])
def test_float32(rule, num_steps):
    log_prob = densities(9, num_steps).float().double()
    exact = run(rule, log_prob)[1]
    state, output = run(rule, log_prob.float())
    for tensor in (*output, state.log_weights, rule.log_weights(state)):
        assert tensor.dtype == torch.float32
    torch.testing.assert_close(output.log_weights.double().exp(), exact.log_weights.exp(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(output.log_prob.double(), exact.log_prob, rtol=1e-3, atol=1e-3)


def test_gradients_of_first_order_rules(first):
    log_prob = densities(10, 5, scale=1.0)

    def scores(values):
        state, output = first.update_block(first.init(M, values.detach()), values)
        return output.log_prob, output.log_weights.exp(), first.log_weights(state).exp()

    assert torch.autograd.gradcheck(scores, (log_prob.clone().requires_grad_(),))


def test_gradients_of_newton_rules_take_weights_for_constants(second):
    log_prob = densities(10, 5).requires_grad_()
    output = run(second, log_prob)[1]
    (gradient,) = torch.autograd.grad(output.log_prob.sum(), log_prob)
    posterior = torch.softmax(output.log_weights + log_prob.detach(), 0)
    torch.testing.assert_close(gradient, posterior)


def test_vmap_equals_a_loop(first):
    batch = torch.stack([densities(seed, 6) for seed in range(3)])
    state = first.init(M, batch)
    together = torch.func.vmap(lambda values: first.update_block(state, values)[1].log_weights)(batch)
    for values, weights in zip(batch, together, strict=True):
        torch.testing.assert_close(weights, first.update_block(state, values)[1].log_weights)


def test_meta_device(rule):
    log_prob = densities(0, 7).to("meta")
    state, output = rule.to("meta").update_block(rule.init(M, log_prob), log_prob)
    assert state.log_weights.shape == (M,)
    assert output.log_weights.shape == (M, 7)
    assert output.log_prob.shape == (7,)


def test_state_round_trip(rule, tmp_path):
    log_prob = densities(12, 20)
    state = run(rule, log_prob)[0]
    torch.save(state._asdict(), tmp_path / "state.pt")
    back = MetaState(**torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(
        rule.update_block(back, log_prob)[1], rule.update_block(state, log_prob)[1], rtol=0, atol=0
    )


def test_updates_leave_the_state_before_alone(rule):
    state = run(rule, densities(13, 20))[0]
    copy = MetaState(*(part.clone() for part in state))
    rule.update_block(state, densities(14, 40))
    rule.update_block(state, densities(14, 1))
    torch.testing.assert_close(state, copy, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("num_steps", [1, 10])
def test_undefined_densities_raise_and_name_expert_and_step(rule, bad, num_steps):
    log_prob = densities(13, num_steps)
    log_prob[3, num_steps // 2] = bad
    with pytest.raises(NumericalError, match=f"expert 3 at step {num_steps // 2}"):
        run(rule, log_prob)


def test_bad_blocks(rule):
    state = rule.init(M, densities(0, 1))
    for num_experts in (5, 7):
        with pytest.raises(ValueError, match=r"shape \(6, B\)"):
            rule.update_block(state, densities(0, 4, num_experts=num_experts))
    with pytest.raises(TypeError, match="float32"):
        rule.update_block(state, densities(0, 4).float())
    with pytest.raises(ValueError, match="at least one expert"):
        FixedShare().init(0, densities(0, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DynamicModelAveraging(0.0), "forgetting"),
        (lambda: DynamicModelAveraging(1.1), "forgetting"),
        (lambda: FixedShare(1.0), "share must be at least 0"),
        (lambda: ExponentiatedGradient(0.0), "learning_rate"),
        (lambda: ExponentiatedGradient(math.inf), "learning_rate"),
        (lambda: ExponentiatedGradient(0.1, -0.1), "share must be at least 0"),
        (lambda: SoftBayes(1.0), "learning_rate"),
        (lambda: OnlineNewton(share=0.0), "share must be above 0"),
        (lambda: OnlineNewton(beta=0.0), "beta"),
        (lambda: OnlineNewton(delta=math.nan), "delta"),
        (lambda: DiscountedOnlineNewton(discount=0.0), "discount"),
        (lambda: DiscountedOnlineNewton(epsilon=-1.0), "epsilon"),
    ],
)
def test_bad_constants(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_fixed_share_is_sticky_switching():
    log_prob, share = densities(15, 60, scale=10.0), 0.07
    one = run(FixedShare(share), log_prob)[1]
    other = run(MarkovSwitching(sticky_transition(M, 1 - share + share / M)), log_prob)[1]
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rule", [FixedShare(0.0), DynamicModelAveraging(1.0)], ids=["share", "forgetting"])
def test_rules_that_forget_nothing_are_averaging(rule):
    log_prob = densities(16, 60, scale=10.0)
    torch.testing.assert_close(run(rule, log_prob)[1], run(BayesianModelAveraging(), log_prob)[1])


def test_an_impossible_target_under_the_weights_in_force_is_survived_without_a_share():
    rule = DiscountedOnlineNewton(share=0.0)
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
            (DynamicModelAveraging(0.99), "dma_0.99"),
            (FixedShare(0.01), "switching_fixedshare_0.01"),
            (ExponentiatedGradient(0.01, 0.0), "eg_eta0.01"),
            (ExponentiatedGradient(0.1, 0.0), "eg_eta0.1"),
            (ExponentiatedGradient(1.0, 0.0), "eg_eta1"),
            (ExponentiatedGradient(), "eg_share_eta0.01_delta1e-3"),
            (SoftBayes(), "softbayes_anytime"),
        ):
            weights = run(rule, log_prob)[1].log_weights.T
            np.testing.assert_allclose(weights, data[key], rtol=1e-8, atol=1e-8, err_msg=key)
        for newton, key in (
            (OnlineNewton(), "ons_delta0.8_beta0.01_eta0.01"),
            (DiscountedOnlineNewton(share=0.0), "dons_beta1_gamma0.99"),
        ):
            weights = run(newton, log_prob)[1].log_weights.exp().T
            np.testing.assert_allclose(weights, data[key], rtol=0, atol=1e-9, err_msg=key)
