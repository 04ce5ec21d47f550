"""A fleet beside as many ensembles, each alone."""

import copy
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood, SoftmaxLikelihood
from torch import Tensor

from gp_ensembles.engine import Ensemble, OnlineEnsemble, quarantine
from gp_ensembles.engine.state import named_tensors
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, WindowExpert
from gp_ensembles.experts.base import Variances
from gp_ensembles.experts.gaussian import InitialState
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk, gaussian_state
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.fleet import Fleet, store
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.meta_learners import CombinedRules, FixedShare, OnlineNewton
from gp_ensembles.numerics import arguments
from tests.fleet.instances import ENSEMBLES, INPUTS, SERIES, linear, rows
from tests.refusals import refused

NAMES = [f"series {number}" for number in range(SERIES)]


def bits(fleet: EnsembleFleet) -> list[Tensor]:
    """The states of all series."""
    return [value.clone() for name in fleet.names for _, value in named_tensors(fleet.export(name).state)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", ["averaging", "switching", "forgetting", "all layers", "classes"])
def test_a_fleet_is_as_many_ensembles(kind, generator):
    """With rules and labels that the table of plans lacks; to 1e-10."""
    ensemble = ENSEMBLES[kind]()
    fleet, close = EnsembleFleet(ensemble, NAMES), {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
    names, X, y = rows(100, generator, classes=kind == "classes")
    predicted = [fleet.observe(names[a:b], X[a:b], y[a:b]) for a, b in pairwise([0, 1, 2, 40, 57, 100])]
    for name in NAMES:
        other, mine = OnlineEnsemble(ensemble, block_size=1), torch.tensor([one == name for one in names])
        expected = other.observe(X[mine], y[mine])
        for field in ("mean", "variance", "log_prob"):
            found = torch.cat([getattr(part, field) for part in predicted])[mine]
            torch.testing.assert_close(found, getattr(expected, field), **close)
        torch.testing.assert_close(fleet.log_weights([name])[0].exp(), other.log_weights.exp(), **close)
        next_rows, expected_next = fleet.predict([name] * 3, X[:3]), other.predict(X[:3])
        torch.testing.assert_close(next_rows.mean, expected_next.mean, **close)
        torch.testing.assert_close(next_rows.variance, expected_next.variance, **close)


def test_series_come_and_go(generator):
    ensemble = ENSEMBLES["all layers"]()
    fleet = EnsembleFleet(ensemble)
    assert len(fleet) == 0
    fleet.add(NAMES[:2])
    fleet.add(range(100))  # more than there was room for
    names, X, y = rows(80, generator)
    kept = [row for row, name in enumerate(names) if name in NAMES[:2]]
    fleet.observe([names[row] for row in kept], X[kept], y[kept])
    before = bits(fleet)
    fleet.add(["one more"])
    fleet.retire(["one more", 5])
    fleet.add([5])
    fresh = OnlineEnsemble(ensemble)
    torch.testing.assert_close(fleet.predict([5], X[:1]).mean, fresh.predict(X[:1]).mean)
    assert 5 in fleet
    assert len(fleet) == 102
    kept_order = [*range(102)]
    del kept_order[7]  # series 5 stands last now
    after = bits(fleet)
    each = len(before) // 102
    assert same([one for number in kept_order for one in before[number * each : (number + 1) * each]], after[:-each])


def test_states_live_in_files(tmp_path, generator):
    ensemble = ENSEMBLES["all layers"]()
    folder, memory = EnsembleFleet(ensemble, NAMES[:1], folder=tmp_path / "states"), EnsembleFleet(ensemble, NAMES[:1])
    names, X, y = rows(100, generator)
    for fleet in (folder, memory):
        fleet.add(NAMES[1:])
        fleet.observe(names[:50], X[:50], y[:50])
        fleet.add(range(40))  # files grow
        fleet.observe(names[50:], X[50:], y[50:])
    assert same(bits(folder), bits(memory))
    assert sum(path.stat().st_size for path in (tmp_path / "states").iterdir()) > 45 * 1000
    refused(ValueError, "is not empty", lambda: EnsembleFleet(ensemble, folder=tmp_path / "states"))


def broken(fleet: EnsembleFleet) -> None:
    """The second series has a state that is no number any more, as after damage."""
    state = copy.deepcopy(fleet.export(NAMES[1]).state)
    state.experts[0].moments.view(-1)[0] = torch.nan
    fleet.retire(NAMES[1:2])
    fleet.add(NAMES[1:2], state)


def test_an_expert_of_a_series_that_fails_is_out_alone(generator, monkeypatch):
    monkeypatch.setattr(quarantine, "QUARANTINE_ROWS", 12)
    fleet = EnsembleFleet(ENSEMBLES["all layers"](), NAMES)
    names, X, y = rows(60, generator)
    fleet.observe(names, X, y)
    broken(fleet)
    by_itself, mine = fleet.export(NAMES[1]), slice(9, 18)
    ask = [name for name in NAMES for _ in range(9)]
    for returns in (True, False):
        found, expected = fleet.observe(ask, X[:45], y[:45]), by_itself.observe(X[mine], y[mine])
        torch.testing.assert_close(found.mean[mine], expected.mean, rtol=1e-10, atol=1e-10)
        assert (fleet.failures, fleet.expert_failures) == ({}, {NAMES[1]: by_itself.failures})
        assert (by_itself.failures[0].returns is not None) == returns
        ahead, alone = fleet.predict(NAMES, X[:5]), by_itself.predict(X[1:2])
        torch.testing.assert_close(ahead.variance[1:2], alone.variance, rtol=1e-10, atol=1e-10)


def test_the_rows_before_the_one_at_which_the_last_expert_fails_are_learned(generator):
    """Within a block: the state and the predictions are those of row by row."""
    names, X, y = rows(60, generator)
    X[31] = 1e200
    fleet = EnsembleFleet(ENSEMBLES["one expert"](), NAMES)
    whole = fleet.observe(names, X, y).mean
    before = [row for row in range(31) if names[row] == names[31]]
    assert fleet.failures == {names[31]: len(before)}
    assert whole[before].isfinite().all()
    assert whole[[row for row in range(31, 60) if names[row] == names[31]]].isnan().all()
    alone = OnlineEnsemble(ENSEMBLES["one expert"]())
    torch.testing.assert_close(whole[before], alone.observe(X[before], y[before]).mean, rtol=1e-10, atol=1e-10)


def test_a_series_of_which_no_expert_is_left_is_set_aside(generator):
    ensemble = ENSEMBLES["one expert"]()
    fleet = EnsembleFleet(ensemble, NAMES)
    names, X, y = rows(60, generator)
    fleet.observe(names, X, y)
    broken(fleet)
    predicted = fleet.observe(NAMES, X[:5], y[:5])
    assert predicted.mean.isnan().tolist() == [False, True, False, False, False]
    assert fleet.failures == {NAMES[1]: names.count(NAMES[1])}
    assert fleet.predict(NAMES[:2], X[:2]).mean.isnan().tolist() == [False, True]
    refused(ValueError, "every series of this call is set aside", lambda: fleet.observe(NAMES[1:2], X[:1], y[:1]))
    fleet.retire(NAMES[1:2])
    fleet.add(NAMES[1:2])
    assert fleet.observe(NAMES[1:2], X[:1], y[:1]).mean.isfinite().all()
    assert fleet.failures == {}


@pytest.mark.parametrize(
    ("names", "X", "y", "error", "words"),
    [
        (["series 0", "x"], torch.zeros(2, INPUTS), torch.zeros(2), KeyError, "unknown series 'x'"),
        (["series 0"], torch.zeros(2, INPUTS), torch.zeros(2), ValueError, "one entry per row of X, got 1 names"),
        ("series 0", torch.zeros(8, INPUTS), torch.zeros(8), TypeError, "a sequence with one name per row"),
        (["series 0"], torch.zeros(1, INPUTS + 1), torch.zeros(1), ValueError, "X must have shape"),
        (["series 0"], torch.full((1, INPUTS), torch.nan), torch.zeros(1), ValueError, "inputs must be finite"),
        (["series 0"], torch.zeros(1, INPUTS), torch.full((1,), torch.inf), ValueError, "y is inf in row 0"),
        (["series 0"], torch.zeros(1, INPUTS), torch.zeros(2), ValueError, "y must have shape"),
    ],
)
def test_a_rejected_call_changes_nothing(names, X, y, error, words, generator):
    fleet = EnsembleFleet(ENSEMBLES["all layers"](), NAMES)
    fleet.observe(*rows(40, generator))
    before = bits(fleet)
    refused(error, words, lambda: fleet.observe(names, X.double(), y.double()))
    assert same(before, bits(fleet))


def test_states_of_other_ensembles_are_refused():
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    with pytest.raises(ValueError, match="belongs to another ensemble: expert_0_moments has shape"):
        fleet.add(["new"], ENSEMBLES["one expert"]().init())
    assert "new" not in fleet
    refused(ValueError, "are in the fleet already", lambda: fleet.add(NAMES[:1]))


@pytest.mark.parametrize(
    ("expert", "rule", "message"),
    [
        (
            GaussianExpert(linear()),
            CombinedRules([OnlineNewton(), FixedShare()], over=FixedShare()),
            "CombinedRules cannot be the rule of a fleet; use FixedShare",
        ),
        (LaplaceExpert(linear(), SoftmaxLikelihood(3, 3, False)), FixedShare(), "have one latent value"),
        (WindowExpert(RBFKernel().double(), INPUTS, 10), FixedShare(), "WindowExpert cannot be an expert of a fleet"),
    ],
)
def test_what_cannot_run_for_many_series_is_refused(expert, rule, message):
    refused(TypeError, message, lambda: EnsembleFleet(Ensemble([expert], rule)))


def of_variances(noise: Tensor, prior: Tensor, walks: bool, form: InitialState) -> Ensemble:
    """Two experts on one map, static and walking or both static, with these variances."""
    features = LinearFeatures(INPUTS, prior)
    likelihood = GaussianLikelihood(noise_constraint=Positive()).to(prior)
    likelihood.noise = noise.reshape(1)
    transition = RandomWalk(1e-2) if walks else None
    experts = [GaussianExpert(features, likelihood, one, form) for one in (None, transition)]
    return Ensemble(experts, FixedShare())


@pytest.mark.parametrize("form", [gaussian_state, square_root_state])
@pytest.mark.parametrize("walks", [True, False])
def test_series_with_variances_of_their_own_are_ensembles_with_these(walks, form, generator):
    one = torch.ones((), dtype=torch.float64)
    fleet = EnsembleFleet(of_variances(one, one, walks, form), own_variances=True)
    noise, prior = (torch.rand(SERIES, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
    fleet.add(NAMES, variances=[Variances(noise, prior)] * 2)
    fleet.add(["usual"])
    others = {
        name: OnlineEnsemble(of_variances(*own, walks, form)) for name, *own in zip(NAMES, noise, prior, strict=True)
    }
    others["usual"] = OnlineEnsemble(of_variances(one, one, walks, form))
    names, X, y = rows(150, generator)
    names[::7] = ["usual"] * len(names[::7])
    predicted = [
        fleet.observe(names[part], X[part], y[part]) for part in (slice(0, 40), slice(40, 41), slice(41, None))
    ]
    close = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
    for name, other in others.items():
        mine = torch.tensor([one == name for one in names])
        expected = other.observe(X[mine], y[mine])
        for field in ("mean", "variance", "log_prob"):
            found = torch.cat([getattr(part, field) for part in predicted])[mine]
            torch.testing.assert_close(found, getattr(expected, field), **close)
        torch.testing.assert_close(fleet.predict([name], X[:1]).variance, other.predict(X[:1]).variance, **close)
    # One that leaves takes its variances with it, and brings them when it comes back.
    name, *_, X, y = NAMES[0], *rows(20, generator)
    alone = fleet.export(name)
    expected = others[name].observe(X, y)
    torch.testing.assert_close(alone.observe(X, y).log_prob, expected.log_prob, **close)
    fleet.retire([name])
    fleet.add([name], alone)
    torch.testing.assert_close(fleet.predict([name], X[:1]).variance, others[name].predict(X[:1]).variance, **close)
    again = fleet.observe([name] * 20, X, y).log_prob
    torch.testing.assert_close(again, others[name].observe(X, y).log_prob, **close)


def test_variances_that_cannot_be_are_refused():
    one = torch.ones((), dtype=torch.float64)
    ensemble = of_variances(one, one, True, gaussian_state)
    fleet, own = EnsembleFleet(ensemble, own_variances=True), Variances(one.reshape(1), one.reshape(1))
    refused(ValueError, "only without a state", lambda: fleet.add(["a"], ensemble.init(), variances=[own, own]))
    refused(ValueError, "only without a state", lambda: EnsembleFleet(ensemble).add(["a"], variances=[own, own]))
    assert len(fleet) == 0
    with pytest.raises(TypeError, match="StudentTExpert has no noise variance;"):
        EnsembleFleet(ENSEMBLES["unknown noise"](), own_variances=True)


def test_room_is_asked_for_where_states_live(tmp_path, monkeypatch):
    """Of memory what old and new places take while they are copied; of a folder's disk, whatever memory there is."""
    fleet = EnsembleFleet(Ensemble([GaussianExpert(linear())], FixedShare()), range(16))
    each = store.Store(fleet.ensemble.init()).bytes_each
    monkeypatch.setattr(arguments, "memory_of", lambda device: 40 * each)
    refused(ValueError, "32 series, with the 16 places that are copied, would take", lambda: fleet.add(["one more"]))
    assert len(fleet) == 16
    monkeypatch.setattr(arguments, "memory_of", lambda device: 48 * each)
    fleet.add(["one more"])
    monkeypatch.setattr(arguments, "memory_of", lambda device: 1)
    mapped = EnsembleFleet(fleet.ensemble, range(40), folder=tmp_path / "states")
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: SimpleNamespace(free=30 * each))
    refused(ValueError, "GB more on the disk of", lambda: mapped.add(["one more"]))
    assert len(mapped) == 40


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (None, ValueError, "row 1 has no series name, got None"),
        (float("nan"), ValueError, "row 1 has no series name, got nan"),
        (np.float64("nan"), ValueError, "row 1 has no series name, got nan"),
        (["a"], TypeError, "got an unhashable list"),
    ],
)
def test_what_is_no_name_is_refused_by_every_call(name, error, message):
    fleet = EnsembleFleet(Ensemble([GaussianExpert(linear())], FixedShare()))
    whole = Fleet(warmup=10)
    X = torch.zeros(2, INPUTS, dtype=torch.float64)
    for call in (
        lambda: fleet.add(["a", name]),
        lambda: whole.observe(["a", name], X, X[:, 0]),
        lambda: whole.fit(["a", name], X, X[:, 0]),
    ):
        with pytest.raises(error, match=message):
            call()
    assert not whole.waiting
