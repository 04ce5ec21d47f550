"""The notebooks: text and notebook say the same and hold no outputs, each has its card in the gallery, and all run.

The site runs a few of them in each build; the broad test here runs all, without a warning and each with a picture.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.sources import extension

jupytext = pytest.importorskip("jupytext", reason="the extra docs is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SOURCES = [FOLDER / f"{name}.py" for name in NAMES]
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
    assert 25 <= len(NAMES) <= 33


def test_no_notebook_hides_a_package():
    """A kernel starts in the folder of the notebooks, so that ``import river`` would find a river.py there."""
    assert [name for name in NAMES if importlib.util.find_spec(name) is not None] == []


def test_text_and_notebook_are_equal_cell_by_cell():
    """Where one differs, ``jupytext --sync notebooks/*.py`` makes them equal."""
    assert [path.stem for path in SOURCES if cells(path) != cells(path.with_suffix(".ipynb"))] == []


def test_links_to_other_notebooks_lead_to_one():
    """And every notebook begins as a card does."""
    complaints = []
    for path in SOURCES:
        targets = re.findall(r"\]\(([\w.]+\.ipynb)\)", path.read_text(encoding="utf-8"))
        complaints += [f"{path.stem}: no {target}" for target in targets if not (FOLDER / target).exists()]
        complaints += [f"{path.stem}: {complaint}" for complaint in card_complaints(path)]
    assert complaints == []


def test_a_notebook_without_title_or_sentence_is_noticed(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("# %% [markdown]\n# no title\n\n# %%\n1\n", encoding="utf-8")
    assert len(card_complaints(path)) == 2


def test_each_stands_in_the_gallery_once():
    assert sorted(listed((ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8"))) == NAMES


def ends_with_a_value(path):
    """Whether the last code cell, or one before it, does: a figure is shown only where it is one."""
    bodies = [ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%"))).body[-1:]
              for kind, source in cells(path) if kind == "code"]  # fmt: skip
    return any(body and isinstance(body[0], ast.Expr) for body in bodies)


def test_the_last_line_is_what_the_card_shows():
    assert [path.stem for path in SOURCES if not ends_with_a_value(path)] == []


@pytest.fixture(scope="module")
def gallery():
    """The extension of the site that runs the notebooks."""
    return extension("gallery")


def test_pictures_of_other_pages_are_of_notebooks_that_every_build_runs(gallery):
    pages = (path for path in (ROOT / "docs").rglob("*.md") if "generated" not in path.parts)
    shown = {name for page in pages for name in re.findall(r"generated/gallery/(\w+)", page.read_text("utf-8"))}
    assert shown <= gallery.SMOKE <= set(NAMES)
    assert len(gallery.SMOKE) <= 8


def test_notebooks_that_are_not_run_are_shown_without_outputs(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "MADE", tmp_path)
    source = FOLDER / "quickstart.py"
    gallery.show_without_outputs(source)
    kept = cells(tmp_path / "quickstart.ipynb")
    assert "Not run in this build" in kept.pop(1)[1]
    assert kept == cells(source)


@pytest.mark.broad
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the client; those of a notebook are looked for in its outputs
@pytest.mark.parametrize("name", NAMES)
def test_every_notebook_runs_and_shows_a_picture(name, gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "MADE", tmp_path)
    gallery.run(FOLDER / f"{name}.py", "")
    assert gallery.complaints(nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)) == []


def ran(*outputs):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=list(outputs))])


def test_what_a_reader_should_not_see_fails_the_build(gallery):
    """Of those that ``make docs`` runs; there, warnings are errors."""
    picture = nbformat.v4.new_output("display_data", data={"image/png": "iVBOR"})
    predicted = nbformat.v4.new_output("stream", name="stdout", text="fine")
    warned = nbformat.v4.new_output("stream", name="stderr", text="UserWarning: no")
    assert gallery.complaints(ran(predicted, picture)) == []
    assert gallery.complaints(ran(predicted)) == ["shows no picture"]
    assert gallery.complaints(ran(warned, picture)) == ["says 'UserWarning: no'"]


def test_examples_that_take_too_long_are_named(gallery):
    assert gallery.too_long({"short": gallery.LONG, "long": 12.34}) == "more than 10 s of a processor: long (12.3 s)"
    assert gallery.too_long({"short": 0.5}) == "more than 10 s of a processor: none"
