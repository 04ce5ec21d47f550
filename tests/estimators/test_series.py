"""Many series behind scikit-learn's and river's interfaces: the numbers of the fleet behind them."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from river import compose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from gp_ensembles.estimators.river_series import RiverFleet
from gp_ensembles.estimators.series import FleetRegressor
from gp_ensembles.fleet import Fleet

WARM_UP = 30


def table(num_rows: int = 240, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"who": [f"pump {row % 3}" for row in range(num_rows)], "a": rng.normal(size=num_rows)})
    X["b"] = rng.normal(size=num_rows)
    y = 100 * (np.arange(num_rows) % 3) + np.sin(2 * X["a"]) + 0.1 * rng.normal(size=num_rows)
    y[7] = np.nan
    return X, pd.Series(y)


def tensors(X: pd.DataFrame, y: pd.Series) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    return X["who"].tolist(), torch.tensor(X[["a", "b"]].to_numpy()), torch.tensor(y.to_numpy())


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_scikit_learns_numbers_are_those_of_the_fleet(kind):
    X, y = table()
    frame = X if kind is pd.DataFrame else pl.from_pandas(X)
    model = (
        FleetRegressor("who", warmup=WARM_UP, random_state=3)
        .fit(frame[:150], y[:150])
        .partial_fit(frame[150:200], y[150:200])
    )
    fleet = Fleet(warmup=WARM_UP, seed=model.fleet_.seed)
    fleet.fit(*tensors(X[:150], y[:150]))
    fleet.observe(*tensors(X[150:200], y[150:200]))
    names, rows, _ = tensors(X[200:], y[200:])
    mean, std = model.predict(frame[200:], return_std=True)
    expected = fleet.predict(names, rows)
    assert np.array_equal(mean, expected.mean.numpy())
    assert np.array_equal(std, expected.stddev.numpy())
    for end, other in zip(model.predict_interval(frame[200:]), fleet.predict_interval(names, rows), strict=True):
        assert np.array_equal(end, other.numpy())
    assert model.score(frame[200:], y[200:]) > 0.99


def test_columns_are_encoded_as_ever():
    X, y = table()
    X["kind"] = np.where(X["b"] > 0, "wet", "dry")
    y = y + 5 * (X["kind"] == "wet")
    model = FleetRegressor("who", warmup=WARM_UP, random_state=0).fit(X[:200], y[:200])
    assert [column.kind for column in model.columns_] == ["number", "number", "category"]
    assert np.abs(model.predict(X[200:]) - y[200:]).mean() < 1


def test_series_that_are_not_known_have_no_prediction():
    X, y = table()
    model = FleetRegressor("who", warmup=WARM_UP, random_state=0).fit(X[:150], y[:150])
    other = X[150:153].assign(who=["pump 1", "nobody", "pump 2"])
    mean, std = model.predict(other, return_std=True)
    assert np.isnan(mean).tolist() == np.isnan(std).tolist() == [False, True, False]
    assert np.isnan(model.predict_interval(other)).tolist() == [[False, True, False]] * 2
    assert np.isnan(model.predict(other[1:2])).all()


def test_scikit_learns_conventions():
    model = FleetRegressor("who", warmup=WARM_UP, random_state=0)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(warmup=40).warmup == 40
    X, y = table()
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X[:9]), model.predict(X[:9]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda X, y: (X.to_numpy(), y), TypeError, "X must be a frame"),
        (lambda X, y: (X.drop(columns="who"), y), ValueError, "no column 'who'"),
        (lambda X, y: (X.assign(who=[None, *X["who"][1:]]), y), ValueError, "empty in row 0"),
        (lambda X, y: (X.drop(columns="b"), y), ValueError, "feature names"),
        (lambda X, y: (X.assign(b=np.inf), y), ValueError, "infinity"),
        (lambda X, y: (X, y[1:]), ValueError, "a name and a target for each row"),
    ],
)
def test_what_is_refused_changes_nothing(change, error, message):
    X, y = table()
    model = FleetRegressor("who", warmup=WARM_UP, random_state=0).fit(X, y)
    before = model.predict(X[:6])
    with pytest.raises(error, match=message):
        model.partial_fit(*change(X[:6], y[:6]))
    assert np.array_equal(model.predict(X[:6]), before)
    with pytest.raises(error):
        model.fit(
            *change(X.drop(columns="b") if "names" in message else X, y) if "names" not in message else (X, y[1:])
        )
    assert np.array_equal(model.predict(X[:6]), before)


def test_rivers_numbers_are_those_of_the_fleet():
    X, y = table()
    one, many, fleet = RiverFleet("who", warmup=WARM_UP), RiverFleet("who", warmup=WARM_UP), Fleet(warmup=WARM_UP)
    many.learn_many(X[:200], y[:200])
    fleet.observe(*tensors(X[:200], y[:200]))
    assert many.predict_many(X[200:]).tolist() == fleet.predict(*tensors(X[200:], y[200:])[:2]).mean.tolist()
    rows = X.to_dict("records")
    for row, target in zip(rows[:200], y[:200], strict=True):
        one.learn_one(row, target)
    alone = Fleet(warmup=WARM_UP)
    names, inputs, targets = tensors(X[:200], y[:200])
    for row in range(200):
        alone.observe(names[row : row + 1], inputs[row : row + 1], targets[row : row + 1])
    expected = alone.predict(*tensors(X[200:201], y[200:201])[:2]).mean
    assert one.predict_one(rows[200]) == float(expected)
    assert abs(one.predict_one(rows[200]) - y[200]) < 2


def test_rivers_series_that_wait_are_predicted_by_their_mean():
    model = RiverFleet("who", warmup=WARM_UP)
    assert model.predict_one({"who": "a", "x": 1.0}) == 0.0
    for target in (1.0, None, 4.0):
        model.learn_one({"who": "a", "x": 1.0}, target)
    assert model.predict_one({"who": "a", "x": 1.0}) == 2.5
    assert model.predict_one({"who": "b"}) == 0.0
    with pytest.raises(KeyError, match="row 0 has no 'who'"):
        model.learn_one({"x": 1.0}, 3.0)
    with pytest.raises(ValueError, match="feature x is 'wet', not a number"):
        model.learn_one({"who": "a", "x": "wet"}, 3.0)
    assert model.predict_one({"who": "a", "x": 1.0}) == 2.5
    assert model.clone().warmup == WARM_UP


def test_river_pipelines():
    X, y = table()
    model = compose.Discard("b") | RiverFleet("who", warmup=WARM_UP)
    rows = X.to_dict("records")
    for row, target in zip(rows[:150], y[:150], strict=True):
        model.learn_one(row, target)
    assert abs(model.predict_one(rows[200]) - y[200]) < 2
