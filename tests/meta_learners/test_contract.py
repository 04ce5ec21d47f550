"""The contract that every weight rule keeps."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import meta_learners as meta
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.numerics.cholesky import NumericalError
from tests.meta_learners.rules import BAYES, FIRST_ORDER, RULES, SECOND_ORDER, SYMMETRIC, M, densities, each, run


def is_bayes(rule):
    """Whether weights follow from Bayes' rule alone, so that their logarithms keep all digits."""
    return isinstance(rule, BayesianModelAveraging | MarkovSwitching)


def assert_weights_near(rule, got, want, rtol=1e-8, atol=1e-10):
    if is_bayes(rule):
        torch.testing.assert_close(got, want)
    else:
        torch.testing.assert_close(got.exp(), want.exp(), rtol=rtol, atol=atol)


@settings(max_examples=80)
@given(
    cuts=st.lists(st.integers(0, 50), max_size=6),
    name=st.sampled_from([*BAYES, *FIRST_ORDER, *SECOND_ORDER]),
    seed=st.integers(0, 99),
)
def test_any_blocking_is_equal(cuts, name, seed):
    rule, log_prob = RULES[name](), densities(seed, 50, scale=2.0 if name in SECOND_ORDER else 30.0)
    if "no share" in name:
        log_prob = log_prob / 30
    log_prob[:, 20] = 0.0
    log_prob[1, 30] = -torch.inf
    near = {"rtol": 1e-10, "atol": 1e-9} if name in BAYES else {"rtol": 1e-7, "atol": 1e-8}
    whole_state, whole = run(rule, log_prob)
    state, outputs = rule.init(M, log_prob), []
    for start, stop in itertools.pairwise(sorted({0, 50, *cuts})):
        now, want = rule.log_weights(state), whole.log_weights[:, start]
        if name in BAYES:
            torch.testing.assert_close(now, want, **near)
        else:
            torch.testing.assert_close(now.exp(), want.exp(), rtol=1e-9, atol=1e-9)
        state, output = rule.update_block(state, log_prob[:, start:stop])
        outputs.append(output)
    torch.testing.assert_close(torch.cat([o.log_weights for o in outputs], 1), whole.log_weights, **near)
    torch.testing.assert_close(torch.cat([o.log_prob for o in outputs]), whole.log_prob, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.memory, whole_state.memory, rtol=1e-8, atol=1e-8)
    if name in BAYES:
        torch.testing.assert_close(state.log_weights, whole_state.log_weights, **near)
    assert int(state.num_seen) == int(whole_state.num_seen) == 50


@each(RULES)
def test_empty_block_changes_nothing(rule):
    state = rule.init(M, densities(0, 1))
    after, output = rule.update_block(state, densities(0, 1)[:, :0])
    assert (output.log_weights.shape, output.log_prob.shape) == ((M, 0), (0,))
    torch.testing.assert_close(after, state, rtol=0, atol=0)


@each(RULES)
def test_weights_never_see_their_own_target(rule):
    log_prob = densities(3, 40)
    before = run(rule, log_prob)[1]
    for t in (0, 17, 39):
        changed = log_prob.clone()
        changed[:, t] = densities(4, 1)[:, 0] * 5
        changed[0, t] = -torch.inf
        after = run(rule, changed)[1]
        torch.testing.assert_close(after.log_weights[:, : t + 1], before.log_weights[:, : t + 1])
        torch.testing.assert_close(after.log_prob[:t], before.log_prob[:t])
        assert not torch.allclose(after.log_prob[t:], before.log_prob[t:])


@each(RULES)
def test_weights_sum_to_one(rule):
    for scale in (0.1, 3.0, 50.0):
        log_prob = densities(5, 200, scale=scale)
        state, output = run(rule, log_prob)
        total = output.log_weights.logsumexp(0)
        torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-11)
        assert float(rule.log_weights(state).logsumexp(0)) == pytest.approx(0, abs=1e-11)
        torch.testing.assert_close(output.log_prob, (output.log_weights + log_prob).logsumexp(0))


