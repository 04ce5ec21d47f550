"""The table of prices: what it prints, and the history that it keeps."""

import json
from pathlib import Path

from benchmarks import measured, prices
from benchmarks.price_of_block import best_of

ROOT = Path(__file__).resolve().parents[1]


def test_a_run_is_kept_and_shown_beside_the_next_of_its_kind(tmp_path, monkeypatch, capsys) -> None:
    history, cost = tmp_path / "prices.jsonl", iter([1.25, 1.75])
    monkeypatch.setattr(prices, "PARTS", {"one": lambda: [("this over that", next(cost), 1.5), ("p99", 4.0, None)]})
    monkeypatch.setattr(prices, "product_rate", lambda: 5e10)
    monkeypatch.setattr(prices, "read_rate", lambda: 2e10)
    prices.main(["--history", str(history)])
    assert "| this over that | 1.25 | 1.5 |  |" in capsys.readouterr().out
    other = json.loads(history.read_text()) | {"processor": "another", "ratios": {"this over that": 99.0}}
    history.write_text(history.read_text() + json.dumps(other) + "\n")
    prices.main(["--history", str(history)])
    predicted = capsys.readouterr().out
    assert "| this over that | 1.75 | 1.5 (missed) | 1.25 |" in predicted
    assert "| p99 | 4.00 |  | 4.00 |" in predicted
    runs = [json.loads(line) for line in history.read_text().splitlines()]
    assert [run["ratios"]["this over that"] for run in runs] == [1.25, 99.0, 1.75]
    assert runs[0]["floors"] == {"matrix product, GFLOP/s": 50.0, "reading memory, GB/s": 20.0}


def test_what_is_compared_takes_turns() -> None:
    calls: list[str] = []
    times = best_of([lambda: calls.append("a"), lambda: calls.append("b")], 3)
    assert calls == ["a", "b"] * 3
    assert all(0 <= seconds < 1 for seconds in times)


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
