"""Written tables are safe to open in a spreadsheet: no name and no category becomes a formula."""

import csv
import io

from gp_ensembles.cli.text_tables import as_csv, not_a_formula
from tests.cli.commands import run, tables_of

HOSTILE = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("x","y")', "＝1"]


def test_no_cell_begins_a_formula_and_numbers_and_other_text_stay():
    for text in HOSTILE:
        for row in csv.reader(io.StringIO(as_csv([text, "b"], [[text, 1.5]]), newline="")):
            assert row[0] == "'" + text
    for text in ("-0.5", "+3", "-1e-300", "-inf", "wind", "", "a=b", "'quoted'", "7"):
        assert not_a_formula(text) == text
        assert next(csv.reader(io.StringIO(as_csv([text, "b"], []))))[0] == text


def test_predictions_and_weights_of_hostile_classes_and_columns(tmp_path, small):
    kinds = ("=1+1", "@x")
    rows = [[f"{(7 * k) % 11}", f"{k % 5}", kinds[(k // 3) % 2]] for k in range(60)]
    small.write(tmp_path / "data.csv", rows, ("=a", "+b", "-y"))
    settings = "like: e_doebe, bases: [LinearBasis], target: BinaryTarget, fit_settings: {num_samples: 1}"
    (tmp_path / "config.yaml").write_text(f"warmup: 30\nensemble: {{{settings}}}\n", encoding="utf-8")
    options = {"target": "-y", "classes": "=1+1,@x", "config": tmp_path / "config.yaml", "out": tmp_path / "out"}
    assert run("stream", tmp_path / "data.csv", **options) == 0
    for table in tables_of(tmp_path / "out"):
        cells = [cell for row in csv.reader(io.StringIO(table.decode(), newline="")) for cell in row]
        assert cells
        assert [not_a_formula(cell) for cell in cells] == cells
