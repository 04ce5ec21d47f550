"""`gp-ensembles forecast`: from a run's checkpoint to tables of what comes, and scores of such forecasts."""

import csv
import math
import random
from datetime import datetime, timedelta

import pytest

from tests.cli.commands import FIT, LINEAR, run, summary_of
from tests.cli.conftest import read_rows as read

NUM_ROWS, LAST = 160, 130


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory):
    """A folder with tables and a run over the first rows."""
    folder, draw = tmp_path_factory.mktemp("forecast"), random.Random(0)
    start, rows = datetime(2024, 1, 1), []
    for k in range(NUM_ROWS):
        temperature = draw.gauss(0, 1)
        load = 50 + 5 * math.sin(2 * math.pi * k / 12) + temperature + draw.gauss(0, 0.3)
        rows.append((f"{start + timedelta(hours=k):%Y-%m-%d %H:%M}", f"{temperature:.3f}", f"{load:.3f}"))
    write(folder / "first.csv", ("time", "temperature", "load"), rows[:LAST])
    write(folder / "later.csv", ("time", "temperature", "load"), rows[LAST:])
    write(folder / "future.csv", ("time", "temperature"), [row[:2] for row in rows[LAST : LAST + 12]])
    write(folder / "empty.csv", ("time", "temperature"), [])
    write(folder / "newest_first.csv", ("time", "temperature"), [row[:2] for row in rows[: LAST - 1 : -1]])
    write(folder / "style.csv", ("time", "temperature"), [(f"on {row[0]}", row[1]) for row in rows[LAST:]])
    write(folder / "bare.csv", ("time",), [row[:1] for row in rows[LAST : LAST + 12]])
    (folder / "small.yaml").write_text(f"ensemble: {{like: forecaster, bases: [LinearBasis], {FIT}}}\n")
    (folder / "plain.yaml").write_text(LINEAR)
    assert stream(folder, "small.yaml", "run") == 0
    return folder


def stream(folder, config, out):
    options = {"target": "load", "config": folder / config, "warmup": 100, "out": folder / out}
    return run("stream", folder / "first.csv", **options)


def write(path, names, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


def test_a_horizon_goes_on_in_time_and_the_run_stays_as_it_was(place, capsys):
    before = (place / "run" / "checkpoint.pt").read_bytes()
    options = {"horizon": 24, "paths": True, "num-paths": 40, "pictures": True}
    assert run("forecast", checkpoint=place / "run", out=place / "next", **options) == 0
    predicted = capsys.readouterr().out
    assert "load: 24 rows ahead of the 130 learned, 2024-01-06T10:00:00 to 2024-01-07T09:00:00" in predicted
    assert "unknown in some future rows: temperature; give them in a table, --inputs" in predicted
    assert (place / "run" / "checkpoint.pt").read_bytes() == before
    rows = read(place / "next" / "forecast.csv")
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 25)]
    assert rows[0]["time"] == "2024-01-06T10:00:00"
    low, median, high = (f"{float(rows[-1][name]):.6g}" for name in ("q05", "q50", "q95"))
    assert f"the last row: median {median}, 90 % interval {low} to {high}" in predicted
    assert all(float(row["q05"]) < float(row["q50"]) < float(row["q95"]) for row in rows)
    paths = read(place / "next" / "paths.csv")
    assert len(paths) == 40
    assert set(paths[0]) == {"path", *(f"step {step}" for step in range(1, 25))}
    assert (place / "next" / "forecast.png").stat().st_size > 1000
    summary = summary_of(place / "next")
    assert summary["rows_learned"] == LAST
    assert summary["mean"] == [float(row["mean"]) for row in rows]


def test_known_inputs_make_it_surer_and_no_target_is_needed(place, capsys):
    common = {"checkpoint": place / "run" / "checkpoint.pt", "num_paths": 100}
    assert run("forecast", **common, inputs=place / "future.csv", out=place / "known") == 0
    assert "unknown" not in capsys.readouterr().out
    assert run("forecast", **common, horizon=12, out=place / "unknown") == 0
    known, unknown = (read(place / name / "forecast.csv") for name in ("known", "unknown"))
    spread = [sum(float(row["std"]) for row in rows) for rows in (known, unknown)]
    assert spread[0] < spread[1]
    truth = [float(row["load"]) for row in read(place / "later.csv")[:12]]
    errors = [sum(abs(float(row["mean"]) - y) for row, y in zip(rows, truth, strict=True)) for rows in (known, unknown)]
    assert errors[0] < errors[1]
    assert not (place / "known" / "forecast.png").exists()


