"""Files hold what was built: kinds in a closed table, of windows the rows in use; a model goes on to the bit."""

import hashlib
import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel, SpectralMixtureKernel

from gp_ensembles import features, likelihoods
from gp_ensembles.cli.scored_stream import SCORED
from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary, LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.presets import PRESETS, auto_for, oebe
from gp_ensembles.ensembles.structure import ENSEMBLES
from gp_ensembles.ensembles.targets import (
    BinaryTarget,
    ClassTarget,
    CountTarget,
    LevelTarget,
    OutlierTarget,
    RealTarget,
    UnknownNoiseTarget,
)
from gp_ensembles.experts import LBFGS
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare, ReferenceAveraging
from gp_ensembles.numerics.compiled import IS_COMPILED
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.content import KIND
from tests.pretend_device import pretend_device
from tests.refusals import refused

WINDOWS = (WindowGP(num_rows=40), WindowGP(num_rows=30, refit_every=50, name="refitted"))
SPEC = replace(oebe, bases=(LinearBasis(),), extra_experts=WINDOWS)
QUICK = FitSettings(LBFGS(max_iterations=1), 1)
TARGETS = [BinaryTarget(), ClassTarget(3), LevelTarget(3), CountTarget(), UnknownNoiseTarget(), OutlierTarget()]
TARGETS.append(RealTarget(2))


def rows(num_rows=200):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, (3 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def model(num_rows, dtype="float64"):
    X, y = rows()
    one = OnlineModel(StreamConfig(SPEC, warmup=35, dtype=dtype))
    one.observe(X[:num_rows], y[:num_rows])
    return one


def assert_goes_on(one, path, X, y):
    one.save(path)
    other = OnlineModel.load(path)
    for (name, saved), loaded in zip(one.online.state_dict().items(), other.online.state_dict().items(), strict=True):
        assert name == loaded[0]
        torch.testing.assert_close(saved, loaded[1], rtol=0, atol=0, equal_nan=True, msg=name)
    found, wanted = other.observe(X, y).log_prob, one.observe(X, y).log_prob
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.processor
@pytest.mark.parametrize(  # 59 and 79 rows fill the windows
    ("num_rows", "dtype"), [(36, "float64"), (79, "float32"), (80, "float64"), (150, "float64")]
)
def test_a_model_goes_on_to_the_bit(num_rows, dtype, tmp_path):
    X, y = rows()
    assert_goes_on(model(num_rows, dtype), tmp_path / "model.pt", X[num_rows:], y[num_rows:])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "deep" else ()) for name in PRESETS]
)
def test_every_preset_is_read_back(name, tmp_path):
    X, y = rows(60)
    own = (KernelDictionary(6),) if "ie_gp" in name else (LinearBasis(), FourierBasis(6), RadialBasis(4))
    spec = replace(PRESETS[name], bases=own, fit_settings=QUICK)
    one = OnlineModel(StreamConfig(spec, warmup=40)).fit(X[:40], y[:40] + 0.3 * torch.arange(40))
    assert_goes_on(one, tmp_path / "model.pt", X[40:], y[40:])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_every_target_is_read_back(target, tmp_path):
    X, y = rows(60)
    y = y if target.is_real else (y > 0).double() + (y > 0.6) * (not isinstance(target, BinaryTarget))
    y = y if target.num_outputs is None else torch.stack([y, -y], dim=-1)
    spec = replace(auto_for(target), bases=(LinearBasis(),), fit_settings=QUICK)
    one = OnlineModel(StreamConfig(spec, warmup=40)).fit(X[:40], y[:40])
    assert_goes_on(one, tmp_path / "model.pt", X[40:], y[40:])


