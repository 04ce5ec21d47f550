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
    gaps = sum(number % 7 == 2 for number in range(100, 400))
    assert f"forecast/0: answered {300 - gaps} of 300 rows; absent the last time because it said nothing (NaN)" in told
    assert "boosting/0: log score -" in told
    assert "boosting/0: answered" not in told
    summary = json.loads((place / "whole" / "summary.json").read_text("utf-8"))
    whole = summary["guests"]
    forecast, boosting = whole["forecast/0"], whole["boosting/0"]
    assert (forecast["num_targets"], forecast["num_absent"]) == (300 - gaps, gaps)
    assert forecast["regret"] < forecast["bound"]
    rows = small.read(place / "whole" / "predictions.csv")
    weights = [float(row["boosting/0"]) for row in small.read(place / "whole" / "weights.csv")]
    assert boosting["mean_weight"] == pytest.approx(sum(weights) / len(rows), rel=1e-6)
    # Without recalibration, which comes after the mixture, the ensemble's score is that of the table of scores.
    plain = ["--recalibrate", "false", "--coverages", "[]"]
    options = ["--target", "y", "--warmup", "100", "--config", str(place / "guests.yaml"), *QUICK, *plain]
    assert main(["stream", str(place / "data.csv"), "--out", str(place / "plain"), *options]) == 0
    scores = json.loads((place / "plain" / "summary.json").read_text("utf-8"))
    assert scores["guests"]["boosting/0"]["ensemble_log_score"] == pytest.approx(scores["log_score"], abs=1e-9)
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
