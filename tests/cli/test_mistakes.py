"""Mistakes in data, configs and folders: named, mended by the reader, and costing nothing that was there."""

import json

import pytest

from gp_ensembles.cli.__main__ import main

PLAIN = ["--pictures", "false", "--report", "false", "--progress", "false"]
QUICK = [*PLAIN, "--warmup", "60"]


@pytest.fixture(name="place")
def _place(tmp_path, small):
    (tmp_path / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(tmp_path / "good.csv", small.rows(160))
    return tmp_path


def stream(place, data, out="out", *options):
    arguments = ["stream", str(place / data), "--target", "y", "--config", str(place / "small.yaml")]
    return main([*arguments, *QUICK, "--out", str(place / out), *options])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [(1, "1e300", "'b' is 1e+300 in row 121"), (2, "-1e200", "the target of row 121 is -1e+200")],
)
def test_a_wild_number_costs_its_row_only(place, small, capsys, column, value, words):
    rows = small.rows(160)
    rows[120][column] = value
    small.write(place / "wild.csv", rows)
    assert stream(place, "wild.csv", "out", "--on_bad_row", "stop") == 2
    assert words in capsys.readouterr().err
    written = small.read(place / "out" / "predictions.csv.partial")
    assert [int(row["row"]) for row in written] == list(range(61, 121))
    # going on after the row is as if it had never been there
    small.write(place / "rest.csv", rows[121:])
    small.write(place / "without.csv", rows[:120] + rows[121:])
    more = ["resume", "--checkpoint", str(place / "out" / "checkpoint.pt"), str(place / "rest.csv")]
    assert main([*more, "--out", str(place / "rest"), *PLAIN]) == 0
    assert stream(place, "without.csv", "whole") == 0
    got = [row["mean"] for row in small.read(place / "rest" / "predictions.csv")]
    assert got == [row["mean"] for row in small.read(place / "whole" / "predictions.csv")][60:]


def test_wild_numbers_are_taken_for_missing_ones_and_counted(place, small, capsys):
    rows = small.rows(160)
    gaps = [list(row) for row in rows]
    rows[120][2], rows[121][2], rows[140][2] = "1e300", "-4e20", "7e30"
    for row in (120, 121, 140):
        gaps[row][2] = ""
    small.write(place / "wild.csv", rows)
    small.write(place / "gaps.csv", gaps)
    assert stream(place, "wild.csv") == 0
    predicted = capsys.readouterr().out
    assert (
        "3 rows had an infinite or implausibly large number, treated as missing; the first: the target of row 121"
        in predicted
    )
    assert stream(place, "gaps.csv", "gaps") == 0
    both = [small.read(place / folder / "predictions.csv") for folder in ("out", "gaps")]
    assert both[0] == both[1]
    found = json.loads((place / "out" / "summary.json").read_text())["bad_rows"]
    assert (found["num_rows"], found["policy"]) == (3, "missing")


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
    more = ["resume", "--checkpoint", str(place / "cut" / "checkpoint.pt"), str(place / "rest.csv")]
    assert main([*more, "--out", str(place / "cut"), *PLAIN]) == 0
    cut, whole = (json.loads((place / folder / "summary.json").read_text()) for folder in ("cut", "whole"))
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
    more = ["resume", "--checkpoint", str(place / "cut" / "checkpoint.pt"), str(place / "rest.csv")]
    assert main([*more, "--out", str(place / "cut"), *PLAIN]) == 0
    found = [json.loads((place / folder / "summary.json").read_text())["inputs_moved"] for folder in ("cut", "whole")]
    assert found == [2, 2]


def test_a_number_of_the_warm_up_that_cannot_be_squared_is_a_missing_one(place, small, capsys):
    rows = small.rows(160)
    gaps = [list(row) for row in rows]
    rows[30][2], gaps[30][2] = "-1e250", ""
    small.write(place / "wild.csv", rows)
    small.write(place / "gaps.csv", gaps)
    assert stream(place, "wild.csv") == 0
    assert "1 row had an infinite or implausibly large number, treated as missing; the first: the target of row 31" in (
        capsys.readouterr().out
    )
    assert stream(place, "gaps.csv", "gaps") == 0
    both = [small.read(place / folder / "predictions.csv") for folder in ("out", "gaps")]
    assert both[0] == both[1]
    assert stream(place, "wild.csv", "stopped", "--on_bad_row", "stop") == 2
    assert "row 31" in capsys.readouterr().err


