"""Inputs that are missing or inactive, and rows that are not one step apart, through the whole pipeline."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import (
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    PolynomialBasis,
    RadialBasis,
    SplineBasis,
)
from gp_ensembles.ensembles.extra_experts import WideFeatures
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import light, oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.input_states import FAR, SETTLED, Gaps, Imputation, InactiveColumns

NAN = math.nan
WARMUP = 120
SMALL = replace(oebe, bases=(LinearBasis(), FourierBasis(20)), random_walk_variances=(1e-3,))
LAYERS = replace(
    light,
    bases=(FourierBasis(20),),
    lags=TargetLags(bases=(FourierBasis(20),)),
    extra_experts=(WideFeatures(num_features=40),),
)


def stream(number: int = 400) -> tuple[Tensor, Tensor]:
    """Four columns: a walk, one of zeros that become ones, noise, and one without any value for long."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(number, 3, generator=generator, dtype=torch.float64)
    walk = torch.zeros(number, dtype=torch.float64)
    for t in range(1, number):
        walk[t] = 0.97 * walk[t - 1] + 0.25 * noise[t, 0]
    switch = torch.where(torch.arange(number) >= 210, 1.0, 0.0).double()
    late = torch.full((number,), NAN, dtype=torch.float64)
    late[260:] = 3 + noise[260:, 2]
    X = torch.stack([walk, switch, noise[:, 1], late], dim=-1)
    y = 10 + 2 * walk + 3 * switch + 0.5 * noise[:, 1] + 0.2 * noise[:, 2]
    holes = torch.rand(number, 4, generator=generator) < 0.08
    X[holes] = NAN
    X[300:315, 0] = NAN
    y[230] = NAN
    return X, y


def model(spec: object = SMALL, **changes: object) -> OnlineModel:
    return OnlineModel(StreamConfig(spec, warmup=WARMUP, **changes), ["walk", "switch", "noise", "late"])


def observe(one: OnlineModel, X: Tensor, y: Tensor, steps: Tensor | None, size: int) -> Tensor:
    predicted = []
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        predicted.append(one.observe(X[rows], y[rows], None if steps is None else steps[rows]).log_prob)
    return torch.cat(predicted)


@pytest.mark.parametrize(("spec", "size"), [(SMALL, 1), (LAYERS, 9)], ids=["small", "all layers"])
def test_blocks_give_the_same_answers_and_a_loaded_model_goes_on_to_the_bit(
    spec: object, size: int, tmp_path: Path
) -> None:
    X, y = stream()
    steps = torch.ones_like(y)
    steps[150::7] = 2.5
    steps[200] = 0.0
    whole, rows = model(spec), model(spec)
    wanted = observe(whole, X, y, steps, len(y))
    torch.testing.assert_close(observe(rows, X, y, steps, size), wanted, rtol=1e-8, atol=1e-8, equal_nan=True)
    assert whole.columns == rows.columns
    assert whole.anomaly_counts == rows.anomaly_counts
    assert {c.name: c.activated_at for c in whole.columns if c.was_constant} == {
        "switch": 1 + min(t for t in range(210, 400) if not X[t, 1].isnan()),
        "late": 1 + [t for t in range(400) if not X[t, 3].isnan()][1],
    }
    assert [c.num_imputed for c in whole.columns] == X.isnan().sum(0).tolist()
    first = model(spec)
    observe(first, X[:265], y[:265], steps[:265], 265)
    first.save(tmp_path / "model.pt")
    again = OnlineModel.load(tmp_path / "model.pt")
    one, two = (other.observe(X[265:], y[265:], steps[265:]).log_prob for other in (first, again))
    assert torch.equal(one, two)
    assert first.columns == again.columns


