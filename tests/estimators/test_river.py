"""river's own checks, rows as dictionaries in its evaluation loop, and equality with blocks."""

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("river", reason="river is an optional extra")

from river import checks, datasets, evaluate, metrics

from gp_ensembles.ensembles.bases import LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.ensembles.targets import BinaryTarget, CountTarget, RealTarget, UnknownNoiseTarget
from gp_ensembles.estimators.river import RiverClassifier, RiverRegressor, matrix_of

small = replace(
    e_doebe,
    bases=(LinearBasis(), RadialBasis(num_centers=10, starts=(0.7,))),
    fit_settings=FitSettings(num_samples=1),
    random_walk_variances=(1e-3,),
)


def rows(num_rows=120):
    return [({"a": math.sin(t), "b": math.cos(0.7 * t), "c": 1.0}, 20 + 5 * math.sin(t)) for t in range(num_rows)]


@pytest.mark.slow
def test_progressive_validation_beats_the_mean():
    model = RiverRegressor(small, warmup=60)
    stream = list(datasets.TrumpApproval())[:200]
    error = evaluate.progressive_val_score(stream, model, metrics.MAE()).get()
    mean = sum(y for _, y in stream) / len(stream)
    assert error < 0.6 * sum(abs(y - mean) for _, y in stream) / len(stream)
    assert sum(model.expert_weights.values()) == pytest.approx(1.0)


def test_before_the_warm_up_and_missing_targets():
    model = RiverRegressor(small, warmup=40)
    assert model.predict_one({"a": 0.0, "b": 0.0, "c": 1.0}) == 0.0
    for y in (4.0, None, 6.0):
        model.learn_one({"a": 1.0, "b": 0.0, "c": 1.0}, y)
    assert model.predict_one({"a": 0.0, "b": 0.0, "c": 1.0}) == 5.0
    assert model.expert_weights == {}


SLOW = ("check_bounded_memory_growth", "check_shuffle_features_no_impact")


def checks_of(kind):
    """Every check that river has for a model, each with a fresh one, by name."""
    (params,) = kind._unit_test_params()
    return [
        pytest.param(
            kind(**params),
            check,
            id=f"{kind.__name__}-{number}-{check.__name__}",
            marks=pytest.mark.slow if check.__name__ in SLOW else (),
        )
        for number, check in enumerate(checks.yield_checks(kind(**params)))
    ]


@pytest.mark.filterwarnings("ignore:the fit explains almost none")  # features are dropped at random
@pytest.mark.parametrize(("model", "check"), checks_of(RiverRegressor))
def test_checks_of_a_regressor(model, check):
    check(model.clone())


@pytest.mark.slow
@pytest.mark.parametrize(("model", "check"), checks_of(RiverClassifier))
def test_checks_of_a_classifier(model, check):
    check(model.clone())


def test_features_come_and_go_in_any_order():
    model = RiverRegressor(small, warmup=40)
    for number, (x, y) in enumerate(rows(60)):
        if number < 3:
            del x["b"]  # appears with the fourth row
        model.learn_one(x, y)
    x, _ = rows(61)[-1]
    want = model.predict_one(x)
    assert model.predict_one(dict(reversed(list(x.items())))) == want
    assert model.predict_one({**x, "new": 3.0}) == want
    known = [row["b"] for row, _ in rows(40)[3:]]
    mean = sum(known) / len(known)
    pairs = list(zip([k - mean for k in known], [k - mean for k in known[1:]], strict=False))
    size = math.sqrt(sum(one**2 for one, _ in pairs) * sum(two**2 for _, two in pairs))
    persistence = max(0.0, sum(one * two for one, two in pairs) / size)
    stands_in = mean + persistence * (rows(60)[-1][0]["b"] - mean)
    expected = model.predict_one({**x, "b": stands_in})
    for absent in ({k: v for k, v in x.items() if k != "b"}, {**x, "b": None}, {**x, "b": math.nan}, {**x, "b": pd.NA}):
        assert model.predict_one(absent) == pytest.approx(expected, rel=1e-6)  # with more variance


