"""The one pipeline: its numbers are those of scales, fit and filter done by hand, for every kind of target."""

import copy
import functools
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import e_doebe, oebe
from gp_ensembles.ensembles.targets import (
    BinaryTarget,
    ClassTarget,
    CountTarget,
    LevelTarget,
    OutlierTarget,
    RealTarget,
    UnknownNoiseTarget,
)
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.files.checkpoint import Kind, write_checkpoint
from gp_ensembles.filters.update import predict_joint
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.columns import Standardizer
from gp_ensembles.streaming.content import KIND
from gp_ensembles.streaming.joint import joint_covariance
from tests.refusals import refused

QUICK = FitSettings(LBFGS(max_iterations=2), num_samples=1)
SMALL = replace(
    e_doebe,
    bases=(LinearBasis(), FourierBasis(num_features=10, starts=(0.7,))),
    fit_settings=QUICK,
    random_walk_variances=(1e-3,),
)
NAN = math.nan
TARGETS = (
    RealTarget(), RealTarget(2), UnknownNoiseTarget(), OutlierTarget(), BinaryTarget(), BinaryTarget(is_probit=True),
    ClassTarget(3), LevelTarget(3), CountTarget(),
)  # fmt: skip
SLOW = (*TARGETS[2:4], *TARGETS[5:])


def rows(target=RealTarget(), num_rows=90, seed=0):  # noqa: B008
    """Inputs in odd units, and targets of a kind."""
    generator = torch.Generator().manual_seed(seed)
    X = 100 + 20 * torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    f = torch.sin((X[:, 0] - 100) / 20) + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    if target.num_outputs is not None:
        return X, torch.stack([1000 + 50 * f, -3 + 0.1 * f * (X[:, 1] > 100)], dim=-1)
    if target.is_real:
        return X, 1000 + 50 * f
    if target.num_labels is None:
        return X, torch.poisson((1 + f).exp(), generator=generator)
    return X, ((f > 0).double() + (f > 0.7).double()).clamp_max(target.num_labels - 1)


@functools.cache
def fitted_once(target):
    X, y = rows(target)
    return OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=40)).fit(X[:40], y[:40])


def fitted(target=RealTarget()):  # noqa: B008
    return copy.deepcopy(fitted_once(target)), *rows(target)


def by_hand(target, X, y, num_warm):
    """Mixtures of the rows after the warm-up in standardized units, and the scales."""
    scales = (Standardizer.fit if target.is_real else Standardizer.fit_inputs)(X[:num_warm], y[:num_warm])
    inputs, targets = scales.transform(X, y)
    generator = torch.Generator().manual_seed(0)
    online = replace(SMALL, target=target).fit(inputs[:num_warm], targets[:num_warm], generator=generator)
    return online.observe(inputs[num_warm:], targets[num_warm:]), online, scales


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_kind_of_target_in_its_units(target):
    X, y = rows(target)
    model = OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=40, recalibrate=False))
    got = model.observe(X, y)
    assert got.first_row == 40
    steps, online, scales = by_hand(target, X, y, 40)
    mixture = steps.mixture
    torch.testing.assert_close(got.mean, scales.inverse_mean(mixture.mean), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got.stddev, scales.y_scale * mixture.stddev, rtol=1e-10, atol=1e-10)
    log_scale = scales.y_scale.log().sum()
    torch.testing.assert_close(got.log_prob, steps.log_prob - log_scale, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.log_weights, steps.log_weights)
    if target.num_outputs is None:  # the log density of a vector is one number, that of its mixture one for each
        torch.testing.assert_close(got.distribution.log_prob(y[40:]), got.log_prob, rtol=1e-9, atol=1e-9)
    ahead, wanted = model.predict(X[:7]), online.predict(scales.transform_inputs(X[:7]))
    torch.testing.assert_close(ahead.mean, scales.inverse_mean(wanted.mean), rtol=1e-10, atol=1e-10)
    assert model.num_rows == 90
    assert sum(model.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "target", [*TARGETS[:2], TARGETS[4], *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)], ids=str
)
def test_any_cut_and_any_checkpoint_give_the_same_stream(target, tmp_path):
    X, y = rows(target)
    y[[3, 50]] = NAN
    config = StreamConfig(replace(SMALL, target=target), warmup=40)
    whole = OnlineModel(config, ["a", "b"]).observe(X, y)
    model, parts = OnlineModel(config, ["a", "b"]), []
    for start, end in ((0, 1), (1, 30), (30, 55), (55, 56), (56, 90)):
        parts.append(model.observe(X[start:end], y[start:end]))
        model.save(tmp_path / "model.pt")
        before, model = model, OnlineModel.load(tmp_path / "model.pt")
        assert model.num_rows == before.num_rows == end
        assert repr(model) == repr(before)
        now, then = model.predict(X[:5]), before.predict(X[:5])
        assert torch.equal(now.mean, then.mean)
    assert [part.first_row for part in parts] == [1, 29, 10, 0, 0]
    for name in ("mean", "stddev", "log_prob"):
        pieces = torch.cat([getattr(part, name) for part in parts if part.log_prob.numel()])
        torch.testing.assert_close(pieces, getattr(whole, name), rtol=1e-8, atol=1e-8, equal_nan=True)
    assert torch.equal(whole.log_prob.isnan().nonzero().flatten(), torch.tensor([10]))


