"""Ordinary files run untouched: the same numbers from every dialect, and clear words about what is no table."""

import gzip
import io
import json
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from gp_ensembles.cli.tables import TABLES
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.tables import TableOptions, explain, open_rows
from gp_ensembles.tables.encoder import TableError
from gp_ensembles.tables.stream import reopen_rows

HOURS = pd.date_range("2024-01-01", periods=60, freq="h")
LOAD = [round(10 + 3 * np.sin(k / 4) + k / 50, 3) for k in range(60)]
TEMP = [round(5 - k / 8, 2) for k in range(60)]
MIXED = pd.DataFrame(
    {"when": HOURS, "site": ["a", "b", "c"] * 20, "part": [f"p{k % 25}" for k in range(60)], "load": LOAD}
)


def lines(delimiter=",", decimal=".", header=True, style="%Y-%m-%d %H:%M"):
    def number(value):
        return f"{value}".replace(".", decimal)

    rows = [
        delimiter.join([time.strftime(style), number(temp), number(load)])
        for time, temp, load in zip(HOURS, TEMP, LOAD, strict=True)
    ]
    return "\n".join([*([delimiter.join(["time", "temp", "load"])] if header else []), *rows]) + "\n"


FILES = {
    "plain": lines(),
    "semicolons and decimal commas": lines(";", ","),
    "sep line": "sep=;\n" + lines(";", ","),
    "blank lines": lines().replace("\n", "\n\n"),
    "remarks above": "# written by a logger\n# version 2\n" + lines(),
    "names behind a mark": "#" + lines(),
    "a mark at the end of lines": lines(";").replace("\n", ";\n"),
    "blanks": lines("\t", style="%Y-%m-%dT%H:%M").replace("\t", "   "),
    "month first": lines(style="%m/%d/%Y %I:%M %p"),
    "seconds": lines(style="%Y-%m-%dT%H:%M:%S"),
    "with offset": lines(style="%Y-%m-%dT%H:%M:%S+00:00"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "plain.csv"
    path.write_text(FILES["plain"])
    return open_rows(path, "load", num_warm_up=40).take(60)


def same(rows, expected):
    torch.testing.assert_close(rows.X, expected.X, rtol=0, atol=1e-12)
    assert torch.equal(rows.y, expected.y)
    assert torch.equal(rows.time, expected.time)
    assert torch.equal(rows.steps, torch.ones(60, dtype=torch.float64))


def test_every_dialect_gives_the_same_numbers(tmp_path, expected):
    path, wrong = tmp_path / "table.csv", {}
    for name, content in FILES.items():
        path.write_bytes(content.encode())
        try:
            rows = open_rows(path, "load", num_warm_up=40)
            assert rows.encoder.clock.name == "time"
            taken = rows.take(100)
            same(taken, expected)
            assert taken.y.tolist() == LOAD
            assert taken.X[:, -1].tolist() == TEMP
        except (AssertionError, ValueError) as error:
            wrong[name] = error
    assert wrong == {}


def test_without_names_on_top_columns_are_counted(tmp_path, expected):
    path = tmp_path / "table.csv"
    path.write_text(lines(header=False))
    rows = open_rows(path, "column 3", num_warm_up=40)
    assert rows.feature_names[-1] == "column 2"
    same(rows.take(60), expected)


def test_packed_files_frames_parquet_records_and_the_standard_input(tmp_path, expected, monkeypatch):
    frame = pd.DataFrame({"time": HOURS, "temp": TEMP, "load": LOAD})
    (tmp_path / "table.data").write_bytes(gzip.compress(FILES["plain"].encode()))
    frame.to_parquet(tmp_path / "table.parquet")
    records = [{"time": t.isoformat(), "temp": a, "load": b} for t, a, b in zip(HOURS, TEMP, LOAD, strict=True)]
    for source in (
        tmp_path / "table.data",
        tmp_path / "table.parquet",
        frame,
        frame.assign(time=frame.time.dt.tz_localize("UTC")),
        pl.from_pandas(frame),
        json.loads(json.dumps(records)),
    ):
        same(open_rows(source, "load", num_warm_up=40).take(60), expected)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FILES["plain"].encode())))
    rows = open_rows("-", "load", num_warm_up=40)
    assert rows.name == "stdin"
    same(rows.take(60), expected)


