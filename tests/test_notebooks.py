"""The gallery's notebooks: text and notebook say the same, nothing is stored, every one has its card."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
CARDS = re.findall(r"^[a-z_0-9]+$", (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
each = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def test_there_is_a_card_for_each():
    assert sorted(CARDS) == [source.stem for source in SOURCES]
    assert len(SOURCES) >= 24
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(CARDS)


@each
def test_text_and_notebook_have_the_same_cells_and_no_outputs(source):
    text, notebook = jupytext.read(source), nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert [(cell.cell_type, cell.source) for cell in text.cells] == [
        (cell.cell_type, cell.source) for cell in notebook.cells
    ]
    assert not any(cell.get("outputs") for cell in notebook.cells)


@each
def test_each_begins_with_a_title_and_a_sentence(source):
    first = jupytext.read(source).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# [^\n]+\n\n\S[^\n]+", first.source)