def test_the_warm_up_waits_for_ten_targets():
    X, y = rows()
    y[:35] = NAN
    model = OnlineModel(StreamConfig(SMALL, warmup=40))
    assert model.observe(X, y).first_row == 45
    assert torch.equal(model.warm_y.nan_to_num(), y[:45].nan_to_num())


def test_a_missing_input_is_its_warm_up_mean_on_request():
    model, X, y = fitted()
    config = replace(model.config, impute="mean")
    model = OnlineModel(config).fit(X[:40], y[:40])
    holes, means = X.clone(), X.clone()
    holes[50, 0] = NAN
    means[50, 0] = X[:40, 0].mean()
    torch.testing.assert_close(model.inputs(holes[40:51]), model.inputs(means[40:51]), rtol=0, atol=1e-12)
    a, b = copy.deepcopy(model).observe(holes[40:51], y[40:51]), model.observe(means[40:51], y[40:51])
    torch.testing.assert_close(a.mean[:10], b.mean[:10], rtol=1e-12, atol=1e-9)
    assert bool(a.stddev[10] > b.stddev[10])
    # In the warm-up: the mean of what was observed there, as a fit by hand has it.
    holes[[0, 5], 1] = NAN
    again = OnlineModel(config).fit(holes[:40], y[:40])
    seen = X[:40, 1][~holes[:40, 1].isnan()]
    torch.testing.assert_close(again.scales.X_mean[1], seen.mean())
    torch.testing.assert_close(again.scales.X_scale[1], seen.std(correction=0))
    filled = holes[:40].clone()
    filled[[0, 5], 1] = seen.mean()
    torch.testing.assert_close(again.inputs(holes[:40]), again.inputs(filled), rtol=1e-12, atol=1e-12)
    assert again.anomaly_counts.inputs_imputed == 2


def test_some_outputs_of_a_row_may_be_missing():
    model, X, y = fitted(RealTarget(2))
    y[60, 0] = NAN
    y[61] = NAN
    got = model.observe(X[40:], y[40:])
    assert got.log_prob.isnan().nonzero().flatten().tolist() == [21]
    # The density of the output that was observed, under each expert and then the mixture.
    mixture = got.distribution
    normal = torch.distributions.Normal(mixture.component_mean[:, 20, 1], mixture.component_variance[:, 20, 1].sqrt())
    want = (normal.log_prob(y[60, 1]) + got.log_weights[:, 20]).logsumexp(0)
    torch.testing.assert_close(got.log_prob[20], want, rtol=1e-9, atol=1e-9)


