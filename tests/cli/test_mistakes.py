"""Mistakes in data, configs and folders: named, fixed by the reader, and costing nothing that was there."""

import json

import pytest

from gp_ensembles.cli.__main__ import main
from tests.cli.commands import resume, run, stream, summary_of, tables_of


@pytest.fixture(name="place")
def _place(tmp_path, small):
    (tmp_path / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(tmp_path / "good.csv", small.rows(160))
    return tmp_path


def stream_rows(place, small, rows, out="out", **options):
    small.write(place / "rows.csv", rows)
    return stream(place, "rows.csv", out, **options)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [(1, "1e300", "'b' is 1e+300 in row 121"), (2, "-1e200", "the target of row 121 is -1e+200")],
)
def test_a_wild_number_costs_its_row_only(place, small, refused, column, value, words):
    rows = small.rows(160)
    rows[120][column] = value
    refused(stream_rows(place, small, rows, on_bad_row="refuse"), words)
    written = small.read(place / "out" / "predictions.csv.partial")
    assert [int(row["row"]) for row in written] == list(range(61, 121))
    # going on after the row is as if it had never been there
    small.write(place / "rest.csv", rows[121:])
    assert resume(place, "rest.csv", "rest", checkpoint=place / "out") == 0
    assert stream_rows(place, small, rows[:120] + rows[121:], "whole") == 0
    got = [row["mean"] for row in small.read(place / "rest" / "predictions.csv")]
    assert got == [row["mean"] for row in small.read(place / "whole" / "predictions.csv")][60:]


@pytest.mark.parametrize("cells", [{120: "1e300", 121: "-4e20", 140: "7e30"}, {30: "-1e250"}])  # or of the warm-up
def test_wild_numbers_are_taken_for_missing_ones_and_counted(place, small, capsys, refused, cells):
    rows, gaps = small.rows(160), small.rows(160)
    for row, cell in cells.items():
        rows[row][2], gaps[row][2] = cell, ""
    small.write(place / "gaps.csv", gaps)
    assert stream(place, "gaps.csv", "gaps") == 0
    capsys.readouterr()
    assert stream_rows(place, small, rows) == 0
    count, first = ("3 rows" if len(cells) == 3 else "1 row"), f"the target of row {min(cells) + 1}"
    words = f"{count} had an infinite or implausibly large number, treated as missing; the first: {first}"
    assert words in capsys.readouterr().out
    assert tables_of(place / "out") == tables_of(place / "gaps")
    found = summary_of(place / "out")["bad_rows"]
    assert (found["num_rows"], found["policy"]) == (len(cells), "missing")
    refused(stream_rows(place, small, rows, "stopped", on_bad_row="refuse"), f"row {min(cells) + 1}")


@pytest.mark.parametrize(
    ("cells", "cut", "words"),
    [
        ({(70, 2): "1e300", (75, 2): "1e300", (155, 2): "1e300"}, 100, "3 rows had an infinite or implausibly large"),
        # The last rows fill no chunk.
        ({(100, 1): "5e3", (157, 1): "5e3"}, 158, "2 inputs far outside the range seen so far were clipped to it"),
    ],
)
def test_counts_of_wild_numbers_and_of_inputs_that_were_moved_are_resumed(place, small, capsys, cells, cut, words):
    rows = small.rows(160)
    for (row, column), cell in cells.items():
        rows[row][column] = cell
    small.write(place / "rest.csv", rows[cut:])
    assert stream_rows(place, small, rows, "whole") == 0
    assert words in capsys.readouterr().out
    assert stream_rows(place, small, rows[:cut], "cut") == 0
    assert resume(place, "rest.csv", "cut") == 0
    whole, parts = (summary_of(place / folder) for folder in ("whole", "cut"))
    assert [whole[key] for key in ("bad_rows", "inputs_moved")] == [parts[key] for key in ("bad_rows", "inputs_moved")]
    assert tables_of(place / "cut") == tables_of(place / "whole")


def test_compare_goes_on_after_any_failure_keeps_what_is_good_and_makes_no_folder_for_nothing(place, capsys, refused):
    (place / "bad.yaml").write_text("ensemble: {like: doebe, bases: [LinearBasis, LinearBasis]}")
    words, usual = ("compare", place / "good.csv", "--configs", place / "bad.yaml"), {"target": "y", "warmup": 60}
    assert run(*words, place / "small.yaml", **usual, out=place / "both") == 2
    results = json.loads((place / "both" / "compare.json").read_text())
    assert "bases" in results["bad"]["error"]
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
