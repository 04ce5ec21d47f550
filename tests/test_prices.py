"""The table of prices: what it prints, and the history that it keeps."""

import json
from pathlib import Path

from benchmarks import measured, prices

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_of_ratios_is_that_of_the_last_runs(tmp_path):
    history = tmp_path / "prices.jsonl"
    run = {"ratios": {"auto, without numba: a row": 4.0, "other": 1.0}, "goals": {"auto, without numba: a row": 3.0}}
    fast = {"ratios": {"auto, with numba: a row": 2.0, "other": 1.5}, "goals": {}}
    older = {**run, "ratios": {"gone": 1.0}, "compiled": False}
    on = {"date": "2020-02-02", "processor": "one", "torch": "2.0"}
    lines = [older, {**run, "compiled": False}, {**fast, **on, "compiled": True}]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = prices.table(history)
    assert found.rows == [["auto: a row", 3.0, 4.0, 2.0], ["other", None, 1.0, 1.5]]
    assert found[1:4] == ("2020-02-02", "one", "2.0")


def test_the_site_shows_the_last_runs():
    assert measured.read("prices") == prices.table(ROOT / "benchmarks" / "prices.jsonl")
