"""OnlineEnsemble: equal to the pure ensemble, transactional, saved and loaded whole."""

import copy
import io

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, sticky_transition


def stream(num_rows=100, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X, y


def build(rule=None, form=None):
    g = torch.Generator().manual_seed(3)
    centers = torch.randn(7, 2, generator=g, dtype=torch.float64)
    shared = RadialBasisFeatures(centers, torch.linspace(0.5, 2.0, 3, dtype=torch.float64).reshape(-1, 1))
    experts = [
        GaussianExpert(shared, initial_state=form),
        GaussianExpert(shared, transition=RandomWalk(1e-2), initial_state=form),
        GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)), initial_state=form),
    ]
    return Ensemble(experts, rule or BayesianModelAveraging())


@pytest.mark.parametrize("block_size", [1, 4, 40])
def test_an_expert_that_a_gross_error_took_all_weight_from_gets_some_back(block_size):
    """Under a switching rule nobody is dead, be the posterior weight of one of two zero at the end of a block."""
    X, y = stream()
    y[39] = 1e3
    priors = (torch.tensor(prior, dtype=torch.float64) for prior in (0.01, 9.0))
    experts = [GaussianExpert(LinearFeatures(2, prior)) for prior in priors]
    ensemble = Ensemble(experts, MarkovSwitching(sticky_transition(2, 0.95)))
    _, want = ensemble.update(ensemble.init(), X, y)
    densities = want.experts.log_prob[:, 39].detach()
    assert float(densities.max() - densities.min()) > 1e3
    got = OnlineEnsemble(ensemble, block_size=block_size).observe(X, y)
    for field in ("mean", "log_prob", "log_weights"):
        torch.testing.assert_close(getattr(got, field), getattr(want, field).detach(), rtol=1e-7, atol=1e-7)


def snapshot(online):
    return {name: value.clone() for name, value in online.state_dict().items()}


def same(online, before):
    return all(torch.equal(value, before[name]) for name, value in online.state_dict().items())


def test_a_rejected_call_changes_nothing():
    X, y = stream()
    online = OnlineEnsemble(build(), block_size=10)
    online.observe(X, y)
    before = snapshot(online)
    bad = X.clone()
    bad[95, 1] = torch.inf
    with pytest.raises(ValueError, match="row 95, column 1"):
        online.observe(bad, y)
    with pytest.raises(TypeError):
        online.observe(X.float(), y.float())
    with pytest.raises(ValueError, match="inf in row 99"):
        online.observe(X, y.index_fill(0, torch.tensor([99]), torch.inf))
    assert same(online, before)


@pytest.mark.parametrize("form", [None, square_root_state], ids=["covariance", "square root"])
def test_saved_weights_only_and_loaded_into_a_fresh_object(form):
    X, y = stream()
    online = OnlineEnsemble(build(form=form))
    online.ensemble.experts[0].likelihood.noise = 0.07
    online.observe(X[:60], y[:60])
    file = io.BytesIO()
    torch.save(online.state_dict(), file)
    file.seek(0)
    for assign in (False, True):
        fresh = OnlineEnsemble(build(form=form))
        fresh.observe(X[:3], y[:3])  # has read its hyperparameters already
        file.seek(0)
        fresh.load_state_dict(torch.load(file, weights_only=True), assign=assign)
        want = copy.deepcopy(online).observe(X[60:], y[60:])
        got = fresh.observe(X[60:], y[60:])
        assert torch.equal(got.log_prob, want.log_prob)
        assert torch.equal(got.mean, want.mean)


def test_condition_on_and_deepcopy_leave_the_original_alone():
    X, y = stream()
    online = OnlineEnsemble(build())
    online.observe(X[:50], y[:50])
    before = snapshot(online)
    other = online.condition_on(X[50:], y[50:])
    assert same(online, before)
    online.observe(X[50:], y[50:])
    assert same(online, snapshot(other))


def test_changed_hyperparameters_are_noticed():
    X, y = stream()
    online = OnlineEnsemble(build())
    online.observe(X[:1], y[:1])
    online.ensemble.experts[0].likelihood.noise = 5.0
    moved = OnlineEnsemble(build())
    moved.ensemble.experts[0].likelihood.noise = 5.0
    moved.load_state_dict(online.state_dict())
    assert torch.equal(online.observe(X[1:], y[1:]).log_prob, moved.observe(X[1:], y[1:]).log_prob)


@pytest.mark.parametrize("form", [None, square_root_state], ids=["covariance", "square root"])
def test_pruned_experts_are_not_run_and_the_rest_is_unchanged(form):
    X, y = stream(400)
    y[395] = torch.nan
    ensemble = build(BayesianModelAveraging(prune_below=1e-4), form)
    online = OnlineEnsemble(ensemble, block_size=20)
    state, want = ensemble.update(ensemble.init(), X, y)
    got = online.observe(X, y)
    dead = torch.isneginf(state.meta.log_weights)
    assert 0 < int(dead.sum()) < 7
    torch.testing.assert_close(got.log_prob, want.log_prob.detach(), rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(got.mean, want.mean.detach(), rtol=1e-9, atol=1e-9)
    assert bool(got.experts.mean[dead, -1].isnan().all())
    assert bool(torch.isneginf(got.experts.log_prob[dead, -1]).all())
    assert bool(got.experts.log_prob[:, 395].isnan().all())
    assert torch.equal(torch.isfinite(got.mixture.log_prob(y)), ~y.isnan())
    torch.testing.assert_close(online.predict(X).mean, ensemble.predict(state, X).mean.detach(), rtol=1e-9, atol=1e-9)
    again = online.observe(X[:5], y[:5])
    assert bool(torch.isfinite(again.mean).all())
