"""Going on with tables that overlap what was read, after a bad last row, and after a request to end."""

import csv
import io
import math
import random
import re
import shutil
import signal
import sys
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from gp_ensembles.cli import scored_stream
from gp_ensembles.tables import text
from tests.cli.commands import resume, summary_of, tables_of
from tests.cli.commands import stream as stream_with

WARMUP, CUT, ROWS = 40, 80, 110
START = datetime(2024, 1, 1)


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory, small):
    """A run over the first rows of a table with times, kept as it is, and one over all of them."""
    place, draw = tmp_path_factory.mktemp("seen"), random.Random(0)
    (place / "small.yaml").write_text(small.config, encoding="utf-8")
    rows = [
        [f"{START + timedelta(hours=k)}", f"{draw.gauss(0, 1):.4f}", f"{math.sin(k / 4) + draw.gauss(0, 0.1):.4f}"]
        for k in range(ROWS)
    ]
    write(place / "all.csv", rows)
    write(place / "first.csv", rows[:CUT])
    write(place / "month.csv", rows[CUT - 30 :])
    write(place / "rest.csv", rows[CUT:])
    write(place / "old.csv", rows[20 : CUT - 10])
    write(place / "style.csv", [[f"{START + timedelta(hours=k):%d/%m/%Y %H:%M}", "1", "1"] for k in range(CUT, ROWS)])
    assert stream(place, "all.csv", "whole") == 0
    assert stream(place, "first.csv", "first") == 0
    return place


def write(path, rows, names=("when", "a", "y")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


stream = partial(stream_with, warmup=WARMUP)


def copy_of_first(place, out):
    """The folder of the run over the first rows, under another name."""
    shutil.rmtree(place / out, ignore_errors=True)
    shutil.copytree(place / "first", place / out)
    return place / out


def test_rows_that_were_read_are_skipped_by_number_or_by_time(place, capsys):
    for data, options in (("all.csv", ["--skip-seen"]), ("month.csv", ["--skip-seen"]), ("rest.csv", [])):
        out = copy_of_first(place, "cut")
        given = {"checkpoint": out, "progress": True}  # the folder of a run will do
        assert resume(place, data, "cut", *options, **given) == 0
        assert re.findall(r" (\d+)(?:/\d+)?(?:row)? \[", capsys.readouterr().err)[-1] == str(ROWS - CUT)
        assert tables_of(out) == tables_of(place / "whole"), data


def test_rows_are_not_learned_twice_unless_one_says_so(place, refused):
    out = copy_of_first(place, "kept")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for data, options, words in (
        ("all.csv", [], "all starts with the first rows of the stream; give --skip-seen"),
        ("month.csv", [], "month starts at 2024-01-03T02:00:00, and the stream has read up to 2024-01-04T07:00:00"),
        ("old.csv", ["--skip-seen"], "old has no rows after the 80 that the stream has read"),
        ("first.csv", ["--skip-seen"], "first has no rows after the 80 that the stream has read"),
        ("style.csv", [], "line 2), column when: '04/01/2024 08:00' is not a date in the format of the first rows"),
    ):
        refused(resume(place, data, "kept", *options), words)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_bad_last_row_costs_nothing_once_it_is_taken_out(place, capsys):
    text = (place / "first.csv").read_text()
    (place / "total.csv").write_text(text + "Total,,\n")
    assert stream(place, "total.csv", "total", "--on_bad_time=refuse") == 2
    complaint = capsys.readouterr().err
    assert "data row 81 (line 82), column when: 'Total' is not a date" in complaint
    assert "fix or remove the row, and continue with resume --skip-seen" in complaint
    (place / "total.csv").write_text(text)
    assert resume(place, "total.csv", "total", "--skip-seen") == 0
    assert tables_of(place / "total") == tables_of(place / "first")
    assert summary_of(place / "total")["rows"] == CUT - WARMUP
    assert resume(place, "total.csv", "total", "--skip-seen") == 2  # now it is finished
    assert "nothing to add" in capsys.readouterr().err


def test_a_request_to_end_is_answered_and_nothing_is_lost(place, monkeypatch, capsys):
    """SIGTERM while rows are awaited on a pipe: one sentence, code 143, and a checkpoint of all rows that were read."""

    class Pipe(io.BytesIO):
        def read(self, size=-1):
            return super().read(size) or signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(scored_stream, "CHUNK_ROWS", 1)
    monkeypatch.setattr(text, "BATCH_ROWS", 16)
    monkeypatch.setattr(text, "PEEK_BYTES", 512)
    content = (place / "all.csv").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(content[: content.rindex(b"\n", 0, -1) - 5])))
    assert stream(place, "-", "ended", checkpoint_seconds=0) == 143
    words = "gp-ensembles: terminated; what was learned is in the checkpoint, see resume"
    assert capsys.readouterr().err.strip() == words
    assert (place / "ended" / "predictions.csv.partial").read_text().count("\n") > 40
    assert not (place / "ended" / "predictions.csv").exists()
    assert resume(place, "all.csv", "ended", "--skip-seen") == 0
    assert tables_of(place / "ended") == tables_of(place / "whole")
