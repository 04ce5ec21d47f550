"""Guests on the command line: columns of forecasts with gaps, the lines of the summary, and resumption."""

import json

import pytest

from gp_ensembles.cli.__main__ import main

QUICK = ["--pictures", "false", "--progress", "false"]
CONFIG = """\
ensemble:
  like: auto
  bases: [LinearBasis]
  random_walk_variances: [0.001]
  lags: null
  further: [{Boosting: {num_trees: 5, every: 100}}, {ForecastColumns: {columns: [nwp], deviation: spread}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, small):
    """A folder with a table, its first and last rows, and a config."""
    folder = tmp_path_factory.mktemp("guests")
    (folder / "guests.yaml").write_text(CONFIG, encoding="utf-8")
    rows = [
        [a, "" if number % 7 == 2 else f"{float(y) + 0.1 * float(b):.6f}", 1.5, y]
        for number, (a, b, y) in enumerate(small.rows(400))
    ]
    header = ("a", "nwp", "spread", "y")
    small.write(folder / "data.csv", rows, header)
    small.write(folder / "first.csv", rows[:250], header)
    return folder


def run(place, data, out):
    options = ["--target", "y", "--warmup", "100", "--config", str(place / "guests.yaml"), *QUICK]
    assert main(["stream", str(place / data), "--out", str(place / out), *options]) == 0


def test_summaries_tell_of_guests_and_a_resumed_run_tells_the_same(place, capsys, small):
    run(place, "data.csv", "whole")
    told = capsys.readouterr().out
    assert "forecast/0: absent for 57 rows; the last time it said nothing (NaN)" in told
    assert "boosting/0: the ensemble is " in told
    whole = json.loads((place / "whole" / "summary.json").read_text("utf-8"))["guests"]
    assert whole["forecast/0"]["num_targets"] == 400 - 57
    assert whole["forecast/0"]["regret"] < whole["forecast/0"]["bound"]
    run(place, "first.csv", "part")
    resume = ["resume", "--checkpoint", str(place / "part" / "checkpoint.pt"), str(place / "data.csv"), "--skip-seen"]
    assert main([*resume, "--out", str(place / "rest"), *QUICK]) == 0
    rest = json.loads((place / "rest" / "summary.json").read_text("utf-8"))["guests"]
    assert rest == whole
    predicted = {row["row"]: row["mean"] for row in small.read(place / "whole" / "predictions.csv")}
    assert all(predicted[row["row"]] == row["mean"] for row in small.read(place / "rest" / "predictions.csv"))


def test_a_column_that_is_not_there_is_named(place, capsys):
    options = ["--target", "y", "--warmup", "100", "--config", str(place / "guests.yaml"), *QUICK]
    assert (
        main(["stream", str(place / "data.csv"), "--features", "a,spread", "--out", str(place / "no"), *options]) == 2
    )
    assert "there is no column 'nwp' of forecasts; the columns are a, spread" in capsys.readouterr().err
