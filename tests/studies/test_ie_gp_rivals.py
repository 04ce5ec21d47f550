"""AdaRaker against a plain list of intervals, the logistic loss, and methods of classes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.data import Table
from studies.ie_gp import classes
from studies.ie_gp.adaraker import AdaRakerSettings, init_adaraker, run_adaraker, tuned_adaraker
from studies.ie_gp.methods import MethodSettings, run_method
from studies.ie_gp.raker import LOGISTIC, PENALTIES, SQUARED, RakerSettings, init_raker, run_raker

SEEDS = st.integers(0, 2**31 - 1)
NUM_ROWS = 37


def problem(seed, *, labels=False):
    """Features with norm one, targets of which two are missing."""
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(3, NUM_ROWS, 4, generator=generator, dtype=torch.float64)
    Phi = Phi / Phi.norm(dim=-1, keepdim=True)
    y = torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    y = (y > 0).double() if labels else y
    y[[3, 11]] = math.nan
    return Phi, y


def losses(name, value, target):
    """Loss and slope, written for a label of -1 or 1."""
    if name == "squared":
        return (value - target) ** 2, 2 * (value - target)
    sign = 2 * target - 1
    return math.log(1 + math.exp(-sign * value)), -sign / (1 + math.exp(sign * value))


def adaraker_by_hand(Phi, y, penalty, keeps, name):
    """Every interval is an entry of a list, made when it begins and dropped when it ends; weights are no logarithms."""
    kernels, num_rows, width = Phi.shape
    running, means, memory = [], [], {}
    for t in range(1, num_rows + 1):
        for level in range(t.bit_length()):
            if t % 2**level == 0:
                running = [one for one in running if one["level"] != level]
                fresh = {"theta": np.zeros((kernels, width)), "w": np.ones(kernels) / kernels}
                learned = memory.get(level, fresh) if keeps else fresh
                step = min(0.5, 1 / math.sqrt(2**level))
                running.append({"level": level, "step": step, "h": step, **learned})
        for one in running:
            one["values"] = np.einsum("mf,mf->m", one["theta"], Phi[:, t - 1])
            one["mean"] = one["w"] @ one["values"] / one["w"].sum()
        mean = sum(one["h"] * one["mean"] for one in running) / sum(one["h"] for one in running)
        means.append(mean)
        if np.isnan(y[t - 1]):
            continue
        total = losses(name, mean, y[t - 1])[0]
        for one in running:
            one["h"] *= math.exp(one["step"] * (total - losses(name, one["mean"], y[t - 1])[0]))
            theta, w = one["theta"].copy(), one["w"].copy()
            for m in range(kernels):
                loss, slope = losses(name, one["values"][m], y[t - 1])
                w[m] *= math.exp(-one["step"] * (loss + penalty * theta[m] @ theta[m]))
                theta[m] = theta[m] - one["step"] * (slope * Phi[m, t - 1] + 2 * penalty * theta[m])
            one["theta"], one["w"] = theta, w / w.sum()
            memory[one["level"]] = {"theta": one["theta"], "w": one["w"]}
    return np.array(means)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, penalty=st.sampled_from([0.0, 0.1]), keeps=st.booleans(), labels=st.booleans())
def test_adaraker_is_a_list_of_intervals(seed, penalty, keeps, labels):
    Phi, y = problem(seed, labels=labels)
    loss, name = (LOGISTIC, "logistic") if labels else (SQUARED, "squared")
    setting = AdaRakerSettings(y.new_tensor(penalty), keeps)
    _, mean = run_adaraker(init_adaraker(Phi, setting, NUM_ROWS), Phi, y, setting, loss)
    expected = adaraker_by_hand(Phi.numpy(), y.numpy(), penalty, keeps, name)
    np.testing.assert_allclose(mean, expected, rtol=1e-9, atol=1e-10)


def test_the_penalty_is_the_one_with_the_least_error():
    Phi, y = problem(1)
    X = torch.arange(NUM_ROWS, dtype=torch.float64).unsqueeze(-1)

    def features(rows):
        return Phi[:, rows.squeeze(-1).long()]

    state, best = tuned_adaraker(features, X, y, NUM_ROWS)
    errors = {}
    for penalty in PENALTIES:
        setting = AdaRakerSettings(y.new_tensor(penalty))
        learned, mean = run_adaraker(init_adaraker(Phi, setting, NUM_ROWS), Phi, y, setting)
        errors[penalty] = (float((y - mean).square().nanmean()), learned)
    assert float(best.penalty) == min(errors, key=lambda key: errors[key][0])
    torch.testing.assert_close(state.log_shares, errors[float(best.penalty)][1].log_shares)


def test_the_logistic_loss_is_the_binary_cross_entropy_and_raker_descends_it():
    Phi, y = problem(2, labels=True)
    score = torch.linspace(-4, 4, NUM_ROWS, dtype=torch.float64)
    seen = ~y.isnan()
    cross = torch.nn.functional.binary_cross_entropy_with_logits(score[seen], y[seen], reduction="none")
    torch.testing.assert_close(LOGISTIC.value(score, y)[seen], cross)
    setting = RakerSettings(y.new_tensor(0.3), y.new_tensor(0.01))
    _, mean = run_raker(init_raker(Phi, setting), Phi[:1], y, setting, LOGISTIC)
    theta = torch.zeros(4, dtype=torch.float64)
    for t in range(NUM_ROWS):
        assert float(mean[t]) == pytest.approx(float(theta @ Phi[0, t]), abs=1e-12)
        if bool(seen[t]):
            own = theta.clone().requires_grad_()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(own @ Phi[0, t], y[t]) + 0.01 * own @ own
            theta = theta - 0.3 * torch.autograd.grad(loss, own)[0]


def rings(num_rows=160, seed=0):
    """A class within a circle, the other around it."""
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    y = (X.norm(dim=-1) > 2.2).double()
    return Table(X, y, ("a", "b"), "ring", "banana")


@pytest.mark.parametrize("name", classes.METHODS)
def test_a_method_of_classes_predicts_chances_before_it_sees(name):
    stream = classes.shuffled_stream(rings(), 1)
    small = MethodSettings(num_features=20)
    run = run_method(classes.METHODS[name], stream, small, 0)
    assert bool(((run.mean > 0) & (run.mean < 1)).all())
    chance = torch.where(stream.y > 0.5, run.mean, 1 - run.mean)
    torch.testing.assert_close(run.log_prob, chance.log(), rtol=1e-6, atol=1e-8)
    changed = stream._replace(y=torch.cat([stream.y[:30], 1 - stream.y[30:]]))
    other = run_method(classes.METHODS[name], changed, small, 0)
    torch.testing.assert_close(other.mean[:31], run.mean[:31])
    assert not torch.equal(other.mean[31:], run.mean[31:])
    if name in ("IE-GP", "SIE-GP", "DIE-GP"):
        assert float(((run.mean > 0.5) != (stream.y > 0.5)).double().mean()) < 0.2
