"""Experts on one basis run as one batch are what each is alone: every expert object's pure update is the oracle."""

import copy

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.runners import RunnerBatches, find_shared_bases
from gp_ensembles.experts import GaussianExpert, StudentTExpert
from gp_ensembles.features import AdditivePolynomialFeatures, LinearFeatures
from gp_ensembles.filters import RandomWalk, StabilizedForgetting
from gp_ensembles.filters.states import GaussianState, square_root_state
from gp_ensembles.meta_learners import FixedShare

N = 90


def stream(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0] * torch.linspace(1, -1, N, dtype=torch.float64) + 0.3 * torch.randn(N, generator=generator).double()
    y[[4, 17, 18, 40]] = torch.nan
    return X.to(dtype), y.to(dtype)


def experts(dtype=torch.float64):
    """Two bases, static and moving experts of both in turn, and others on the first that cannot be run with them."""
    lines = LinearFeatures(2, torch.tensor(1.3, dtype=dtype))
    curves = AdditivePolynomialFeatures(2, 2, torch.tensor([0.7, 2.0], dtype=dtype))
    walk = torch.tensor([1e-3, 2e-3, 0.0], dtype=torch.float64)  # of each weight
    speeds = torch.tensor([[1e-2], [1e-4]], dtype=torch.float64)  # of each expert
    return [
        GaussianExpert(curves),
        GaussianExpert(lines),
        GaussianExpert(lines, transition=StabilizedForgetting(0.98)),
        GaussianExpert(curves, transition=RandomWalk(speeds)),
        GaussianExpert(lines, transition=RandomWalk(walk)),
        StudentTExpert(lines),
        GaussianExpert(lines, transition=RandomWalk(1e-2)),
        GaussianExpert(curves, transition=RandomWalk(1e-3)),
        GaussianExpert(lines, transition=RandomWalk(1e-2), initial_state=square_root_state),
    ]


def build(rule=None, dtype=torch.float64, block_size=16):
    return OnlineEnsemble(Ensemble(experts(dtype), rule or FixedShare()), block_size=block_size)


def assert_state(online, state, **tolerance):
    for own, other in zip(online.state.experts, state.experts, strict=True):
        torch.testing.assert_close(own.mean, other.mean, **tolerance)  # a factor is one of many
        torch.testing.assert_close(own.covariance, other.covariance, **tolerance)


def test_twins_share_a_basis_and_a_form(monkeypatch):
    online, run = build(), []
    set_block = RunnerBatches.set_block

    def looked(batches, *arguments):
        run.append([places for places, _ in batches.batches])
        set_block(batches, *arguments)

    monkeypatch.setattr(RunnerBatches, "set_block", looked)
    X, y = stream()
    online.observe(X[:1], y[:1])
    assert find_shared_bases(online.ensemble.experts, [type(state) for state in online.state.experts]) == [
        (0, 3, 7),
        (1, 4, 6),
    ]
    assert run == [[(0, 3, 7), (1, 4, 6), (2,), (5,), (8,)]]
    alone = [GaussianState, *[type(None)] * 8]
    assert find_shared_bases(online.ensemble.experts, alone) == []


@pytest.mark.parametrize("block_size", [1, 16])
def test_run_together_they_are_what_each_is_alone(block_size):
    X, y = stream()
    online = build(block_size=block_size)
    state, wanted = online.ensemble.update(online.ensemble.init(), X, y)
    found = online.observe(X, y)
    tolerance = {"rtol": 1e-9, "atol": 1e-10}
    for one, two in zip(found.experts, wanted.experts, strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, **tolerance)
    torch.testing.assert_close(found.log_weights, wanted.log_weights, **tolerance)
    assert_state(online, state, **tolerance)


def test_a_static_expert_keeps_its_bits_beside_moving_ones():
    """A walk by nothing adds nothing: not even round-off."""
    X, y = stream()
    basis = LinearFeatures(2, torch.ones(2, dtype=torch.float64))
    static, moving = GaussianExpert(basis), GaussianExpert(basis, transition=RandomWalk(1e-2))
    joined = OnlineEnsemble(Ensemble([static, moving], FixedShare()), block_size=1)
    still = OnlineEnsemble(Ensemble([static, static.with_transition(RandomWalk(0.0))], FixedShare()), block_size=1)
    assert torch.equal(joined.observe(X, y).experts.mean[:2], still.observe(X, y).experts.mean[2:])


def test_a_failure_among_twins_is_that_of_the_expert_and_its_twin_goes_on_alone():
    X, y = stream()
    basis = LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64))
    pair = [GaussianExpert(basis), GaussianExpert(basis, transition=RandomWalk(1e-2))]
    online = OnlineEnsemble(Ensemble(pair, FixedShare(), ["still", "moving"]), block_size=16)
    online.observe(X[:20], y[:20])
    online.state.experts[1].moments[..., :-1] = -torch.eye(3, dtype=torch.float64)
    before = copy.deepcopy(online)
    online.observe(X[20:], y[20:])
    assert [(failure.name, failure.row) for failure in online.failures] == [("moving", 21)]
    alone = OnlineEnsemble(Ensemble(pair[:1], FixedShare()), block_size=16)
    alone.observe(X, y)
    found, wanted = (one.state.experts[0].moments for one in (online, alone))
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    assert not torch.equal(before.state.experts[1].moments, online.state.experts[1].moments)
