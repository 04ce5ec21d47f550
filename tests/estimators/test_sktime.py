"""The forecaster of sktime: its own checks, and the same numbers as the model behind it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import forecaster, oebe
from gp_ensembles.estimators.scikit_learn import OnlineRegressor

pytest.importorskip("sktime", reason="sktime is an optional extra")
import pandas as pd
from sktime.utils.estimator_checks import check_estimator

from gp_ensembles.estimators.sktime import SktimeForecaster

LINEAR = replace(oebe, bases=(LinearBasis(),))


def series(num_rows=72):
    month = np.arange(num_rows)
    noise = 0.5 * np.random.default_rng(0).normal(size=num_rows)
    index = pd.period_range("2015-01", periods=num_rows, freq="M")
    return pd.Series(100 + month / 4 + 8 * np.sin(2 * np.pi * month / 12) + noise, index=index, name="load")


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.filterwarnings("ignore")  # sktime's own
def test_sktimes_own_checks():
    results = check_estimator(SktimeForecaster, raise_exceptions=False, verbose=False)
    assert len(results) > 500
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


def test_the_same_numbers_as_the_estimator_behind_it():
    y = series()
    ours = SktimeForecaster(LINEAR, warmup=40, random_state=3).fit(y[:50]).update(y[50:60])
    frame = pd.DataFrame({"time": y.index.to_timestamp()})
    behind = OnlineRegressor(LINEAR, 40, 3).partial_fit(frame[:50], y[:50]).partial_fit(frame[50:60], y[50:60])
    forecast = behind.forecast(frame[60:72], 500, 3)
    np.testing.assert_array_equal(ours.predict(fh=[1, 5, 12]), forecast.mean[[0, 4, 11]])
    found = ours.predict_quantiles(fh=[1, 5, 12], alpha=[0.1, 0.9])
    np.testing.assert_array_equal(found["load", 0.1], forecast.quantile(0.1)[[0, 4, 11]])
    np.testing.assert_array_equal(ours.predict_var(fh=[1, 5, 12])["load"], forecast.variance[[0, 4, 11]])
    covariance = ours.predict_var(fh=[2, 3], cov=True)
    np.testing.assert_allclose(covariance, torch.cov(forecast.paths[:, 1:3].T), rtol=1e-12)
    assert ours.predict(fh=[2]).index.astype(str).tolist() == ["2020-02"]


def test_a_season_is_forecast_and_updates_need_no_refit():
    y = series(120)
    model = SktimeForecaster(forecaster, warmup=60).fit(y[:60], fh=list(range(1, 13)))
    hyperparameters = model.regressor_.model_.online
    for start in range(60, 96, 12):
        model.update(y[start : start + 12])
    assert model.regressor_.model_.online is hyperparameters
    predicted = model.predict()
    assert np.abs(predicted - y[96:108]).mean() < 2.0
    lower, upper = (model.predict_interval(coverage=0.9)["load", 0.9, side] for side in ("lower", "upper"))
    assert ((y[96:108] >= lower) & (y[96:108] <= upper)).mean() >= 0.75


@pytest.mark.filterwarnings("ignore:the fit explains almost none")
def test_dates_without_a_frequency_are_refused_and_a_gap_filled_by_asfreq_is_none():
    y = series().set_axis(pd.date_range("2024-01-01", periods=72, freq="h"))
    holed = y.drop(y.index[20])
    with pytest.raises(ValueError, match=r"the dates of the series have no frequency.*y.asfreq\('h'\)"):
        SktimeForecaster(LINEAR, warmup=40).fit(holed[:60])
    y.iloc[20] = np.nan
    parts = (holed[:59].asfreq("h"), y[:60])
    pd.testing.assert_series_equal(*(SktimeForecaster(LINEAR, warmup=40).fit(part).predict(fh=[1]) for part in parts))
