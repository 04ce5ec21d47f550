"""Rules of one form in plain numbers, of several in one pass, and of a single row: what each rule is by itself."""

import numpy as np
import pytest
import torch

from gp_ensembles.meta_learners import BayesianModelAveraging, CombinedRules, FixedShare, ReferenceAveraging, SoftBayes
from gp_ensembles.meta_learners.base import run_linear
from gp_ensembles.meta_learners.combined import row_rule

FORMS = torch.tensor([(0.0, 0.97, 0.03), (0.8, 0.2, 0.0), (0.0, 0.7, 0.3)], dtype=torch.float64)


def numbers_of(forms, num_experts):
    """The numbers a, b and c of forms (R, 3), (R, 1) each."""
    keep, gain, share = forms.unsqueeze(-1).unbind(1)
    return keep, gain, share / num_experts


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


@pytest.mark.parametrize("num_experts", [7, 2])
def test_rules_in_one_pass_are_their_recursions(num_experts):
    """On arrays, and on tensors where derivatives are wanted; a rule of few experts alone runs in plain numbers."""
    log_prob = densities(num_experts)
    start = torch.randn(3, num_experts, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(1)
    for values in (log_prob, log_prob.clone().requires_grad_(), log_prob.float()):
        for places in ([0, 1, 2], [0], [1]):
            form = [part.to(values.dtype) for part in numbers_of(FORMS[places], num_experts)]
            found = run_linear(form, start[places].to(values.dtype), values)
            near = {"rtol": 1e-4, "atol": 1e-5} if values.dtype == torch.float32 else {}
            for number, place in enumerate(places):
                before, density, after = step_by_step(*FORMS[place].tolist(), start[place], log_prob)
                whole = torch.cat([before, after.unsqueeze(1)], dim=1).mT.to(values.dtype)
                torch.testing.assert_close(found.weights[:, number], whole, **near)
                torch.testing.assert_close(found.log_weights[:, number].exp(), whole, **near)
                torch.testing.assert_close(found.log_prob[number], density.to(values.dtype), **near)


def test_a_weight_of_any_smallness_keeps_its_logarithm():
    """A rule that gives nothing, against the recursion in logarithms."""
    log_prob, tiny = densities(3), torch.tensor([-900.0, 0.0, -40.0], dtype=torch.float64)
    tiny = tiny - tiny.logsumexp(0)
    wanted = [tiny]
    for column in log_prob.unbind(1):
        posterior = torch.log_softmax(wanted[-1] + column, 0)
        wanted.append(torch.logaddexp(wanted[-1] + np.log(0.9), posterior + np.log(0.1)))
    forms = torch.tensor([(0.0, 0.9, 0.1), (0.9, 0.1, 0.0)], dtype=torch.float64)
    for values in (log_prob, log_prob.clone().requires_grad_()):
        found = run_linear(numbers_of(forms, 3), torch.stack([tiny, tiny]), values)
        torch.testing.assert_close(found.log_weights[:, 1], torch.stack(wanted))
    assert -1000 < float(wanted[-1][0]) < -700


def test_what_plain_numbers_do_not_suffice_for():
    log_prob, never = densities(3), torch.full((3, 1), -torch.inf, dtype=torch.float64)
    start = torch.full((3, 3), 1 / 3, dtype=torch.float64).log()
    for wanted in (False, True):
        for wrong in (never, torch.nan * never, -never):
            values = torch.cat([log_prob, wrong], dim=1).requires_grad_(wanted)
            assert run_linear(numbers_of(FORMS, 3), start, values) is None
    certain = torch.tensor([0.0, -torch.inf, -torch.inf], dtype=torch.float64)  # impossible for each rule
    assert run_linear(numbers_of(FORMS[1:2], 3), certain.unsqueeze(0), certain.roll(1).unsqueeze(1)) is None

    def at_once(rules, over):
        return CombinedRules(rules, over).forms is not None

    assert at_once([FixedShare(), SoftBayes(0.1)], FixedShare())
    assert not at_once([FixedShare(), SoftBayes()], FixedShare())  # the anytime rate
    assert not at_once([FixedShare(), BayesianModelAveraging()], FixedShare())
    assert not at_once([FixedShare(), SoftBayes(0.1)], BayesianModelAveraging())
    assert not at_once([SoftBayes(0.1), SoftBayes(0.2)], FixedShare())  # weights may vanish under all
    assert not at_once([FixedShare(1e-14), SoftBayes(0.2)], FixedShare())


@pytest.mark.parametrize("references", [(), (0, 3)])
@torch.no_grad()
def test_rows_in_place_are_the_rule(references):
    rule = CombinedRules([FixedShare(0.03), SoftBayes(0.2), FixedShare(0.3)], FixedShare(0.1))
    rule, log_prob = ReferenceAveraging(rule, references) if references else rule, densities(5, num_rows=10)
    state = rule.init(5, log_prob)
    placed = row_rule(rule, type(state)(*(part.clone() for part in state)))
    start, block = state, rule.update_block(state, log_prob)[1]
    for number, column in enumerate(log_prob.split(1, 1)):
        np.testing.assert_allclose(placed.log_weights(), rule.log_weights(state), rtol=1e-9, atol=1e-12)
        row, (state, output) = placed.weigh(column[:, 0].numpy()), rule.update_block(state, column)
        np.testing.assert_allclose(row.log_weights, block.log_weights[:, number], rtol=1e-9, atol=1e-12)
        placed.commit(row)
        assert row.log_prob == pytest.approx(float(output.log_prob)) == pytest.approx(float(block.log_prob[number]))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        assert placed.weigh(np.full(5, wrong)) is None
    assert int(start.num_seen) == 0
    assert row_rule(FixedShare(), FixedShare().init(5, log_prob)) is None
