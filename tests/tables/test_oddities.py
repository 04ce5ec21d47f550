"""What files and frames of the world also look like, and times in all the ways in which they are written."""

import datetime as dt
import io
import re
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder

from gp_ensembles.tables import TableOptions, explain, open_rows
from gp_ensembles.tables.columns import CategoryColumn
from gp_ensembles.tables.dates import ISO, find_format
from gp_ensembles.tables.stream import reopen_rows

HOURS = pd.date_range("2024-01-01", periods=90, freq="h")
ODD = {
    "decimal commas in quotes": ("a,load\n", '"{k},5","{k},25"\n', 0.5, 0.25),
    "thousands in quotes": ("a,load\n", '"1,{k:03d}","2,{k:03d}.5"\n', 1000, 2000.5),
    "thousands with blanks": ("a;load\n", "1 {k:03d};-2 {k:03d},5\n", 1000, None),
    "apostrophes around cells": ("a;'load;now'\n", "'{k},5';'{k},25'\n", 0.5, 0.25),
    "carriage returns alone": ("a,load\r", "{k},{k}\r", 0, 0),
    "several marks at the end": ("a;load;;;\n", "{k};{k};;;\n", 0, 0),
    "a title": ("Meter 7, hall 2\nfrom,to\n\na;load\n", "{k};{k}\n", 0, 0),
    "remarks between rows": ("a,load\n", "{k},{k}\n# that was row {k}, and more, of it\n", 0, 0),
    "blanks around cells": (" a , load\n", " {k} , {k}\n", 0, 0),
    "years as names": ("2023,load\n", "{k},{k}\n", 0, 0),
    "blanks in quotes": ('"my a" load\n', "{k}  {k}\n", 0, 0),
    "per cent and currencies": ("a;load\n", "{k},5 %;-{k},25 €\n", 0.5, None),
    "a typographic minus": ("a;load\n", "{k};\u2212{k},25\n", 0, None),
    "empty rows below": ("a,load\n", "{k},{k}\n,\n", 0, 0),
    "a line break in the first name": ('"a\nin kW",load\n', "{k},{k}\n", 0, 0),
}


def test_odd_files(tmp_path):
    path = tmp_path / "odd.csv"
    for name, (header, row, first, target) in ODD.items():
        path.write_bytes((header + "".join(row.format(k=k) for k in range(90))).encode())
        load = "load;now" if "'load;now'" in header else "load"
        rows = open_rows(path, load, num_warm_up=40)
        assert len(rows.feature_names) == 1, name
        assert '"' not in rows.feature_names[0], name
        taken = rows.take(100)
        assert torch.equal(taken.X[:, 0], first + torch.arange(90.0, dtype=torch.float64)), name
        falling = [-(2000.5 if "thousands" in name else 0.25) - k for k in range(90)]
        assert taken.y.tolist() == (falling if target is None else [target + k for k in range(90)]), name


def test_letters_of_another_encoding_that_come_late(tmp_path):
    path = tmp_path / "late.csv"
    plain = "site,load\n" + "nord,1\nwest,2\n" * 10_000
    path.write_bytes(plain.encode() + "süd,3\nwest,4\n".encode("latin-1"))
    frame = open_rows(path, "load", TableOptions(kinds={"site": "category"}), num_warm_up=100)
    batches = list(frame)
    assert sum(batch.num_rows for batch in batches) == 20_002
    assert batches[-1].X[-2:].tolist() == [[0.0, 0.0], [0.0, 1.0]]


STYLES = {
    "offset behind a blank": "{t:%d.%m.%Y %H:%M} +01:00",
    "hours of offset": "{t:%Y-%m-%d %H:%M:%S}+01",
    "four digits of offset": "{t:%Y-%m-%dT%H:%M:%S}+0100",
}


