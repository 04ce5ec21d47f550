"""Rules of rules against their definitions and plain recursions, and what they can lose."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import meta_learners as meta

REFERENCES = (1, 4)


def densities(num_experts=5, num_steps=60, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_experts, num_steps, generator=g, dtype=torch.float64)


def oracle(own, log_prob, prior, share):
    """Weights (M, N) and log densities (N,) from those of the rule alone, (M, N): floats, one target after another."""
    num_experts, num_steps = log_prob.shape
    u, v = {place: 1 / len(REFERENCES) for place in REFERENCES}, prior
    weights, scores = [], []
    for t in range(num_steps):
        p = [math.exp(value) for value in log_prob[:, t].tolist()]
        w = [(1 - v) * own[m, t].item() + v * u.get(m, 0.0) for m in range(num_experts)]
        whole = sum(a * b for a, b in zip(w, p, strict=True))
        theirs = sum(u[m] * p[m] for m in REFERENCES)
        weights.append(w)
        scores.append(math.log(whole))
        v = (1 - share) * v * theirs / whole + share * prior
        u = {m: u[m] * p[m] / theirs for m in REFERENCES}
    return torch.tensor(weights, dtype=torch.float64).T, torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(60,), (1,) * 60, (7, 50, 3)])
def test_it_is_the_mixture_of_the_rule_and_the_references(sizes):
    log_prob = densities()
    log_prob[:, 11] = 0.0  # a missing target
    inner = meta.FixedShare(0.05)
    own = inner.update_block(inner.init(5, log_prob), log_prob)[1].log_weights.exp()
    want, scores = oracle(own, log_prob, 0.3, 0.02)
    rule = meta.ReferenceAveraging(inner, REFERENCES, prior=0.3, share=0.02)
    state, start, total = rule.init(5, log_prob), 0, []
    for size in sizes:
        torch.testing.assert_close(rule.log_weights(state).exp(), want[:, start], rtol=1e-9, atol=1e-12)
        state, output = rule.update_block(state, log_prob[:, start : start + size])
        torch.testing.assert_close(output.log_weights.exp(), want[:, start : start + size], rtol=1e-9, atol=1e-12)
        total.append(output.log_prob)
        start += size
    torch.testing.assert_close(torch.cat(total), scores, rtol=1e-9, atol=1e-12)
    assert torch.equal(rule.log_weights(state), state.log_weights)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 50.0), prior=st.floats(0.05, 0.9), share=st.floats(1e-4, 0.2))
@settings(max_examples=25)
def test_it_loses_no_more_than_its_bounds(seed, scale, prior, share):
    log_prob = densities(seed=seed, scale=scale)
    inner = meta.SoftBayes(0.1)
    rule = meta.ReferenceAveraging(inner, REFERENCES, prior, share)
    total = float(rule.update_block(rule.init(5, log_prob), log_prob)[1].log_prob.sum())
    alone = float(inner.update_block(inner.init(5, log_prob), log_prob)[1].log_prob.sum())
    best = float(log_prob[list(REFERENCES)].sum(1).max())
    assert total >= alone + math.log(1 - prior) + 60 * math.log(1 - share * prior) - 1e-8
    assert total >= best - math.log(2) + math.log(prior) + 60 * math.log(1 - share * (1 - prior)) - 1e-8


def test_small_differences_are_told_apart():
    """Five experts beside one that is 0.005 nats per row better: a fixed share cannot see it, two predictions can."""
    log_prob = torch.zeros(6, 5000, dtype=torch.float64)
    log_prob[3] = 0.005
    alone = meta.FixedShare(0.01)
    rule = meta.ReferenceAveraging(alone, [3])
    weights = [r.log_weights(r.update_block(r.init(6, log_prob), log_prob)[0]).exp()[3] for r in (alone, rule)]
    assert float(weights[0]) < 0.4
    assert float(weights[1]) > 0.8


def test_references_that_die_out_do_no_harm_and_come_back():
    log_prob = densities(num_steps=300, scale=0.1)
    log_prob[list(REFERENCES), :150] -= 20.0
    log_prob[list(REFERENCES), 150:] += 3.0
    log_prob[list(REFERENCES), 5] = -torch.inf  # impossible under both
    rule = meta.ReferenceAveraging(meta.FixedShare(0.0), REFERENCES)
    state, output = rule.update_block(rule.init(5, log_prob), log_prob)
    assert torch.isfinite(output.log_prob).all()
    assert float(output.log_weights[list(REFERENCES), 149].exp().sum()) < 1e-3
    assert float(state.log_weights[list(REFERENCES)].exp().sum()) > 0.99


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((meta.FixedShare, [0]), TypeError, "must be a weight rule"),
        ((meta.FixedShare(), []), ValueError, "at least one"),
        ((meta.FixedShare(), [1, 1]), ValueError, "distinct non-negative indices"),
        ((meta.FixedShare(), [-1]), ValueError, "distinct non-negative indices"),
        ((meta.FixedShare(), [0], 1.0), ValueError, "prior must lie between 0 and 1"),
        ((meta.FixedShare(), [0], 0.2, 0.0), ValueError, "share must be above 0"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        meta.ReferenceAveraging(*arguments)


def test_a_reference_that_is_not_there():
    with pytest.raises(ValueError, match="reference expert 5, but the ensemble has 5 experts"):
        meta.ReferenceAveraging(meta.FixedShare(), [5]).init(5, densities())


def one_pass():
    return meta.CombinedRules([meta.FixedShare(0.01), meta.SoftBayes(0.05)], over=meta.FixedShare(0.02))


def build():
    rules = [meta.FixedShare(0.05), meta.SoftBayes(0.1), meta.DiscountedOnlineNewton()]
    return meta.CombinedRules(rules, over=meta.MarkovSwitching(meta.sticky_transition(3, 0.9)))


def by_newton():
    return meta.CombinedRules([meta.FixedShare(0.05), meta.SoftBayes(0.1)], over=meta.DiscountedOnlineNewton())


def by_soft():
    return meta.CombinedRules([meta.FixedShare(0.05), meta.SoftBayes(0.1)], over=meta.SoftBayes(0.2))


@pytest.mark.parametrize("make", [build, one_pass, by_newton, by_soft])
@pytest.mark.parametrize("sizes", [(60,), (1,) * 60, (7, 50, 3)])
def test_it_is_the_mixture_of_the_mixtures(sizes, make):
    for wants_derivatives in (True, False):  # without, numpy weighs
        with torch.set_grad_enabled(wants_derivatives):
            check_mixture(make(), sizes)


def check_mixture(rule, sizes):
    log_prob = densities()
    log_prob[:, 11] = 0.0  # a missing target
    outputs = [part.update_block(part.init(5, log_prob), log_prob)[1] for part in rule.rules]
    stacked = torch.stack([output.log_prob for output in outputs])
    _, above = rule.over.update_block(rule.over.init(len(outputs), stacked), stacked)
    want = (above.log_weights.exp().unsqueeze(1) * torch.stack([o.log_weights.exp() for o in outputs])).sum(0)
    state, start, weights, total = rule.init(5, log_prob), 0, [], []
    for size in sizes:
        torch.testing.assert_close(rule.log_weights(state).exp(), want[:, start], rtol=1e-9, atol=1e-12)
        state, output = rule.update_block(state, log_prob[:, start : start + size])
        weights.append(output.log_weights.exp())
        total.append(output.log_prob)
        start += size
    torch.testing.assert_close(torch.cat(weights, dim=1), want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.cat(total), above.log_prob, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.cat(total), (want.log() + log_prob).logsumexp(0), rtol=1e-9, atol=1e-9)


def test_a_class_is_no_rule():
    with pytest.raises(TypeError, match="the class FixedShare; instantiate it"):
        meta.CombinedRules([meta.FixedShare, meta.FixedShare()], over=meta.FixedShare())
    with pytest.raises(TypeError, match="got 'BMA'"):
        meta.CombinedRules([meta.FixedShare(), meta.FixedShare()], over="BMA")


def test_one_rule_is_not_enough():
    with pytest.raises(ValueError, match="at least two rules"):
        meta.CombinedRules([meta.SoftBayes()], over=meta.FixedShare())


@pytest.mark.parametrize(
    "rule", [one_pass(), meta.ReferenceAveraging(one_pass(), references=[3, 5])], ids=["combined", "reference"]
)
@torch.no_grad()
def test_rows_one_at_a_time_are_the_block(rule):
    log_prob = densities(6, 80, scale=3.0)
    log_prob[3, 30:50] += 60.0  # the weights of all others fall far
    log_prob[:, 10] -= 700.0
    log_prob[:, 20] = 0.0  # a missing target
    log_prob[:, 60] = -torch.inf  # an impossible one
    state = rule.init(6, log_prob)
    after, found = rule.update_block(state, log_prob)
    parts = []
    for column in log_prob.split(1, 1):
        before = [part.clone() for part in state]
        following, output = rule.update_block(state, column)
        assert all(torch.equal(old, new) for old, new in zip(before, state, strict=True))
        state = following
        torch.testing.assert_close(rule.log_weights(state), state.log_weights)
        parts.append(output)
    torch.testing.assert_close(torch.cat([part.log_weights for part in parts], 1), found.log_weights)
    torch.testing.assert_close(torch.cat([part.log_prob for part in parts]), found.log_prob)
    torch.testing.assert_close(state, after)
