"""Mistakes in data, configs and folders: named, mended by the reader, and costing nothing that was there."""

import json

import pytest

from gp_ensembles.cli.__main__ import main
from tests.cli.commands import resume, run, stream, summary_of


@pytest.fixture(name="place")
def _place(tmp_path, small):
    (tmp_path / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(tmp_path / "good.csv", small.rows(160))
    return tmp_path


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [(1, "1e300", "'b' is 1e+300 in row 121"), (2, "-1e200", "the target of row 121 is -1e+200")],
)
def test_a_wild_number_costs_its_row_only(place, small, refused, column, value, words):
    rows = small.rows(160)
    rows[120][column] = value
    small.write(place / "wild.csv", rows)
    refused(stream(place, "wild.csv", "out", "--on_bad_row", "stop"), words)
    written = small.read(place / "out" / "predictions.csv.partial")
    assert [int(row["row"]) for row in written] == list(range(61, 121))
    # going on after the row is as if it had never been there
    small.write(place / "rest.csv", rows[121:])
    small.write(place / "without.csv", rows[:120] + rows[121:])
    assert resume(place, "rest.csv", "rest", checkpoint=place / "out") == 0
    assert stream(place, "without.csv", "whole") == 0
    got = [row["mean"] for row in small.read(place / "rest" / "predictions.csv")]
    assert got == [row["mean"] for row in small.read(place / "whole" / "predictions.csv")][60:]


def test_wild_numbers_are_taken_for_missing_ones_and_counted(place, small, capsys, refused):
    rows = small.rows(160)
    gaps = [list(row) for row in rows]
    rows[120][2], rows[121][2], rows[140][2] = "1e300", "-4e20", "7e30"
    for row in (120, 121, 140):
        gaps[row][2] = ""
    small.write(place / "wild.csv", rows)
    small.write(place / "gaps.csv", gaps)
    assert stream(place, "wild.csv") == 0
    words = "3 rows had an infinite or implausibly large number, treated as missing; the first: the target of row 121"
    assert words in capsys.readouterr().out
    assert stream(place, "gaps.csv", "gaps") == 0
    both = [small.read(place / folder / "predictions.csv") for folder in ("out", "gaps")]
    assert both[0] == both[1]
    found = summary_of(place / "out")["bad_rows"]
    assert (found["num_rows"], found["policy"]) == (3, "missing")
    rows[121], rows[120][0] = gaps[121], "1e39"
    small.write(place / "wild.csv", rows)
    refused(stream(place, "wild.csv", "single", dtype="float32", on_bad_row="stop"), "'a' is 1e+39 in row 121")
    rows[120][0] = "1e300"
    small.write(place / "wild.csv", rows)
    assert stream(place, "wild.csv", "clipped", clip=1000) == 0  # legal however far


def test_a_wild_input_is_a_missing_one_or_costs_its_row(place, small):
    rows = small.rows(160)
    rows[120][1] = "1e300"
    small.write(place / "wild.csv", rows)
    assert stream(place, "wild.csv") == 0
    assert stream(place, "wild.csv", "skipped", "--on_bad_row", "skip") == 0
    missing, skipped = (small.read(place / folder / "predictions.csv") for folder in ("out", "skipped"))
    means = [[float(row["mean"]) for row in rows[60:62]] for rows in (missing, skipped)]
    assert means[0][0] == pytest.approx(means[1][0], rel=1e-9)
    assert means[0][1] != pytest.approx(means[1][1], rel=1e-9)  # what was learned of that row
    assert skipped[60]["y"] == ""


def test_the_count_of_wild_numbers_is_resumed(place, small):
    rows = small.rows(160)
    rows[70][2] = rows[75][2] = rows[155][2] = "1e300"
    small.write(place / "wild.csv", rows)
    small.write(place / "first.csv", rows[:100])
    small.write(place / "rest.csv", rows[100:])
    assert stream(place, "wild.csv", "whole") == 0
    assert stream(place, "first.csv", "cut") == 0
    assert resume(place, "rest.csv", "cut") == 0
    cut, whole = (summary_of(place / folder) for folder in ("cut", "whole"))
    assert cut["bad_rows"] == whole["bad_rows"]
    assert small.read(place / "cut" / "predictions.csv") == small.read(place / "whole" / "predictions.csv")