@each(SYMMETRIC)
def test_permutation_equivariance(rule):
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    log_prob = densities(6, 50, scale=3.0 if is_bayes(rule) else 1.0)
    (plain_state, plain), (state, permuted) = run(rule, log_prob), run(rule, log_prob[order])
    assert_weights_near(rule, permuted.log_weights, plain.log_weights[order])
    torch.testing.assert_close(permuted.log_prob, plain.log_prob)
    assert_weights_near(rule, rule.log_weights(state), rule.log_weights(plain_state)[order])


@each(RULES)
def test_finite_at_extreme_log_densities(rule):
    for num_steps, scale in itertools.product((1, 64), (1.0, 10.0, 1e3)):
        log_prob = densities(7, num_steps, scale=scale) - 1e6
        log_prob[1] += scale
        state, output = run(rule, log_prob)
        assert torch.isfinite(output.log_prob).all()
        assert not torch.isnan(output.log_weights).any()
        assert not torch.isnan(state.log_weights).any()
        if scale == 1.0 or (is_bayes(rule) and scale == 10.0):  # weights see differences only
            shifted = run(rule, log_prob + 1e6)[1]
            near = {"rtol": 1e-8, "atol": 1e-7} if is_bayes(rule) else {"rtol": 1e-6, "atol": 1e-6}
            torch.testing.assert_close(shifted.log_weights, output.log_weights, **near)


@each(SYMMETRIC)
def test_missing_target_teaches_nothing(rule):
    state = run(rule, densities(8, 9))[0]
    after, output = rule.update_block(state, state.log_weights.new_zeros(M, 1))
    assert float(output.log_prob) == pytest.approx(0, abs=1e-12)
    fresh = rule.update_block(rule.init(M, densities(8, 1)), densities(8, 1) * 0)[0]  # equal weights stay equal
    torch.testing.assert_close(fresh.log_weights.exp(), torch.full((M,), 1 / M, dtype=torch.float64))
    order = output.log_weights[:, 0].argsort()
    assert (after.log_weights[order].exp().diff() >= -1e-12).all()  # sharing and forgetting keep the order of experts
    if isinstance(rule, meta.OnlineNewton | meta.DiscountedOnlineNewton):
        torch.testing.assert_close(after.log_weights.exp(), state.log_weights.exp(), rtol=1e-9, atol=1e-11)


@each(BAYES)
def test_missing_target_leaves_the_weights_of_its_prediction(rule):
    state = run(rule, densities(8, 9))[0]
    after, output = rule.update_block(state, state.log_weights.new_zeros(M, 1))
    torch.testing.assert_close(output.log_prob, torch.zeros_like(output.log_prob), rtol=0, atol=1e-12)
    torch.testing.assert_close(after.log_weights, output.log_weights[:, 0])


