"""Going on with tables that overlap what was read, after a bad last row, and after a request to end."""

import csv
import json
import math
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta

import pytest

from gp_ensembles.cli.__main__ import main

WARMUP, CUT, ROWS = 60, 110, 150
QUICK = ["--pictures", "false", "--report", "false", "--progress", "false"]
START = datetime(2024, 1, 1)


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory, small):
    """A run over the first rows of a table with times, and one over all of them."""
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
    assert stream(place, "all.csv", "whole") == 0
    return place


def write(path, rows, names=("when", "a", "y")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


def stream(place, data, out):
    config = ["--target", "y", "--config", str(place / "small.yaml"), "--warmup", str(WARMUP)]
    return main(["stream", str(place / data), *config, "--out", str(place / out), *QUICK])


def resume(place, data, out, *options):
    checkpoint = ["--checkpoint", str(place / out / "checkpoint.pt")]
    return main(["resume", str(place / data), *checkpoint, "--out", str(place / out), *QUICK, *options])


@pytest.mark.parametrize(
    ("data", "options"), [("all.csv", ["--skip-seen"]), ("month.csv", ["--skip-seen"]), ("rest.csv", [])]
)
def test_rows_that_were_read_are_passed_over_by_number_or_by_time(place, small, data, options):
    assert stream(place, "first.csv", "cut") == 0
    out = place / "cut"
    given = ["--checkpoint", str(out), "--out", str(out), *QUICK, *options]  # the folder of a run will do
    assert main(["resume", str(place / data), *given]) == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (place / "cut" / name).read_bytes() == (place / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("all.csv", [], "all starts with the rows that the stream began with; say --skip-seen"),
        ("month.csv", [], "month starts at 2024-01-04T08:00:00, and the stream has read up to 2024-01-05T13:00:00"),
        ("old.csv", ["--skip-seen"], "old holds no row that comes after the 110 that the stream has read"),
        ("first.csv", ["--skip-seen"], "first holds no row that comes after the 110 that the stream has read"),
    ],
)
def test_rows_are_not_learned_twice_unless_one_says_so(place, capsys, data, options, words):
    assert stream(place, "first.csv", "kept") == 0
    before = {path.name: path.read_bytes() for path in (place / "kept").iterdir()}
    assert resume(place, data, "kept", *options) == 2
    assert words in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (place / "kept").iterdir()} == before


def test_without_times_the_same_rows_are_learned_again_if_told(place, small, capsys):
    small.write(place / "plain.csv", small.rows(130))
    config = ["--target", "y", "--config", str(place / "small.yaml"), "--warmup", str(WARMUP)]
    assert main(["stream", str(place / "plain.csv"), *config, "--out", str(place / "again"), *QUICK]) == 0
    assert resume(place, "plain.csv", "again") == 2
    assert "--skip-seen=false to learn them once more" in capsys.readouterr().err
    assert resume(place, "plain.csv", "again", "--skip-seen=false") == 0
    assert json.loads((place / "again" / "summary.json").read_text())["rows"] == 260 - WARMUP


def test_a_bad_last_row_costs_nothing_once_it_is_taken_out(place, capsys):
    text = (place / "first.csv").read_text()
    (place / "total.csv").write_text(text + "Total,,\n")
    assert stream(place, "total.csv", "total") == 2
    complaint = capsys.readouterr().err
    assert "data row 111 (line 112), column when: 'Total' is not a date" in complaint
    assert "mend the row or take it out, and go on with resume --skip-seen" in complaint
    (place / "total.csv").write_text(text)
    assert resume(place, "total.csv", "total", "--skip-seen") == 0
    assert stream(place, "first.csv", "good") == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (place / "total" / name).read_bytes() == (place / "good" / name).read_bytes()
    assert json.loads((place / "total" / "summary.json").read_text())["rows"] == CUT - WARMUP
    assert resume(place, "total.csv", "total", "--skip-seen") == 2  # now it is finished
    assert "nothing to add" in capsys.readouterr().err


def test_a_mark_of_missing_values_that_comes_late_is_named_on_the_way(place, capsys):
    lines = (place / "all.csv").read_text().splitlines()
    when, _, y = lines[100].split(",")
    (place / "void.csv").write_text("\n".join([*lines[:100], f"{when},void,{y}", *lines[101:], ""]))
    (place / "empty.csv").write_text("\n".join([*lines[:100], f"{when},,{y}", *lines[101:], ""]))
    assert stream(place, "void.csv", "void") == 2
    assert "'void' is not a number; mend it, or name it with --missing" in capsys.readouterr().err
    assert resume(place, "void.csv", "void", "--skip-seen", "--missing", "void") == 0
    assert stream(place, "empty.csv", "empty") == 0
    written = [(place / name / "predictions.csv").read_bytes() for name in ("void", "empty")]
    assert written[0] == written[1]


def test_a_request_to_end_is_answered_and_nothing_is_lost(place):
    """SIGTERM while rows wait in a pipe: one sentence, code 143, and a checkpoint of all rows that were read."""
    later = "".join(f"2024-02-01 00:00:00,0.5,{k % 7}\n" for k in range(3000))  # more than is read at once
    text = (place / "first.csv").read_text() + later
    (place / "long.csv").write_text(text)
    assert stream(place, "long.csv", "long") == 0
    config = ["--target", "y", "--config", str(place / "small.yaml"), "--warmup", str(WARMUP)]
    call = [sys.executable, "-W", "ignore", "-m", "gp_ensembles.cli", "stream", "-", *config, *QUICK]
    out = ["--out", str(place / "ended"), "--checkpoint_seconds", "0"]
    with subprocess.Popen([*call, *out], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(text)
        process.stdin.flush()
        partial = place / "ended" / "predictions.csv.partial"
        deadline = time.monotonic() + 120
        while not (partial.exists() and partial.read_text().count("\n") > 50) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stderr.read().strip().splitlines()[-1].startswith("gp-ensembles: asked to end; what was learned")
    assert not (place / "ended" / "predictions.csv").exists()
    assert resume(place, "long.csv", "ended", "--skip-seen") == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (place / "ended" / name).read_bytes() == (place / "long" / name).read_bytes()