def test_bad_rows_change_nothing():
    model, fresh = (RiverRegressor(small, warmup=40, on_bad_row="refuse") for _ in range(2))
    for x, y, words in (
        ({"a": "red"}, 1.0, r"feature a is 'red', not a number; .*OneHotEncoder"),
        *((x, 1.0, r"infinite|too large|no feature") for x in ({"a": math.inf}, {"a": 1e200}, {})),
        ({"a": 1.0}, math.inf, "target of row 1 is inf, too large"),
    ):
        with pytest.raises(ValueError, match=words):
            fresh.learn_one(x, y)
    counts = RiverRegressor(replace(small, target=CountTarget()), warmup=40)
    with pytest.raises(ValueError, match="target of row 1 is -1"):
        counts.learn_one({"a": 1.0}, -1)
    assert fresh.predict_one({"a": 1.0}) == 0.0
    for number in range(50):  # a feature that does not vary has nothing to say, and costs no row
        fresh.learn_one({"a": 1.0}, float(number))
    assert not fresh.is_fitted
    fresh.learn_one({"a": 2.0}, 1.0)
    assert fresh.is_fitted
    for x, y in rows(60):
        model.learn_one(x, y)
    x, _ = rows(61)[-1]
    want = model.predict_one(x)
    for bad, words in (
        (({**x, "a": math.inf}, 1.0), "infinite"),
        ((x, math.inf), "target of row 61 is infinite"),
        ((x, 1e30), "more than 1e"),
    ):
        with pytest.raises(ValueError, match=words):
            model.learn_one(*bad)
    with pytest.raises(ValueError, match="X has 2 rows, but y has 1"):
        model.learn_many(pd.DataFrame([x, x]), pd.Series([1.0]))
    assert model.predict_one(x) == want
    with pytest.raises(ValueError, match="at least 10 rows"):
        RiverRegressor(warmup=3)
    two, binary = (replace(small, target=target) for target in (RealTarget(2), BinaryTarget()))
    for spec, words in ((two, "one target"), ("auto", "spec must be"), (binary, "use RiverClassifier")):
        with pytest.raises(TypeError, match=words):
            RiverRegressor(spec)


@pytest.mark.parametrize("target", [UnknownNoiseTarget(), CountTarget()], ids=str)
def test_other_kinds_of_numbers(target):
    model = RiverRegressor(replace(small, target=target), warmup=40)
    for x, y in rows(80):
        model.learn_one(x, round(y))
    x, y = rows(81)[-1]
    forecast = model.forecast_one(x)
    assert forecast.lower <= forecast.mean <= forecast.upper
    assert forecast.lower - 1 <= y <= forecast.upper + 1


def label(y):
    return "high" if y > 22 else "low" if y < 18 else "middle"


@pytest.mark.slow
def test_a_classifier_learns_labels_as_they_come():
    one, many = RiverClassifier(small, warmup=40), RiverClassifier(small, warmup=40)
    assert one.predict_proba_one({"a": 1.0}) == {}
    assert one.predict_one({"a": 1.0}) is None
    for number, (x, y) in enumerate(rows(100)):
        one.learn_one(x, None if number == 50 else label(y))
        if number == 19:
            labels = [label(y) for _, y in rows(20)]
            assert one.predict_proba_one(x) == {k: labels.count(k) / 20 for k in set(labels)}
    frame = pd.DataFrame([x for x, _ in rows(100)])
    many.learn_many(frame, pd.Series([None if n == 50 else label(y) for n, (_, y) in enumerate(rows(100))]))
    table = many.predict_proba_many(frame)
    assert sum(many.predict_many(frame) == [label(y) for _, y in rows(100)]) > 85
    for (x, _), (_, row) in zip(rows(100), table.iterrows(), strict=True):
        got = one.predict_proba_one(x)
        assert got.keys() == set(table.columns)
        assert got == pytest.approx(row.to_dict(), rel=1e-6, abs=1e-9)
        assert sum(got.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_label_that_comes_late_has_its_frequency():
    model = RiverClassifier(small, warmup=40)
    for x, y in rows(70):
        model.learn_one(x, label(y))
    before = model.predict_proba_one(x)
    for _ in range(10):
        model.learn_one(x, "strange")
    after = model.predict_proba_one(x)
    assert after["strange"] == pytest.approx(10 / 80)
    # The others share the rest as before, but for weights that switch a little with every row, and the last label,
    # which the model knew and now does not.
    rest = {k: v / (1 - 10 / 80) for k, v in after.items() if k != "strange"}
    assert rest == pytest.approx(before, rel=0.2)


def test_the_warm_up_waits_until_targets_differ():
    model = RiverClassifier(small, warmup=40)
    for x, _ in rows(60):
        model.learn_one(x, True)
    assert model.predict_proba_one(x) == {True: 1.0}
    model.learn_one(x, False)
    assert set(model.expert_weights)
    assert model.predict_proba_one(x)[True] > 0.8  # not more: nothing is known of what follows a False


@pytest.mark.parametrize(
    "value",
    [None, math.nan, np.float32("nan"), Decimal("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), 0, 1.5, True, Decimal(2)],
)
def test_what_is_missing_is_what_pandas_takes_for_it(value):
    (found,) = matrix_of([{"a": value}], ["a"]).flatten().tolist()
    assert math.isnan(found) == (pd.isna(value) is True)