def test_joint_covariance_of_linear_gaussian_experts():
    model, X, _ = fitted()
    inputs = model.inputs(X[:6])
    online = model.online
    weights, mean = online.log_weights.exp(), online.predict(inputs).component_mean
    parts = []
    for expert, state in zip(online.ensemble.experts, online.state.experts, strict=True):
        bound = expert.bind()
        Phi = bound.features(inputs)
        _, covariance = predict_joint(state, Phi, bound.transition, bound.noise, prior_variance=bound.prior_variance)
        parts.append(covariance.reshape(-1, 6, 6))
    within = torch.einsum("m,mij->ij", weights, torch.cat(parts))
    center = weights @ mean
    between = torch.einsum("m,mi,mj->ij", weights, mean - center, mean - center)
    want = model.scales.y_scale**2 * (within + between)
    ahead = model.predict(X[:6])
    stretch = ahead.stddev / ahead.base.stddev  # correlations are the experts', deviations are recalibrated
    want = stretch.outer(stretch) * want
    torch.testing.assert_close(joint_covariance(model, X[:6]), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("target", [BinaryTarget(), CountTarget()], ids=str)
def test_there_is_no_joint_covariance_of_classes_and_counts(target):
    model, X, _ = fitted(target)
    refused(TypeError, "for real numbers only", lambda: joint_covariance(model, X[:2]))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_while_the_warm_up_lasts_the_targets_so_far_are_predicted(target):
    X, y = rows(target)
    model = OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=80))
    before = model.predict(X[:3])
    assert before.mean.shape[0] == 3
    model.observe(X[:60], y[:60])
    ahead = model.predict(X[:3])
    if target.is_real:
        torch.testing.assert_close(ahead.mean[0], y[:60].mean(0))
        torch.testing.assert_close(ahead.stddev[0], y[:60].std(0))
    elif target.num_labels is None:
        torch.testing.assert_close(ahead.mean[0], (y[:60].sum() + 0.5) / 60, rtol=1e-9, atol=0)
    else:
        counts = torch.bincount(y[:60].long(), minlength=target.num_labels) + 1.0
        want = (counts / counts.sum()).double()
        torch.testing.assert_close(ahead.class_probabilities[0], want, rtol=1e-6, atol=1e-9)


BAD = {
    "target": (lambda X, y: y.__setitem__(7, math.inf), "the target of row 48 is infinite"),
    "absurd target": (lambda X, y: y.__setitem__(7, 1e300), "the target of row 48 is 1e\\+300, more than 1e\\+06"),
    "wild target": (lambda X, y: y.__setitem__(7, 1e30), "the target of row 48 is 1e\\+30, more than 1e\\+06"),
    "input": (lambda X, y: X.__setitem__((7, 1), math.inf), "'b' is infinite in row 48"),
    "absurd input": (lambda X, y: X.__setitem__((7, 1), -1e200), "'b' is -1e\\+200 in row 48, more than 1e\\+06"),
    "wild input": (lambda X, y: X.__setitem__((7, 1), -1e30), "'b' is -1e\\+30 in row 48, more than 1e\\+06"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_rejected_call_changes_nothing(kind):
    X, y = rows()
    model = OnlineModel(StreamConfig(SMALL, warmup=40, on_bad_row="refuse"), ["a", "b"]).fit(X[:40], y[:40])
    spoil, message = BAD[kind]
    bad_X, bad_y = X[40:].clone(), y[40:].clone()
    spoil(bad_X, bad_y)
    before = copy.deepcopy(model)
    refused(ValueError, message, lambda: model.observe(bad_X, bad_y))
    assert model.num_rows == 40
    assert torch.equal(model.observe(X[40:], y[40:]).mean, before.observe(X[40:], y[40:]).mean)


def test_the_warm_up_waits_until_targets_differ():
    X, y = rows()
    flat = torch.cat([0 * y[:60], y[60:]])
    model = OnlineModel(StreamConfig(SMALL, warmup=40))
    assert model.observe(X, flat).first_row == 70  # ten of them
    both = torch.stack([y, flat], dim=-1)
    both[::2, 0] = NAN  # a row counts when all its outputs were observed
    model = OnlineModel(StreamConfig(replace(SMALL, target=RealTarget(2)), warmup=40))
    assert model.observe(X, both).first_row == 61


def test_a_warm_up_of_one_class_ends_when_it_should_and_another_class_is_learned():
    """Nobody knows when the rare class will come: predictions begin all the same."""
    X, _ = rows()
    y = X.new_zeros(X.shape[0])
    y[60:] = (X[60:, 0] > 0).double()
    config = StreamConfig(replace(SMALL, target=BinaryTarget()), warmup=40)
    model, other = OnlineModel(config), OnlineModel(config)
    for row in range(39):
        model.observe(X[row : row + 1], y[row : row + 1])
    with pytest.warns(UserWarning, match="all labels of the warm-up are 0"):
        model.observe(X[39:40], y[39:40])
    with pytest.warns(UserWarning, match="all labels of the warm-up are 0"):
        other.fit(X[:40], y[:40])
    assert model.is_fitted
    again = OnlineModel.from_content(model.content())  # without a warning: nothing is fitted
    found = [m.observe(X[40:], y[40:]) for m in (model, other, again)]
    for one in found[1:]:
        assert torch.equal(found[0].log_prob, one.log_prob)
    predicted = found[0].distribution.class_probabilities[:, 1]
    assert float(predicted[:20].max()) < 0.2
    late = torch.where(y[-20:] == 1, predicted[-20:], 1 - predicted[-20:])
    assert float(late.mean()) > 0.5


def test_a_warm_up_that_cannot_be_fitted_changes_nothing():
    X, y = rows()
    refused(ValueError, "the target is constant", lambda: OnlineModel(StreamConfig(SMALL)).fit(X, 0 * y))
    model = OnlineModel(StreamConfig(SMALL, warmup=40, on_bad_row="refuse"))
    model.observe(X[:20], y[:20])
    refused(ValueError, "too large to be squared", lambda: model.observe(1e200 * X[20:50], y[20:50]))
    assert model.num_rows == 20
    model.observe(X[20:50], y[20:50])
    assert model.is_fitted
    with pytest.raises(ValueError, match="classes are 0 and 1"):
        OnlineModel(StreamConfig(replace(SMALL, target=BinaryTarget()))).observe(X[:2], X.new_tensor([0.0, 2.0]))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_call_that_is_all_warm_up_predicts_no_row(target):
    X, y = rows(target)
    nothing = OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=80)).observe(X[:20], y[:20])
    assert nothing.first_row == 20
    assert nothing.log_prob.shape == (0,)
    assert nothing.mean.shape[0] == nothing.stddev.shape[0] == 0
    assert "0 rows" in repr(nothing)
    assert "0 rows" in nothing._repr_html_()


