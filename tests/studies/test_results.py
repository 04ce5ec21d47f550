"""What studies have left in ``studies/results`` and the papers' pages show."""

import re
from pathlib import Path

import pytest

from studies.__main__ import main
from studies.registry import paper_named

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted(path.relative_to(ROOT / "studies" / "results") for path in (ROOT / "studies" / "results").rglob("*.txt"))


def test_pages_show_what_is_kept():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "papers").glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"\{literalinclude\} \.\./\.\./studies/results/(\S+)", page)]
    assert sorted(shown) == [str(path) for path in KEPT]


@pytest.mark.parametrize("path", KEPT, ids=str)
def test_each_is_of_an_experiment(path):
    assert paper_named(path.parent.name).experiment(path.stem).name == path.stem


@pytest.mark.parametrize("name", ["lemma-1", "lemma-2"])
def test_the_command_writes_it_again(name, tmp_path):
    assert main(["ie-gp", name, "--out", str(tmp_path), "--progress", "false"]) == 0
    kept = ROOT / "studies" / "results" / "ie-gp" / f"{name}.txt"
    assert (tmp_path / f"{name}.txt").read_text() == kept.read_text()