@pytest.mark.parametrize("style", STYLES)
def test_offsets(style):
    records = [{"time": STYLES[style].format(t=time), "load": 1.0} for time in HOURS]
    rows = open_rows(records, "load", num_warm_up=30)
    taken = rows.take(90)
    first = pd.Timestamp("2024-01-01", tz="Europe/Berlin").timestamp()
    assert taken.time.tolist() == [first + 3600 * k for k in range(90)]
    midnight = torch.ones(4, dtype=torch.float64)  # of the clock on the wall
    torch.testing.assert_close(taken.X[::24, 2], midnight)
    ahead = rows.encoder.columns[0].encode(rows.encoder.ahead(1)["time"], ".")
    angle = 2 * np.pi * (90 % 24) / 24
    np.testing.assert_allclose(ahead[0, 1:], [np.sin(angle), np.cos(angle)], atol=1e-12)


def test_summer_time_is_one_zone_and_steps_are_those_of_time():
    times = pd.date_range("2024-03-30", periods=90, freq="h", tz="Europe/Berlin")
    texts = [{"time": time.isoformat(), "load": 1.0} for time in times]
    frame = pd.DataFrame({"time": times, "load": 1.0})
    for source in (texts, frame, pl.from_pandas(frame)):
        taken = open_rows(source, "load", num_warm_up=60).take(90)
        assert taken.steps.eq(1).all()
        torch.testing.assert_close(taken.X[47, 2], torch.tensor(1.0, dtype=torch.float64))  # midnight after 23 hours


@pytest.mark.parametrize(("later", "message"), [("Z", "others do not"), ("+05:00", "time zones 5 hours apart")])
@pytest.mark.parametrize("size", [1, 90])
def test_another_zone_later_is_told_whatever_the_batches(later, message, size):
    end = "" if later == "Z" else "Z"
    records = [{"time": f"{t:%Y-%m-%dT%H:%M}{end if k < 60 else later}", "load": 1.0} for k, t in enumerate(HOURS)]
    rows = open_rows(records, "load", num_warm_up=30)
    good = rows.take(60)
    assert good.num_rows == 60
    with pytest.raises(ValueError, match=rf"data row 61, column time: .*{message}"):
        rows.take(size)


@pytest.mark.parametrize("hour", ["{t:%H.%M.%S}", "{t:%H:%M}", "{t:%I:%M %p}", "{t.hour}"])
def test_dates_and_hours_in_two_columns(hour):
    records = [{"Date": f"{t:%d/%m/%Y}", "Time": hour.format(t=t), "load": 1.0} for t in HOURS]
    rows = open_rows(records, "load", TableOptions(on_bad_time="refuse"), num_warm_up=60)
    taken = rows.take(90)
    assert rows.encoder.clock.describe() == "Date and Time: a row every hour, no gap, no duplicate"
    assert taken.time.tolist() == [time.timestamp() for time in HOURS]
    assert rows.encoder.clock.format(taken.time[-1:].tolist()) == ["2024-01-04T17:00:00"]
    again = reopen_rows([records[0] | {"Date": "04/01/2024", "Time": hour.format(t=HOURS[-6])}], rows.encoder)
    with pytest.raises(ValueError, match=r"column Date: the time 2024-01-04T12:00:00 is before"):
        again.take(1)
    cells, times = rows.encoder.ahead(7), rows.encoder.clock.ahead(7)
    assert rows.encoder.clock.format(times)[-1] == "2024-01-05T00:00:00"
    np.testing.assert_array_equal(rows.encoder.clock.read(cells, "."), times)


@pytest.mark.parametrize(
    ("cells", "step"),
    [
        ([f"{t:%Y%m%d}" for t in pd.date_range("2024-01-20", periods=90)], 86400),
        ([int(f"{t:%Y%m%d}") for t in pd.date_range("2024-01-20", periods=90)], 86400),
        ([int(t.timestamp()) for t in HOURS], 3600),
        ([f"{t.timestamp() * 1e3:.0f}" for t in HOURS], 3600),
    ],
)
def test_digits_that_are_called_dates(cells, step):
    frame = pd.DataFrame({"when": cells, "load": 1.0})
    rows = open_rows(frame, "load", TableOptions(kinds={"when": "date"}), num_warm_up=60)
    taken = rows.take(90)
    assert taken.time.diff().eq(step).all()
    assert rows.encoder.clock.format(taken.time[:1].tolist())[0].startswith("2024-01-")


