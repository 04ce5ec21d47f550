"""The page of the arena is made of the scores that are kept, and what other pages claim stands in them."""

import math
import re
from pathlib import Path

import pytest

from studies.arena.page import PAGE, ROOT, SCORES, TEXT, beside_rivals, page, read_scores
from studies.arena.tables import present

HEADER = "set,method,seed,log_score,crps,nmse,coverage,windows,width,error_rate,microseconds,warm_up_seconds,rows\n"
LINES = """\
a,auto,0,1.0,0.10,0.2,0.90,1.0,0.5,,400.0,1.0,500.0
a,linear,0,0.7,0.12,0.3,0.92,1.0,0.6,,20.0,1.0,500.0
a,window_gp,0,0.9,0.08,0.3,0.92,1.0,0.6,,900.0,1.0,500.0
a,light,0,2.0,0.05,0.3,0.92,1.0,0.6,,100.0,1.0,500.0
b,auto,0,-1.0,0.50,0.2,0.89,1.0,0.5,,500.0,1.0,700.0
b,linear,0,-0.5,0.40,0.3,0.92,1.0,0.6,,30.0,1.0,700.0
c,auto_classes,0,-0.2,,,,,,0.1,700.0,1.0,600.0
"""


def kept(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "arena.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_method_stands_beside_the_best_of_those_that_are_not_ours(tmp_path):
    results = read_scores(kept(tmp_path, HEADER + LINES))
    assert results.plan.kinds == {"a": "numbers", "b": "numbers", "c": "classes"}
    found = beside_rivals(results, "auto")
    assert found.ahead == pytest.approx({"a": 1.0 - 0.9, "b": -1.0 + 0.5})
    assert found.ratio == pytest.approx({"a": 0.10 / 0.08, "b": 0.50 / 0.40})
    assert found.coverage == {"a": 0.90, "b": 0.89}
    assert math.isnan(beside_rivals(results, "light").ahead["b"])  # it did not run there


def test_the_page_is_made_of_the_scores_that_are_kept():
    assert page(TEXT.read_text(encoding="utf-8"), read_scores()) == PAGE.read_text(encoding="utf-8")
    assert "<!--" not in PAGE.read_text(encoding="utf-8")


def test_what_other_pages_claim_stands_in_the_scores():
    results = read_scores()
    sets, methods = present(results, is_class=False)
    found = beside_rivals(results, "auto")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "evidence" / "index.md").read_text(encoding="utf-8")
    (number,) = set(re.findall(r"\b(\d+) tables", readme + index))
    assert int(number) == len(sets)
    assert "0.02 nats per row behind the best alternative" in readme
    assert "never more than 0.02 nats per row behind the best alternative" in index
    assert min(found.ahead.values()) > -0.02
    assert "best log score on most" in index
    assert sum(ahead > 0 for ahead in found.ahead.values()) > len(sets) / 2
    deep = [ahead for ahead in beside_rivals(results, "deep").ahead.values() if not math.isnan(ahead)]
    assert "or ahead on each of the 28 it was run on, and best of all methods on 24" in index
    assert len(deep) == 28
    assert min(deep) > -0.001
    best = [name for name in sets if max(methods, key=lambda method: results.mean("log_score", name, method)) == "deep"]
    assert len(best) == 24
    (least, most) = re.findall(r"intervals of 90 % cover ([\d.]+) to ([\d.]+) %", index)[0]
    assert f"{100 * min(found.coverage.values()):.1f}" == least
    assert f"{100 * max(found.coverage.values()):.1f}" == most
    assert SCORES.stat().st_size < 200_000
    assert {"auto", "light", "deep", "window_gp", "linear_lags", "lightgbm_lags_scale"} <= set(methods)
