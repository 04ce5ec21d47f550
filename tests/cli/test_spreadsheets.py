"""Written tables are safe to open in a spreadsheet: no name and no category becomes a formula."""

import csv
import io

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.text_tables import as_csv, not_a_formula

HOSTILE = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    '=HYPERLINK("http://x","y")',
    "＝1",
]


def test_no_cell_begins_a_formula():
    for text in HOSTILE:
        for row in csv.reader(io.StringIO(as_csv([text, "b"], [[text, 1.5]]), newline="")):
            assert row[0] == "'" + text


def test_numbers_and_other_text_stay():
    for text in ("-0.5", "+3", "-1e-300", "-inf", "wind", "", "a=b", "'quoted'", "7"):
        assert not_a_formula(text) == text
        assert next(csv.reader(io.StringIO(as_csv([text, "b"], []))))[0] == text


def test_predictions_and_weights_of_hostile_classes_and_columns(tmp_path, small):
    kinds = ("=1+1", "@x")
    rows = [[f"{(7 * k) % 11}", f"{k % 5}", kinds[(k // 3) % 2]] for k in range(60)]
    small.write(tmp_path / "data.csv", rows, ("=a", "+b", "-y"))
    settings = "like: e_doebe, bases: [LinearBasis], target: BinaryTarget, fit_settings: {num_samples: 1}"
    (tmp_path / "config.yaml").write_text(f"warmup: 30\nensemble: {{{settings}}}\n", encoding="utf-8")
    out = tmp_path / "out"
    given = [str(tmp_path / "data.csv"), "--target=-y", "--config", str(tmp_path / "config.yaml"), "--out", str(out)]
    given += ["--classes", "=1+1,@x", "--pictures", "false", "--report", "false", "--progress", "false"]
    assert main(["stream", *given]) == 0
    for name in ("predictions.csv", "weights.csv"):
        with (out / name).open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert cells
        for cell in cells:
            assert not_a_formula(cell) == cell
