"""Forecasts by scikit-learn's interface."""

import numpy as np
import pandas as pd
import pytest

from gp_ensembles.ensembles.presets import forecaster
from gp_ensembles.estimators.scikit_learn import OnlineRegressor


def test_forecasts_are_those_of_the_model() -> None:
    rows = np.arange(150.0)
    X, y = rows[:, None], 50 + np.sin(2 * np.pi * rows / 12)
    model = OnlineRegressor(spec=forecaster, warmup=80).fit(X, y)
    forecast = model.forecast(np.arange(150.0, 162.0)[:, None], num_paths=50, random_state=0)
    assert forecast.paths.shape == (50, 12)
    np.testing.assert_array_equal(forecast.quantile(0.9)[:1], model.predict_quantiles([[150.0]], [0.9])[0])
    assert np.abs(forecast.mean.numpy() - (50 + np.sin(2 * np.pi * np.arange(150.0, 162.0) / 12))).max() < 0.3
    again = model.forecast(12, num_paths=50, random_state=0)
    assert again.paths.shape == (50, 12)
    with pytest.raises(ValueError, match="151 rows ahead are more than the 150"):
        model.forecast(151)


def test_one_row_ahead_and_rows_whose_dates_are_not_known() -> None:
    rows = np.arange(150.0)
    y = 50 + np.sin(2 * np.pi * rows / 12)
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=151, freq="h")})
    model = OnlineRegressor(spec=forecaster, warmup=80).fit(frame[:150], y)
    forecast = model.forecast(frame[150:], random_state=0)
    mean, std = model.predict(frame[150:], return_std=True)
    np.testing.assert_array_equal(forecast.mean, mean)
    np.testing.assert_array_equal(forecast.stddev, std)
    with pytest.raises(ValueError, match="the inputs contain dates; give a frame of the 3 future rows, with when"):
        model.forecast(3)
