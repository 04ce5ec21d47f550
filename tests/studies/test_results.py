"""What studies have left in ``studies/results`` and the papers' pages show."""

import csv
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

from studies.__main__ import main
from studies.registry import paper_named

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "studies" / "results"
KEPT = sorted(path for path in RESULTS.rglob("*") if path.is_file())
SHOWN = re.compile(r"\{literalinclude\} \.\./\.\./studies/results/(\S+)|^```\{study\} (\S+)", re.MULTILINE)


class Written(NamedTuple):
    """A table that a page writes by hand beside what was printed: where it begins, and whose numbers its cells are."""

    page: str
    begins: str
    kept: str
    scores: tuple[str, ...]  # of the columns
    case: Callable[[str], str | None]  # of a row; those of none are not ours


FUSED = {"constant stacking": "stacking", "het-RFF-GP": "HetGP"}
RULES = ("BMA", "DMA", "fixed share", "Soft-Bayes", "ONS", "ONS 0.1", "D-ONS", "auto's rule", "best mixture")
ROUNDS = tuple(f"{what}, {rounds}" for what in ("mean", "evidence") for rounds in (0, 20, 100, 300))
WRITTEN = [
    Written("follow_ups", "| | BMA | DMA |", "follow-ups/stacking.csv", RULES, {"index, ours": "index"}.get),
    Written(
        "follow_ups",
        "| | factor | mean, 0 rounds |",
        "follow-ups/consensus.csv",
        ("rate", *ROUNDS),
        lambda row: row if row.startswith(("ring", "star")) else None,
    ),
    Written(
        "follow_ups",
        "| | 20 labels | 40 | 80 |",
        "follow-ups/active-learning.csv",
        ("nMSE, 20", "nMSE, 40", "nMSE, 80"),
        lambda row: row,
    ),
    Written(
        "fusion",
        "| | K = 2 | K = 3 | K = 4 | K = 5 | seconds |",
        "fusion/figure-3a.csv",
        tuple(f"K = {experts}, M = 30, 1" for experts in (2, 3, 4, 5)),
        lambda row: FUSED.get(row, row),
    ),
    Written(
        "fusion",
        "| | [-1, 1], M = 10 |",
        "fusion/figure-3b.csv",
        tuple(f"K = 2, M = {frequencies}, {width}" for width in (1, 3) for frequencies in (10, 30, 50)),
        lambda row: FUSED.get(row, row),
    ),
]


def means(path):
    """By case and score; of figure 3 of the fusion by method and setting, over splits."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    if "case" in lines[0]:
        return {(line["case"], line["score"]): float(line["mean"]) for line in lines}
    splits = defaultdict(list)
    for line in lines:
        setting = f"K = {line['experts']}, M = {line['frequencies']}, {float(line['half_width']):g}"
        splits[line["method"], setting].append(float(line["nlpd"]))
    return {key: mean(values) for key, values in splits.items()}


def test_pages_show_what_is_kept():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "papers").glob("*.md")]
    shown = [text or f"{table}.csv" for page in pages for text, table in SHOWN.findall(page)]
    shown += {table.kept for table in WRITTEN}
    assert sorted(shown) == [path.relative_to(RESULTS).as_posix() for path in KEPT]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_each_is_of_an_experiment(path):
    assert paper_named(path.parent.name).experiment(path.stem).name == path.stem


@pytest.mark.parametrize("name", ["lemma-1", "lemma-2"])
def test_the_command_writes_it_again(name, tmp_path):
    assert main(["ie-gp", name, "--out", str(tmp_path), "--progress", "false"]) == 0
    assert means(tmp_path / f"{name}.csv") == pytest.approx(means(RESULTS / "ie-gp" / f"{name}.csv"), rel=1e-9)


def unit(cell):
    """What the last digit of a number stands for."""
    digits, _, power = cell.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


@pytest.mark.parametrize("table", WRITTEN, ids=lambda table: table.kept)
def test_numbers_written_by_hand_are_those_that_are_kept(table):
    text = (ROOT / "docs" / "papers" / f"{table.page}.md").read_text(encoding="utf-8")
    lines = text[text.index(table.begins) :].split("\n\n")[0].splitlines()[2:]
    kept, compared = means(RESULTS / table.kept), 0
    for name, *cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        if (case := table.case(name)) is None:
            continue
        for score, cell in zip(table.scores, cells, strict=False):
            number = cell.partition(" ±")[0].strip("*")
            assert float(number) == pytest.approx(kept[case, score], abs=0.51 * unit(number)), (name, score)
            compared += 1
    assert compared >= len(table.scores)
