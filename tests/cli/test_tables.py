"""Ordinary tables through the command itself: whatever the dialect, the predictions are those of plain numbers."""

import io
import math
import sys
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from gp_ensembles.cli.scored_stream import load_checkpoint
from tests.cli.commands import resume, run, summary_of, tables_of
from tests.cli.commands import stream as stream_with

WARMUP, ROWS = 60, 130
stream = partial(stream_with, warmup=WARMUP)


@pytest.fixture(scope="module")
def place(tmp_path_factory, small):
    """A folder with a config, and the predictions on plain numbers."""
    folder = tmp_path_factory.mktemp("dialects")
    (folder / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(folder / "plain.csv", small.rows(ROWS))
    assert stream(folder, "plain.csv", "plain") == 0
    return folder


def predictions(folder, out):
    return (folder / out / "predictions.csv").read_text(encoding="utf-8")


def as_text(rows, delimiter=",", decimal=".", header=("a", "b", "y")):
    lines = [delimiter.join(header)] if header else []
    lines += [delimiter.join(cell.replace(".", decimal) for cell in row) for row in rows]
    return "\n".join(lines) + "\n"


def test_the_standard_input_is_read_once(place, small, monkeypatch, capsys):
    given = io.BytesIO(as_text(small.rows(ROWS), ";", ",").encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    assert stream(place, "-", "piped") == 0
    assert predictions(place, "piped") == predictions(place, "plain")
    assert summary_of(place / "piped")["data"] == "stdin"
    capsys.readouterr()
    assert run("compare", "-", "--configs", place / "small.yaml", target="y", out=place / "never") == 2
    assert "compare reads the table once for each config; give a file" in capsys.readouterr().err


HOURS = [datetime(2024, 3, 1) + timedelta(hours=k + 7 * (k >= 90)) for k in range(ROWS)]


def dated(rows, style="%d.%m.%Y %H:%M"):
    return [[f"{time:{style}}", *row] for time, row in zip(HOURS, rows, strict=True)]


@pytest.mark.parametrize("style", ["%m/%d/%Y %I:%M %p", "%Y-%m-%dT%H:%M:%SZ"])
def test_dates_give_a_time_calendar_columns_and_steps(place, small, style):
    small.write(place / "dates.csv", dated(small.rows(ROWS), style), ("when", "a", "b", "y"))
    assert stream(place, "dates.csv", "dates") == 0
    rows = small.read(place / "dates" / "predictions.csv")
    assert list(rows[0])[:3] == ["row", "time", "mean"]
    assert [row["time"] for row in rows] == [f"{time:%Y-%m-%dT%H:%M:%S}" for time in HOURS[WARMUP:]]
    assert [row["time"] for row in small.read(place / "dates" / "weights.csv")] == [row["time"] for row in rows]
    summary = summary_of(place / "dates")
    assert summary["features"] == ["when: days", "when: sine of day", "when: cosine of day", "a", "b"]
    assert summary["time"] == {
        "name": "when", "kind": "date", "usual_step": 3600.0, "last": "2024-03-06T16:00:00", "duplicates": 0,
        "gaps": 1, "first_gap_after": "2024-03-04T17:00:00", "longest_gap_steps": 8.0,
        "timezone": None, "put_back": 0, "skipped": 0, "ahead": 0,
    }  # fmt: skip
    # By hand: the same columns as numbers, ordered by a column of hours.
    start, by_hand = HOURS[0], []
    for time, row in zip(HOURS, small.rows(ROWS), strict=True):
        phase = 2 * math.pi * time.hour / 24
        days = (time - start).total_seconds() / 86400
        by_hand.append([repr(days), repr(math.sin(phase)), repr(math.cos(phase)), *row])
    small.write(place / "hand.csv", by_hand, ("days", "sine", "cosine", "a", "b", "y"))
    assert stream(place, "hand.csv", "hand", "--time", "days") == 0
    hand = small.read(place / "hand" / "predictions.csv")
    for name in ("mean", "std", "q05", "q95"):
        assert [float(row[name]) for row in rows] == pytest.approx([float(row[name]) for row in hand], rel=1e-6)
    assert float(hand[0]["time"]) == pytest.approx(WARMUP / 24)


@pytest.mark.processor
def test_a_stream_of_dates_and_words_goes_on_to_the_bit(place, small):
    """Cut within a chunk and within a gap of time, and gone on from the same file, and from the rest of it."""
    rows = [
        [time, a, "" if k % 9 == 1 else b, "xyz"[k * 5 % 3], y]
        for k, (time, a, b, y) in enumerate(dated(small.rows(ROWS)))
    ]
    rows[120][3] = "new"
    header = ("when", "a", "b", "site", "y")
    small.write(place / "all.csv", rows, header)
    assert stream(place, "all.csv", "all") == 0
    for cut, data, options in ((61, "rest.csv", []), (90, "all.csv", ["--skip-seen"]), (101, "rest.csv", [])):
        small.write(place / "first.csv", rows[:cut], header)
        small.write(place / "rest.csv", rows[cut:], header)
        assert stream(place, "first.csv", "cut") == 0
        assert resume(place, data, "cut", *options) == 0
        assert tables_of(place / "cut") == tables_of(place / "all")
        whole, parts = (summary_of(place / out) for out in ("all", "cut"))
        assert parts["time"] == whole["time"]
        assert parts["log_score"] == whole["log_score"]
        history = load_checkpoint(place / "cut" / "checkpoint.pt").history  # the report's: of all rows
        assert (history.first_row, history.num_rows) == (WARMUP + 1, ROWS - WARMUP)


def test_explain_says_what_is_made_and_runs_and_writes_nothing(place, small, capsys):
    rows = [[*row[:3], "xyz"[k % 3], row[3]] for k, row in enumerate(dated(small.rows(ROWS)))]
    small.write(place / "told.csv", rows, ("when", "a", "b", "site", "y"))
    for command, configs in (("stream", ()), ("compare", ("--configs", "e_doebe"))):
        usual = {"target": "y", "explain": True, "out": place / "never"}
        assert run(command, place / "told.csv", *configs, **usual) == 0
        reported = capsys.readouterr().out
        assert "when     time and input   date" in reported
        assert "site     input            category   3" in reported
        assert "when: a row every hour, 1 gap (after 2024-03-04T17:00:00, 8 steps), no duplicate" in reported
        assert "130 rows; column types were detected on the first 43" in reported
    assert not (place / "never").exists()
    rows[100][1] = "red"
    small.write(place / "told.csv", rows, ("when", "a", "b", "site", "y"))
    assert run("stream", place / "told.csv", "--explain", target="y") == 2
    found = capsys.readouterr()
    assert "100 rows" in found.out
    assert "data row 101 (line 102), column a: 'red' is not a number" in found.err


def test_a_run_prints_what_is_odd_about_its_table(place, small, capsys):
    rows = [["-999" if k % 9 == 1 else a, b, y] for k, (a, b, y) in enumerate(small.rows(ROWS))]
    small.write(place / "odd.csv", rows)
    assert stream(place, "odd.csv", "odd") == 0
    assert "a is -999 in 11.7 % of the first rows, far from all others" in capsys.readouterr().out


def test_explain_says_what_it_can_where_a_column_is_refused(place, small, capsys):
    notes = [[f"note {k}", *row] for k, row in enumerate(small.rows(ROWS))]
    small.write(place / "notes.csv", notes, ("n", "a", "b", "y"))
    assert run("stream", place / "notes.csv", "--explain", target="y") == 2
    found = capsys.readouterr()
    assert "b        input    number   1        -         unchanged" in found.out
    assert "column n: text with 43 different values in 43 rows; drop it (--kinds n=drop)" in found.err


def test_a_table_of_a_few_rows_says_how_many_are_needed(place, small, capsys):
    small.write(place / "few.csv", small.rows(8))
    assert stream(place, "few.csv", "few") == 2
    assert run("stream", place / "few.csv", target="y", out=place / "few") == 2
    assert "few has 8 rows; fitting needs at least 10, predictions need more" in capsys.readouterr().err
    assert not (place / "few").exists()


def swapped(rows):
    rows[30], rows[31] = rows[31], rows[30]
    return rows


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (
            swapped,
            ["--time", "when", "--on_bad_time=refuse"],
            "column when: the time 2024-03-02T06:00:00 is before that of the previous row",
        ),
        (lambda rows: [["today", *row[1:]] for row in rows], ["--kinds", "when=date"], "no date format fits"),
        (lambda rows: rows, ["--kinds", "when=day"], "the type of when is 'day'; choose one of"),
        (lambda rows: rows, ["--kinds", "when"], "--kinds when has no type; write NAME=KIND"),
        (lambda rows: rows, ["--time", "hour"], "no column named hour"),
        (lambda rows: rows, ["--delimiter", ";;"], "the delimiter must be one character"),
        (lambda rows: rows, ["--encoding", "klingon"], "'klingon' is not an encoding"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(place, small, capsys, change, options, words):
    rows = change(dated(small.rows(ROWS), "%Y-%m-%dT%H:%M:%SZ"))
    small.write(place / "refused.csv", rows, ("when", "a", "b", "y"))
    assert stream(place, "refused.csv", "never", *options) == 2
    predicted = capsys.readouterr()
    assert predicted.out == ""
    assert len(predicted.err.strip().splitlines()) == 1
    assert words in predicted.err
    assert not (place / "never").exists()


def test_a_file_that_is_no_table_is_refused(place, refused):
    for content in (b"", b"\x00\x01\x02" * 50, b"%PDF-1.4 \xff\xfe\x00", b"PAR1 and no more", b"y\n"):
        (place / "odd.csv").write_bytes(content)
        refused(stream(place, "odd.csv", "never"), str(place / "odd.csv"))
        assert not (place / "never").exists()


def test_rows_at_mistyped_times_are_skipped_and_resumed(place, small, capsys):
    rows = dated(small.rows(ROWS), "%Y-%m-%d %H:%M")
    for number in (90, 91, 110):
        rows[number][0] = rows[number][0].replace("2024", "2023")
    rows[120][0] = ""
    small.write(place / "wrong.csv", rows, ("when", "a", "b", "y"))
    assert stream(place, "wrong.csv", "wrong", "--timezone", "UTC") == 0
    words = "when: 4 row(s) skipped because the time was missing or out of order (the first after 2024-"
    assert words in capsys.readouterr().out
    time = summary_of(place / "wrong")["time"]
    assert (time["skipped"], time["timezone"]) == (4, "UTC")
    predictions = small.read(place / "wrong" / "predictions.csv")
    assert [int(row["row"]) for row in predictions if row["y"] == ""] == [91, 92, 111, 121]
    small.write(place / "first.csv", rows[:100], ("when", "a", "b", "y"))
    small.write(place / "rest.csv", rows[100:], ("when", "a", "b", "y"))
    assert stream(place, "first.csv", "parts", "--timezone", "UTC") == 0
    assert resume(place, "rest.csv", "parts") == 0
    assert (place / "parts" / "predictions.csv").read_bytes() == (place / "wrong" / "predictions.csv").read_bytes()
    assert summary_of(place / "parts")["time"] == time
