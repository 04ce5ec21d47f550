"""What studies have left in ``studies/results`` and the papers' pages show."""

import csv
import re

import pytest

from studies import pages
from studies.__main__ import main
from studies.page_tables import PAGES, TABLES
from studies.pages import RESULTS
from studies.registry import paper_named

LAST_DIGIT = re.compile(r"\d(?=(?:e-?\d+)?(?![\d.]))")  # of a number
KEPT = sorted(path for path in RESULTS.rglob("*") if path.is_file())
SHOWN = re.compile(r"\{literalinclude\} \.\./\.\./studies/results/(\S+)|^```\{study\} (\S+)", re.MULTILINE)


def test_pages_show_what_is_kept(monkeypatch):
    read, lines_of = set(), pages.lines_of
    monkeypatch.setattr(pages, "lines_of", lambda kept: read.add(kept) or lines_of(kept))
    texts = {page.stem: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}
    for table in TABLES:
        pages.with_numbers(texts[table.page], table)
    shown = [text or f"{table}.csv" for page in texts.values() for text, table in SHOWN.findall(page)]
    assert sorted({*shown, *read}) == [path.relative_to(RESULTS).as_posix() for path in KEPT]


def test_each_is_of_an_experiment():
    """Of one of its runs, where it was run in several ways: EXPERIMENT_WAY."""
    for path in KEPT:
        assert paper_named(path.parent.name).experiment(path.stem.partition("_")[0])


def test_the_command_writes_it_again(tmp_path):
    for name in ["lemma-1", "lemma-2"]:
        assert main(["ie-gp", name, "--out", str(tmp_path), "--progress", "false"]) == 0
        found, kept = (folder / f"{name}.csv" for folder in (tmp_path, RESULTS / "ie-gp"))
        assert means(found) == pytest.approx(means(kept), rel=1e-9)


def means(path):
    """By case and score."""
    with path.open(newline="") as file:
        return {(line["case"], line["score"]): float(line["mean"]) for line in csv.DictReader(file)}


def test_pages_have_the_numbers_that_are_kept():
    """``python -m studies.page_tables`` has nothing to do."""
    texts = {table.page: (PAGES / f"{table.page}.md").read_text(encoding="utf-8") for table in TABLES}
    changed = [table for table in TABLES if pages.with_numbers(texts[table.page], table) != texts[table.page]]
    assert [f"{table.page}: {table.begins}" for table in changed] == []


def test_other_numbers_are_noticed():
    """The last digit of every first number that is ours is another one: all come back, and nothing else changes."""
    for table in TABLES:
        check_notices(table)


def check_notices(table):
    text = (PAGES / f"{table.page}.md").read_text(encoding="utf-8")
    start = text.index(table.begins)
    lines = text[start : text.index("\n\n", start)].splitlines()
    changed = 0
    for k, line in enumerate(lines[2:], start=2):
        name, *cells = line.strip("|").split("|")
        for c, (cell, column) in enumerate(zip(cells, table.columns, strict=True)):
            if cell.strip() and table.cell(name.strip(), column):
                cells[c] = LAST_DIGIT.sub(lambda digit: str((int(digit[0]) + 3) % 10), cell, count=1)
                changed += cells[c] != cell
        lines[k] = f"|{'|'.join([name, *cells])}|"
    wrong = text[:start] + "\n".join(lines) + text[text.index("\n\n", start) :]
    assert changed >= len(lines) - 3
    assert pages.with_numbers(wrong, table) == text != wrong


def test_numbers_keep_their_digits_and_words_stay():
    numbers = [pages.Number(0.51234, 0.0987), pages.Number(-12345.6), pages.Number(3.2e-6)]
    cell = " **.49 ± .10** / -9 876 / 2e-5 (2.3, as printed) "
    assert pages.rewritten(cell, numbers, bare=True) == " **.51 ± .10** / -12 346 / 3e-6 (2.3, as printed) "
    assert pages.rewritten(" 3 (4) ", [pages.Number(2.6)], bare=False) == " 3 (4) "
    assert pages.rewritten(" +.010 to 1e-4 ", [pages.Number(0.0), pages.Number(-2e-5)], True) == " +.000 to -2e-5 "
    with pytest.raises(ValueError, match="fewer than 2 numbers"):
        pages.rewritten(" 1.2 ", [pages.Number(1.0)] * 2, bare=False)
    with pytest.raises(ValueError, match="there is one trial"):
        pages.rewritten(" 1.2 ± 0.1 ", [pages.Number(1.0)], bare=False)
    with pytest.raises(ValueError, match="has no rate where"):
        pages.mean("follow-ups/consensus.csv", "rate", case="a line of 3")