@pytest.mark.usefixtures("wrong_default_dtype")
@each(RULES)
def test_float32(rule):
    for num_steps in (1, 50):
        log_prob = densities(9, num_steps) if is_bayes(rule) else densities(9, num_steps).float().double()
        exact = run(rule, log_prob)[1]
        state, output = run(rule, log_prob.float())
        for tensor in (*output, state.log_weights, rule.log_weights(state)):
            assert tensor.dtype == torch.float32
        found = output.log_weights.double()
        if not is_bayes(rule):
            torch.testing.assert_close(found.exp(), exact.log_weights.exp(), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(output.log_prob.double(), exact.log_prob, rtol=1e-3, atol=1e-3)
        elif getattr(rule, "prune_below", None) is None:
            torch.testing.assert_close(found, exact.log_weights, rtol=1e-4, atol=1e-3)


@each(BAYES | FIRST_ORDER)
def test_gradients(rule):
    log_prob = densities(10, 5, scale=1.0)

    def scores(values):
        state, output = rule.update_block(rule.init(M, values.detach()), values)
        after = (state.log_weights.exp(),) if is_bayes(rule) else ()
        return output.log_prob, output.log_weights.exp(), rule.log_weights(state).exp(), *after

    assert torch.autograd.gradcheck(scores, (log_prob.clone().requires_grad_(),))
    if is_bayes(rule):
        assert torch.autograd.gradcheck(lambda v: scores(v)[0], (log_prob[:, :1].clone().requires_grad_(),))


@each(BAYES)
def test_gradients_are_finite_where_targets_are_impossible(rule):
    log_prob = densities(11, 8)
    log_prob[:, 3] = -torch.inf
    log_prob[0, 5] = -torch.inf
    log_prob.requires_grad_()
    output = rule.update_block(rule.init(M, log_prob.detach()), log_prob)[1]
    (gradient,) = torch.autograd.grad(output.log_prob[torch.isfinite(output.log_prob)].sum(), log_prob)
    assert torch.isfinite(gradient).all()


@each(SECOND_ORDER)
def test_gradients_of_newton_rules_take_weights_for_constants(rule):
    log_prob = densities(10, 5).requires_grad_()
    output = run(rule, log_prob)[1]
    (gradient,) = torch.autograd.grad(output.log_prob.sum(), log_prob)
    posterior = torch.softmax(output.log_weights + log_prob.detach(), 0)
    torch.testing.assert_close(gradient, posterior)


@each(BAYES | FIRST_ORDER)
def test_vmap_equals_a_loop(rule):
    batch = torch.stack([densities(seed, 6) for seed in range(3)])
    state = rule.init(M, batch)
    together = torch.func.vmap(lambda values: rule.update_block(state, values)[1].log_weights)(batch)
    for values, weights in zip(batch, together, strict=True):
        torch.testing.assert_close(weights, rule.update_block(state, values)[1].log_weights)


@each(RULES)
def test_meta_device(rule):
    log_prob = densities(0, 7).to("meta")
    state, output = rule.to("meta").update_block(rule.init(M, log_prob), log_prob)
    assert (state.log_weights.shape, output.log_weights.shape, output.log_prob.shape) == ((M,), (M, 7), (7,))


@each(RULES)
def test_state_round_trip(rule, tmp_path):
    log_prob = densities(12, 20)
    state = run(rule, log_prob)[0]
    torch.save(state._asdict(), tmp_path / "state.pt")
    back = MetaState(**torch.load(tmp_path / "state.pt", weights_only=True))
    found, want = (rule.update_block(start, log_prob)[1] for start in (back, state))
    torch.testing.assert_close(found, want, rtol=0, atol=0)


@each(RULES)
def test_updates_leave_the_state_before_alone(rule):
    state = run(rule, densities(13, 20))[0]
    copy = MetaState(*(part.clone() for part in state))
    rule.update_block(state, densities(14, 40))
    rule.update_block(state, densities(14, 1))
    torch.testing.assert_close(state, copy, rtol=0, atol=0)


@each(RULES)
def test_undefined_densities_raise_and_name_expert_and_step(rule):
    for bad, num_steps in itertools.product((math.nan, math.inf), (1, 10)):
        log_prob = densities(13, num_steps)
        log_prob[3, num_steps // 2] = bad
        with pytest.raises(NumericalError, match=f"expert 3 at step {num_steps // 2}"):
            run(rule, log_prob)


@each(RULES)
def test_bad_blocks(rule):
    state = rule.init(M, densities(0, 1))
    for block in (densities(0, 4, num_experts=5), densities(0, 4, num_experts=7), densities(0, 1)[:, 0]):
        with pytest.raises(ValueError, match=r"shape \(6, B\)"):
            rule.update_block(state, block)
    with pytest.raises(TypeError, match="float32"):
        rule.update_block(state, densities(0, 4).float())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: meta.FixedShare().init(0, densities(0, 1)), "at least one expert"),
        (lambda: meta.DynamicModelAveraging(0.0), "forgetting"),
        (lambda: meta.DynamicModelAveraging(1.1), "forgetting"),
        (lambda: meta.FixedShare(1.0), "share must be at least 0"),
        (lambda: meta.ExponentiatedGradient(0.0), "learning_rate"),
        (lambda: meta.ExponentiatedGradient(math.inf), "learning_rate"),
        (lambda: meta.ExponentiatedGradient(0.1, -0.1), "share must be at least 0"),
        (lambda: meta.SoftBayes(1.0), "learning_rate"),
        (lambda: meta.OnlineNewton(share=0.0), "share must be above 0"),
        (lambda: meta.OnlineNewton(beta=0.0), "beta"),
        (lambda: meta.OnlineNewton(delta=math.nan), "delta"),
        (lambda: meta.DiscountedOnlineNewton(discount=0.0), "discount"),
        (lambda: meta.DiscountedOnlineNewton(epsilon=-1.0), "epsilon"),
    ],
)
def test_bad_constants(call, message):
    with pytest.raises(ValueError, match=message):
        call()