def test_targets_that_stay_the_same_have_no_normalized_error(place, small):
    rows = small.rows(160)
    for row in rows[60:]:
        row[2] = "0.1"
    small.write(place / "still.csv", rows)
    assert stream(place, "still.csv") == 0
    assert json.loads((place / "out" / "summary.json").read_text())["nmse"] is None


def test_a_number_too_large_for_single_precision_is_named(place, small, capsys):
    rows = small.rows(160)
    rows[100][0] = "1e39"
    small.write(place / "wild.csv", rows)
    assert stream(place, "wild.csv", "out", "--dtype", "float32", "--on_bad_row", "stop") == 2
    assert "'a' is 1e+39 in row 101" in capsys.readouterr().err


def test_clipped_inputs_are_legal_however_far(place, small):
    rows = small.rows(160)
    rows[120][1] = "1e300"
    small.write(place / "wild.csv", rows)
    assert stream(place, "wild.csv", "out", "--clip", "1000") == 0


def test_failed_runs_keep_the_checkpoint_of_the_results(place, small):
    assert stream(place, "good.csv") == 0
    good = (place / "out" / "checkpoint.pt").read_bytes()
    rows = small.rows(160)
    rows[120][1] = "1e300"
    small.write(place / "wild.csv", rows)
    for _ in range(2):
        assert stream(place, "wild.csv", "out", "--on_bad_row", "stop") == 2
    assert (place / "out" / "checkpoint.previous.pt").read_bytes() == good
    assert json.loads((place / "out" / "summary.json").read_text())["data"] == "good"


def compare(place, *configs):
    arguments = ["compare", str(place / "good.csv"), "--target", "y", "--configs", *(str(place / c) for c in configs)]
    return main([*arguments, "--warmup", "60", "--progress", "false", "--out", str(place / "both")])


def test_compare_goes_on_after_any_failure_and_keeps_what_is_good(place, capsys):
    bad = "ensemble: {like: doebe, bases: [LinearBasis, LinearBasis]}"
    (place / "bad.yaml").write_text(bad)
    assert compare(place, "bad.yaml", "small.yaml") == 2
    results = json.loads((place / "both" / "compare.json").read_text())
    assert "error" in results["bad"]
    assert results["small"]["rows"] == 100
    before = (place / "both" / "compare.csv").read_bytes()
    assert compare(place, "bad.yaml") == 2
    assert (place / "both" / "compare.csv").read_bytes() == before
    capsys.readouterr()


def test_compare_that_cannot_run_leaves_no_folder(place, capsys):
    arguments = ["compare", str(place / "good.csv"), "--target", "y", "--configs", str(place / "small.yaml")]
    assert main([*arguments, "--warmup", "500", "--out", str(place / "none"), "--progress", "false"]) == 2
    assert "160 rows" in capsys.readouterr().err
    assert not (place / "none").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ensemble: {like: oebe, bases: [LinearBasiz]}", "did you mean LinearBasis"),
        ("ensemble: {like: oebe, basis: [LinearBasis]}", "has no setting 'basis'; did you mean bases"),
        ("ensemble: e_doebi", "did you mean e_doebe"),
        ("ensemble: {like: oebe, fit_settings: {num_sample: 2}}", "did you mean num_samples"),
        ("", "is empty"),
        ("clip: -1", "clip must be positive"),
        ("ensemble: {like: oebe, bases: [{FourierBasis: {num_features: 7}}]}", "at least 2, got 7"),
    ],
)
def test_mistakes_in_configs_are_explained(place, capsys, text, words):
    (place / "odd.yaml").write_text(text)
    arguments = ["stream", str(place / "good.csv"), "--target", "y", "--config", str(place / "odd.yaml")]
    assert main([*arguments, "--out", str(place / "none")]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert "odd.yaml" in message
    assert "Expected a null" not in message
    assert not (place / "none").exists()


def test_a_config_option_needs_a_file(place, capsys):
    for rest in ([], ["--out", "x"]):
        assert main(["stream", str(place / "good.csv"), "--target", "y", "--config", *rest]) == 2
        message = capsys.readouterr().err
        assert "--config needs a file" in message
        assert len(message) < 200
