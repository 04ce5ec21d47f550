"""Constant weights against golden numbers, optimality conditions and the bootstrap's expectations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.fusion.constant_weights import pseudo_bma_plus_weights, pseudo_bma_weights, stacking_weights
from tests.papers.fusion.cases import F64, normal, seeded, spoil


def some_log_prob(K=3, N=40, seed=0):
    return normal(K, N, seed=seed) - 1


def test_golden(archive):
    numbers = archive("fusion_stacking")
    log_prob = numbers["lpd"].mT
    log_weights = stacking_weights(log_prob)
    torch.testing.assert_close(log_weights.exp(), numbers["weights"], rtol=0, atol=1e-6)
    score = (log_weights[:, None] + log_prob).logsumexp(0).mean()
    assert float(score) == pytest.approx(float(numbers["mean_log_score"]), abs=1e-9)
    torch.testing.assert_close(pseudo_bma_weights(log_prob).exp(), numbers["pseudo_bma"], rtol=1e-10, atol=0)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 6))
def test_stacking_meets_its_optimality_conditions(seed, K):
    log_prob = some_log_prob(K, 30, seed)
    log_weights = stacking_weights(log_prob)
    gradient = (log_prob - (log_weights[:, None] + log_prob).logsumexp(0)).exp().mean(1)
    assert float(log_weights.logsumexp(0)) == pytest.approx(0, abs=1e-12)
    assert float(gradient.amax()) <= 1 + 1e-8
    used = log_weights > math.log(1e-3)
    assert bool(((gradient - 1).abs()[used] < 1e-4).all())


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_permuting_experts_permutes_weights(seed):
    log_prob = some_log_prob(4, 25, seed)
    order = torch.randperm(4, generator=seeded(seed))
    for rule, tolerance in ((stacking_weights, 1e-3), (pseudo_bma_weights, 1e-12), (bootstrap, 1e-12)):
        torch.testing.assert_close(rule(log_prob[order]).exp(), rule(log_prob)[order].exp(), rtol=0, atol=tolerance)


def bootstrap(log_prob, num=1000):
    return pseudo_bma_plus_weights(log_prob, num, generator=seeded(0))


def test_bootstrap_by_hand():
    log_prob = some_log_prob()
    shares = torch.empty(1000, 40, dtype=F64).exponential_(generator=seeded(0))
    shares = shares / shares.sum(1, keepdim=True)
    expected = (40 * shares @ log_prob.mT).softmax(1).mean(0)
    torch.testing.assert_close(bootstrap(log_prob).exp(), expected, rtol=1e-12, atol=1e-14)


def test_bootstrap_of_two_experts_and_two_targets():
    """The difference of scores is 2 d (2 u - 1) with u uniform: the mean weight is one half, by symmetry."""
    log_prob = torch.tensor([[0.0, -3.0], [-3.0, 0.0]], dtype=F64)
    weights = bootstrap(log_prob, 20000).exp()
    assert float(weights[0]) == pytest.approx(0.5, abs=0.01)
    shifted = torch.tensor([[0.0, 0.0], [-1.0, -2.0]], dtype=F64)
    u = torch.linspace(0, 1, 100001, dtype=F64)
    expected = torch.trapezoid(torch.sigmoid(2 * (u + 2 * (1 - u))), u)
    assert float(bootstrap(shifted, 20000).exp()[0]) == pytest.approx(float(expected), abs=3e-3)


def test_bootstrap_in_blocks(monkeypatch):
    log_prob = some_log_prob()
    whole = bootstrap(log_prob, 100)
    monkeypatch.setattr("gp_ensembles.papers.fusion.constant_weights.BLOCK", 7 * 40)
    torch.testing.assert_close(bootstrap(log_prob, 100), whole)


def test_extremes_and_one_expert():
    assert torch.equal(pseudo_bma_weights(some_log_prob(1)), torch.zeros(1, dtype=F64))
    for rule in (stacking_weights, bootstrap):
        torch.testing.assert_close(rule(some_log_prob(1)), torch.zeros(1, dtype=F64))
    far = some_log_prob()
    far[1] -= 1e6
    for rule in (stacking_weights, pseudo_bma_weights, bootstrap):
        assert float(rule(far).exp()[1]) == 0
    impossible = some_log_prob()
    impossible[1, 3] = -torch.inf
    assert float(pseudo_bma_weights(impossible)[1]) == float(bootstrap(impossible)[1]) == -torch.inf
    assert float(bootstrap(impossible).exp().sum()) == pytest.approx(1)
    duplicates = some_log_prob(1).expand(3, 40)
    assert float(stacking_weights(duplicates).logsumexp(0)) == pytest.approx(0, abs=1e-12)


def test_bad_densities():
    missing, impossible = (
        spoil(some_log_prob(), (2, 5), torch.nan),
        spoil(some_log_prob(), (slice(None), 1), -torch.inf),
    )
    for rule in (pseudo_bma_weights, pseudo_bma_plus_weights):
        with pytest.raises(ValueError, match="expert 2 has nan at target 5; leave out missing targets"):
            rule(missing)
        with pytest.raises(ValueError, match="every expert has log density minus infinity"):
            rule(impossible)


def test_bad_shapes():
    for rule in (stacking_weights, pseudo_bma_weights, pseudo_bma_plus_weights):
        for shape in ((3,), (0, 4), (3, 0), (2, 3, 4)):
            with pytest.raises(ValueError, match="at least one expert and one target"):
                rule(torch.zeros(shape, dtype=F64))
        with pytest.raises(ValueError, match="at least one"):
            pseudo_bma_plus_weights(some_log_prob(), 0)
