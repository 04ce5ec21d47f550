"""The notebooks: text and notebook say the same and hold no outputs, each has its card in the gallery, all run."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="the extra docs is not installed")

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
    assert len(NAMES) > 30


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


RUNNER = """
import ast, os, sys, warnings
import jupytext
from matplotlib.figure import Figure
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message=".torch.jit.script")
for path in sys.argv[1:]:
    names, last = {"__name__": "notebook"}, None
    for cell in jupytext.read(path).cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse("\\n".join(line for line in cell.source.splitlines() if not line.startswith("%")))
        end = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path, "exec"), names)
        value = eval(compile(ast.Expression(end.value), path, "eval"), names) if end else None
        last = value if isinstance(value, Figure) else last
    assert last is not None, f"{path} shows no picture"
    print(path, "ran", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_run_without_a_warning_and_show_a_picture():
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    pytest.importorskip("river", reason="the extra river is not installed")
    paths = [str(FOLDER / f"{name}.py") for name in NAMES]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", RUNNER, *paths]
    ran = subprocess.run(command, cwd=FOLDER, env=surroundings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
