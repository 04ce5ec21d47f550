"""A row by itself goes another way than a block: the same numbers, the same state, and nothing learned by halves."""

import copy
import functools
import math
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gp_ensembles.distributions import Recalibrated
from gp_ensembles.engine.bound import RowEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import light
from gp_ensembles.files.structure import from_plain
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.content import STREAMS
from gp_ensembles.streaming.predictions import OnlinePredictions

WARMUP, NUMBER = 150, 260
_FOURIER = FourierBasis(num_features=20)
SMALL = replace(
    light,
    bases=(_FOURIER,),
    lags=TargetLags(bases=(_FOURIER,)),
    extra_experts=(WideFeatures(num_features=40),),
    fit_settings=FitSettings(method=None, num_samples=1),
)
# Everything that a row may meet: a window that overflows and is refitted, trees that are trained, maps that are called.
WHOLE = replace(
    SMALL,
    bases=(HilbertBasis(num_frequencies=6), RadialBasis(num_centers=12)),
    extra_experts=(
        WindowGP(num_rows=100, lags=True, refit_every=80),
        WindowGP(num_rows=60, nu=2.5, name="windows"),
        WideFeatures(num_features=40),
        Boosting(num_trees=10, every=110),
    ),
)
SPECS = {
    "seasonal": SMALL,
    "whole": WHOLE,
    "changing trend": replace(SMALL, lags=TargetLags(bases=(_FOURIER,), changing_trend=True)),
    "no lags": replace(SMALL, lags=None),
    "no threshold": replace(SMALL, outlier_threshold=None),
}


