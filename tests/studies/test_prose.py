"""Numbers in the text of the papers' pages: those of the tables that files hold, printed ones, or what was chosen.

A number that only somebody's run has shown belongs in ``benchmarks/README.md``, which is no page of the site. Decimals
are looked for in all tables of the page, so one of few digits may be found there by chance; whole numbers are not read.
"""

import csv
import re
from functools import cache
from pathlib import Path

import pytest

from studies.page_tables import PAGES, TABLES
from studies.pages import RESULTS

STUDIES = Path(__file__).resolve().parents[2] / "studies"
PRINTED = {"ie_gp": "ie_gp", "regret": "ie_gp"}  # whose printed numbers; a page's own by default
# Not results: settings of ours and of the authors, constants of equations, limits of tests, names with a point.
CHOSEN = {
    "doebe": "2.1.2 4.1 4.2 5.1 0.001 0.002 0.01 0.0001 0.05 0.1 0.2 0.7 10 0.8",
    "follow_ups": "2505.15638 2206.05009 0.01 0.1 0.2",
    "fusion": "2403.01389 3.11 2.13 0.22 0.1 0.2 1.05 1.01",
    "ie_gp": "3.2 0.007",
    "index": "0.2 0.7",
    "knots": "3.11 2.13 0.001",
    "maskerade": "0.8 0.05 3.1.1",
    "regret": "0.01 0.1 0.316",
}
PAPERS = ("doebe", "ie_gp", "regret", "maskerade", "fusion", "knots")
WHERE = re.compile(r"table \d+, (row .+, column .+|caption)|figure \d+, caption|(section|appendix) [\w.]+, text")
PLACE = r"(?i:section|appendix|equation)s? [A-H\d.]+(?:(?:,| and| to) [\d.]+)*"
DECIMAL = re.compile(r"(?<![\w.])[-+]?\d*\.\d+(?:\.\d+)*(?![\w.]|e-?\d)")


def parts(page: str) -> tuple[str, str]:
    """What files hold of a page, and the text that nobody holds: without code, equations and addresses."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    held = []
    for table in TABLES:
        if table.page == page:
            start = text.index(table.begins)
            stop = text.index("\n\n", start)
            held.append(text[start:stop])
            text = text[:start] + text[stop:]
    for name in re.findall(r"literalinclude\} \S*studies/results/(\S+)", text):
        held.append((RESULTS / name).read_text(encoding="utf-8"))
    for name in re.findall(r"^```\{study\} (\S+)", text, re.MULTILINE):
        held.append((RESULTS / f"{name}.csv").read_text(encoding="utf-8"))
    for ours in (PLACE, r"```.*?```", r"\$\$.*?\$\$", r"\$[^$\n]*\$", r"`[^`\n]*`", r"\]\([^)]*\)"):
        text = re.sub(ours, " ", text, flags=re.DOTALL)
    return "\n".join(held), text


@cache
def printed(page: str) -> str:
    path = STUDIES / PRINTED.get(page, page) / "printed.csv"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def numbers(text: str) -> set[float]:
    found = re.findall(r"\d+(?:[  ]\d{3})*\.?\d*(?:e-?\d+)?|\.\d+", text)
    return {float(re.sub(r"[  ]", "", one)) for one in found}


def called_printed(page: str) -> list[str]:
    """Numbers in cells of columns and rows of a page's tables that are called printed."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        for name, *cells in rows:
            for title, cell in zip(header[1:], cells, strict=True):
                if title.startswith("printed") or re.search(r"\bprinted\b", name):
                    bare = re.sub(r"`[^`]*`|\]\([^)]*\)|(?:table|figure|section|equation|appendix)s? [\d.]+", " ", cell)
                    found += re.findall(r"\d+(?: \d{3})*\.?\d*(?:e-?\d+)?", bare)
    return found


def is_held(written: str, held: set[float]) -> bool:
    """Whether one of the numbers, rounded as it is written, is the number."""
    places, value = len(written.partition(".")[2]), abs(float(written))
    return any(abs(one - value) <= 0.5000001 * 10**-places for one in held)


def test_numbers_in_the_text_stand_in_a_file_too():
    loose = {}
    for page in sorted(path.stem for path in PAGES.glob("*.md")):
        held, text = parts(page)
        known, chosen = numbers(held) | numbers(printed(page)), set(CHOSEN.get(page, "").split())
        loose |= {
            (page, one): line.strip()[:150]
            for line in text.splitlines()
            for one in DECIMAL.findall(line)
            if one.lstrip("+-") not in chosen and not (one.count(".") == 1 and is_held(one, known))
        }
    assert loose == {}


@pytest.mark.parametrize("page", PAPERS)
def test_numbers_called_printed_are_printed(page):
    """Each stands in the paper's file, whose rows say where: table, row and column, or the sentence or caption."""
    held = numbers(printed(page))
    assert [one for one in called_printed(page) if not is_held(one.replace(" ", ""), held)] == []
    with (STUDIES / PRINTED.get(page, page) / "printed.csv").open(encoding="utf-8", newline="") as file:
        where = [line["where"] for line in csv.DictReader(file)]
    assert [one for one in where if not WHERE.fullmatch(one)] == []


@pytest.mark.parametrize("page", PAPERS)
def test_nothing_that_is_printed_is_called_unknown(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert re.findall(r"not (?:yet )?known|could not (?:be )?read|a guess|in no source|shared notes", text) == []


def test_a_number_that_no_file_has_is_noticed():
    assert all(is_held(*pair) for pair in ((".13", {0.1278}), ("-2.3", {2.25}), ("0.406", {0.40649})))
    assert not any(is_held(*pair) for pair in ((".13", {0.1351}), ("2.30", {2.31})))
    found = DECIMAL.findall("p = .04, from 0.9 to -1.25 in section 2.1.2 at 1e-4, 3.2e-5 and 12.")
    assert found == [".04", "0.9", "-1.25", "2.1.2"]
    assert numbers("| 1 234.5 ± 0.1 | (2.3e-4) | .5 |") == {1234.5, 0.1, 2.3e-4, 0.5}