def test_days_and_months_that_could_be_either():
    days = pd.date_range("2024-01-01", periods=20)
    assert find_format([f"{day:%m/%d/%Y}" for day in days]) == "%m/%d/%Y"
    assert find_format([f"{day:%d/%m/%Y}" for day in days]) == "%d/%m/%Y"
    hours = pd.date_range("2024-01-03", periods=100, freq="h")  # days up to 7 only
    assert find_format([f"{hour:%m/%d/%Y %H:%M}" for hour in hours]) == "%m/%d/%Y %H:%M"
    assert find_format([f"{hour:%d/%m/%Y %H:%M}" for hour in hours]) == "%d/%m/%Y %H:%M"
    months = pd.date_range("2024-01-01", periods=20, freq="MS")
    assert find_format([f"{day:%d/%m/%Y}" for day in months]) == "%d/%m/%Y"
    assert find_format([f"{day:%Y-%m-%d}" for day in days]) == ISO
    assert find_format(["12-34", "x"]) is None


def test_typed_columns_of_frames():
    number = range(90)
    frame = pd.DataFrame(
        {
            "count": pd.array([1, None, 3] * 30, dtype="Int64"),
            "on": pd.array([True, None, False] * 30, dtype="boolean"),
            "site": pd.array(["a", None, "b"] * 30, dtype="string"),
            "code": pd.Categorical([7, 8, 9] * 30),
            "span": pd.to_timedelta(number, unit="min"),
            "load": number,
        },
        index=HOURS,
    )
    rows = open_rows(frame, "load", num_warm_up=60)
    assert [report.name for report in rows.columns] == ["time", *frame.columns]
    kinds = ["date", "number", "boolean", "category", "category", "number", "number"]
    assert [report.kind for report in rows.columns] == kinds
    X = rows.take(3).X[:, 3:].nan_to_num(-1.0).tolist()
    assert X == [[1, 1, 1, 0, 1, 0, 0, 0], [-1, -1, -1, -1, 0, 1, 0, 60], [3, 0, 0, 1, 0, 0, 1, 120]]
    columns = {"span": [dt.timedelta(minutes=k) for k in number], "load": frame["load"].tolist()}
    polars = pl.DataFrame(columns | {"code": ["7", "8", "9"] * 30, "price": [1.5] * 90, "clock": [dt.time(9)] * 90})
    polars = polars.with_columns(pl.col("code").cast(pl.Categorical), pl.col("price").cast(pl.Decimal(10, 2)))
    assert open_rows(polars, "load", num_warm_up=60).take(2).X[1].tolist()[:5] == [60.0, 0.0, 1.0, 0.0, 1.5]


def test_frames_with_names_that_are_numbers_or_stand_twice():
    frame = pd.DataFrame(np.arange(270.0).reshape(90, 3))
    assert open_rows(frame, "2", num_warm_up=60).take(1).X.tolist() == [[0.0, 1.0]]
    frame.columns = ["a", "a", "load"]
    rows = open_rows(frame, "load", num_warm_up=60)
    assert rows.feature_names == ("a", "a.2")
    assert rows.take(1).X.tolist() == [[0.0, 1.0]]


def test_levels_are_those_of_scikit_learn():
    cells = np.array(["b", "new", "a", "b", ""], dtype=object)
    theirs = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit([["a"], ["b"]]).transform(cells[:4, None])
    ours = CategoryColumn("site", ("a", "b")).encode(cells, ".")
    np.testing.assert_array_equal(ours[:4], theirs)
    assert np.isnan(ours[4]).all()