def stream(number: int = WARMUP + NUMBER) -> tuple[Tensor, Tensor]:
    """Inputs with a gap and one far out, and a seasonal target with gaps and outliers, all after the warm-up."""
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(number, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(number, generator=generator, dtype=torch.float64)
    rows = torch.arange(number, dtype=torch.float64)
    y = 50 + 4 * (2 * torch.pi * rows / 12).sin() + 3 * X[:, 0].tanh() + 0.5 * noise
    y[WARMUP + 30 : WARMUP + 33] = y[WARMUP + 200] = torch.nan
    y[WARMUP + 60], y[WARMUP + 61], y[WARMUP + 250] = 500.0, -300.0, 1e4
    X[WARMUP + 90, 1] = torch.nan
    X[WARMUP + 120 : WARMUP + 123, 2] = 60.0
    return X, y


@functools.cache
def fitted_once(spec: str, **changes: object) -> OnlineModel:
    X, y = stream()
    return OnlineModel(StreamConfig(SPECS[spec], warmup=WARMUP, **changes)).fit(X[:WARMUP], y[:WARMUP])


def fitted(spec: str = "seasonal", **changes: object) -> OnlineModel:
    return copy.deepcopy(fitted_once(spec, **changes))


def one_by_one(model: OnlineModel, X: Tensor, y: Tensor) -> list[OnlinePredictions]:
    return [model.observe(X[t : t + 1], y[t : t + 1]) for t in range(len(y))]


def contents(model: OnlineModel) -> list[Tensor]:
    """All tensors of a model."""
    return model.content()["tensors"]


def assert_same_state(model: OnlineModel, other: OnlineModel, tolerance: float) -> None:
    for name, value in model.online.state_dict().items():
        torch.testing.assert_close(
            value, other.online.state_dict()[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
        )
    for old, new in zip(contents(model), contents(other), strict=True):
        torch.testing.assert_close(old, new, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert (model.num_rows, model.anomaly_counts) == (other.num_rows, other.anomaly_counts)


def assert_same_predictions(rows: list[OnlinePredictions], block: OnlinePredictions) -> None:
    close = {"rtol": 1e-8, "atol": 1e-8, "equal_nan": True}
    predicted = [row.distribution for row in rows], block.distribution
    if isinstance(block.distribution, Recalibrated):
        maps = torch.cat([part.map_log_weights for part in predicted[0]], 1)
        torch.testing.assert_close(maps.exp(), block.distribution.map_log_weights.exp(), **close)
        predicted = [part.base for part in predicted[0]], block.distribution.base
    for number, whole in enumerate(predicted[1]):
        torch.testing.assert_close(torch.cat([part[number] for part in predicted[0]], 1), whole, **close)
    torch.testing.assert_close(torch.cat([row.log_prob for row in rows]), block.log_prob, **close)
    weights = torch.cat([row.log_weights for row in rows], 1).exp()
    torch.testing.assert_close(weights, block.log_weights.exp(), **close)
    assert (block.intervals is None) == (rows[0].intervals is None)
    if block.intervals is not None:
        for found in (lambda p: p.intervals.levels, lambda p: p.intervals.covered):
            torch.testing.assert_close(torch.cat([found(row) for row in rows], -1), found(block), **close)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ("seasonal", {}),
        ("changing trend", {"recalibrate": False, "coverages": (), "limit_inputs": False}),
        ("no lags", {"clip": 1.5, "coverages": (0.5, 0.9), "recalibrate": False}),
        ("no threshold", {}),
        ("whole", {}),
    ],
)
def test_rows_one_by_one_are_the_blocks(spec: str, changes: dict[str, object]) -> None:
    model, (X, y) = fitted(spec, **changes), stream()
    other = copy.deepcopy(model)
    assert model.online.one_row is not None
    end = WARMUP + 130
    rows = one_by_one(model, X[WARMUP:end], y[WARMUP:end])
    block = other.observe(X[WARMUP:end], y[WARMUP:end])
    assert_same_predictions(rows, block)
    assert_same_state(model, other, 1e-8)
    assert (model.anomaly_counts.targets_discounted > 0) == (spec != "no threshold")


def test_rows_with_a_column_that_wakes_up_are_the_blocks() -> None:
    """Constant for the warm-up and fifty rows, then of some size, from its hundredth value on in the usual way."""
    X, y = stream()
    X[: WARMUP + 50, 2] = 2.0
    X[WARMUP + 50 :, 2] = 2 + 7 * torch.linspace(-1, 1, NUMBER - 50, dtype=torch.float64).sin().roll(100)
    X[WARMUP + 240, 2] = 900.0  # its scale grows once more
    y = y + X[:, 2]
    model = OnlineModel(StreamConfig(SMALL, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    other = copy.deepcopy(model)
    rows = one_by_one(model, X[WARMUP:], y[WARMUP:])
    assert model.online.one_row is not None
    assert_same_predictions(rows, other.observe(X[WARMUP:], y[WARMUP:]))
    assert_same_state(model, other, 1e-8)
    assert from_plain(model.content(), STREAMS)["_followed"].inactive_columns.scale.tolist()[2] > 1


def test_a_window_overflows_and_trees_are_trained_while_nearly_all_rows_go_by_themselves(monkeypatch) -> None:
    model, (X, y), alone = fitted("whole"), stream(), []
    commit = RowEnsemble.commit
    monkeypatch.setattr(RowEnsemble, "commit", lambda row, staged: (alone.append(staged.y), commit(row, staged)))
    kinds = [type(expert).__name__ for expert in model.online.ensemble.experts]
    assert {"WindowExpert", "ExternalExpert"} <= set(kinds)
    before = model.online.state.experts[kinds.index("ExternalExpert")].digest.clone()
    one_by_one(model, X[WARMUP:], y[WARMUP:])
    states = model.online.state.experts
    assert NUMBER * 0.9 < len(alone) < NUMBER - 10
    assert states[kinds.index("WindowExpert")].num_used < 200 < model.num_rows
    assert states[kinds.index("WindowExpert")].due > WARMUP + 160
    assert states[kinds.index("ExternalExpert")].digest != before


def test_what_is_predicted_of_a_row_is_what_is_said_when_it_is_learned() -> None:
    model, (X, y) = fitted("whole"), stream()
    for t in range(WARMUP + 28, WARMUP + 68):
        row = X[t : t + 1]
        before = model.predict(row)
        ends = model.interval_of(before)
        predicted = model.observe(row, y[t : t + 1])
        at = y[t : t + 1] if not y[t].isnan() else torch.full((1,), 50.0, dtype=torch.float64)
        torch.testing.assert_close(before.log_prob(at), predicted.distribution.log_prob(at), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ends, predicted.interval(), rtol=1e-9, atol=1e-9)


def test_rows_and_blocks_come_in_any_order_and_a_loaded_model_goes_on_to_the_bit(tmp_path) -> None:
    model, (X, y) = fitted("whole"), stream()
    other, at = copy.deepcopy(model), WARMUP
    for length in (1, 1, 40, 1, 7, 1, 1, 1, 64, 1, 1, 2, 1):
        model.observe(X[at : at + length], y[at : at + length])
        at += length
    model.save(tmp_path / "model.pt")
    loaded, copied = OnlineModel.load(tmp_path / "model.pt"), copy.deepcopy(model)
    parts = [one_by_one(each, X[at : at + 25], y[at : at + 25]) for each in (model, loaded, copied)]
    for rest in parts[1:]:
        assert all(
            torch.equal(a.log_prob.nan_to_num(9.0), b.log_prob.nan_to_num(9.0))
            for a, b in zip(parts[0], rest, strict=True)
        )
    assert_same_state(model, loaded, 0.0)
    other.observe(X[WARMUP : at + 25], y[WARMUP : at + 25])
    assert_same_state(model, other, 1e-8)


def test_what_was_predicted_of_a_row_is_not_learned_after_others_have_changed_the_state() -> None:
    """The same row, as many rows in the windows, but other ones."""
    model, (X, y) = fitted("whole"), stream()
    row, target = X[WARMUP : WARMUP + 1], y[WARMUP : WARMUP + 1]
    model.predict(row)
    fresh = copy.deepcopy(model)
    for each in (model, fresh):
        for name, value in each.online.state_dict().items():
            if name.endswith("projected"):
                value.mul_(0.5)
    assert torch.equal(model.observe(row, target).log_prob, fresh.observe(row, target).log_prob)


def test_what_was_said_stays_when_more_is_learned_and_copies_do_not_know_each_other() -> None:
    model, (X, y) = fitted(), stream()
    first = model.observe(X[WARMUP : WARMUP + 1], y[WARMUP : WARMUP + 1])
    kept = first.distribution.mean.clone(), first.log_weights.clone(), first.intervals.levels.clone()
    other = copy.deepcopy(model)
    content = copy.deepcopy(model.online.state_dict())
    one_by_one(other, X[WARMUP + 1 : WARMUP + 20], y[WARMUP + 1 : WARMUP + 20])
    assert all(torch.equal(value, content[name]) for name, value in model.online.state_dict().items())
    one_by_one(model, X[WARMUP + 1 : WARMUP + 20], y[WARMUP + 1 : WARMUP + 20])
    assert_same_state(model, other, 0.0)
    assert all(map(torch.equal, kept, (first.distribution.mean, first.log_weights, first.intervals.levels)))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, math.inf, "infinite"),
        (1, 1e9, "warm-up standard deviations"),
        (None, math.inf, "infinite"),
        (None, 1e9, "row"),
    ],
)
def test_a_refused_row_changes_nothing(column: int | None, value: float, message: str) -> None:
    model, (X, y) = fitted(on_bad_row="refuse"), stream()
    one_by_one(model, X[WARMUP : WARMUP + 3], y[WARMUP : WARMUP + 3])
    other, at = copy.deepcopy(model), slice(WARMUP + 3, WARMUP + 4)
    row, target = X[at].clone(), y[at].clone()
    if column is None:
        target[0] = value
    else:
        row[0, column] = value
    with pytest.raises(ValueError, match=message):
        model.observe(row, target)
    if column is not None:
        with pytest.raises(ValueError, match=message):
            model.predict(row)
    assert_same_state(model, other, 0.0)


