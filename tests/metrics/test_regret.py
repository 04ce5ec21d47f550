"""Regret against brute force over all sequences, exact identities of Bayesian learners, and bounds that must hold."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import metrics
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.meta_learners.base import weigh_observed

SEEDS = st.integers(0, 10_000)


def densities(seed, num_experts, num_steps, spread=3.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(num_experts, num_steps)) * spread)


def run_rule(rule, log_prob):
    return weigh_observed(rule, rule.init(log_prob.shape[0], log_prob), log_prob, log_prob.isnan().all(0))[1].log_prob


def static_regret(own, experts):
    return metrics.cumulative_regret(own, metrics.best_expert(experts).log_prob)


def switching_regret(own, experts, most):
    return metrics.cumulative_regret(own, metrics.best_switching_path(experts, most).log_prob)


def num_switches_of(path):
    return int((path[1:] != path[:-1]).sum())


@settings(max_examples=40)
@given(
    seed=SEEDS, num_experts=st.integers(1, 4), num_steps=st.integers(1, 5), most=st.integers(0, 6), ties=st.booleans()
)
def test_switching_equals_brute_force(seed, num_experts, num_steps, most, ties):
    experts = densities(seed, num_experts, num_steps)
    experts = experts.round() if ties else experts
    own = densities(seed + 1, 1, num_steps)[0]
    steps = torch.arange(num_steps)
    paths = (torch.tensor(path) for path in itertools.product(range(num_experts), repeat=num_steps))
    totals = [float(experts[path, steps].sum()) for path in paths if num_switches_of(path) <= most]
    path = metrics.best_switching_path(experts, most).path
    assert num_switches_of(path) <= most
    assert float(experts[path, steps].sum()) == pytest.approx(max(totals), abs=1e-12)
    curve = switching_regret(own, experts, most)
    assert float(curve[-1]) == pytest.approx(max(totals) - float(own.sum()), abs=1e-12)
    torch.testing.assert_close(curve, (experts[path, steps] - own).cumsum(-1))


def test_static_curves_equal_loops():
    experts, own = densities(0, 4, 30), densities(1, 1, 30)[0]
    best = int(experts.sum(-1).argmax())
    for t in range(30):
        behind = experts[:, : t + 1].sum(-1) - own[: t + 1].sum()
        assert float(static_regret(own, experts)[t]) == pytest.approx(float(behind[best]))
        assert float(metrics.cumulative_regret(own, experts)[t]) == pytest.approx(float(behind.max()))
        assert float(metrics.cumulative_regret(own, experts[2])[t]) == pytest.approx(float(behind[2]))
    torch.testing.assert_close(switching_regret(own, experts, 0), static_regret(own, experts))


@settings(max_examples=60)
@given(seed=SEEDS, num_experts=st.integers(1, 6), spread=st.sampled_from([0.1, 3.0, 300.0]))
def test_averaging_keeps_its_identity_and_bound(seed, num_experts, spread):
    experts = densities(seed, num_experts, 20, spread)
    own = run_rule(BayesianModelAveraging(), experts)
    evidence = experts.cumsum(-1).logsumexp(0) - math.log(num_experts)
    torch.testing.assert_close(own.cumsum(-1), evidence, rtol=1e-10, atol=1e-9)
    assert float(metrics.cumulative_regret(own, experts).max()) <= math.log(num_experts) + 1e-9
    assert float((metrics.cumulative_regret(own, experts) - static_regret(own, experts)).min()) >= -1e-9


def test_averaging_pays_its_whole_bound_when_the_others_are_hopeless():
    experts = torch.tensor([[-1.0, -2.0, 0.5], [-900.0, -2.0, 0.5], [-800.0, -2.0, 0.5]], dtype=torch.float64)
    regret = static_regret(run_rule(BayesianModelAveraging(), experts), experts)
    torch.testing.assert_close(regret, torch.full_like(regret, math.log(3)))


def test_errors_name_the_shapes():
    two = torch.zeros(2, 5)
    for rivals in (two, two[0], two[:0], two.expand(3, 2, 5)):
        with pytest.raises(ValueError, match=r"log_prob must be \(T,\) and rival_log_prob \(T,\) or \(M, T\)"):
            metrics.cumulative_regret(torch.zeros(4 if len(rivals) else 5), rivals)
    with pytest.raises(ValueError, match="at least zero"):
        metrics.best_switching_path(two, -1)
    with pytest.raises(ValueError, match="at least one expert"):
        metrics.best_switching_path(two[0], 1)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), num_experts=st.integers(1, 4), num_steps=st.integers(1, 8))
def test_infinite_losses_cancel_one_for_one(seed, num_experts, num_steps):
    """Against finite losses so large that they stand for infinite ones."""
    g = torch.Generator().manual_seed(seed)
    experts = -torch.randint(0, 9, (num_experts, num_steps), generator=g).double()
    log_prob = -torch.randint(0, 9, (num_steps,), generator=g).double()
    large = 1e6
    for values in (experts, log_prob):
        values[torch.rand(values.shape, generator=g) < 0.4] = -large
    for curve in (static_regret, metrics.cumulative_regret):
        finite = curve(log_prob, experts)
        count = (finite / large).round()
        # A lost target counts 0 and not as the finite losses at its step do: that is what is left.
        want = torch.where(count > 0, torch.inf, torch.where(count < 0, -torch.inf, finite))
        got = curve(*(torch.where(v == -large, -torch.inf, v) for v in (log_prob, experts)))
        assert torch.equal(got, want)


def test_missing_targets_add_nothing():
    own, experts = densities(0, 1, 12)[0], densities(1, 3, 12)
    missing = torch.zeros(12, dtype=torch.bool)
    missing[[2, 3, 11]] = True
    holed, holes = (torch.where(missing, math.nan, part) for part in (own, experts))
    for curve in (static_regret, metrics.cumulative_regret, lambda p, e: switching_regret(p, e, 2)):
        found = curve(holed, holes)
        assert torch.equal(found[~missing], curve(own[~missing], experts[:, ~missing]))
        assert torch.equal(found[[2, 3, 11]], found[[1, 1, 10]])
    for best in (metrics.best_fixed_mixture, metrics.best_expert):
        found, want = best(holes), best(experts[:, ~missing])
        torch.testing.assert_close((found[0], found.log_prob[~missing]), (want[0], want.log_prob), rtol=0, atol=1e-12)
        assert torch.equal(found.log_prob.isnan(), missing)
    mixture = metrics.best_fixed_mixture(holes).log_prob
    assert bool(metrics.cumulative_regret(holed, mixture).isfinite().all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_no_log_densities_are_named(value):
    log_prob, experts = densities(0, 3, 6)[0], densities(1, 3, 6)
    bad, holed = log_prob.clone(), experts.clone()
    bad[4], holed[2, 3] = value, value
    for curve in (static_regret, metrics.cumulative_regret, lambda p, e: switching_regret(p, e, 1)):
        with pytest.raises(ValueError, match=f"^log_prob is {value} in row 4;"):
            curve(bad, experts)
        with pytest.raises(ValueError, match=f"(expert|rival)_log_prob is {value} in row 3 of expert 2;"):
            curve(log_prob, holed)
