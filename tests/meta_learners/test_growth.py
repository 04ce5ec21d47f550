"""Experts that join a running ensemble, and dead ones that come back."""

import copy
import math

import pytest
import torch

from gp_ensembles import meta_learners as meta
from tests.meta_learners.rules import each
from tests.refusals import refused

RULES = {
    "averaging": lambda n: meta.BayesianModelAveraging(),
    "averaging, prior": lambda n: meta.BayesianModelAveraging(torch.arange(1.0, n + 1)),
    "averaging, pruned": lambda n: meta.BayesianModelAveraging(prune_below=1e-12),
    "switching": lambda n: meta.MarkovSwitching(meta.sticky_transition(n, 0.95)),
    "dynamic averaging": lambda n: meta.DynamicModelAveraging(0.9),
    "fixed share": lambda n: meta.FixedShare(),
    "gradient": lambda n: meta.ExponentiatedGradient(),
    "soft": lambda n: meta.SoftBayes(),
    "newton": lambda n: meta.OnlineNewton(),
    "discounted": lambda n: meta.DiscountedOnlineNewton(),
    "averaged with references": lambda n: meta.ReferenceAveraging(meta.FixedShare(), [0, 2]),
}


# As factories, which take the number of experts.
FACTORIES = {name: (lambda make=make: make) for name, make in RULES.items()}


def densities(generator, num_experts, num_steps, scale=1.0):
    return scale * torch.randn(num_experts, num_steps, generator=generator, dtype=torch.float64)


@each(FACTORIES)
def test_new_experts_get_their_share_and_old_ones_keep_their_proportions(make, generator):
    log_prob = densities(generator, 4, 25)
    state = make(4).update_block(make(4).init(4, log_prob), log_prob)[0]
    kept = [part.clone() for part in state]
    grown = make(6).grow(state, 2, 0.1)
    weights = grown.log_weights.exp()
    torch.testing.assert_close(weights[4:], torch.full((2,), 0.05, dtype=torch.float64))
    torch.testing.assert_close(weights[:4], 0.9 * state.log_weights.exp())
    assert grown.num_seen == state.num_seen
    assert all(torch.equal(part, old) for part, old in zip(state, kept, strict=True))
    assert grown.memory.shape == make(6).init(6, log_prob).memory.shape


@each(FACTORIES)
def test_a_grown_state_goes_on_and_a_good_new_expert_takes_over(make, generator):
    log_prob = densities(generator, 4, 25)
    state = make(4).update_block(make(4).init(4, log_prob), log_prob)[0]
    rule = make(6)
    state = rule.grow(state, 2, 0.1)
    better = densities(generator, 6, 400)
    better[5] += 3.0
    in_force = rule.log_weights(state)
    state, output = rule.update_block(state, better)
    torch.testing.assert_close(output.log_weights[:, 0], in_force)
    assert int(rule.log_weights(state).argmax()) == 5
    total = output.log_weights.logsumexp(0)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["newton", "discounted"])
def test_the_new_experts_past_is_the_mixtures(name, generator):
    rule, log_prob = RULES[name](4), densities(generator, 3, 30)
    state = rule.update_block(rule.init(3, log_prob), log_prob)[0]
    grown = rule.grow(state, 1, 0.2)
    weights = state.memory[:, -1] if name == "discounted" else state.log_weights.exp()
    learned = state.memory[:, :3] - torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(grown.memory[:3, 3], learned @ weights)
    torch.testing.assert_close(grown.memory[3, 3], 1 + weights @ learned @ weights)
    torch.testing.assert_close(grown.memory[:3, :3], state.memory[:, :3])
    assert torch.linalg.eigvalsh(grown.memory[:, :4]).min() > 0.99
    if name == "discounted":
        leader = rule.grow(state, 2, 0.2).memory[:, -1]
        torch.testing.assert_close(leader, torch.cat([0.8 * weights, torch.full((2,), 0.1, dtype=torch.float64)]))