def test_numbers_and_names_of_numpy_are_saved(tmp_path):
    X, y = rows()
    spec = replace(SMALL, rule=FixedShare(np.float64(0.01)), bases=(FourierBasis(num_features=np.int64(8)),))
    config = StreamConfig(spec, warmup=np.int64(40), seed=np.int32(1), clip=np.float64(3))
    model = OnlineModel(config, np.array(["a", "b"]))
    model.observe(X, y)
    model.save(tmp_path / "model.pt")
    assert torch.equal(OnlineModel.load(tmp_path / "model.pt").predict(X[:3]).mean, model.predict(X[:3]).mean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnlineModel(oebe), "config must be"),
        (lambda: OnlineModel("auto"), "config must be"),
        (lambda: OnlineModel(feature_names="ab"), "feature_names must be a sequence"),
        (lambda: StreamConfig("auto"), "ensemble must be"),
        (lambda: StreamConfig(warmup="50"), "warmup must be a whole number, got '50'"),
        (lambda: StreamConfig(warmup=50.5), "warmup must be a whole number, got 50.5"),
        (lambda: StreamConfig(clip="3"), "clip must be a number"),
        (lambda: StreamConfig(block_size=True), "block_size must be a whole number"),
    ],
)
def test_what_a_model_is_made_of_is_checked(make, message):
    refused(TypeError, message, make)
    refused(ValueError, "'float64' or 'float32', got 'float16'", lambda: StreamConfig(dtype="float16"))
    refused(ValueError, "block_size must be positive", lambda: StreamConfig(block_size=0))


def test_predict_refuses_what_observe_does():
    X, y = rows()
    model = OnlineModel(StreamConfig(SMALL, warmup=40, on_bad_row="refuse")).fit(X[:40], y[:40])
    for bad, message in ((1e200, "more than 1e\\+06"), (math.inf, "infinite")):
        far = X[:3].clone()
        far[1, 0] = bad
        with pytest.raises(ValueError, match=message):
            model.predict(far)
    for empty in (
        lambda: model.predict(X[:0]),
        lambda: model.observe(X[:0], X[:0, 0]),
        lambda: model.fit(X[:0], X[:0, 0]),
    ):
        with pytest.raises(ValueError, match="X has no row"):
            empty()


