"""Fleets by groups, beside a fleet for each group that knows nothing of the others."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.files.operations import watched
from gp_ensembles.fleet import Fleet, GroupedFleet

BASIS = FourierBasis(num_features=12, starts=(0.7,))
SPEC = replace(oebe, bases=(BASIS,), fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1))
WARMUP, SERIES = 30, ("pump 1", "fan 1", "pump 2", "fan 2", "fan 3")
GROUPS = {name: name.split()[0] for name in SERIES}


def settings(spec=SPEC) -> Fleet:
    return Fleet(spec, warmup=WARMUP, coverages=(0.9, 0.5))


def table(num_rows, generator):
    """Rows of all series in turn: fans are quick, pumps are slow."""
    draw = {"generator": generator, "dtype": torch.float64}
    names = [SERIES[row % len(SERIES)] for row in range(num_rows * len(SERIES))]
    X = torch.randn(len(names), 2, **draw)
    rate = torch.tensor([4.0 if name.startswith("fan") else 0.5 for name in names], dtype=torch.float64)
    y = 100 + 10 * torch.sin(rate * X[:, 0]) + torch.randn(len(names), **draw)
    y[::17] = torch.nan
    return names, X, y


def part(rows, group):
    names, X, y = rows
    mine = [row for row, name in enumerate(names) if GROUPS.get(name) == group]
    return mine, ([names[row] for row in mine], X[mine], y[mine])


def cut(rows, here):
    return rows[0][here], rows[1][here], rows[2][here]


def numbers(said):
    return [said.mean, said.variance, said.log_prob, said.covered, *said.interval(0.9), *said.interval(0.5)]


def same(left, right):
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(left, right, strict=True))


@pytest.mark.processor
@pytest.mark.parametrize("is_fitted", [True, False])
@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, lags=TargetLags(bases=(BASIS,)))], ids=["plain", "lags"])
def test_groups_say_the_bits_of_a_fleet_for_each(spec, is_fitted, generator):
    rows = table(WARMUP + 40, generator)
    if spec.lags is not None:  # which pumps have, and fans have not: their ensembles have other experts
        slow = [row for row, name in enumerate(rows[0]) if name.startswith("pump")]
        rows[2][slow] += 30 * torch.arange(len(slow), dtype=torch.float64).div(6).sin()
    calls = [slice(0, WARMUP * 5), slice(WARMUP * 5, WARMUP * 5 + 90), slice(WARMUP * 5 + 90, None)]
    grouped, alone = GroupedFleet(settings(spec), GROUPS), {"pump": settings(spec), "fan": settings(spec)}
    if is_fitted:
        first = cut(rows, calls.pop(0))
        grouped.fit(*first)
        for group, fleet in alone.items():
            fleet.fit(*part(first, group)[1])
    for call in calls:
        said = numbers(grouped.observe(*cut(rows, call)))
        for group, fleet in alone.items():
            mine, own = part(cut(rows, call), group)
            assert same([value[..., mine] for value in said], numbers(fleet.observe(*own)))
    names, X = rows[0][-10:], rows[1][-10:]
    distribution, ends = grouped.predict(names, X), grouped.predict_interval(names, X, 0.5)
    for group, fleet in alone.items():
        mine, own = part((names, X, X[:, 0]), group)
        expected = fleet.predict(*own[:2])
        torch.testing.assert_close(distribution.mean[mine], expected.mean, rtol=1e-13, atol=0.0)
        torch.testing.assert_close(distribution.quantile(0.2)[mine], expected.quantile(0.2), rtol=1e-9, atol=0.0)
        assert same([end[mine] for end in ends], fleet.predict_interval(*own[:2], 0.5))
        assert all(grouped.weights[name] == fleet.weights[name] for name in fleet.names)
    counts = {len(fleet.series.ensemble.expert_names) for fleet in grouped.fleets.values()}
    assert len(counts) == (1 if spec.lags is None else 2)


def test_length_scales_are_those_of_groups(generator):
    spec = replace(SPEC, bases=(FourierBasis(60, starts=(0.2,)),), fit_settings=FitSettings(LBFGS(), num_samples=1))
    grouped = GroupedFleet(settings(spec), GROUPS)
    grouped.fit(*table(150, generator))
    scales = {}
    for group, fleet in grouped.fleets.items():
        kernel = fleet.series.ensemble.experts[0].features.kernel
        scales[group] = float(kernel.base_kernel.lengthscale.detach().flatten()[0])
    assert scales["pump"] > 3 * scales["fan"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda names, X, y: ([*names[:-1], "valve 1"], X, y), KeyError, "series 'valve 1' has no group; add it to"),
        (lambda names, X, y: (names, X[:, :1], y), ValueError, "X has 1 columns, the rows before had 2"),
        (lambda names, X, y: (names, X, y / 0.0), ValueError, "y is infinite in row 0, of series 'pump 1'"),
        (lambda names, X, y: ("pump 1", X, y), TypeError, "a sequence with a name for each row"),
    ],
)
def test_a_rejected_call_changes_nothing_in_any_group(change, error, words, generator):
    rows = table(WARMUP + 10, generator)
    first, later = cut(rows, slice(0, WARMUP * 5)), cut(rows, slice(WARMUP * 5, None))
    grouped, other = (GroupedFleet(settings(), GROUPS) for _ in range(2))
    for one in (grouped, other):
        one.fit(*first)
    with pytest.raises(error, match=words):
        grouped.observe(*change(*later))
    assert same(numbers(grouped.observe(*later)), numbers(other.observe(*later)))


def test_where_one_group_cannot_begin_no_group_has_begun(generator, monkeypatch):
    names, X, y = rows = table(WARMUP, generator)
    grouped, other = (GroupedFleet(settings(), GROUPS) for _ in range(2))
    last = 5 * (WARMUP - 1)
    for one in (grouped, other):
        one.observe(*cut(rows, slice(0, last)))
    assert not grouped.names
    before = Fleet.begin
    calls = []

    def fails(self, *given):
        calls.append(given)
        if len(calls) == 2:
            raise torch.linalg.LinAlgError("no evidence")
        return before(self, *given)

    monkeypatch.setattr(Fleet, "begin", fails)
    with pytest.raises(torch.linalg.LinAlgError):
        grouped.observe(*cut(rows, slice(last, None)))
    monkeypatch.undo()
    assert len(calls) == 2
    assert (grouped.names, grouped.waiting) == ((), dict.fromkeys(grouped.waiting, WARMUP - 1))
    for one in (grouped, other):
        one.observe(*cut(rows, slice(last, None)))
    assert len(grouped.names) == 5
    assert same([grouped.predict(names[:5], X[:5]).mean], [other.predict(names[:5], X[:5]).mean])
    with pytest.raises(ValueError, match="group 'fan': no series has 30 rows"):
        grouped.fit(["pump 1"] * 40 + ["fan 1"], X[:41], y[:41])
    assert same([grouped.predict(names[:5], X[:5]).mean], [other.predict(names[:5], X[:5]).mean])


def test_series_that_are_not_there_are_refused_and_all_stay(generator):
    grouped = GroupedFleet(settings(), lambda name: name.split()[0])
    names, X, y = table(WARMUP, generator)
    grouped.fit(names, X, y)
    grouped.observe(["fan 9"], X[:1], y[:1])
    for name in ("fan 7", "valve 1"):
        with pytest.raises(KeyError, match=f"unknown series '{name}'"):
            grouped.predict(["pump 1", name], X[:2])
        with pytest.raises(KeyError, match=f"unknown series '{name}'"):
            grouped.retire(["pump 1", name])
    with pytest.raises(KeyError, match="series 'fan 9' has had 1 of the 30 rows"):
        grouped.predict(["fan 9"], X[:1])
    with pytest.raises(ValueError, match=r"no interval of coverage 0\.7"):
        grouped.predict_interval(["pump 1"], X[:1], 0.7)
    assert len(grouped.names) == 5
    grouped.retire(["pump 1", "fan 9", "fan 2"])
    assert (set(grouped.names), grouped.waiting) == ({"pump 2", "fan 1", "fan 3"}, {})


@pytest.mark.parametrize("groups", [GROUPS, lambda name: name.split()[0]], ids=["mapping", "function"])
def test_a_grouped_fleet_goes_on_with_the_same_bits(groups, tmp_path, generator):
    names, X, y = table(2 * WARMUP, generator)
    grouped = GroupedFleet(settings(), groups)
    with pytest.raises(ValueError, match="nothing is fitted yet"):
        grouped.save(tmp_path)
    few = [row for row, name in enumerate(names) if name != "fan 3" and (name.startswith("pump") or row < 50)]
    grouped.observe([names[row] for row in few], X[few], y[few])  # fans are still waiting
    assert "pump 1" in grouped.names
    assert set(grouped.waiting) == {"fan 1", "fan 2"}
    for _ in range(2):
        grouped.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-0", "groups.pt"]
    again = GroupedFleet.load(tmp_path, None if isinstance(groups, dict) else groups)
    with pytest.raises(ValueError, match="series 'pump 1' was in group 'pump' when"):
        GroupedFleet.load(tmp_path, lambda name: "all")
    later = [row for row, name in enumerate(names) if isinstance(groups, dict) or name != "fan 3"]
    rows = [names[row] for row in later], X[later], y[later]
    assert same(numbers(again.observe(*rows)), numbers(grouped.observe(*rows)))


@pytest.mark.parametrize("number", range(0, 33, 4))
def test_a_save_that_fails_leaves_the_one_before(number, tmp_path, generator):
    names, X, y = table(WARMUP, generator)
    grouped = GroupedFleet(settings(), GROUPS)
    grouped.fit(names, X, y)
    grouped.save(tmp_path)
    expected = [grouped.predict(names[:5], X[:5]).mean]
    grouped.observe(names[:5], X[:5], y[5:10])
    expected.append(grouped.predict(names[:5], X[:5]).mean)
    left = number

    def watcher(operation):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device", str(tmp_path))

    with watched(watcher), suppress(OSError):
        grouped.save(tmp_path)
    found = GroupedFleet.load(tmp_path).predict(names[:5], X[:5]).mean
    assert torch.equal(found, expected[number > 24])  # the head is replaced late
    grouped.save(tmp_path)
    assert torch.equal(GroupedFleet.load(tmp_path).predict(names[:5], X[:5]).mean, expected[1])


def test_names_that_no_file_holds_and_other_folders_are_refused(tmp_path, generator):
    names, X, y = table(WARMUP, generator)
    grouped = GroupedFleet(settings(), lambda name: len(name))
    grouped.fit(names, X, y)
    with pytest.raises(TypeError, match="groups in files have strings for names"):
        grouped.save(tmp_path / "one")
    next(iter(grouped.fleets.values())).save(tmp_path / "two")
    with pytest.raises(ValueError, match="states of several fleets cannot live in"):
        GroupedFleet(Fleet(SPEC, folder=tmp_path / "states"), GROUPS)
    with pytest.raises(FileNotFoundError, match=r"holds no grouped fleet: there is no groups.pt in it"):
        GroupedFleet.load(tmp_path / "two")


def test_series_go_out_of_a_group_and_come_to_it(generator):
    """As in the group's fleet; nothing is added where a group has other hyperparameters, or none."""
    rows = table(WARMUP + 20, generator)
    first, later = cut(rows, slice(0, 5 * WARMUP)), cut(rows, slice(5 * WARMUP, None))
    grouped = GroupedFleet(settings(), lambda name: name.split()[0])
    grouped.fit(*first)
    alone = settings()
    alone.fit(*part(first, "fan")[1])
    mine, fans = part(later, "fan")
    new = [f"{name} copy" for name in fans[0]]
    for fleet in (alone, grouped):
        for name in ("fan 1", "fan 2", "fan 3"):
            fleet.add([f"{name} copy"], fleet.export(name))
    expected = alone.observe(new, *fans[1:])
    assert same(numbers(grouped.observe(new, *fans[1:])), numbers(expected))
    torch.testing.assert_close(expected.mean, grouped.observe(*later).mean[mine], rtol=1e-12, atol=0, equal_nan=True)
    model, names = grouped.export("fan 1"), grouped.names
    for given, words in (
        (["fan 8", "pump 8"], "series of groups .'fan', 'pump'. have no model in common"),
        (["pump 8"], "has other hyperparameters"),
        (["belt 1"], "nothing is fitted yet"),
        (["fan 8", "fan 1"], "are in the fleet already"),
    ):
        with pytest.raises(ValueError, match=words):
            grouped.add(given, model)
    for name in ("fan 8", "belt 1"):
        with pytest.raises(KeyError, match=f"unknown series '{name}' of group"):
            grouped.export(name)
    assert (grouped.names, sorted(grouped.fleets)) == (names, ["fan", "pump"])


def test_what_is_no_fleet_and_what_are_no_groups_is_refused():
    with pytest.raises(TypeError, match=r"fleet must be an object such as Fleet\(warmup=200\), got 'light'"):
        GroupedFleet("light", GROUPS)
    with pytest.raises(TypeError, match=r"groups must be a mapping or a function of a series' name, got \['pump'\]"):
        GroupedFleet(settings(), ["pump"])
