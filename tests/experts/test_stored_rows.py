"""Experts that store rows, train, refit or count: what each keeps in an ensemble beside another expert.

Blocks, causality, prediction, missing targets, resumption and refused calls; their numbers have oracles of their own.
"""

import copy

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.structural import StructuralExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.meta_learners import FixedShare
from tests.experts import test_external, test_refitted

DUE = 40  # rows after which they are first trained or refitted
STEPS, SLOPE = torch.tensor([[0.1, 0.01, 1e-3]]).double(), torch.tensor([[0.02, 0.9]]).double()
KINDS = {
    "external": lambda: test_external.expert(first=DUE),
    "refitted": lambda: test_refitted.expert(first=DUE),
    "structural": lambda: StructuralExpert(STEPS, 6, 2, 40),
    "changing trend": lambda: StructuralExpert(STEPS, 6, 2, 40, SLOPE),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def started(make, size=64):
    line = GaussianExpert(LinearFeatures(2, torch.ones((), dtype=torch.float64)))
    return OnlineEnsemble(Ensemble([line, make()], FixedShare(0.01)), block_size=size)


def same(first, second, exact=False):
    """Whether the tensors of two states are equal, to the bit or to round-off."""
    for name, value in first.state_dict().items():
        tolerance = 0.0 if exact or not value.is_floating_point() else 1e-8
        other = second.state_dict()[name] if isinstance(second, OnlineEnsemble) else second[name]
        torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)


@each_kind
def test_any_blocks_give_the_same_numbers(make):
    X, y = test_refitted.rows(200)
    whole = started(make)
    predicted = whole.observe(X, y).experts
    for size in (1, 7):
        parts = started(make, size)
        found = [parts.observe(a, b).experts for a, b in zip(X.split(size), y.split(size), strict=True)]
        for name in ("mean", "variance"):
            together = torch.cat([getattr(part, name) for part in found], -1)
            torch.testing.assert_close(together, getattr(predicted, name), rtol=1e-9, atol=1e-9, equal_nan=True)
        same(whole, parts)


@each_kind
def test_a_target_changes_no_prediction_up_to_its_own(make):
    X, y = test_refitted.rows(180, gaps=False)
    first = started(make).observe(X, y).experts.mean
    for t in (DUE - 1, DUE, 139):
        other = y.clone()
        other[t] += 1.0
        second = started(make).observe(X, other).experts.mean
        torch.testing.assert_close(first[:, : t + 1], second[:, : t + 1], rtol=0, atol=1e-12, equal_nan=True)
        assert not torch.allclose(first[1:, t + 1 :], second[1:, t + 1 :])


@each_kind
def test_predict_agrees_with_the_next_observe(make):
    X, y = test_refitted.rows(100)
    online, start = started(make), 0
    for stop in (DUE - 1, DUE, 80):  # before something is trained, and right after it
        if start < stop:
            online.observe(X[start:stop], y[start:stop])
        start = stop + 1
        before = online.predict(X[stop : stop + 1])
        then = online.observe(X[stop : stop + 1], y[stop : stop + 1])
        torch.testing.assert_close((before.mean, before.variance), (then.mean, then.variance), rtol=1e-10, atol=1e-10)


@pytest.mark.processor
@each_kind
def test_a_stream_that_is_taken_up_again_goes_on_with_the_same_bits(make):
    X, y = test_refitted.rows(200)
    whole, other = started(make), started(make)
    whole.observe(X[:100], y[:100])
    with torch.no_grad():
        for value in other.ensemble.parameters():
            value.add_(0.1)
    other.load_state_dict(whole.state_dict())
    first, second = (online.observe(X[100:], y[100:]) for online in (whole, other))
    assert torch.equal(first.mean, second.mean)
    same(whole, other, exact=True)


@each_kind
def test_a_refused_call_changes_nothing(make):
    X, y = test_refitted.rows(200)
    online = started(make, 16)
    online.observe(X[:100], y[:100])
    before = copy.deepcopy(online.state_dict())
    X[180, 0] = torch.inf
    with pytest.raises(ValueError, match="inf"):
        online.observe(X[100:], y[100:])
    same(online, before, exact=True)