@pytest.mark.parametrize("target", [RealTarget(), RealTarget(2)])
def test_with_numba_functions_are_compiled_before_the_first_row(target, monkeypatch):
    monkeypatch.setattr("gp_ensembles.streaming.model.IS_COMPILED", True)
    X, y = rows(target)
    model = OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=40)).fit(X[:40], y[:40])
    assert model.num_rows == 40  # a row was learned on a copy, where one by itself can be


def test_inputs_that_are_all_constant_are_refused():
    X, y = rows()
    config = StreamConfig(SMALL, warmup=40)
    refused(ValueError, "all inputs are constant", lambda: OnlineModel(config).observe(0 * X, y))


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([[1.0]], torch.zeros(1), TypeError, "X must be a floating point tensor"),
        (torch.zeros(2, 2), [0.0, 0.0], TypeError, r"y must be .* tensor; .* of a frame y.to_numpy"),
        (torch.zeros(2, 3), torch.zeros(2), ValueError, r"X must have shape \(N, 2\), got \(2, 3\)"),
        (torch.zeros(2), torch.zeros(2), ValueError, r"\(N, 2\), got \(2,\); use X.unsqueeze\(0\) for one row"),
        (torch.zeros(3), torch.zeros(3), ValueError, r"\(N, 2\), got \(3,\); use X.unsqueeze\(-1\) for N rows of one"),
        (torch.zeros(2, 2), torch.zeros(3), ValueError, r"y must have shape \(2,\)"),
        (torch.zeros(2, 2), torch.zeros(2, 1), ValueError, r"use y.squeeze\(-1\)"),
    ],
)
def test_malformed_rows(X, y, error, message):
    model = OnlineModel(StreamConfig(SMALL), ["a", "b"])
    refused(error, message, lambda: model.observe(X, y))


def test_copies_pickles_and_damaged_files(tmp_path):
    model, X, y = fitted()
    again = pickle.loads(pickle.dumps(model))
    copied = copy.deepcopy(model)
    assert "<table>" in model._repr_html_()
    wanted = model.observe(X[40:], y[40:]).mean
    for other in (again, copied):
        assert torch.equal(other.observe(X[40:], y[40:]).mean, wanted)
    (tmp_path / "text.pt").write_text("hello")
    refused(ValueError, "not a readable checkpoint", lambda: OnlineModel.load(tmp_path / "text.pt"))
    refused(ValueError, "is a folder; give what OnlineModel", lambda: OnlineModel.load(tmp_path))
    missing = tmp_path / "nothing.pt"
    refused(FileNotFoundError, "nothing.pt does not exist; give what OnlineModel", lambda: OnlineModel.load(missing))
    content = model.content()
    content["objects"] = content["objects"].replace("GaussianExpert", "Stranger")
    write_checkpoint(tmp_path / "other.pt", Kind("gp_ensembles model", KIND.version, "a model", ""), content)
    refused(ValueError, "does not fit this version", lambda: OnlineModel.load(tmp_path / "other.pt"))
    with pytest.raises(ValueError, match="warm-up is not complete: 0 of 1000"):
        OnlineModel().scales  # noqa: B018
    refused(TypeError, "ensemble", lambda: StreamConfig(oebe.bases))


def test_the_callers_memory_may_change():
    X, y = rows()
    model, other = (OnlineModel(StreamConfig(SMALL, warmup=40)) for _ in range(2))
    for part in (slice(0, 30), slice(30, 60)):
        mine_X, mine_y = X[part].clone(), y[part].clone()
        model.observe(mine_X, mine_y)
        other.observe(X[part], y[part])
        mine_X.zero_()
        mine_y.zero_()
    assert torch.equal(model.predict(X[:3]).mean, other.predict(X[:3]).mean)
    assert torch.equal(OnlineModel.from_content(model.content()).predict(X[:3]).mean, model.predict(X[:3]).mean)


def test_a_warm_up_that_does_not_end_is_said_once():
    X, y = torch.randn(60, 2, dtype=torch.float64), torch.full((60,), 3.0, dtype=torch.float64)
    model = OnlineModel(StreamConfig(oebe, warmup=20))
    model.observe(X[:39], y[:39])
    with pytest.warns(UserWarning, match="the warm-up of 20 rows has not ended after 45") as found:
        model.observe(X[39:45], y[39:45])
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.observe(X[45:], y[45:])
    assert model.online is None