def test_steps_of_one_change_no_bit_and_bad_ones_are_refused_without_a_trace() -> None:
    X, y = stream()
    one, two = model(), model()
    assert torch.equal(
        one.observe(X, y).log_prob.nan_to_num(), two.observe(X, y, torch.ones_like(y)).log_prob.nan_to_num()
    )
    for wrong in (torch.full_like(y[:2], -1), y.new_tensor([1.0, NAN]), y.new_tensor([1.0, math.inf]), y[:3]):
        with pytest.raises(ValueError, match="steps must"):
            one.observe(X[:2], y[:2], wrong)
    assert one.num_rows == two.num_rows
    assert torch.equal(one.predict(X[:1]).mean, two.predict(X[:1]).mean)


@pytest.mark.parametrize(
    "basis", [FourierBasis(20), HilbertBasis(), RadialBasis(20), PolynomialBasis((2,)), LinearBasis(), SplineBasis()]
)
def test_a_column_that_wakes_up_is_learned_by_every_basis(basis: object) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    X[:, 1] = torch.where(torch.arange(500) < 200, 7.0, 7.0 + (X[:, 1] > 0).double())
    y = X[:, 0] + 4 * (X[:, 1] - 7) + 0.1 * torch.randn(500, generator=generator, dtype=torch.float64)
    config = StreamConfig(replace(oebe, bases=(basis,)), warmup=100)
    awake = OnlineModel(config).observe(X, y).log_prob
    inactive = OnlineModel(config).observe(torch.stack([X[:, 0], torch.full_like(y, 7.0)], 1), y)
    torch.testing.assert_close(awake[:100], inactive.log_prob[:100], rtol=0, atol=1e-9)
    assert float(awake[-100:].mean()) > float(inactive.log_prob[-100:].mean()) + 0.7


def by_hand(values: list[float]) -> list[float]:
    base, logs, floor, predicted = values[0], [], 0.0, []
    for value in values:
        size = abs(value - base)
        if size == 0:
            predicted.append(0.0)
            continue
        settled = len(logs) == SETTLED
        if not settled:
            logs.append(math.log(size))
        scale = max(math.exp(sum(logs) / len(logs)), floor)
        if len(logs) == SETTLED and size > FAR * scale:
            floor = min(2 * scale, size / FAR)
        predicted.append(max(-FAR, min(FAR, (value - base) / max(scale, floor))))
    return predicted


@pytest.mark.parametrize(
    "values",
    [
        [2.0] * 5 + [3.0] * 300,
        [0.0] * 5 + [1e-9 * (1 + k % 3) for k in range(90)] + [float(k) for k in range(200)],
        [5.0] * 3 + [5 + math.sin(k) for k in range(150)] + [1e12] + [5 + math.sin(k) for k in range(60)],
        [0.0] + [10.0 ** (k / 20) for k in range(280)],
    ],
    ids=["binary", "tiny first", "one outlier", "grows"],
)
def test_the_scale_of_a_column_that_wakes_up(values: list[float]) -> None:
    X = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    after, predicted = InactiveColumns.of(X[0]).follow(X, X.new_zeros(()))
    torch.testing.assert_close(predicted[:, 0], X.new_tensor(by_hand(values)), rtol=1e-9, atol=1e-12)
    assert float(after.activated_at) == 1 + next(k for k, value in enumerate(values) if value != values[0])
    parts, state = [], InactiveColumns.of(X[0])
    for t, row in enumerate(X.split(7)):
        state, part = state.follow(row, X.new_tensor(7 * t))
        parts.append(part)
    assert torch.equal(torch.cat(parts), predicted)
    assert all(map(torch.equal, state, after))


