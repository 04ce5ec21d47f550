"""The picture of a forecast shows what it is given."""

import numpy as np
import pytest

from gp_ensembles.plots.stream import plot_forecast

BANDS = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]]).repeat(4, axis=1)


def test_the_median_stands_behind_the_last_targets() -> None:
    figure = plot_forecast([5.0, 6.0, 7.0], BANDS, np.zeros((9, 4)), target_name="load")
    (axis,) = figure.axes
    lines = {line.get_label(): line for line in axis.get_lines()}
    np.testing.assert_array_equal(lines["observed"].get_xdata(), [-2, -1, 0])
    np.testing.assert_array_equal(lines["median"].get_xdata(), [1, 2, 3, 4])
    np.testing.assert_array_equal(lines["median"].get_ydata(), BANDS[2])
    assert "load, 4 rows ahead" in axis.get_title(loc="left")
    (axis,) = plot_forecast([], BANDS, np.zeros((9, 4))).axes  # nothing may be known of the past
    assert "observed" not in [line.get_label() for line in axis.get_lines()]


def test_dates_and_wrong_shapes() -> None:
    days = np.arange("2024-01-01", "2024-01-08", dtype="datetime64[D]").astype("datetime64[ns]")
    figure = plot_forecast([5.0, 6.0, 7.0], BANDS, np.zeros((9, 4)), x=days)
    line = next(line for line in figure.axes[0].get_lines() if line.get_label() == "median")
    np.testing.assert_array_equal(line.get_xdata(), days[3:])
    with pytest.raises(ValueError, match="quantiles must be"):
        plot_forecast([5.0], BANDS[:3], np.zeros((9, 4)))
