"""Rows named by their times: ticks stand at the rows of these times, gaps or not."""

import datetime

import numpy as np
import pytest

from gp_ensembles.plots import plot_bands
from gp_ensembles.plots.canvas import show_times


def figure(num_rows, first_row=0):
    one = np.ones(num_rows)
    return plot_bands(one, one, 0 * one, 2 * one, first_row=first_row)


def ticks(axis):
    return {tick.get_text(): place for tick, place in zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)}


def test_dates_stand_at_their_rows_across_a_gap():
    start = datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC).timestamp()
    rows = np.arange(100, 172)
    times = start + 3600.0 * (np.arange(72) + 24 * (np.arange(72) >= 36))  # a day is lacking
    shown = show_times(figure(72, 100), rows, times, "when", is_date=True)
    found = ticks(shown.axes[0])
    assert found["03"] == pytest.approx(136 - 0.5, abs=0.6)  # midnight lies in the gap
    assert found["04"] == pytest.approx(100 + 48)
    assert shown.axes[0].get_xlabel() == "when"


def test_numbers_stand_at_their_rows():
    rows = np.arange(60)
    shown = show_times(figure(60), rows, 10.0 + 0.5 * rows, "seconds", is_date=False)
    for text, place in ticks(shown.axes[0]).items():
        assert 10.0 + 0.5 * place == pytest.approx(float(text))
