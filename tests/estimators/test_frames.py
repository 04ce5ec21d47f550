"""Frames with dates, categories and truth values go in as they are, and mean what hand-made numbers mean."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.estimators.scikit_learn import OnlineRegressor

LINEAR = replace(oebe, bases=(LinearBasis(),))
NUM = 120


def frame():
    rng = np.random.default_rng(0)
    time = pd.date_range("2024-01-01", periods=NUM, freq="h")
    site = rng.choice(["north", "south", "west"], NUM)
    is_on = rng.random(NUM) < 0.5
    wind = rng.normal(size=NUM)
    X = pd.DataFrame({"time": time, "site": site, "on": is_on, "wind": wind})
    y = 3 * np.sin(2 * np.pi * time.hour / 24) + 2 * (site == "south") + 1.5 * is_on + 0.5 * wind
    return X, y.to_numpy() + 0.1 * rng.normal(size=NUM)


def by_hand(X):
    phase = 2 * np.pi * X.time.dt.hour / 24
    days = (X.time - X.time.iloc[0]).dt.total_seconds() / 86400
    sites = [X.site == level for level in ("north", "south", "west")]
    columns = [days, np.sin(phase), np.cos(phase), *sites, X.on, X.wind]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


@pytest.mark.parametrize("library", [pd, pl])
def test_a_frame_is_predicted_as_the_numbers_made_by_hand(library):
    X, y = frame()
    given = X if library is pd else pl.from_pandas(X)
    hand = by_hand(X)
    ours = OnlineRegressor(LINEAR, 60, 0).fit(given[:80], y[:80]).partial_fit(given[80:100], y[80:100])
    theirs = OnlineRegressor(LINEAR, 60, 0).fit(hand[:80], y[:80]).partial_fit(hand[80:100], y[80:100])
    np.testing.assert_allclose(ours.predict(given[100:]), theirs.predict(hand[100:]), rtol=1e-9, atol=1e-9)
    assert np.abs(ours.predict(given[100:]) - y[100:]).mean() < 0.3
    assert ours.feature_names_in_.tolist() == ["time", "site", "on", "wind"]
    assert ours.model_.feature_names[:3] == ("time: days", "time: sine of day", "time: cosine of day")
    assert clone(ours).fit(given[:80], y[:80]).n_features_in_ == 4


@pytest.mark.slow
def test_categories_of_a_table_sorted_by_them_are_all_known():
    """The first rows of a sorted table hold one level only: an encoder made of them would not tell the others apart."""
    site, row = np.repeat([f"g{level}" for level in range(6)], 20), np.arange(120)
    X = pd.DataFrame({"site": site, "wind": np.random.default_rng(0).normal(size=120)})
    with pytest.warns(UserWarning, match="sorted by target"):
        model = OnlineRegressor(warmup=40, random_state=0).fit(X, row // 20 + 1e-6 * row)
    asked = pd.DataFrame({"site": np.unique(site), "wind": np.zeros(6)})
    np.testing.assert_allclose(model.predict(asked), np.arange(6), atol=0.2)


def test_what_is_wrong_is_named():
    X, y = frame()
    notes = X.assign(note=[f"note {row}" for row in range(NUM)])
    with pytest.raises(ValueError, match=r"column note of X, row 1: text with 60 different values in 60 rows; fix it"):
        OnlineRegressor(LINEAR, 60, 0).fit(notes, y)
    model = OnlineRegressor(LINEAR, 60, 0).fit(X, y)
    with pytest.raises(ValueError, match="X must be a frame with the columns time, site, on, wind"):
        model.predict(by_hand(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[["site", "time", "on", "wind"]])
    with pytest.raises(ValueError, match="column on of X, row 1: 'maybe' is neither true nor false"):
        model.predict(X.assign(on="maybe"))
