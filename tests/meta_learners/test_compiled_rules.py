"""Rules run in one pass, and two experts in plain numbers, are what each rule is by itself."""

import numpy as np
import pytest
import torch

from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    FixedShare,
    MarkovSwitching,
    ReferenceAveraging,
    SoftBayes,
)
from gp_ensembles.meta_learners.compiled_rules import run_row, run_together
from gp_ensembles.meta_learners.one_row import RowRule
from gp_ensembles.meta_learners.switching import is_pair, switch_pair


def densities(num_experts, num_rows=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num_experts)
    return 3 * torch.randn(num_experts, num_rows, generator=generator, dtype=torch.float64).to(dtype)


def step_by_step(keep, gain, share, log_weights, log_prob):
    """The recursion as it is written, in plain numbers; log weights before each target, densities, and those after."""
    weights, num = log_weights.exp(), log_weights.shape[0]
    before, found = [], []
    for column in log_prob.exp().unbind(1):
        before.append(weights)
        found.append(weights @ column)
        weights = weights * (keep + gain * column / found[-1]) + share / num
    return torch.stack(before, 1), torch.stack(found).log(), weights


def test_rules_in_one_pass_are_their_recursions():
    log_prob = densities(7)
    rules = [FixedShare(0.03), SoftBayes(0.2), FixedShare(0.3)]
    forms = [(0.0, 0.97, 0.03), (0.8, 0.2, 0.0), (0.0, 0.7, 0.3)]
    states = [rule.init(7, log_prob) for rule in rules]
    found = run_together(rules, states, log_prob)
    for number, (state, form) in enumerate(zip(states, forms, strict=True)):
        before, density, after = step_by_step(*form, state.log_weights, log_prob)
        torch.testing.assert_close((found.weights[:, number].mT, found.log_prob[number]), (before, density))
        torch.testing.assert_close(found.states[number].log_weights.exp(), after)
        assert int(found.states[number].num_seen) == 40


def test_a_weight_of_any_smallness_keeps_its_logarithm():
    log_prob = densities(3)
    rules = [FixedShare(0.1), SoftBayes(0.1)]
    states = [rule.init(3, log_prob) for rule in rules]
    tiny = torch.tensor([-900.0, 0.0, -40.0], dtype=torch.float64)
    states[1] = states[1]._replace(log_weights=tiny - tiny.logsumexp(0))
    alone, _ = rules[1].update_block(states[1], log_prob)
    torch.testing.assert_close(run_together(rules, states, log_prob).states[1].log_weights, alone.log_weights)
    assert -1000 < float(alone.log_weights[0]) < -700


def test_what_is_not_run_in_one_pass():
    log_prob = densities(3)
    likely, never = [FixedShare(), SoftBayes(0.1)], torch.full((3, 1), -torch.inf, dtype=torch.float64)

    def runs(rules, values):
        return run_together(rules, [rule.init(3, values) for rule in rules], values) is not None

    assert runs(likely, log_prob)
    assert not runs([FixedShare(), SoftBayes()], log_prob)  # the anytime rate
    assert not runs([FixedShare(), BayesianModelAveraging()], log_prob)
    assert not runs([SoftBayes(0.1), SoftBayes(0.2)], log_prob)  # weights may vanish under all
    assert not runs(likely, torch.cat([log_prob, never], dim=1))
    assert not runs(likely, torch.cat([log_prob, torch.nan * never], dim=1))


@pytest.mark.parametrize("make", [lambda: FixedShare(0.05), lambda: MarkovSwitching(switching())])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_experts_in_plain_numbers_are_the_rule(make, dtype):
    """With derivatives wanted the same rule runs on tensors."""
    log_prob, rule = densities(2, dtype=dtype), make()
    start = rule.init(2, log_prob)
    assert not is_pair(log_prob)
    wanted_state, wanted = rule.update_block(start, log_prob)
    with torch.no_grad():
        assert is_pair(log_prob)
        state, found = rule.update_block(start, log_prob)
        first, _ = rule.update_block(start, log_prob[:, :1])
        first, _ = rule.update_block(first, log_prob[:, 1:])
    torch.testing.assert_close((found.log_weights, found.log_prob), (wanted.log_weights, wanted.log_prob))
    for one in (state, first):
        torch.testing.assert_close(one.log_weights, wanted_state.log_weights)
        assert int(one.num_seen) == 40
    assert found.log_weights.dtype == dtype


def switching():
    return torch.tensor([[0.9, 0.2], [0.1, 0.8]], dtype=torch.float64)


