"""Fleets in units of their series, beside one ensemble for each, standardized by hand."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.recalibration import init_recalibration, map_components, recalibrate_block
from gp_ensembles.distributions import Recalibrated
from gp_ensembles.engine import OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import INNOVATIONS, oebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming.inputs import InputPath
from tests.refusals import refused

SERIES, WARMUP, LATER = 4, 40, 20
BASIS = FourierBasis(num_features=12, starts=(0.7,))
SPEC = replace(
    oebe,
    name="test",
    bases=(BASIS, LinearBasis()),
    random_walk_variances=(1e-2,),
    fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1),
    innovations=INNOVATIONS[:2],
    lags=TargetLags(lags=(1, 3), bases=(BASIS,)),
    outlier_threshold=6.0,
)
QUICK = replace(oebe, bases=(LinearBasis(),), fit_settings=FitSettings(None, num_samples=1))


def table(num_rows, generator):
    """Rows of all series in turn, in units of their own, with gaps in inputs and targets."""
    draw = {"generator": generator, "dtype": torch.float64}
    size = 10.0 ** torch.arange(SERIES, dtype=torch.float64)
    X = torch.randn(num_rows, SERIES, 2, **draw) * size[:, None] + 7
    y = size * (3 + torch.sin(X[..., 0] / size) + 0.2 * torch.randn(num_rows, SERIES, **draw))
    names = [f"unit {s}" for _ in range(num_rows) for s in range(SERIES)]
    X, y = X.reshape(-1, 2), y.flatten()
    X[::23, 1], y[::19] = torch.nan, torch.nan
    return names, X, y


def rows_of(names, s):
    return torch.tensor([name == f"unit {s}" for name in names])


@pytest.mark.parametrize("is_recalibrated", [False, True])
def test_every_series_is_an_ensemble_on_rows_standardized_by_hand(is_recalibrated, generator):
    names, X, y = table(WARMUP + LATER, generator)
    X[X.isnan()] = 7.0
    cut, settings = SERIES * WARMUP, {"coverages": (0.9, 0.5), "own_variances": False, "recalibrate": is_recalibrated}
    fitted = Fleet(SPEC, warmup=WARMUP, **settings)
    fitted.fit(names[:cut], X[:cut], y[:cut])
    found = []
    for size in (1, 7, SERIES * LATER):
        fleet, calls = copy.deepcopy(fitted), [slice(start, start + size) for start in range(cut, len(y), size)]
        parts = [fleet.observe(names[rows], X[rows], y[rows]) for rows in calls]
        numbers = [torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance", "log_prob")]
        covered = torch.cat([part.covered for part in parts], dim=1)
        found.append((*numbers, covered, torch.cat([part.interval(0.5)[0] for part in parts])))
    # Moments of recalibrated distributions are integrals over nodes that follow the mixture.
    close = {"rtol": 1e-7 if is_recalibrated else 1e-10, "atol": 1e-10, "equal_nan": True}
    for s in range(SERIES):
        mine = rows_of(names, s)
        own_X, own_y = X[mine].numpy(), y[mine].numpy()
        first_X, first_y = own_X[:WARMUP], own_y[:WARMUP]
        inputs = torch.from_numpy((own_X - first_X.mean(0)) / first_X.std(0))
        mean, scale = np.nanmean(first_y), np.nanstd(first_y)
        online = OnlineEnsemble(fitted.series.ensemble, block_size=1)
        targets = torch.from_numpy((own_y - mean) / scale)
        online.observe(inputs[:WARMUP], targets[:WARMUP])
        predicted = online.observe(inputs[WARMUP:], targets[WARMUP:])
        log_prob, distribution = predicted.log_prob - np.log(scale), predicted.mixture
        pit = distribution.cdf(targets[WARMUP:])
        if is_recalibrated:
            _, (log_weights, gain, pit) = recalibrate_block(init_recalibration(pit), pit)
            log_prob = log_prob + gain
            distribution = Recalibrated(distribution, log_weights, *map_components(pit))
        levels = IntervalLevels((0.9, 0.5))
        _, output = levels.update_block(levels.init(targets), pit, distribution.typical_width())
        lower = distribution.quantile(output.levels[0, 1]) * scale + mean
        wanted = distribution.mean * scale + mean, distribution.variance * scale**2, log_prob, output.covered, lower
        for numbers in found:
            for one, expected in zip(numbers, wanted, strict=True):
                torch.testing.assert_close(one[..., mine[cut:]], expected, **close)


def test_series_begin_one_after_another(generator):
    names, X, y = table(WARMUP + 50, generator)
    fleet = Fleet(QUICK, warmup=WARMUP)
    late = torch.tensor([name != "unit 3" for name in names])
    half = len(y) // 2
    few = [row for row in range(half) if late[row]]
    predicted = fleet.observe([names[row] for row in few], X[few], y[few])
    num_seen = torch.arange(len(few)) // 3  # rows that each of the three has had before
    assert torch.equal(predicted.mean.isfinite(), num_seen >= WARMUP)
    assert fleet.names == tuple(f"unit {s}" for s in range(3))
    predicted = fleet.observe(names[half:], X[half:], y[half:])
    num_seen = torch.arange(len(y) - half) // SERIES
    known = torch.tensor([name != "unit 3" for name in names[half:]]) | (num_seen >= WARMUP)
    assert torch.equal(predicted.mean.isfinite(), known)
    assert torch.equal(predicted.interval()[0].isfinite(), known)
    assert (fleet.names, fleet.waiting) == ((*(f"unit {s}" for s in range(3)), "unit 3"), {})
    assert fleet.predict(["unit 3"], X[:1]).mean.isfinite().all()
    refused(KeyError, "unknown series 'x'", lambda: fleet.predict(["x"], X[:1]))
    fleet.observe(["x"], X[:1], y[:1])
    predicted = fleet.predict(["x", "unit 3", "x", "unit 0"], X[:4])
    assert (predicted.waiting, predicted.rows.tolist()) == (("x",), [1, 3])
    alone = fleet.predict(["unit 3", "unit 0"], X[1:4:2])
    for found, expected in ((predicted.mean, alone.mean), (predicted.interval()[1], alone.interval()[1])):
        assert torch.equal(found[[1, 3]], expected)
        assert found[[0, 2]].isnan().all()
    assert fleet.predict(["x"], X[:1]).variance.isnan().all()
    refused(KeyError, "series 'x' has received 1 of the 40 rows of its warm-up", lambda: fleet.export("x"))
    fleet.retire(["x", "unit 1"])
    assert (fleet.names, fleet.waiting) == (("unit 0", "unit 2", "unit 3"), {})


def test_noise_is_that_of_each_series(generator):
    """Alike but for the size of their noise, which standard rows of a smooth function would not tell."""
    num_rows, draw = 400, {"generator": generator, "dtype": torch.float64}
    deviation = torch.tensor([0.02, 0.1, 0.5, 2.0], dtype=torch.float64)
    X = torch.randn(num_rows, SERIES, 1, **draw)
    y = 3 * X.squeeze(-1) + deviation * torch.randn(num_rows, SERIES, **draw)
    names = [f"unit {s}" for _ in range(num_rows) for s in range(SERIES)]
    cut, predicted = SERIES * 100, {}
    for own in (True, False):
        fleet = Fleet(replace(QUICK, fit_settings=FitSettings(num_samples=1)), warmup=100, own_variances=own)
        fleet.fit(names[:cut], X.reshape(-1, 1)[:cut], y.flatten()[:cut])
        predicted[own] = fleet.observe(names[cut:], X.reshape(-1, 1)[cut:], y.flatten()[cut:])
    found = predicted[True].variance.sqrt().reshape(-1, SERIES)[-50:].mean(0)
    torch.testing.assert_close(found, deviation, rtol=0.15, atol=0)
    gain = (predicted[True].log_prob - predicted[False].log_prob).reshape(-1, SERIES).mean(0)
    assert (gain > 0.02).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_fleet_goes_on_with_the_same_bits(dtype, tmp_path, generator):
    names, X, y = table(WARMUP + LATER, generator)
    cut = SERIES * (WARMUP + 5)
    fleet = Fleet(SPEC, warmup=WARMUP, coverages=(0.8,), dtype=dtype)
    fleet.fit(names[:cut], X[:cut], y[:cut])
    fleet.observe(["new", *names[cut : cut + 40]], X[cut - 1 : cut + 40], y[cut - 1 : cut + 40])
    fleet.save(tmp_path / "fleet")
    other = Fleet.load(tmp_path / "fleet", states=tmp_path / "states")
    assert (other.names, other.waiting, other.spec.name) == (fleet.names, {"new": 1}, "test")
    for start in range(cut + 40, len(y), 17):
        rows = slice(start, start + 17)
        predicted = [one.observe(names[rows], X[rows], y[rows]) for one in (fleet, other)]
        for field in ("mean", "variance", "log_prob", "covered", "levels"):
            left, right = (getattr(one, field).nan_to_num(7.0) for one in predicted)
            assert torch.equal(left, right)
    assert fleet.weights == other.weights


def test_intervals_cover_what_they_are_to_cover(generator):
    names, X, y = table(600, generator)
    fleet = Fleet(QUICK, warmup=100, coverages=(0.9, 0.5))
    cut = SERIES * 100
    fleet.fit(names[:cut], X[:cut], y[:cut])
    covered = fleet.observe(names[cut:], X[cut:], y[cut:]).covered
    for s in range(SERIES):
        share = covered[:, rows_of(names, s)[cut:]].nanmean(1)
        torch.testing.assert_close(share, torch.tensor([0.9, 0.5], dtype=torch.float64), rtol=0, atol=0.03)
    lower, upper = fleet.predict(["unit 1", "unit 0"], X[:2]).interval(0.5)
    wide = fleet.predict(["unit 1", "unit 0"], X[:2]).interval(0.9)
    assert (wide[0] < lower).all()
    assert (lower < upper).all()
    assert (upper < wide[1]).all()


def test_series_that_stand_still_have_units_too(generator):
    """A target that is always 5 in the warm-up, one that is always 0, a column that never moves."""
    num_rows = 60
    X = torch.randn(num_rows, 2, 2, generator=generator, dtype=torch.float64)
    X[..., 1] = 3.0
    y = torch.tensor([5.0, 0.0], dtype=torch.float64).repeat(num_rows)
    noisy = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    fleet = Fleet(QUICK, warmup=30)
    fleet.fit(["a", "b"] * num_rows + ["c"] * num_rows, torch.cat([X.reshape(-1, 2), X[:, 0]]), torch.cat([y, noisy]))
    with pytest.raises(ValueError, match="the targets of all 2 series with a complete warm-up are constant"):
        Fleet(QUICK, warmup=30).fit(["a", "b"] * num_rows, X.reshape(-1, 2), y)
    mean = fleet.predict(["a", "b"], torch.zeros(2, 2, dtype=torch.float64)).mean
    torch.testing.assert_close(mean, torch.tensor([5.0, 0.0], dtype=torch.float64), rtol=0, atol=0.3)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda names, X, y: (names[:-1], X, y), ValueError, "names must have one entry per row"),
        (lambda names, X, y: (names, X[:, :1], y), ValueError, r"X must have shape \(N, 2\)"),
        (lambda names, X, y: (names, X, y / 0.0), ValueError, "series 'unit 0': the target of row 0 is infinite"),
        (lambda names, X, y: (names, X / 0.0, y), ValueError, "series 'unit 0': 'column 0' is infinite in row 0"),
        (lambda names, X, y: ("unit 0", X, y), TypeError, "a sequence with one name per row"),
    ],
)
def test_a_rejected_call_changes_nothing(change, error, words, generator):
    names, X, y = table(WARMUP + 10, generator)
    cut = SERIES * WARMUP
    fleet, other = (Fleet(QUICK, warmup=WARMUP, on_bad_row="refuse") for _ in range(2))
    for one in (fleet, other):
        one.fit(names[:cut], X[:cut], y[:cut])
    refused(error, words, lambda: fleet.observe(*change(names[cut:], X[cut:], y[cut:])))
    predicted = [one.observe(names[cut:], X[cut:], y[cut:]).mean for one in (fleet, other)]
    assert torch.equal(*predicted)


def test_rows_come_in_any_float_dtype(generator):
    names, X, y = table(2, generator)
    rows = Fleet(QUICK, warmup=WARMUP).checked(names, X.float(), y.half())
    assert rows.X.dtype == rows.y.dtype == torch.float64
    torch.testing.assert_close(rows.y, y.half().double(), rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_a_fleet_is_refused(generator, tmp_path):
    refused(ValueError, "scalar real targets", lambda: Fleet(replace(QUICK, target=BinaryTarget())))
    refused(ValueError, "warmup is 3; at least 10 rows are needed", lambda: Fleet(QUICK, warmup=3))
    names, X, y = table(WARMUP, generator)
    with pytest.raises(ValueError, match="the 41 rows and 10 targets needed to start, the longest has 40 rows"):
        Fleet(QUICK, warmup=WARMUP + 1).fit(names, X, y)
    with pytest.raises(TypeError, match="WindowExpert cannot be an expert of a fleet"):
        Fleet(replace(QUICK, extra_experts=(WindowGP(),)), warmup=WARMUP).fit(names, X, y)
    refused(ValueError, "nothing is fitted yet", lambda: Fleet(QUICK).save(tmp_path / "fleet"))
    refused(FileNotFoundError, "contains no saved fleet", lambda: Fleet.load(tmp_path))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spec": "light"}, "spec must be an object such as gpe.light or gpe.e_doebe, got 'light'"),
        ({"spec": EnsembleSpec}, "spec must be .*, got the class EnsembleSpec: instantiate it"),
        ({"dtype": "float32"}, "dtype must be torch.float64 or torch.float32, got 'float32'"),
        ({"dtype": torch.int64}, "dtype must be torch.float64 or torch.float32, got torch.int64"),
        ({"dtype": np.float32}, "dtype must be torch.float64 or torch.float32, got <class 'numpy.float32'>"),
        ({"warmup": "200"}, "warmup must be a whole number, got '200'"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
        ({"coverages": 0.9}, "coverages must be a tuple of numbers such as .0.9,., got 0.9"),
        ({"coverages": "90%"}, "coverages must be a tuple of numbers such as .0.9,., got '90%'"),
        ({"own_variances": "no"}, "own_variances of Fleet must be True or False, got 'no'"),
        ({"device": 3.0}, "device must be a name such as 'cpu' or a torch.device, got 3.0"),
        ({"folder": 3}, "not int"),
    ],
    ids=str,
)
def test_what_is_of_another_kind_is_refused_where_it_is_given(settings, words):
    """As the other doors refuse it."""
    refused(TypeError, words, lambda: Fleet(**settings))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_states_in_files_begin_anew_and_leave_nothing_behind(tmp_path, generator, monkeypatch):
    """A first call that is cut off, a fit, and one that fails."""
    names, X, y = table(WARMUP + 5, generator)
    cut, states = SERIES * WARMUP, tmp_path / "states"
    fleet, expected = Fleet(QUICK, warmup=WARMUP, folder=states), Fleet(QUICK, warmup=WARMUP)

    def cut_off(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(InputPath, "with_effects", cut_off)
        with pytest.raises(KeyboardInterrupt):
            fleet.observe(names[:cut], X[:cut], y[:cut])
    assert (fleet.names, fleet.waiting, files_in(states)) == ((), {}, {})
    for one in (fleet, expected):
        one.observe(names[:cut], X[:cut], y[:cut])
    num_files, before = len(files_in(states)), fleet.predict(names[:4], X[:4]).mean
    assert torch.equal(before, expected.predict(names[:4], X[:4]).mean)
    assert num_files > 0
    with monkeypatch.context() as patched:
        patched.setattr(InputPath, "with_effects", cut_off)
        with pytest.raises(KeyboardInterrupt):
            fleet.fit(names[8:], X[8:], y[8:])
    assert torch.equal(fleet.predict(names[:4], X[:4]).mean, before)
    assert len(files_in(states)) == num_files
    for one in (fleet, expected):
        one.fit(names[8:], X[8:], y[8:])
    predicted = [one.observe(names[:4], X[:4], y[:4]).mean for one in (fleet, expected)]
    assert torch.equal(predicted[0].nan_to_num(), predicted[1].nan_to_num())
    assert len(files_in(states)) == num_files
    refused(ValueError, "is not empty; give a new one", lambda: Fleet(QUICK, folder=states))


@pytest.mark.parametrize(("own_variances", "dtype"), [(True, torch.float32), (False, torch.float64)])
def test_series_without_noise_stand_beside_noisy_ones(own_variances, dtype, generator):
    """Tiny noise asks for another form of a state than the ensemble had before it was fitted."""
    X = torch.randn(240, 1, generator=generator, dtype=torch.float64)
    y = X.squeeze(-1).sin()
    y[1::2] += torch.randn(120, generator=generator, dtype=torch.float64)
    for names, cut in ((["still", "noisy"] * 120, 120), (["one", "two"] * 60 + ["still", "noisy"] * 60, 180)):
        fleet = Fleet(warmup=30, own_variances=own_variances, dtype=dtype)
        fleet.fit(names[:cut], X[:cut], y[:cut])
        predicted = fleet.observe(names[cut:], X[cut:], y[cut:])
        assert not fleet.failures
        spoken = predicted.mean[predicted.rows]
        assert bool(spoken.isfinite().all())
        errors = (predicted.mean - X.squeeze(-1)[cut:].sin()).abs()
        assert float(errors[::2].nanmean()) < (0.02 if own_variances else 0.2)


COPIES = pytest.mark.parametrize("copied", [copy.deepcopy, lambda fleet: pickle.loads(pickle.dumps(fleet))])


@COPIES
def test_copies_of_a_fleet_in_files_leave_its_files_alone(copied, tmp_path, generator):
    """They grow, learn and are refitted in memory."""
    names, X, y = table(WARMUP + 5, generator)
    cut, states = SERIES * WARMUP, tmp_path / "states"
    fleet = Fleet(QUICK, warmup=WARMUP, folder=states)
    fleet.fit(names[:cut], X[:cut], y[:cut])
    files, expected = files_in(states), fleet.predict(names[:4], X[:4]).mean
    other = copied(fleet)
    other.add(range(40), other.export("unit 1"))
    assert torch.equal(other.predict(names[:4], X[:4]).mean, expected)
    other.observe(names[cut:], X[cut:], y[cut:])
    other.fit(names[8:], X[8:], y[8:])
    assert files_in(states) == files
    assert torch.equal(fleet.predict(names[:4], X[:4]).mean, expected)


def test_where_all_series_of_a_call_are_set_aside_nothing_is_said_of_them(generator):
    names, X, y = table(WARMUP + 2, generator)
    fleet = Fleet(QUICK, warmup=WARMUP)
    cut = SERIES * WARMUP
    fleet.fit(names[:cut], X[:cut], y[:cut])
    broken = fleet.series.export("unit 1").state
    broken.experts[0].moments.fill_(torch.nan)
    notes = {name: fleet.series.note(name, ["unit 1"]) for name in ("columns", "inputs")}
    fleet.series.retire(["unit 1"])
    fleet.series.add(["unit 1"], broken)
    for name, value in notes.items():
        fleet.series.write_note(name, ["unit 1"], value)
    for _ in range(2):  # it fails in the first call, and has failed before the second
        predicted = fleet.observe(["unit 1", "new"], X[:2], y[:2])
        assert predicted.mean.isnan().all()
        assert predicted.interval()[0].isnan().all()
        assert fleet.failures == {"unit 1": WARMUP}
    assert fleet.waiting == {"new": 2}
    assert fleet.observe(["unit 1", "unit 0"], X[:2], y[:2]).mean.isnan().tolist() == [True, False]


def test_all_rows_that_came_before_there_was_anything_to_fit_to_are_learned(generator):
    """Targets that stand still beyond the warm-up, until another series comes."""
    draw = {"generator": generator, "dtype": torch.float64}
    X, y = torch.randn(60, 2, **draw), torch.randn(60, **draw)
    fleet = Fleet(warmup=20)
    for row in range(35):
        fleet.observe(["still"], X[row : row + 1], torch.ones(1, dtype=torch.float64))
    fleet.observe(["moving"] * 60, X, y)
    assert int(fleet.export("still").online.state.meta.num_seen) == 35


@pytest.mark.parametrize("order", [("flat", "moving"), ("moving", "flat")])
def test_series_whose_inputs_stand_still_do_not_stop_the_others(order, generator):
    draw = {"generator": generator, "dtype": torch.float64}
    X, names = torch.randn(80, 2, **draw), list(order) * 40
    X[[row for row in range(80) if names[row] == "flat"]] = 3.0
    fleet = Fleet(warmup=30, clip=4.0)
    predicted = fleet.observe(names, X, X.sum(-1) + 0.1 * torch.randn(80, **draw))
    assert set(fleet.names) == {"flat", "moving"}
    assert predicted.log_prob[60:].isfinite().all()
    assert fleet.fresh().config.clip == 4.0