@pytest.mark.filterwarnings("ignore:the fit explains almost none")  # a linear model misses the season
def test_a_run_that_remembers_no_targets_has_a_picture_and_its_own_folder_is_refused(place, capsys):
    assert stream(place, "plain.yaml", "plain") == 0
    before = {path.name: path.read_bytes() for path in (place / "plain").iterdir()}
    common = {"checkpoint": place / "plain", "horizon": 3, "pictures": True}
    assert run("forecast", **common, out=place / "plain") == 2
    assert "contains the run, whose summary would be overwritten; choose another --out" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (place / "plain").iterdir()} == before
    assert run("forecast", **common, out=place / "plain" / "next") == 0
    assert (place / "plain" / "next" / "forecast.png").stat().st_size > 1000


def test_rows_that_lie_between_are_forecast_as_well(place):
    """A table that leaves out hours is the table with those hours, and no inputs in them."""
    rows = read(place / "future.csv")
    kept = [(row["time"], row["temperature"]) for k, row in enumerate(rows) if k in (3, 4, 9)]
    write(place / "sparse.csv", ("time", "temperature"), kept)
    filled = [(row["time"], row["temperature"] if k in (3, 4, 9) else "") for k, row in enumerate(rows[:10])]
    write(place / "filled.csv", ("time", "temperature"), filled)
    common = {"checkpoint": place / "run", "num_paths": 20}
    for name in ("sparse", "filled"):
        assert run("forecast", **common, inputs=place / f"{name}.csv", out=place / name) == 0
    found = [(place / name / "forecast.csv").read_bytes() for name in ("sparse", "filled")]
    assert found[0] == found[1]
    later = read(place / "later.csv")
    holes = [tuple(row.values()) for k, row in enumerate(later) if k not in (5, 6)]
    empty = [(*row.values(),) if k not in (5, 6) else (row["time"], "", "") for k, row in enumerate(later)]
    for name, table in (("holes", holes), ("empties", empty)):
        write(place / f"{name}.csv", ("time", "temperature", "load"), table)
        scores = {"inputs": place / f"{name}.csv", "backtest": 6, "every": 12, "out": place / name}
        assert run("forecast", **common, **scores) == 0
    assert (place / "holes" / "backtest.csv").read_bytes() == (place / "empties" / "backtest.csv").read_bytes()


def test_what_is_refused_in_one_sentence(place, capsys, refused):
    missing = {"checkpoint": place, "out": place / "refused"}
    refused(run("forecast", horizon=2, **missing), "checkpoint.pt does not exist; stream writes it")
    refused(run("resume", place / "later.csv", **missing), "checkpoint.pt does not exist; stream writes it")
    for arguments, message in [
        ([], "give --inputs, a table of the future rows, or --horizon, their number"),
        (["--horizon", "5", "--inputs", "future.csv"], "--inputs already sets the number of rows"),
        (["--inputs", "empty.csv"], "empty.csv has a header but no data rows"),
        (["--horizon", "0"], "--horizon must be at least one row, got 0"),
        (["--horizon", "131"], "131 rows ahead are more than the 130 rows learned"),
        (["--inputs", "bare.csv"], "no column named temperature"),
        (["--inputs", "newest_first.csv"], "column time: the time 2024-01-07T15:00:00 is later than"),
        (["--inputs", "style.csv"], "'on 2024-01-06 10:00' is not a date in the format of the first rows"),
        (["--inputs", "future.csv", "--backtest", "3"], "--backtest needs targets"),
        (["--backtest", "3"], "--backtest scores forecasts on a table with targets"),
        (["--inputs", "later.csv", "--backtest", "31"], "--backtest 31 needs at least 31 rows"),
    ]:
        given = [place / word if word.endswith(".csv") else word for word in arguments]
        assert run("forecast", *given, checkpoint=place / "run", out=place / "refused") == 2
        complaint = capsys.readouterr().err
        assert message in complaint
        assert complaint.count("\n") == 1
        assert not (place / "refused").exists()