def test_marks_of_missing_values_are_noted_and_can_be_told(tmp_path):
    load = np.where(np.arange(300) % 6 == 0, -200.0, np.arange(300) / 10)
    frame = pd.DataFrame({"gas": load, "season": np.arange(300) % 4, "word": ["void", "up"] * 150, "load": load})
    rows = open_rows(frame, "load", num_warm_up=200)
    found_text = explain(rows.encoder, rows.columns)
    assert "gas is -200 in 17 % of the first rows, far from all others; if it means missing, give --mis" in found_text
    assert "season has few distinct whole numbers" in found_text
    path = tmp_path / "marks.csv"
    frame.to_csv(path, index=False)
    for source in (frame, path):
        rows = open_rows(source, "load", TableOptions(missing=("-200", "void")), num_warm_up=200)
        assert "is -200" not in explain(rows.encoder, rows.columns)
        taken = reopen_rows(source, rows.encoder).take(300)
        assert taken.X[:, 0].isnan().tolist() == (load == -200).tolist() == taken.y.isnan().tolist()
        assert rows.feature_names == ("gas", "season", "word=up")
        assert taken.X[:2, 2].isnan().tolist() == [True, False]


@pytest.mark.parametrize("name", ["bike_hourly", "air_quality_raw", "elec2"])
def test_sets_of_the_world_as_they_are(shared, name):
    target = {"bike_hourly": "cnt", "air_quality_raw": "CO_GT", "elec2": "label"}[name]
    path = shared / "data" / f"{name}.csv.gz"
    expected = pd.read_csv(path)
    rows = open_rows(path, target)
    assert rows.num_warm_up == 1000
    batches = list(rows)
    X, y = torch.cat([batch.X for batch in batches]), torch.cat([batch.y for batch in batches])
    np.testing.assert_array_equal(X.numpy(), expected[list(rows.feature_names)].to_numpy(np.float64))
    np.testing.assert_array_equal(y.numpy(), expected[target].to_numpy(np.float64))


def test_memory_does_not_depend_on_the_rows(tmp_path):
    def peak(num_rows):
        path = tmp_path / f"{num_rows}.csv"
        with path.open("w") as file:
            file.write("time,site,flow,load\n")
            file.writelines(
                f"{HOURS[0] + dt.timedelta(minutes=k):%Y-%m-%d %H:%M},{'ab'[k % 2]},{k % 97}.5,{k}\n"
                for k in range(num_rows)
            )
        rows = open_rows(path, "load", num_warm_up=500)
        tracemalloc.start()
        total = sum(float(batch.y.sum()) for batch in rows)
        assert total == num_rows * (num_rows - 1) / 2
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2_100)  # what is imported on the way
    few, many = peak(12_000), peak(28_000)
    assert many < 1.2 * few


def test_a_pipe_is_read_as_far_as_it_goes(monkeypatch):
    text = "a,load\n" + "".join(f"{k},{2 * k}\n" for k in range(50_000))
    raw = io.BytesIO(text.encode())
    raw.seekable = lambda: False
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(raw)))
    rows = open_rows("-", "load", num_warm_up=100)
    assert torch.equal(torch.cat([batch.y for batch in rows]), 2 * torch.arange(50_000.0, dtype=torch.float64))


def read_text(path, text, target="y", num=40, **options):
    path.write_text(text, encoding="utf-8")
    return open_rows(path, target, TableOptions(**options), num_warm_up=num)


def test_the_newest_row_on_top_is_refused(tmp_path):
    lines = [f"{time},{k % 7}\n" for k, time in enumerate(reversed(HOURS))]
    text = "when,y\n" + "".join(lines)
    found_text = "column when: the newest row comes first; sort the rows by time, the oldest first"
    for options in ({}, {"time": "when"}):
        with pytest.raises(ValueError, match=found_text):
            read_text(tmp_path / "top.csv", text, **options)
    # a second column that orders the rows is enough, and a few rows in disorder are reported only
    both = "when,due,y\n" + "".join(f"{time},{due},1\n" for time, due in zip(HOURS, reversed(HOURS), strict=True))
    assert read_text(tmp_path / "two.csv", both).encoder.clock.name == "when"


def test_the_target_cannot_order_the_rows(tmp_path):
    with pytest.raises(ValueError, match="the column y is the target, and cannot also be the time column"):
        read_text(tmp_path / "a.csv", "a,y\n" + "1,2\n" * 50, time="y")


