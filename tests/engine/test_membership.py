"""Experts added to and revived in a running ensemble."""

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.membership import add_experts, revive_experts
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import RandomWalk
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
from tests.refusals import refused


def stream(num_rows=80):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 1, generator=g, dtype=torch.float64)
    return X, torch.sin(2 * X.squeeze(-1)) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)


def linear(**settings):
    return GaussianExpert(LinearFeatures(1, torch.ones(2, dtype=torch.float64)), **settings)


def bumps():
    centers = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(-1)
    return GaussianExpert(RadialBasisFeatures(centers, torch.tensor([[0.5]], dtype=torch.float64)))


@pytest.mark.parametrize(
    "rule",
    [
        BayesianModelAveraging(),
        FixedShare(),
        ExponentiatedGradient(),
        SoftBayes(),
        OnlineNewton(),
        DiscountedOnlineNewton(),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_better_expert_takes_over(rule):
    X, y = stream()
    online = OnlineEnsemble(Ensemble([linear()], rule))
    online.observe(X[:40], y[:40])
    before = online.log_weights.clone()
    bigger = add_experts(online, [bumps()], 0.1, ["bumps"], rows=(X[:40], y[:40]))
    assert bigger.names[-1] == "bumps"
    torch.testing.assert_close(bigger.log_weights.exp().sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(online.log_weights, before, rtol=0, atol=0)
    start = float(bigger.log_weights[-1])
    bigger.observe(X[40:].repeat(6, 1), y[40:].repeat(6))
    assert float(bigger.log_weights[-1]) > start
    # the old experts went on as if nothing had happened
    alone = OnlineEnsemble(Ensemble([linear()], BayesianModelAveraging()))
    alone.observe(X[:40], y[:40])
    alone.observe(X[40:].repeat(6, 1), y[40:].repeat(6))
    torch.testing.assert_close(bigger.state.experts[0].mean, alone.state.experts[0].mean)


def test_a_rule_built_for_a_number_needs_a_new_one():
    X, y = stream()
    online = OnlineEnsemble(Ensemble([linear()], MarkovSwitching(sticky_transition(2, 0.9))))
    online.observe(X, y)
    refused(ValueError, "built for 2 experts", lambda: add_experts(online, [bumps()], 0.1))
    bigger = add_experts(online, [bumps()], 0.1, meta_learner=MarkovSwitching(sticky_transition(3, 0.9)))
    bigger.observe(X, y)
    assert bigger.names == ("0", "1", "new 0")
    with pytest.raises(ValueError, match="distinct"):
        add_experts(online, [bumps()], 0.1, ["1"], meta_learner=MarkovSwitching(sticky_transition(3, 0.9)))


def test_the_dead_come_back():
    X, y = stream()
    experts = [linear(), linear(transition=RandomWalk(1e-2)), bumps()]
    online = OnlineEnsemble(Ensemble(experts, BayesianModelAveraging(prune_below=1e-3), list("abcde")))
    online.observe(X, y)
    dead = [name for name, weight in zip(online.names, online.log_weights, strict=True) if torch.isneginf(weight)]
    assert dead
    revive_experts(online, dead, 0.3)
    weights = online.log_weights.exp()
    torch.testing.assert_close(weights.sum(), torch.ones((), dtype=torch.float64))
    assert sum(float(weights[online.names.index(name)]) for name in dead) == pytest.approx(0.3)
    predictions = online.observe(X[:5], y[:5])
    assert bool(torch.isfinite(predictions.experts.mean[:, 0]).all())
    refused(ValueError, "no expert named 'z'", lambda: revive_experts(online, ["z"], 0.1))
    refused(ValueError, "already has weight", lambda: revive_experts(online, ["e"], 0.1))


def test_default_names_number_on():
    online = OnlineEnsemble(Ensemble([linear()], FixedShare(), ["a", "new 1"]))
    twice = add_experts(add_experts(online, [linear()], 0.1), [bumps()], 0.1)
    assert twice.names == ("a", "new 1", "new 0", "new 2", "new 3")


def test_the_share_is_in_force_before_the_next_forgetting():
    online = OnlineEnsemble(Ensemble([bumps()], DynamicModelAveraging()))
    bigger = add_experts(online, [bumps()], 0.2)
    torch.testing.assert_close(bigger.state.meta.log_weights.exp()[1], torch.tensor(0.2, dtype=torch.float64))
    odds = (0.2 / 0.8) ** 0.99
    torch.testing.assert_close(bigger.log_weights.exp()[1], torch.tensor(odds / (1 + odds), dtype=torch.float64))


def combined(*rules):
    return CombinedRules(rules, FixedShare())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FixedShare(), OnlineNewton()),
        (FixedShare(), combined(FixedShare(), SoftBayes())),
        (OnlineNewton(), DiscountedOnlineNewton()),  # memories of one shape and another meaning
        (combined(FixedShare(), SoftBayes()), OnlineNewton()),
        (combined(FixedShare(), SoftBayes()), combined(FixedShare(), OnlineNewton())),
        (FixedShare(), ReferenceAveraging(FixedShare(), [0])),
        (ReferenceAveraging(FixedShare(), [0]), ReferenceAveraging(FixedShare(), [1])),
        (ReferenceAveraging(FixedShare(), [0]), ReferenceAveraging(FixedShare(), [0, 1])),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_rule_cannot_go_on_from_a_memory_of_another(old, new):
    X, y = stream()
    online = OnlineEnsemble(Ensemble([linear()], old))
    online.observe(X, y)
    before = [value.clone() for value in online.state_dict().values()]
    owner = type(old).__name__ if type(old) is not type(new) else "the old one, of other rules or references,"
    words = f"{type(new).__name__} needs a memory that {owner} did not store"
    refused(ValueError, words, lambda: add_experts(online, [bumps()], 0.1, meta_learner=new))
    assert all(torch.equal(a, b) for a, b in zip(before, online.state_dict().values(), strict=True))


@pytest.mark.parametrize("old", [OnlineNewton(), combined(FixedShare(), SoftBayes())], ids=lambda r: type(r).__name__)
def test_a_rule_without_memory_or_of_the_same_kind_goes_on(old):
    X, y = stream()
    online = OnlineEnsemble(Ensemble([linear()], old))
    online.observe(X, y)
    same = OnlineNewton(delta=0.5) if isinstance(old, OnlineNewton) else combined(FixedShare(0.2), SoftBayes())
    for rule in (FixedShare(), same):
        bigger = add_experts(online, [bumps()], 0.1, meta_learner=rule)
        assert bool(bigger.observe(X, y).log_prob.isfinite().all())
