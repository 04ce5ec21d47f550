"""Experts added to and revived in a running ensemble."""

import pytest
import torch

from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.membership import add_experts, revive_experts
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    DiscountedOnlineNewton,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    OnlineNewton,
    SoftBayes,
    sticky_transition,
)


def stream(num_rows=80):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 1, generator=g, dtype=torch.float64)
    return X, torch.sin(2 * X.squeeze(-1)) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)


def linear(**settings):
    return GaussianExpert(LinearFeatures(1, torch.ones(2, dtype=torch.float64)), **settings)


def bumps():
    centres = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(-1)
    return GaussianExpert(RadialBasisFeatures(centres, torch.tensor([[0.5]], dtype=torch.float64)))


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
    with pytest.raises(ValueError, match="built for 2 experts"):
        add_experts(online, [bumps()], 0.1)
    bigger = add_experts(online, [bumps()], 0.1, meta_learner=MarkovSwitching(sticky_transition(3, 0.9)))
    bigger.observe(X, y)
    assert bigger.names == ("0", "1", "new 0")
    with pytest.raises(ValueError, match="distinct"):
        add_experts(online, [bumps()], 0.1, ["1"], meta_learner=MarkovSwitching(sticky_transition(3, 0.9)))


def test_the_dead_come_back():
    X, y = stream()
    experts = [linear(), linear(adaptation=RandomWalk(1e-2)), bumps()]
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
    with pytest.raises(ValueError, match="no expert named 'z'"):
        revive_experts(online, ["z"], 0.1)
    with pytest.raises(ValueError, match="alive"):
        revive_experts(online, ["e"], 0.1)
