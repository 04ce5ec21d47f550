"""The notebooks: text and notebook say the same and hold no outputs, each has its card in the gallery.

That all run without a warning and show a picture is shown by ``make docs``, which runs them.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="the extra docs is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
GALLERY = re.compile(r"^```\{gallery\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def card_complaints(path):
    """What keeps the first cell of a notebook from being a card: a title, and a first sentence."""
    kind, source = cells(path)[0]
    heading, _, rest = source.partition("\n\n")
    complaints = []
    if kind != "markdown" or not re.fullmatch(r"# \S.*", heading):
        complaints.append("the first cell does not begin with a title")
    if not re.match(r"[A-Z`].*?[.?](\s|$)", rest, re.DOTALL):
        complaints.append("there is no sentence below the title")
    return complaints


def listed(page):
    return [line.strip() for block in GALLERY.findall(page) for line in block.splitlines() if line.strip()]


def test_every_text_has_its_notebook():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert 25 <= len(NAMES) <= 30


@pytest.mark.parametrize("name", NAMES)
def test_no_notebook_hides_a_package(name):
    """A kernel starts in the folder of the notebooks, so that ``import river`` would find a river.py there."""
    assert importlib.util.find_spec(name) is None


@pytest.mark.parametrize("name", NAMES)
def test_text_and_notebook_are_equal_cell_by_cell(name):
    assert cells(FOLDER / f"{name}.py") == cells(FOLDER / f"{name}.ipynb"), "run: jupytext --sync notebooks/*.py"


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_hold_no_outputs(name):
    for cell in jupytext.read(FOLDER / f"{name}.ipynb").cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", NAMES)
def test_each_begins_with_a_title_and_a_sentence(name):
    assert card_complaints(FOLDER / f"{name}.py") == []


def test_a_notebook_without_title_or_sentence_is_noticed(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("# %% [markdown]\n# no title\n\n# %%\n1\n", encoding="utf-8")
    assert len(card_complaints(path)) == 2


def test_each_stands_in_the_gallery_once():
    assert sorted(listed((ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_last_line_is_what_the_card_shows(name):
    """The last code cell, or one before it, ends with a value: a figure is shown only where it is one."""
    shown = [ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%"))).body[-1:]
             for kind, source in cells(FOLDER / f"{name}.py") if kind == "code"]  # fmt: skip
    assert any(body and isinstance(body[0], ast.Expr) for body in shown)


@pytest.fixture(scope="module")
def gallery():
    """The extension of the site that runs the notebooks."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "extensions" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(*outputs):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=list(outputs))])


def test_what_a_reader_should_not_see_fails_the_build(gallery):
    """``make docs`` runs all notebooks, once; there, warnings are errors."""
    picture = nbformat.v4.new_output("display_data", data={"image/png": "iVBOR"})
    said = nbformat.v4.new_output("stream", name="stdout", text="fine")
    warned = nbformat.v4.new_output("stream", name="stderr", text="UserWarning: no")
    assert gallery.complaints(ran(said, picture)) == []
    assert gallery.complaints(ran(said)) == ["shows no picture"]
    assert gallery.complaints(ran(warned, picture)) == ["says 'UserWarning: no'"]


def test_examples_that_take_too_long_are_named(gallery):
    assert gallery.too_long({"short": gallery.LONG, "long": 12.34}) == "more than 10 s of a processor: long (12.3 s)"
    assert gallery.too_long({"short": 0.5}) == "more than 10 s of a processor: none"