def test_a_long_file_comes_in_batches_with_the_numbers_of_its_lines(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("a,b\n\n" + "".join(f"{k},{2 * k}\n" for k in range(10_000)))
    rows = open_rows(path, "b", num_warm_up=100)
    first = rows.take(150)
    batches = list(rows)
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 10_000
    assert max(batch.num_rows for batch in batches) <= 2048
    assert batches[0].first_row == 151
    assert int(batches[0].lines[0]) == 153
    assert torch.equal(torch.cat([first.y, *(batch.y for batch in batches)]), 2 * torch.arange(10_000.0).double())


def test_names_that_stand_twice_are_told_apart(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("a,a,load,\n" + "".join(f"{k},{k + 1},{k},{k * k}\n" for k in range(30)))
    rows = open_rows(path, "load", num_warm_up=20)
    assert rows.feature_names == ("a", "a.2", "column 4")
    assert "the name a occurs 2 times; the second is renamed a.2" in explain(rows.encoder, rows.columns)


WORDS = {
    "boolean": (["true", "False", "TRUE", "no", ""], ["on"], [[1], [0], [1], [0], [np.nan]]),
    "category": (["a", "b", "a", "c", "?"], ["on=a", "on=b", "on=c"], [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    "number": (["1", "NA", "-", "4.5", "null"], ["on"], [[1], [np.nan], [np.nan], [4.5], [np.nan]]),
}


@pytest.mark.parametrize("kind", WORDS)
def test_kinds_are_found(kind, tmp_path):
    cells, names, values = WORDS[kind]
    path = tmp_path / "table.csv"
    path.write_text("on,load\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells * 8)))
    rows = open_rows(path, "load", num_warm_up=30)
    assert rows.feature_names == tuple(names)
    np.testing.assert_array_equal(rows.take(len(values)).X.numpy(), values)
    assert rows.columns[0].kind == kind


def test_levels_that_come_later_are_none_of_those_known_and_change_nothing_before(tmp_path):
    path = tmp_path / "table.csv"
    cells = ["a", "b"] * 20 + ["new", "a"]
    path.write_text("site,load\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells)))
    taken = open_rows(path, "load", num_warm_up=20).take(50)
    assert taken.X[40:].tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_many_levels_are_hashed_whatever_comes(tmp_path):
    frame = pd.DataFrame({"part": [f"p{k % 60}" for k in range(400)], "load": range(400)})
    rows = open_rows(frame, "load", num_warm_up=300)
    taken = rows.take(400)
    assert taken.X.shape == (400, 16)
    assert taken.X.abs().sum(-1).eq(1).all()
    assert torch.equal(taken.X[0], taken.X[60])
    assert len({tuple(row) for row in taken.X.tolist()}) >= 20


def test_an_encoder_from_a_file_reads_on_to_the_bit():
    whole = open_rows(MIXED, "load", num_warm_up=50)
    first = open_rows(MIXED[:52], "load", num_warm_up=50)
    ours = whole.take(52), whole.take(8)
    first.take(52)
    theirs = reopen_rows(MIXED[52:], from_plain(to_plain(first.encoder, TABLES), TABLES)).take(8)
    for name in ("X", "y", "time", "steps"):
        assert torch.equal(getattr(ours[1], name), getattr(theirs, name))
    without_target = reopen_rows(MIXED[52:].drop(columns="load"), first.encoder).take(8)
    assert torch.equal(without_target.X, ours[1].X)
    assert without_target.y.isnan().all()


def test_what_comes_later_changes_no_row_before_and_batches_change_nothing():
    frame = MIXED.drop(columns="part")
    other = frame.copy()
    other.loc[45:, "site"] = "zzz"
    other.loc[45:, "load"] = 1e6
    ours, theirs = (open_rows(each, "load", num_warm_up=40) for each in (frame, other))
    whole = ours.take(60)
    parts = [theirs.take(7), theirs.take(20), theirs.take(18)]
    assert torch.equal(torch.cat([part.X for part in parts]), whole.X[:45])
    assert torch.equal(torch.cat([part.steps for part in parts]), whole.steps[:45])


def test_time_gaps_duplicates_and_numbers_as_time(tmp_path):
    times = [0, 1, 2, 2, 3, 7, 8, 9, 10, 11, 12, 13]
    frame = pd.DataFrame({"hour": times, "x": range(12), "load": range(12)})
    rows = open_rows(frame, "load", TableOptions(time="hour"), num_warm_up=12)
    taken = rows.take(12)
    assert taken.steps.tolist() == [1, 1, 1, 0, 1, 4, 1, 1, 1, 1, 1, 1]
    assert taken.time.tolist() == times
    report = rows.encoder.clock.report()
    assert (report["duplicates"], report["gaps"], report["longest_gap_steps"]) == (1, 1, 4.0)
    assert "1 gap (after 3, 4 steps), 1 duplicate" in rows.encoder.clock.describe()
    assert open_rows(frame, "load", num_warm_up=12).encoder.clock is None  # numbers are time only if told so


@pytest.mark.parametrize(
    ("frequency", "following"),
    [("MS", ["2029-01-01", "2029-02-01"]), ("D", ["2024-03-01", "2024-03-02"]), ("B", ["2024-03-25", "2024-03-26"])],
)
def test_the_next_times_follow_the_calendar(frequency, following):
    times = pd.date_range("2024-01-01", periods=60, freq=frequency)
    rows = open_rows(pd.DataFrame({"day": times, "load": LOAD}), "load", num_warm_up=60)
    rows.take(60)
    cells, moments = rows.encoder.ahead(2), rows.encoder.clock.ahead(2)
    assert [text[:10] for text in rows.encoder.clock.format(moments)] == following
    ahead = reopen_rows(pd.DataFrame({"day": pd.to_datetime(following)}), rows.encoder).take(2)
    assert torch.equal(torch.from_numpy(moments), ahead.time)
    assert cells["day"].dtype.kind == "M"


def days(*cells):
    """A table of a day for each cell."""
    return "time,load\n" + "".join(f"2024-01-{cell},{k}\n" for k, cell in enumerate(cells, 1))


UP = range(1, 25)
BAD = {
    "no table": ("\x00\x01\x02\x00" * 200, "is not a text table"),
    "empty": ("", "is empty; a header row and data rows are needed"),
    "a workbook": ("PK\x03\x04" + "\0" * 1000, "is a workbook or an archive, not a text table; save the table as CSV"),
    "names only": ("a,load\n", "has a header but no data rows"),
    "ragged": ("a,load\n1,2\n1,2,3\n", r"data row 2 \(line 3\): 3 cells but 2 column names; fix the row"),
    "unknown column": ("a,laod\n1,2\n", "has no column named load; did you mean laod"),
    "a bad number": ("a,load\n" + "1,2\n" * 30 + "x,2\n", r"data row 31 \(line 32\), column a: 'x' is not a number"),
    "a bad number in the warm-up": (
        "a,load\n" + "1,2\n" * 15 + "x,2\n" + "1,2\n" * 15,
        r"data row 16 \(line 17\), column a: 'x' is not a number, unlike nearly all others",
    ),
    "backwards": (
        days(*(f"{d:02d}" for d in (*UP, 3))),
        r"data row 25 \(line 26\), column time: the time 2024-01-03T00:00:00 is before that of the previous row, "
        r"2024-01-24T00:00:00; sort the rows by time",
    ),
    "two zones": (
        days(*(f"{d:02d}T00:00+0{d % 2 * 5}:00" for d in UP)),
        "column time: its times span time zones 5 hours apart; write all times of the column in one zone",
    ),
    "a zone and none": (
        days(*(f"{d:02d}T00:00{'Z' * (d % 2)}" for d in UP)),
        "some of its times have a UTC offset and others do not",
    ),
    "text": (
        "note,load\n" + "".join(f"note {k},{k}\n" for k in range(60)),
        r"column note: text with 30 different values in 30 rows; drop it \(--kinds note=drop\)",
    ),
    "text as target": (
        "a,load\n" + "".join(f"{k},{'yes' if k % 3 else 'no'}\n" for k in range(60)),
        r"the target is text with 2 values in the first \d+ rows \(no, yes\): .*, give --classes no,yes",
    ),
    "an infinite target": ("a,load\n" + "1,2\n" * 30 + "1,inf\n", r"data row 31 .*the target is infinite"),
    "an infinite input": ("a,load\n" + "1,2\n" * 30 + "inf,1\n", r"data row 31 .*column a: the input is infinite"),
}


def test_bad_tables_get_one_sentence_with_the_place(tmp_path):
    path = tmp_path / "bad.csv"
    for name, (content, message) in BAD.items():
        path.write_text(content)
        options = TableOptions(time="time" if name == "backwards" else None, on_bad_time="refuse")
        with pytest.raises(ValueError, match=message):
            list(open_rows(path, "load", options, num_warm_up=30))


def test_a_bad_cell_later_loses_nothing_before_it(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("a,load\n" + "".join(f"{k},1\n" for k in range(100)) + "x,1\n" + "1,1\n" * 10)
    rows = open_rows(path, "load", num_warm_up=30)
    found = [rows.take(1)]
    with pytest.raises(TableError, match="data row 101"):
        found.extend(iter(rows))
    assert sum(batch.num_rows for batch in found) == 100


def test_dates_that_run_backwards_do_not_order_rows_unless_they_are_told_to():
    frame = pd.DataFrame({"time": [*HOURS[:30], HOURS[3], *HOURS[31:]], "load": LOAD})
    rows = open_rows(frame, "load", TableOptions(on_bad_time="refuse"), num_warm_up=40)
    assert rows.encoder.clock is None
    assert "time does not order the rows: it decreases at row 31" in explain(rows.encoder, rows.columns)
    assert rows.take(60).X.shape == (60, 3)


def test_options_that_make_no_sense_are_refused():
    both = {"delimiter": ",", "decimal": ","}
    for wrong in ({"delimiter": ";;"}, {"decimal": "x"}, {"kinds": {"a": "colour"}}, both):
        with pytest.raises(ValueError, match=r"must be|is 'colour'|cannot be both"):
            TableOptions(**wrong)
    with pytest.raises(TypeError, match="a table must be a path, a pandas"):
        open_rows(3, "load")


def test_a_month_of_days_has_the_calendar_that_it_can_tell_of():
    column = open_rows(pd.DataFrame({"time": HOURS, "load": LOAD}), "load", num_warm_up=60).encoder.columns[0]
    assert column.periods == ("day",)
    months = pd.date_range("2000-01-01", periods=60, freq="MS")
    column = open_rows(pd.DataFrame({"time": months, "load": LOAD}), "load", num_warm_up=60).encoder.columns[0]
    assert column.periods == ("year",)
    days = pd.date_range("2000-01-01", periods=60, freq="2h")
    longer = pd.DataFrame({"time": pd.date_range("2000-01-01", periods=2000, freq="h"), "load": range(2000)})
    assert open_rows(longer, "load", num_warm_up=1000).encoder.columns[0].periods == ("day", "week")
    rows = open_rows(longer, "load", num_warm_up=1000)
    assert rows.feature_names[-1] == "time: weekend"
    assert rows.take(2000).X[:, -1].tolist() == (longer.time.dt.weekday >= 5).astype(float).to_list()
    phase = open_rows(pd.DataFrame({"time": days, "load": LOAD}), "load", num_warm_up=60).take(60).X
    hour = torch.tensor(days.hour.tolist()).double()
    torch.testing.assert_close(phase[:, 1], torch.sin(2 * torch.pi * hour / 24), rtol=0, atol=1e-9)
