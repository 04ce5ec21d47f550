"""``stream --series``: tables of many series through a fleet, killed, gone on with, and refused."""

import math

import pandas as pd
import pytest
import torch

from gp_ensembles.cli import series
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.config import load_config
from gp_ensembles.fleet import Fleet
from tests.cli.commands import LINEAR, summary_of

NAMES = ("north", "south, 2", "7")
COLUMNS = ["mean", "std", "lower", "upper", "log_prob"]


def table(num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    series = torch.randint(0, len(NAMES), (num_rows,), generator=generator)
    x = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y = 10.0**series * (3 + x + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64))
    frame = pd.DataFrame({"meter": [NAMES[s] for s in series.tolist()], "x": x.numpy(), "load": y.numpy()})
    frame.loc[5::17, "load"] = math.nan
    frame.loc[8::23, "x"] = math.nan
    return frame


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(f"{LINEAR}warmup: 30\n")
    table(400).to_csv("all.csv", index=False)
    return tmp_path


def stream(*words):
    usual = ["--target", "load", "--series", "meter", "--config", "small.yaml", "--progress", "false"]
    return main(["stream", *usual, *words])


def resume(table_file, out="run", *words):
    return main(["resume", table_file, "--checkpoint", "run", "--out", out, "--progress", "false", *words])


def broken_table(file, rows, at):
    lines = rows.to_csv(index=False).splitlines(keepends=True)
    lines[at] = "north,oops,1.0\n"
    file.write_text("".join(lines))


def same_predictions():
    """The run in parts wrote what the whole one wrote."""
    whole, parts = pd.read_csv("whole/predictions.csv"), pd.read_csv("run/predictions.csv")
    pd.testing.assert_frame_equal(whole, parts, rtol=1e-9)


def test_predictions_are_those_of_a_fleet(folder, capsys):
    assert stream("all.csv", "--out", "run") == 0
    predicted = capsys.readouterr().out
    found, frame = pd.read_csv("run/predictions.csv"), table(400)
    fleet = Fleet(load_config("small.yaml").ensemble, warmup=30)
    X = torch.tensor(frame[["x"]].to_numpy())
    expected = fleet.observe(frame["meter"].tolist(), X, torch.tensor(frame["load"].to_numpy()))
    lower, upper = expected.interval(0.9)
    values = (expected.mean, expected.variance.sqrt(), lower, upper, expected.log_prob)
    for name, value in zip(COLUMNS, values, strict=True):
        torch.testing.assert_close(torch.tensor(found[name].to_numpy()), value, rtol=1e-12, atol=0, equal_nan=True)
    assert found["series"].tolist() == frame["meter"].tolist()
    assert found["row"].tolist() == list(range(1, 401))
    scores = pd.read_csv("run/series.csv").set_index("series")
    assert set(scores.index) == set(NAMES)
    for name in NAMES:
        mine = found[(found["series"] == name) & found["log_prob"].notna()]
        inside = ((mine["y"] > mine["lower"]) & (mine["y"] < mine["upper"])).mean()
        reported = scores.loc[name]
        assert reported["rows"] == len(mine)
        assert reported["log_score"] == pytest.approx(mine["log_prob"].mean())
        assert reported["rmse"] == pytest.approx(((mine["y"] - mine["mean"]) ** 2).mean() ** 0.5)
        assert reported["coverage_90"] == pytest.approx(inside)
    summary = summary_of(folder / "run")
    assert (summary["series"], summary["rows_read"]) == (3, 400)
    assert summary["log_score"] == pytest.approx(found["log_prob"].mean())
    assert "3 series of all: " in predicted


@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_a_run_that_stops_goes_on_to_the_same_bytes(seconds, folder, refused, monkeypatch):
    """At a malformed row; the table is fixed, and the run goes on with the rows behind the last save, if any."""
    monkeypatch.setattr(series, "BATCH_ROWS", 90)
    assert stream("all.csv", "--out", "whole") == 0
    broken_table(folder / "table.csv", table(400), 251)
    refused(stream("table.csv", "--out", "run", "--checkpoint_seconds", seconds), "oops")
    assert not (folder / "run/predictions.csv").exists()
    (folder / "table.csv").write_text((folder / "all.csv").read_text())
    assert resume("table.csv") == (0 if seconds == "0" else 2)
    assert seconds == "0" or stream("table.csv", "--out", "run") == 0
    for name in ("predictions.csv", "series.csv"):
        assert (folder / "run" / name).read_bytes() == (folder / "whole" / name).read_bytes()