@pytest.mark.parametrize("read", ["state", "state_dict", "predict", "copy", "pickle", "to", "load"])
def test_whoever_reads_the_state_finds_it_whole(read: str) -> None:
    model, (X, y) = fitted("no lags"), stream()
    one_by_one(model, X[WARMUP : WARMUP + 20], y[WARMUP : WARMUP + 20])
    online, row = model.online, X[WARMUP : WARMUP + 1]
    readers = {
        "state": lambda: online.state.experts[0].moments,
        "state_dict": lambda: online.state_dict()["expert_0_moments"],
        "predict": lambda: (online.predict(row), online.get_buffer("expert_0_moments"))[1],
        "copy": lambda: copy.deepcopy(online).get_buffer("expert_0_moments"),
        "pickle": lambda: pickle.loads(pickle.dumps(online)).get_buffer("expert_0_moments"),
        "to": lambda: online.to(torch.float64).get_buffer("expert_0_moments"),
        "load": lambda: (
            online.load_state_dict(fitted("no lags").online.state_dict()),
            online.state.experts[0].moments,
        )[1],
    }
    covariance = readers[read]()[..., :-1]
    torch.testing.assert_close(covariance, covariance.mT, rtol=0, atol=1e-12)
    if read == "load":
        assert torch.equal(online.state.experts[0].moments, fitted("no lags").online.state.experts[0].moments)
