"""The river door: rows as dictionaries, in its evaluation loop, equal to blocks."""

import math
from dataclasses import replace

import pandas as pd
import pytest

pytest.importorskip("river", reason="river is an optional extra")

from river import datasets, evaluate, metrics

from gp_ensembles.ensembles.bases import LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.estimators.river import RiverRegressor

small = replace(
    e_doebe,
    bases=(LinearBasis(), RadialBasis(num_centers=10, starts=(0.7,))),
    fit_settings=FitSettings(num_samples=1),
    random_walk_variances=(1e-3,),
)


def rows(num_rows=120):
    return [({"a": math.sin(t), "b": math.cos(0.7 * t), "c": 1.0}, 20 + 5 * math.sin(t)) for t in range(num_rows)]


def test_progressive_validation_beats_the_mean():
    model = RiverRegressor(small, warmup=100)
    stream = list(datasets.TrumpApproval())[:400]
    error = evaluate.progressive_val_score(stream, model, metrics.MAE()).get()
    mean = sum(y for _, y in stream) / len(stream)
    assert error < 0.6 * sum(abs(y - mean) for _, y in stream) / len(stream)
    assert sum(model.expert_weights.values()) == pytest.approx(1.0)


def test_many_equals_one_at_a_time():
    one, many = RiverRegressor(small, warmup=40), RiverRegressor(small, warmup=40)
    table = pd.DataFrame([x for x, _ in rows()])
    y = pd.Series([y for _, y in rows()])
    for x, target in rows():
        one.learn_one(x, target)
    many.learn_many(table, y)
    predicted = many.predict_many(table)
    assert predicted.index.equals(table.index)
    for (x, _), value in zip(rows(), predicted, strict=True):
        assert one.predict_one(x) == pytest.approx(value, rel=1e-9)
    forecast = one.forecast_one(rows()[3][0])
    assert forecast.lower < forecast.mean < forecast.upper
    assert forecast.std > 0


def test_before_the_warm_up_and_missing_targets():
    model = RiverRegressor(small, warmup=40)
    assert model.predict_one({"a": 0.0, "b": 0.0, "c": 1.0}) == 0.0
    model.learn_one({"a": 0.0, "b": 0.0, "c": 1.0}, 4.0)
    model.learn_one({"a": 1.0, "b": 0.0, "c": 1.0}, None)
    model.learn_one({"a": 1.0, "b": 1.0, "c": 1.0}, 6.0)
    assert model.predict_one({"a": 0.0, "b": 0.0, "c": 1.0}) == 5.0
    assert model.expert_weights == {}


def test_features_are_those_of_the_first_row_in_any_order():
    model = RiverRegressor(small, warmup=40)
    for x, y in rows(60):
        model.learn_one(x, y)
    x, _ = rows(61)[-1]
    want = model.predict_one(x)
    assert model.predict_one(dict(reversed(list(x.items())))) == want
    with pytest.raises(ValueError, match="lacks b and adds d"):
        model.learn_one({"a": 0.0, "c": 1.0, "d": 2.0}, 1.0)
    with pytest.raises(ValueError, match="feature b is nan"):
        model.learn_one({"a": 0.0, "b": math.nan, "c": 1.0}, 1.0)
    with pytest.raises(ValueError, match="inf"):
        model.learn_one(x, math.inf)
    assert model.predict_one(x) == want


def test_clone_is_fresh():
    model = RiverRegressor(small, warmup=40, seed=5)
    for x, y in rows(60):
        model.learn_one(x, y)
    fresh = model.clone()
    assert fresh.seed == 5
    assert fresh.predict_one(rows(1)[0][0]) == 0.0