@pytest.fixture
def rows(folder):
    """All rows, of which one run has had all and another one the first."""
    found = table(400)
    found[:300].to_csv("first.csv", index=False)
    found[300:].to_csv("more.csv", index=False)
    assert stream("all.csv", "--out", "whole") == 0
    assert stream("first.csv", "--out", "run") == 0
    return found


def test_further_rows_go_on_with_a_complete_run(rows):
    assert resume("more.csv") == 0
    same_predictions()
    rows[300:].to_csv("then.csv", index=False, columns=["meter", "x"])  # no targets, elsewhere
    assert resume("then.csv", "other") == 0
    other = pd.read_csv("other/predictions.csv")
    assert other["row"].tolist() == list(range(401, 501))
    assert (other["mean"].notna() & other["log_prob"].isna()).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--series", "load"], "the column load is the series column"),
        (["--series", "metre"], "no column named metre; did you mean meter?"),
        (["--time", "x"], "no common order"),
        (["--features", "x,meter"], "the column meter is the series column"),
        (["--ensemble", "auto"], "WindowExpert cannot be an expert of a fleet"),
        (["--format", "jsonl"], "--series needs a whole table"),
        (["--warmup", "3"], "at least 10"),
    ],
)
def test_what_cannot_be_streamed_is_refused(words, message, folder, refused):
    refused(stream("all.csv", "--out", "run", *words), message)
    assert not (folder / "run" / "predictions.csv").exists()


def test_rows_of_no_series_are_named_and_compare_takes_one_series(folder, refused):
    frame = table(60)
    frame.loc[41, "meter"] = None
    frame.to_csv("gap.csv", index=False)
    refused(stream("gap.csv", "--out", "run"), "data row 42 (line 43), column meter: the series of the row is missing")
    words = ["compare", "all.csv", "--target", "load", "--series", "meter", "--configs", "oebe", "--out", "run"]
    refused(main(words), "compare takes a table of one series")


def test_a_resume_that_failed_leaves_a_complete_run_complete(folder, rows, refused):
    """What the failed one left is not taken for this run's: the next rows are predicted and learned."""
    broken_table(folder / "text.csv", rows[300:], 5)
    before = (folder / "run/predictions.csv").read_bytes()
    assert resume("text.csv") == 2
    refused(resume("first.csv"), "starts with the rows that the run has read; give --skip-seen")
    assert (folder / "run/predictions.csv").read_bytes() == before
    refused(resume("first.csv", "run", "--skip_seen", "true"), "nothing to add")
    assert resume("more.csv") == 0
    same_predictions()
    assert not list((folder / "run").glob("*.partial"))


def test_a_second_table_that_stops_goes_on_where_it_stopped(folder, rows, refused, monkeypatch):
    """Of the second table are skipped as many rows as were read of it; another table is refused."""
    monkeypatch.setattr(series, "BATCH_ROWS", 30)
    broken_table(folder / "more.csv", rows[300:], 80)
    assert resume("more.csv", "run", "--checkpoint_seconds", "0") == 2
    rows[390:].to_csv("few.csv", index=False)
    rows[:190].to_csv("other.csv", index=False)
    refused(resume("few.csv"), "few has fewer rows than the 60 that the run has read")
    refused(resume("other.csv"), "differs from row 60 of the run")
    rows[300:].to_csv("more.csv", index=False)
    assert resume("more.csv") == 0
    same_predictions()


def test_a_run_in_which_no_series_has_begun_is_not_gone_on_with(folder, refused):
    table(20).to_csv("short.csv", index=False)
    assert stream("short.csv", "--out", "run") == 0
    refused(resume("all.csv"), "no series of the run in run has completed its warm-up")


def test_a_code_in_one_series_costs_its_cell_and_by_option_the_run(folder, capsys):
    spoiled, gaps = table(400), table(400)
    place = spoiled.index[(spoiled["meter"] == "7") & spoiled["x"].notna()][60]
    spoiled.loc[place, "x"], gaps.loc[place, "x"] = 65535e15, math.nan
    spoiled.to_csv("spoiled.csv", index=False)
    gaps.to_csv("gaps.csv", index=False)
    assert stream("spoiled.csv", "--out", "run") == 0
    assert "1 rows of 1 series had an infinite or implausibly large number: 7" in capsys.readouterr().out
    assert stream("gaps.csv", "--out", "whole") == 0
    same_predictions()
    assert summary_of(folder / "run")["bad_rows"] == {"7": 1}
    assert stream("spoiled.csv", "--out", "no", "--on_bad_row", "refuse") == 2
    words = f"data row {place + 1} (line {place + 2}), column x: series '7': 'x' is 6.5535e+19 in row {place + 1}"
    assert words in capsys.readouterr().err