@each(FACTORIES)
def test_growing_by_nothing_or_by_an_illegal_share_is_refused(make, generator):
    state = make(4).init(4, densities(generator, 4, 1))
    with pytest.raises(ValueError, match="num_new must be at least 1"):
        make(4).grow(state, 0, 0.1)
    for share in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match="share must be above 0 and below 1"):
            make(5).grow(state, 1, share)


def test_rules_for_a_number_of_experts_refuse_another(generator):
    for name in ("switching", "averaging, prior"):
        state = RULES[name](4).init(4, densities(generator, 4, 1))
        with pytest.raises(ValueError, match="built for 4 experts, but the ensemble has 5"):
            RULES[name](4).grow(state, 1, 0.1)
    rule = RULES["averaging, pruned"](4)
    refused(ValueError, "prune_below", lambda: rule.grow(rule.init(4, densities(generator, 4, 1)), 1, 1e-13))


def test_the_dead_come_back(generator):
    rule = meta.BayesianModelAveraging(prune_below=1e-6)
    log_prob = densities(generator, 4, 40)
    log_prob[1:3] -= 5.0
    state = rule.update_block(rule.init(4, log_prob), log_prob)[0]
    assert torch.isneginf(state.log_weights).tolist() == [False, True, True, False]
    kept = state.log_weights.clone()
    revived = rule.revive(state, torch.tensor([2]), 0.25)
    gained = torch.tensor([0.0, 0.0, 0.25, 0.0], dtype=torch.float64)
    torch.testing.assert_close(revived.log_weights.exp(), 0.75 * kept.exp() + gained)
    assert torch.equal(state.log_weights, kept)
    log_prob[2] += 10.0
    assert int(rule.update_block(revived, log_prob)[0].log_weights.argmax()) == 2


@pytest.mark.parametrize(
    "make_over",
    [
        lambda rule: meta.CombinedRules([rule, copy.deepcopy(rule)], over=meta.FixedShare(0.02)),
        lambda rule: meta.ReferenceAveraging(rule, [0]),
    ],
    ids=["combined", "reference"],
)
def test_rules_of_rules_say_that_the_dead_stay_dead(make_over, generator):
    rule = make_over(meta.BayesianModelAveraging(prune_below=1e-6))
    log_prob = densities(generator, 4, 40)
    log_prob[1:3] -= 5.0
    state = rule.update_block(rule.init(4, log_prob), log_prob)[0]
    assert torch.isneginf(rule.log_weights(state)).tolist() == [False, True, True, False]
    refused(ValueError, "cannot revive experts", lambda: rule.revive(state, torch.tensor([2]), 0.25))


@each(FACTORIES)
def test_bad_revivals(make, generator):
    rule = make(4)
    state = rule.init(4, densities(generator, 4, 1))
    state = state._replace(log_weights=torch.tensor([0.0, -math.inf, -math.inf, -math.inf], dtype=torch.float64))
    for experts, share, message in (
        (torch.tensor([0]), 0.1, "expert 0 already has weight"),
        (torch.tensor([4]), 0.1, "no expert 4"),
        (torch.tensor([-1]), 0.1, "no expert -1"),
        (torch.tensor([1, 1]), 0.1, "distinct indices"),
        (torch.tensor([[1]]), 0.1, "distinct indices"),
        (torch.tensor([], dtype=torch.int64), 0.1, "distinct indices"),
        (torch.tensor([1]), 0.0, "share must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            rule.revive(state, experts, share)
    refused(TypeError, "int64", lambda: rule.revive(state, torch.tensor([1.0]), 0.1))


@pytest.mark.parametrize(
    "rule", [meta.OnlineNewton(), meta.DiscountedOnlineNewton()], ids=lambda rule: type(rule).__name__
)
def test_growing_from_a_state_without_the_memory(rule, generator):
    state = meta.FixedShare().init(3, densities(generator, 3, 1))
    with pytest.raises(ValueError, match=f"{type(rule).__name__} needs a memory of 4 numbers .* state has 0"):
        rule.grow(state, 1, 0.1)
