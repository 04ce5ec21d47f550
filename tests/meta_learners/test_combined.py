"""Rules of rules against their definition, and their bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import meta_learners as meta


def densities(num_experts=5, num_steps=60, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_experts, num_steps, generator=g, dtype=torch.float64)


def build():
    rules = [meta.FixedShare(0.05), meta.SoftBayes(0.1), meta.DiscountedOnlineNewton()]
    return meta.CombinedRules(rules, over=meta.MarkovSwitching(meta.sticky_transition(3, 0.9)))


@pytest.mark.parametrize("sizes", [(60,), (1,) * 60, (7, 50, 3)])
def test_it_is_the_mixture_of_the_mixtures(sizes):
    log_prob = densities()
    log_prob[:, 11] = 0.0  # a missing target
    rule = build()
    outputs = [part.update_block(part.init(5, log_prob), log_prob)[1] for part in rule.rules]
    stacked = torch.stack([output.log_prob for output in outputs])
    _, above = rule.over.update_block(rule.over.init(3, stacked), stacked)
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


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 50.0))
@settings(max_examples=25)
def test_its_loss_is_that_of_the_best_rule_and_log_r(seed, scale):
    log_prob = densities(seed=seed, scale=scale)
    rules = [meta.FixedShare(0.05), meta.SoftBayes(0.1)]
    rule = meta.CombinedRules(rules, over=meta.BayesianModelAveraging())
    _, output = rule.update_block(rule.init(5, log_prob), log_prob)
    best = max(float(r.update_block(r.init(5, log_prob), log_prob)[1].log_prob.sum()) for r in rules)
    assert float(output.log_prob.sum()) >= best - math.log(2) - 1e-9


def test_growth():
    log_prob = densities()
    rule = meta.CombinedRules([meta.FixedShare(0.05), meta.SoftBayes(0.1)], over=meta.FixedShare(0.02))
    state, _ = rule.update_block(rule.init(5, log_prob), log_prob)
    grown = rule.grow(state, 2, 0.1)
    weights = rule.log_weights(grown).exp()
    assert weights.shape == (7,)
    assert float(weights.sum()) == pytest.approx(1)
    assert 0.05 < float(weights[5:].sum()) < 0.2
    rule.update_block(grown, densities(7))


def test_a_class_is_no_rule():
    with pytest.raises(TypeError, match="the class FixedShare; call it"):
        meta.CombinedRules([meta.FixedShare, meta.FixedShare()], over=meta.FixedShare())
    with pytest.raises(TypeError, match="got 'BMA'"):
        meta.CombinedRules([meta.FixedShare(), meta.FixedShare()], over="BMA")


def test_one_rule_is_not_enough():
    with pytest.raises(ValueError, match="at least two rules"):
        meta.CombinedRules([meta.SoftBayes()], over=meta.FixedShare())
