"""What studies have left in ``studies/results`` and the papers' pages show."""

import csv
import re

import pytest

from studies import pages
from studies.__main__ import main
from studies.page_tables import PAGES, TABLES
from studies.pages import RESULTS
from studies.registry import paper_named

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


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_each_is_of_an_experiment(path):
    """Of one of its runs, where it was run in several ways: EXPERIMENT_WAY."""
    name = path.stem.partition("_")[0]
    assert paper_named(path.parent.name).experiment(name).name == name


@pytest.mark.parametrize("name", ["lemma-1", "lemma-2"])
def test_the_command_writes_it_again(name, tmp_path):
    assert main(["ie-gp", name, "--out", str(tmp_path), "--progress", "false"]) == 0
    found, kept = (folder / f"{name}.csv" for folder in (tmp_path, RESULTS / "ie-gp"))
    assert means(found) == pytest.approx(means(kept), rel=1e-9)


def means(path):
    """By case and score."""
    with path.open(newline="") as file:
        return {(line["case"], line["score"]): float(line["mean"]) for line in csv.DictReader(file)}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}: {table.begins}")
def test_pages_have_the_numbers_that_are_kept(table):
    """``python -m studies.page_tables`` has nothing to do."""
    text = (PAGES / f"{table.page}.md").read_text(encoding="utf-8")
    assert pages.with_numbers(text, table) == text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}: {table.begins}")
def test_another_number_is_noticed(table):
    text = (PAGES / f"{table.page}.md").read_text(encoding="utf-8")
    start = text.index(table.begins)
    end = text.index("\n\n", start)
    lines = text[start:end].splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    row = next(k for k, name in enumerate(names, start=2) if table.rows.get(name, name) is not None)
    column = next(
        k for k, name in enumerate(table.columns, start=2) if name is not None and lines[row].split("|")[k].strip()
    )
    cells = lines[row].split("|")
    cells[column] = re.sub(r"\d(?!.*\d)", lambda digit: str((int(digit[0]) + 3) % 10), cells[column].partition("(")[0])
    wrong = text.replace(lines[row], "|".join(cells))
    mended = pages.with_numbers(wrong, table)
    assert wrong != text
    assert mended.partition(table.begins)[2].split() != wrong.partition(table.begins)[2].split()


def test_numbers_keep_their_digits_and_words_stay():
    numbers = [pages.Number(0.51234, 0.0987), pages.Number(-12345.6), pages.Number(3.2e-6)]
    cell = " **.49 ± .10** / -9 876 / 2e-5 (2.3, as printed) "
    assert pages.rewritten(cell, numbers, bare=True) == " **.51 ± .10** / -12 346 / 3e-6 (2.3, as printed) "
    assert pages.rewritten(" 3 (4) ", [pages.Number(2.6)], bare=False) == " 3 (4) "
    with pytest.raises(ValueError, match="has no rate where"):
        pages.mean("follow-ups/consensus.csv", "rate", case="a line of 3")
