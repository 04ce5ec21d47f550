"""Clocks that are put back, zones, and mistyped times, on independent right values: those of ``zoneinfo``."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch

from gp_ensembles.tables import TableOptions, open_rows
from gp_ensembles.tables.stream import reopen_rows

# Where and when clocks are put back: minutes between rows, and how many rows come before.
PLACES = {
    "Europe/Berlin": (datetime(2023, 10, 28, 12, tzinfo=UTC), 15),
    "America/New_York": (datetime(2024, 11, 2, 20, tzinfo=UTC), 20),
    "Australia/Sydney": (datetime(2024, 4, 6, 6, tzinfo=UTC), 30),
    "America/Santiago": (datetime(2024, 4, 6, 20, tzinfo=UTC), 10),  # from midnight to eleven
}


def moments(place, num=150, minutes=None):
    start, usual = PLACES[place]
    return [start + timedelta(minutes=(usual if minutes is None else minutes) * k) for k in range(num)]


def records(texts):
    return [{"when": text, "y": float(k % 7)} for k, text in enumerate(texts)]


def local(times, place, form="%Y-%m-%d %H:%M"):
    return [time.astimezone(ZoneInfo(place)).strftime(form) for time in times]


def taken(rows, size):
    found = []
    while (part := rows.take(size)).num_rows:
        found.append(part)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("num_warm_up", [20, 120])  # the hour comes twice after the first rows, or among them
def test_an_hour_that_comes_twice_is_recognized_without_a_zone(place, num_warm_up):
    times = moments(place)
    for size in (150, 7, 1):
        rows = open_rows(records(local(times, place)), "y", TableOptions(on_bad_time="refuse"), num_warm_up=num_warm_up)
        found = taken(rows, size)
        assert torch.cat([part.steps for part in found]).tolist() == [1.0] * len(times)
        report = rows.encoder.clock.report()
        assert (report["put_back"], report["gaps"], report["duplicates"], report["skipped"]) == (1, 0, 0, 0)
        assert "1 end(s) of daylight saving time detected" in rows.encoder.clock.describe()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("minutes", [10, 30, 60])
@pytest.mark.parametrize("size", [150, 7, 1])
def test_times_of_a_zone_are_those_of_zoneinfo(place, minutes, size):
    times = moments(place, minutes=minutes)
    rows = open_rows(records(local(times, place)), "y", TableOptions(timezone=place), num_warm_up=15)
    found = taken(rows, size)
    assert torch.cat([part.time for part in found]).tolist() == [time.timestamp() for time in times]
    assert torch.cat([part.steps for part in found]).tolist() == [1.0] * len(times)
    hours = np.array([t.hour + t.minute / 60 for t in (time.astimezone(ZoneInfo(place)) for time in times)])
    column = rows.feature_names.index("when: sine of day")
    X = torch.cat([part.X for part in found])
    np.testing.assert_allclose(X[:, column], np.sin(2 * np.pi * hours / 24), atol=1e-9)
    ahead = [times[-1] + timedelta(minutes=minutes * k) for k in range(1, 4)]
    later = reopen_rows(records(local(ahead, place)), rows.encoder).take(3)  # the zone is in it
    assert later.time.tolist() == [time.timestamp() for time in ahead]
    assert rows.encoder.clock.ahead(3).tolist() == later.time.tolist()


def test_days_of_a_zone_begin_at_its_midnight():
    place, zone = "Europe/Berlin", ZoneInfo("Europe/Berlin")
    days = [datetime(2024, 3, 1, tzinfo=zone) + timedelta(days=k) for k in range(60)]  # of 23 hours one of them
    rows = open_rows(
        records([f"{day:%d.%m.%Y}" for day in days[:25]]), "y", TableOptions(timezone=place), num_warm_up=20
    )
    taken(rows, 25)
    assert rows.encoder.clock.ahead(35).tolist() == [day.timestamp() for day in days[25:]]


def test_zones_and_policies_are_checked():
    with pytest.raises(ValueError, match="'Europe/Atlantis' is not a known time zone; use a name such as Europe/Paris"):
        TableOptions(timezone="Europe/Atlantis")
    with pytest.raises(ValueError, match="on_bad_time must be 'skip' or 'refuse', got 'stop'"):
        TableOptions(on_bad_time="stop")
    times = moments("Europe/Berlin")
    texts = [time.astimezone(ZoneInfo("Europe/Berlin")).isoformat() for time in times]
    found = open_rows(records(texts), "y", TableOptions(timezone="Asia/Tokyo"), num_warm_up=20).take(150)
    assert found.time.tolist() == [time.timestamp() for time in times]  # their own offsets count


@pytest.mark.parametrize("hour", [12, 3])
def test_a_step_back_by_day_or_by_less_than_the_hour_is_no_change_of_the_clock(hour):
    start = datetime(2024, 10, 26, hour)
    texts = [f"{start + timedelta(minutes=10 * k):%Y-%m-%d %H:%M}" for k in range(40)]
    texts.append(f"{start + timedelta(minutes=10 * (34 if hour == 12 else 37)):%Y-%m-%d %H:%M}")
    with pytest.raises(ValueError, match="is before that of the previous row"):
        taken(open_rows(records(texts), "y", TableOptions(on_bad_time="refuse"), num_warm_up=20), 100)


WRONG = {
    "an earlier year": lambda day: f"{day.replace(year=day.year - 1):%Y-%m-%d}",
    "a later year": lambda day: f"{day.replace(year=day.year + 30):%Y-%m-%d}",
    "an earlier month": lambda day: f"{day.replace(month=1):%Y-%m-%d}",
    "empty": lambda day: "",
    "no date": lambda day: "2021-19-45",
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("places", [range(60, 64), range(20, 22), [45, 70, 99]])
def test_mistyped_times_cost_their_rows_only(kind, places):
    """Of the other rows, all is what it is in a table without those rows."""
    days = [datetime(2021, 2, 1) + timedelta(days=k) for k in range(100)]
    places = [place for place in places if kind != "a later year" or place < 99]  # no row after the last tells
    texts = [WRONG[kind](day) if k in places and kind in WRONG else f"{day:%Y-%m-%d}" for k, day in enumerate(days)]
    if kind == "no date" and min(places) < 40:
        return  # the format of the first rows is that of all of them
    for size in (100, 3):
        rows = open_rows(records(texts), "y", num_warm_up=40)
        found = taken(rows, size)
        good = [k for k in range(100) if k not in places]
        y, time = (torch.cat([getattr(part, name) for part in found]) for name in ("y", "time"))
        X, steps = (torch.cat([getattr(part, name) for part in found]) for name in ("X", "steps"))
        assert y.isnan().nonzero().flatten().tolist() == list(places)
        assert time[good].tolist() == [days[k].replace(tzinfo=UTC).timestamp() for k in good]
        assert steps[good].tolist() == [1.0] + [float(k - before) for before, k in pairwise(good)]
        assert bool((steps[list(places)] == 0).all())
        assert bool(X[list(places)].isnan().all())
        assert not bool(X[good].isnan().any())
        assert rows.encoder.clock.report()["skipped"] == len(places)
        words = f"{len(places)} row(s) skipped because the time was missing or out of order"
        assert words in rows.encoder.clock.describe()
        with pytest.raises(ValueError, match=r"the time|is not a date"):
            taken(open_rows(records(texts), "y", TableOptions(time="when", on_bad_time="refuse"), num_warm_up=40), size)


def test_rows_after_a_mistyped_later_year_are_not_lost():
    days = [datetime(2021, 2, 1) + timedelta(days=k) for k in range(100)]
    texts = [f"{day.replace(year=2022) if 20 <= k < 95 else day:%Y-%m-%d}" for k, day in enumerate(days)]
    rows = open_rows(records(texts), "y", TableOptions(time="when"), num_warm_up=15)
    found = rows.take(100)  # too many of them: the later ones look like mistakes until they prove right
    assert not bool(found.y.isnan().any())
    assert found.steps[95:].tolist() == [76.0] + [1.0] * 4  # since the last row before them
    assert (rows.encoder.clock.num_ahead, rows.encoder.clock.num_skipped) == (75, 0)


def test_dates_that_do_not_tell_day_from_month_are_noted():
    """One date, or as many first days of January as of months; one day beyond the twelfth tells."""
    minutes = [f"11/02/2024 {k // 60:02}:{k % 60:02}" for k in range(40)]
    days = [f"{datetime(2024, 1, 1) + timedelta(days=k):%d/%m/%Y}" for k in range(13)]
    for texts, is_open in ((minutes, True), ([*minutes, "11/13/2024 00:00"], False), (days[:12], True), (days, False)):
        notes = open_rows(records(texts), "y", num_warm_up=len(texts)).encoder.notes
        assert any("could also be month first" in note for note in notes) == is_open


@pytest.mark.parametrize("year", [1649, 1869, 1949, 1968, 2300])
def test_dates_of_any_century_order_the_rows(year):
    if int(pd.__version__.split(".")[0]) < 3 and not 1678 < year < 2260:
        pytest.skip("pandas has dates beyond 1677 and 2262 from version 3 on")
    months = [datetime(year + k // 12, k % 12 + 1, 1, tzinfo=UTC) for k in range(60)]
    times = [time.timestamp() for time in months]
    whole = np.array([f"{time:%Y-%m-%d}" for time in months], dtype="datetime64[us]")
    for cells in (
        records([f"{time:%Y-%m-%d}" for time in months]),
        pd.DataFrame({"when": whole, "y": np.arange(60.0)}),
    ):
        rows = open_rows(cells, "y", num_warm_up=40)
        found = rows.take(57)
        assert found.time.tolist() == times[:57]
        np.testing.assert_allclose(found.X[:, 0], (np.array(times[:57]) - times[0]) / 86400, rtol=1e-12)
        assert rows.encoder.clock.ahead(3).tolist() == times[57:]
        assert "when: sine of year" in rows.feature_names


def test_a_format_of_dates_that_is_not_known_is_named():
    twelve = [f"2024-01-31 {k % 12 or 12:02d}:30 {'AM' if k < 12 else 'PM'}" for k in range(24)]
    assert open_rows(records(twelve), "y", num_warm_up=20).take(24).steps.tolist() == [1.0] * 24
    for text, first in (("2024-01-{0:02d} 24:00", 1), ("{0} Q{1}", 1), ("{0:02d}.03.2024 14 Uhr", 1)):
        cells = [text.format(k if "24" in text else 2000 + k // 4, k % 4 + 1) for k in range(1, 21)]
        with pytest.raises(ValueError, match=f"data row {first}, .*looks like a date in an unknown format"):
            open_rows(records(cells), "y", num_warm_up=20)
    late = [f"2024-01-{1 + k // 24:02d} {k % 24 + 1:02d}:00" for k in range(12, 36)]
    with pytest.raises(ValueError, match=r"data row 12, .*'2024-01-01 24:00' looks like a date"):
        open_rows(records(late), "y", num_warm_up=20)


def test_missing_times_and_periods_in_frames():
    hours = pd.date_range("2024-10-26", periods=60, freq="h", tz="Europe/Paris").to_series().reset_index(drop=True)
    hours.iloc[55] = pd.NaT
    rows = open_rows(pd.DataFrame({"when": hours, "y": np.arange(60.0)}), "y", num_warm_up=40)
    assert rows.take(60).steps.tolist() == [1.0] * 55 + [0.0, 2.0] + [1.0] * 3
    for freq in ("Q", "W", "M"):
        periods = pd.period_range("1960-01-01", periods=60, freq=freq)
        for frame in (
            pd.DataFrame({"y": np.arange(60.0)}, periods),
            pd.DataFrame({"at": periods, "y": np.arange(60.0)}),
        ):
            found = open_rows(frame, "y", num_warm_up=40).take(60)
            assert found.time.tolist() == [time.timestamp() for time in periods.to_timestamp()]