def test_a_factor_of_another_form_is_kept_whole_and_one_that_does_not_fit_refused():
    window = next(part for part in model(60).online.state.experts if hasattr(part, "factor"))
    plain = to_plain(window, ENSEMBLES)
    assert max(len(part) for part in plain["tensors"]) < 80  # the triangle of 60 rows is one of them
    assert torch.equal(from_plain(plain, ENSEMBLES).factor, window.factor)
    number = next(n for n, part in enumerate(plain["tensors"]) if part.shape[-1] == 60 * 61 // 2)
    plain["tensors"][number] = plain["tensors"][number][..., 1:]
    with pytest.raises(RuntimeError, match="the factor of 60 rows of a window of 80 does not fit"):
        from_plain(plain, ENSEMBLES)
    window.factor[..., 0, 5] = 1e-300  # above the diagonal, where nothing should be
    assert torch.equal(from_plain(to_plain(window, ENSEMBLES), ENSEMBLES).factor, window.factor)


class Own(BayesianModelAveraging):  # type: ignore[misc]  # a kind that the table does not have
    """A rule of the user's."""


def test_only_kinds_of_the_table_are_written_and_read():
    shared = [1.5, float("inf"), "a"]
    things = {"twice": (shared, shared), 3: {"b": None, "c": torch.Size([2])}, "set": {1}, "function": torch.exp}
    assert len({kind.__name__ for kind in SCORED.forms}) == len(SCORED.forms)
    plain = to_plain(things, ENSEMBLES)
    again = from_plain(plain, ENSEMBLES)
    assert again == things
    assert again["twice"][0] is again["twice"][1]
    refused(TypeError, "Own cannot be saved", lambda: to_plain(Own(), ENSEMBLES))
    shared.append(shared)
    refused(TypeError, "a list that refers to itself", lambda: to_plain(things, ENSEMBLES))
    twice = [["tuple"], *(["tuple", [place], [place]] for place in range(60))]  # each doubles what the one before holds
    for objects in (
        '[["os.system"]]', '[["Own",{}]]', '[["list",[0]]]', '[["list",1],["list",[-1]]]', "[", "[[[]]]",
        '[["Quarantine",{"until":1}]]', '[["LinearBasis",{"a":1}]]', '[["TargetLags",{}]]', '[["Positive",{"a b":1}]]',
        json.dumps([*twice, ["set", [60]], ["list", [61]]]),
    ):  # fmt: skip
        with pytest.raises((LookupError, TypeError, RecursionError, json.JSONDecodeError)):
            from_plain({**plain, "objects": objects}, ENSEMBLES)


def test_what_was_read_is_checked_as_what_was_given():
    plain = to_plain(StreamConfig(SPEC, warmup=3517), SCORED)
    damaged = {**plain, "objects": plain["objects"].replace("3517", "-5")}
    refused(TypeError, "StreamConfig: warmup is -5", lambda: from_plain(damaged, SCORED))
    lacking = to_plain({"config": StreamConfig(SPEC)}, SCORED)
    refused(KeyError, "there is no .*_followed", lambda: OnlineModel.from_content(lacking))


def test_files_hold_whatever_an_expert_consists_of():
    for package in (features, likelihoods):
        for kind in map(vars(package).__getitem__, package.__all__):
            assert inspect.isabstract(kind) or kind in ENSEMBLES.forms, kind
    X, parts = (
        rows(20)[0],
        [MaternKernel(), RQKernel(), SpectralMixtureKernel(2, ard_num_dims=2), RBFKernel() + MaternKernel()],
    )
    maps = [features.RandomFourierFeatures.from_kernel(part.double(), 2, 6) for part in map(ScaleKernel, parts)]
    maps.append(features.HilbertTensorFeatures.from_data(ScaleKernel(RBFKernel()).double(), X, 4))
    maps.append(features.InducingPointFeatures(ScaleKernel(RBFKernel()).double(), X[:5]))
    for one in maps:
        assert torch.equal(from_plain(to_plain(one, ENSEMBLES), ENSEMBLES).bind()(X), one.bind()(X))


def test_a_rule_in_a_file_of_another_device_goes_on_there():
    with pretend_device():
        log_prob = torch.arange(12, dtype=torch.float64, device="cuda").reshape(3, 4)
        rule = ReferenceAveraging(FixedShare(), [1]).to("cuda")
        ours = rule.update_block(rule.init(3, log_prob), log_prob)[1].log_prob
        again = from_plain(to_plain(rule, ENSEMBLES), ENSEMBLES).to("cuda")
        assert torch.equal(again.update_block(again.init(3, log_prob), log_prob)[1].log_prob, ours)


def test_whoever_changes_what_a_file_holds_changes_its_version():
    """Files name classes and attributes: if one of ``auto`` or ``light`` is renamed, files of before cannot be read."""
    X, y = rows(60)
    fields = set[str]()
    for spec in ("auto", "light"):
        one = OnlineModel(StreamConfig(replace(PRESETS[spec], fit_settings=QUICK), warmup=40)).fit(X[:40], y[:40])
        parts = json.loads(one.content()["objects"])
        fields |= {f"{kind} {sorted(own[0])}" for kind, *own in parts if own and isinstance(own[0], dict)}
    found = hashlib.sha256("\n".join(sorted(fields)).encode()).hexdigest()[:8]
    assert (KIND.version, found) == (12, "18a22c87"), "raise the version of streaming.content.KIND, and enter both here"


def modules_of(call):
    """Files of the library in which a call executes a function."""
    found = set[str]()
    sys.setprofile(lambda frame, *_: found.add(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    return {name for name in found if Path(name).is_relative_to(Path(features.__file__).parents[1])}


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled is not seen, and is compiled when a file is read")
def test_a_row_and_a_file_go_through_few_modules(tmp_path):
    X, y = rows(60)
    one = OnlineModel(StreamConfig(replace(PRESETS["auto"], fit_settings=QUICK), warmup=40)).fit(X[:40], y[:40])
    one.observe(X[40:58], y[40:58])
    one.save(tmp_path / "model.pt")
    one.observe(X[58:59], y[58:59])  # reads constants
    trip = modules_of(lambda: one.observe(X[59:], y[59:]))
    assert any(name.endswith("streaming/one_row.py") for name in trip)
    assert len(trip) <= 14, trip
    assert len(modules_of(lambda: OnlineModel.load(tmp_path / "model.pt"))) <= 25