def test_what_stands_in_is_the_best_of_an_autoregression() -> None:
    """Against the linear prediction from all values before the gap, by solving for it."""
    generator = torch.Generator().manual_seed(2)
    x = torch.zeros(4000, dtype=torch.float64)
    for t in range(1, 4000):
        x[t] = 0.8 * x[t - 1] + 0.6 * torch.randn((), generator=generator, dtype=torch.float64)
    X = 3 + x.unsqueeze(-1)
    found = Imputation.of(X, X.mean(0), "found")
    assert abs(float(found.used) - 0.8) < 0.03
    _, last, age = Gaps.none(X[0]).follow(torch.cat([X[:5], torch.full((3, 1), NAN, dtype=torch.float64)]))
    rho = found.persistence
    lags = torch.arange(8).double()
    covariance = rho ** (lags.unsqueeze(0) - lags.unsqueeze(1)).abs()
    for ahead in range(3):
        weights = torch.linalg.solve(covariance[:5, :5], covariance[5 + ahead, :5])
        expected = X.mean() + weights @ (X[:5, 0] - X.mean())
        torch.testing.assert_close(found.fill(last, age)[5 + ahead, 0], expected, rtol=1e-9, atol=1e-9)
        error = 1 - weights @ covariance[5 + ahead, :5]
        torch.testing.assert_close(found.uncertainty(last, age)[5 + ahead, 0], error, rtol=1e-9, atol=1e-9)
    for impute, wanted in (("last", X[4, 0]), ("mean", X.mean())):
        torch.testing.assert_close(Imputation.of(X, X.mean(0), impute).fill(last, age)[6, 0], wanted)


def test_gaps_add_the_noise_that_a_linear_model_knows() -> None:
    generator = torch.Generator().manual_seed(4)
    X = torch.randn(600, 2, generator=generator, dtype=torch.float64)
    y = 3 * X[:, 0] + X[:, 1] + 0.1 * torch.randn(600, generator=generator, dtype=torch.float64)
    config = StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=500, recalibrate=False, coverages=())
    one = OnlineModel(config).fit(X[:500], y[:500])
    rows = torch.tensor([[0.5, 0.5], [NAN, 0.5], [0.5, NAN], [NAN, NAN]], dtype=torch.float64)
    added = one.predict(rows).variance - one.predict(rows[:1]).variance
    wanted = torch.stack([y.new_zeros(()), 9 * X[:500, 0].var(), X[:500, 1].var(), y[:500].var()])
    torch.testing.assert_close(added[1:], wanted[1:], rtol=0.35, atol=0.0)
    before = copy.deepcopy(one)
    one.observe(rows[3:], y.new_tensor([40.0]))  # a row that says nothing of the inputs teaches next to nothing
    torch.testing.assert_close(one.predict(X[:20]).mean, before.predict(X[:20]).mean, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("has_point", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gaps_in_single_precision_in_blocks_and_one_by_one(has_point: bool) -> None:
    X, y = (part[:150] for part in stream())
    if has_point:
        y = torch.where(y < 10, 0.0, y)
    X[130:140, 0] = NAN
    found = []
    for dtype, size in (("float64", 30), ("float32", 30), ("float32", 1)):
        one = model(SMALL, dtype=dtype, recalibrate=False).fit(X[:WARMUP], y[:WARMUP])
        found.append(observe(one, X[WARMUP:], y[WARMUP:], None, size))
        assert (one.point is not None) == has_point
    torch.testing.assert_close(found[2], found[1], rtol=1e-3, atol=1e-3, equal_nan=True)
    if not has_point:  # the probability of the point comes from features that are drawn in each precision
        torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0.02, equal_nan=True)


def test_an_indicator_where_gaps_tell_of_the_target() -> None:
    generator = torch.Generator().manual_seed(6)
    X = torch.randn(800, 2, generator=generator, dtype=torch.float64)
    holes = torch.rand(800, generator=generator) < 0.3
    y = X[:, 0] + 2 * holes.double() + 0.1 * torch.randn(800, generator=generator, dtype=torch.float64)
    X[holes, 1] = NAN
    config = StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=400)
    one = OnlineModel(config)
    predicted = one.observe(X, y)
    assert [column.has_indicator for column in one.columns] == [False, True]
    assert float((predicted.mean - y[400:]).square().mean()) < 0.05
    blind = OnlineModel(config)
    blind.observe(X, X[:, 0] + 0.1 * torch.randn(800, generator=generator, dtype=torch.float64))
    assert not any(column.has_indicator for column in blind.columns)