def test_units_are_named_for_what_they_are(tmp_path):
    rows = "".join(f"{k / 7:.2f},{k}\n" for k in range(60))
    with pytest.raises(ValueError, match=r"column a: '\[°C\]' is not a number, .*; remove the row if it holds units"):
        read_text(tmp_path / "below.csv", "a,y\n[°C],[kW]\n" + rows)
    cells = "".join(f"{k / 7:.2f} °C,{k}\n" for k in range(60))
    with pytest.raises(ValueError, match=r"column a: its cells are numbers with a unit \(°C\); write numbers only"):
        read_text(tmp_path / "cells.csv", "a,y\n" + cells)
    sizes = "".join(f"{10 * (k % 4)} mm,{k}\n" for k in range(60))  # a few of them are a category as ever
    assert read_text(tmp_path / "sizes.csv", "a,y\n" + sizes).columns[0].kind == "category"


def test_text_among_numbers_is_named(tmp_path):
    cells = [("off" if k % 5 == 1 else f"{k % 60}.5") for k in range(200)]
    text = "x,y\n" + "".join(f"{x},{k}\n" for k, x in enumerate(cells))
    note = "x contains numbers and text such as 'off', so it is treated as a category; if that means missing, give"
    for name, given in (("notes.csv", text), ("few.csv", re.sub(r"^[1-5]\d\.5", "3.5", text, flags=re.MULTILINE))):
        rows = read_text(tmp_path / name, given, num=150)
        assert sum(line.startswith(note) for line in rows.encoder.notes) == 1
    with pytest.raises(ValueError, match=r"data row 2 .*it contains numbers and text such as 'off'; fix it, leave"):
        read_text(tmp_path / "short.csv", text, num=30)
    names = "who,y\n" + "".join(f"name {k},{k}\n" for k in range(12))
    with pytest.raises(ValueError, match="text with 12 different values in 12 rows"):
        read_text(tmp_path / "names.csv", names)


def test_a_clock_that_is_set_back_is_named():
    times = [*HOURS[:50], HOURS[49], HOURS[49] - pd.Timedelta(minutes=30), HOURS[60]]
    records = [{"when": str(time), "y": float(place)} for place, time in enumerate(times)]
    rows = open_rows(records, "y", TableOptions(on_bad_time="refuse"), num_warm_up=40)
    rows.take(51)
    with pytest.raises(ValueError, match=r"sort the rows by time \(or, if the clock was set back here"):
        rows.take(2)


def test_zones_an_hour_apart_that_change_all_the_time_are_two_zones(tmp_path):
    rows = "".join(f"{time:%Y-%m-%dT%H:%M}+0{1 + k % 2}:00,{k}\n" for k, time in enumerate(HOURS))
    with pytest.raises(ValueError, match=r"data row 2 .*column when: its times mix two time zones"):
        read_text(tmp_path / "zones.csv", "when,y\n" + rows)
    summer = "".join(f"{time:%Y-%m-%dT%H:%M}+0{1 + (k > 30)}:00,{k}\n" for k, time in enumerate(HOURS[::2]))
    assert read_text(tmp_path / "summer.csv", "when,y\n" + summer).encoder.clock.name == "when"


def test_a_given_kind_that_does_not_fit_names_the_cell(tmp_path):
    rows = "".join(f"{'hall' if k == 4 else k},{k}\n" for k in range(60))
    with pytest.raises(ValueError, match=r"a.csv, data row 5 \(line 6\), column a: 'hall' is not a number"):
        read_text(tmp_path / "a.csv", "a,y\n" + rows, kinds={"a": "number"})


def test_a_declared_category_of_many_numbers_is_hashed_without_a_note():
    frame = pd.DataFrame({"hour": np.arange(96) % 24, "load": np.arange(96.0)})
    rows = open_rows(frame, "load", num_warm_up=72, options=TableOptions(kinds={"hour": "category"}))
    assert rows.take(5).X.shape == (5, 16)
    assert not rows.encoder.notes
