"""What studies have left in ``studies/results`` and the papers' pages show."""

import csv
import re
from pathlib import Path

import pytest

from studies.__main__ import main
from studies.registry import paper_named

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "studies" / "results"
KEPT = sorted(path for path in RESULTS.rglob("*") if path.is_file())
SHOWN = re.compile(r"\{literalinclude\} \.\./\.\./studies/results/(\S+)|^```\{study\} (\S+)", re.MULTILINE)


def means(path):
    with path.open(newline="") as file:
        return {(line["case"], line["score"]): float(line["mean"]) for line in csv.DictReader(file)}


def test_pages_show_what_is_kept():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "papers").glob("*.md")]
    shown = [text or f"{table}.csv" for page in pages for text, table in SHOWN.findall(page)]
    assert sorted(shown) == [path.relative_to(RESULTS).as_posix() for path in KEPT]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_each_is_of_an_experiment(path):
    assert paper_named(path.parent.name).experiment(path.stem).name == path.stem


@pytest.mark.parametrize("name", ["lemma-1", "lemma-2"])
def test_the_command_writes_it_again(name, tmp_path):
    assert main(["ie-gp", name, "--out", str(tmp_path), "--progress", "false"]) == 0
    assert means(tmp_path / f"{name}.csv") == pytest.approx(means(RESULTS / "ie-gp" / f"{name}.csv"), rel=1e-9)