def test_two_experts_leave_what_round_off_could_spoil():
    log_prob, half = densities(2), torch.full((2,), 0.5, dtype=torch.float64).log()
    assert switch_pair(torch.eye(2, dtype=torch.float64), half, log_prob) is None
    share = torch.full((2, 2), 0.5, dtype=torch.float64)
    assert switch_pair(share, half, torch.full_like(log_prob, -torch.inf)) is None
    assert switch_pair(share, half, torch.full_like(log_prob, torch.nan)) is None
    assert switch_pair(share, torch.tensor([0.0, -torch.inf], dtype=torch.float64), log_prob) is None
    assert torch.func.vmap(lambda values: torch.zeros(()) + (switch_pair(share, half, values) is None))(
        torch.stack([log_prob, log_prob])
    ).all()


def test_one_row_of_a_combination_is_its_recursion():
    rules, over = [FixedShare(0.03), SoftBayes(0.2)], FixedShare(0.1)
    forms = [(0.0, 0.97, 0.03), (0.8, 0.2, 0.0)]
    log_prob = densities(5, num_rows=1)
    generator = torch.Generator().manual_seed(1)
    own = torch.randn(5, 2, generator=generator, dtype=torch.float64).log_softmax(0)
    above = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    with torch.no_grad():
        row = run_row(rules, over, torch.cat([own, above.expand(5, -1)], dim=1), log_prob)
    mixtures = []
    for number, form in enumerate(forms):
        _, density, after = step_by_step(*form, own[:, number], log_prob)
        torch.testing.assert_close(row.learned[:, number].exp(), after)
        mixtures.append(density)
    _, density, after = step_by_step(0.0, 0.9, 0.1, above, torch.stack(mixtures))
    torch.testing.assert_close((row.over.exp(), row.joint.exp()), (after, row.learned.exp() @ after))
    torch.testing.assert_close((row.log_weights.squeeze(1).exp(), row.log_prob), (own.exp() @ above.exp(), density))


def test_one_row_is_left_to_the_rules_where_numbers_do_not_suffice():
    rules, over, log_prob = [FixedShare(0.03), SoftBayes(0.2)], FixedShare(0.1), densities(5, num_rows=1)
    before = torch.full((5, 4), 0.2, dtype=torch.float64).log()
    assert run_row(rules, over, before, log_prob) is None  # derivatives are wanted
    with torch.no_grad():
        assert run_row(rules, over, before, log_prob) is not None
        assert run_row(rules, over, before.float(), log_prob.float()) is None
        assert run_row([SoftBayes(0.1), SoftBayes(0.2)], over, before, log_prob) is None  # a weight may vanish
        assert run_row([FixedShare(0.1), BayesianModelAveraging()], over, before, log_prob) is None
        assert run_row(rules, BayesianModelAveraging(), before, log_prob) is None
        for wrong in (torch.nan, torch.inf, -torch.inf):
            assert run_row(rules, over, before, torch.full_like(log_prob, wrong)) is None
        certain = torch.tensor([0.0, *[-torch.inf] * 4], dtype=torch.float64).unsqueeze(1)
        assert run_row(rules, over, certain.roll(1, 0).expand(5, 4), certain) is None  # impossible for every rule
        rule = CombinedRules(rules, over)
        columns = torch.stack([log_prob, log_prob + 1.0])
        mapped = torch.func.vmap(lambda column: rule.update_block(rule.init(5, log_prob), column)[1].log_prob)(columns)
        alone = [rule.update_block(rule.init(5, log_prob), column)[1].log_prob for column in columns]
        torch.testing.assert_close(mapped, torch.stack(alone))


@pytest.mark.parametrize("references", [(), (0, 3)])
@torch.no_grad()
def test_rows_in_place_are_the_rule(references):
    rule = CombinedRules([FixedShare(0.03), SoftBayes(0.2), FixedShare(0.3)], FixedShare(0.1))
    rule, log_prob = ReferenceAveraging(rule, references) if references else rule, densities(5, num_rows=10)
    state = rule.init(5, log_prob)
    placed = RowRule.of(rule, type(state)(*(part.clone() for part in state)))
    for column in log_prob.split(1, 1):
        np.testing.assert_allclose(placed.log_weights(), rule.log_weights(state), rtol=1e-9, atol=1e-12)
        row, (state, output) = placed.weigh(column[:, 0].numpy()), rule.update_block(state, column)
        placed.commit(row)
        assert row.log_prob == pytest.approx(float(output.log_prob))