def test_inputs_that_were_moved_are_counted_to_the_last_row(place, small, capsys):
    rows = small.rows(160)
    rows[100][1] = rows[157][1] = "5e3"  # the last rows fill no chunk
    small.write(place / "wild.csv", rows)
    small.write(place / "first.csv", rows[:158])
    small.write(place / "rest.csv", rows[158:])
    assert stream(place, "wild.csv", "whole") == 0
    assert "2 inputs far outside the range seen before were clipped" in capsys.readouterr().out
    assert stream(place, "first.csv", "cut") == 0
    assert resume(place, "rest.csv", "cut") == 0
    found = [summary_of(place / folder)["inputs_moved"] for folder in ("cut", "whole")]
    assert found == [2, 2]


def test_a_number_of_the_warm_up_that_cannot_be_squared_is_a_missing_one(place, small, capsys, refused):
    rows = small.rows(160)
    gaps = [list(row) for row in rows]
    rows[30][2], gaps[30][2] = "-1e250", ""
    small.write(place / "wild.csv", rows)
    small.write(place / "gaps.csv", gaps)
    assert stream(place, "wild.csv") == 0
    words = "1 row had an infinite or implausibly large number, treated as missing; the first: the target of row 31"
    assert words in capsys.readouterr().out
    assert stream(place, "gaps.csv", "gaps") == 0
    both = [small.read(place / folder / "predictions.csv") for folder in ("out", "gaps")]
    assert both[0] == both[1]
    refused(stream(place, "wild.csv", "stopped", "--on_bad_row", "stop"), "row 31")


def test_targets_that_stay_the_same_have_no_normalized_error(place, small):
    rows = small.rows(160)
    for row in rows[60:]:
        row[2] = "0.1"
    small.write(place / "still.csv", rows)
    assert stream(place, "still.csv") == 0
    assert summary_of(place / "out")["nmse"] is None


def test_failed_runs_keep_the_checkpoint_of_the_results(place, small):
    assert stream(place, "good.csv") == 0
    good = (place / "out" / "checkpoint.pt").read_bytes()
    rows = small.rows(160)
    rows[120][1] = "1e300"
    small.write(place / "wild.csv", rows)
    for _ in range(2):
        assert stream(place, "wild.csv", "out", "--on_bad_row", "stop") == 2
    assert (place / "out" / "checkpoint.previous.pt").read_bytes() == good
    assert summary_of(place / "out")["data"] == "good"


def test_compare_goes_on_after_any_failure_keeps_what_is_good_and_makes_no_folder_for_nothing(place, capsys, refused):
    (place / "bad.yaml").write_text("ensemble: {like: doebe, bases: [LinearBasis, LinearBasis]}")
    words, usual = ("compare", place / "good.csv", "--configs", place / "bad.yaml"), {"target": "y", "warmup": 60}
    assert run(*words, place / "small.yaml", **usual, out=place / "both") == 2
    results = json.loads((place / "both" / "compare.json").read_text())
    assert "error" in results["bad"]
    assert results["small"]["rows"] == 100
    before = (place / "both" / "compare.csv").read_bytes()
    assert run(*words, **usual, out=place / "both") == 2
    assert (place / "both" / "compare.csv").read_bytes() == before
    capsys.readouterr()
    refused(run(*words, **usual | {"warmup": 500}, out=place / "none"), "160 rows")
    assert not (place / "none").exists()


def test_a_config_option_needs_a_file(place, capsys):
    for rest in ([], ["--out", "x"]):
        assert main(["stream", str(place / "good.csv"), "--target", "y", "--config", *rest]) == 2
        message = capsys.readouterr().err
        assert "--config needs a file" in message
        assert len(message) < 200
