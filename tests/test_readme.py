"""The README and the pages under docs tell the truth: their Python runs, their commands, files and links exist."""

import importlib
import re
import warnings
from pathlib import Path

import pytest

from gp_ensembles.cli.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


# What a build of the site left under docs/generated is nobody's text.
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "generated" not in path.parts)]
HOME = ROOT / "docs" / "index.md"  # begins as the README does
OPTIONAL = {"ax.md": "ax", "optuna.md": "optuna"}  # what a page needs besides the package's own development tools
BLOCK = r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?"  # code, and below it what a page says that it prints
NUMBER = r"(?<![\w.])-?\d+\.\d+(?!\w)"


def assert_same_output(printed: str, shown: str) -> None:
    """Words as shown, decimal fractions within one unit of the second place: other processors round otherwise."""
    assert re.sub(NUMBER, "#", printed).split() == re.sub(NUMBER, "#", shown).split()
    both = zip(re.findall(NUMBER, printed), re.findall(NUMBER, shown), strict=True)
    for one, other in both:
        assert abs(float(one) - float(other)) < 0.0101, f"{one} was printed, the page shows {other}"


def run_blocks(page, capsys):
    """Run the Python of a page in order, and compare what it prints with what is shown."""
    namespace: dict[str, object] = {}
    blocks = re.findall(BLOCK, page.read_text(encoding="utf-8"), flags=re.DOTALL)
    predicted = ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "add_tracking_metric is deprecated", DeprecationWarning)  # Ax calls its own
        for block, shown in blocks:
            exec(compile(block, page.name, "exec"), namespace)
            printed = capsys.readouterr().out
            predicted += printed
            if shown:
                assert_same_output(printed, shown)
    assert predicted or not any("print(" in block for block, _ in blocks)


RECIPES = [*sorted((ROOT / "docs" / "project").glob("add_*.md")), ROOT / "docs" / "project" / "recipes.md"]
ELSEWHERE = (HOME, *RECIPES)  # the README's text, and what test_recipes.py follows
WITH_CODE = [page for page in PAGES if page not in ELSEWHERE and "```python\n" in page.read_text(encoding="utf-8")]
FIRST = [page for page in WITH_CODE if page.parent in (ROOT, ROOT / "docs" / "start")]  # what a newcomer copies


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.name)
def test_code_of_the_first_pages_runs_and_prints_what_is_shown(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # examples may write files
    run_blocks(page, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in FIRST], ids=lambda page: page.name)
def test_code_of_every_other_page_runs_and_prints_what_is_shown(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name in OPTIONAL:
        pytest.importorskip(OPTIONAL[page.name], reason="an optional extra")
    run_blocks(page, capsys)


def test_the_readme_shows_what_its_code_prints():
    """So that the comparison above has something to compare; and it does notice what differs."""
    (shown,) = (shown for _, shown in re.findall(BLOCK, README, flags=re.DOTALL) if shown)
    assert len(re.findall(NUMBER, shown)) == 33
    for changed in (shown.replace("0.384", "0.412"), shown.replace("nats", "bits"), shown.rsplit(",", 1)[0]):
        with pytest.raises(AssertionError):
            assert_same_output(changed, shown)


def link_complaints(page):
    """Targets of links, and configs, that do not exist."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        is_made = "/generated/" in target  # by make docs
        is_there = "://" in target or is_made or (page.parent / target).exists()
        is_on_site = (ROOT / "docs") in (page.parent / target).resolve().parents  # what else does `make docs` know?
        if not is_there or not (page.parent == ROOT or not target.endswith(".md") or is_on_site):
            yield f"{page.name}: {target}"
    for target in re.findall(r"\bconfigs/[a-z0-9_*]+\.yaml", text):
        if not list(ROOT.glob(target)) and not list(ROOT.glob(f"studies/{target}")):
            yield f"{page.name}: {target}"


def test_every_link_and_config_exists():
    assert [found for page in PAGES for found in link_complaints(page)] == []


WIDTH = 85  # of code beside a table of contents on a screen of 1280 pixels
COMMANDS = ("gp-ensembles", "python", "pip", "make", "torchrun", "$", "zcat", "tail")


def wide_code(page):
    """Places of lines of code that would be cut off on the right; what programs print is as wide as it is."""
    language, wide = None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
        is_code = language in ("python", "py", "sh", "console", "yaml") or (
            language == "" and line.startswith(COMMANDS)
        )
        if is_code and len(line) > WIDTH:
            wide.append(f"{page.relative_to(ROOT)}:{number}")
    return wide


def wide_cells(path):
    """The same of the code cells of a notebook's text."""
    is_code, wide = False, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("# %%"):
            is_code = "[markdown]" not in line
        if is_code and len(line) > WIDTH:
            wide.append(f"{path.relative_to(ROOT)}:{number}")
    return wide


def test_code_on_pages_and_in_notebooks_fits_on_the_screen(tmp_path, monkeypatch):
    wide = [place for page in PAGES for place in wide_code(page)]
    wide += [place for path in sorted((ROOT / "notebooks").glob("*.py")) for place in wide_cells(path)]
    assert wide == []
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    long = "x = " + 90 * "1"
    (tmp_path / "a.md").write_text(f"```python\n{long}\n```\n\n```text\n{long}\n```\n", encoding="utf-8")
    (tmp_path / "b.py").write_text(f"# %% [markdown]\n# {long}\n\n# %%\n{long}\n", encoding="utf-8")
    assert wide_code(tmp_path / "a.md") + wide_cells(tmp_path / "b.py") == ["a.md:2", "b.py:5"]


def test_the_readme_is_short():
    """A screen and the pictures; the rest is on pages."""
    assert len(README.splitlines()) <= 90
    assert all(len(line) <= 100 for line in README.splitlines() if not line.startswith(("|", "![")))


def test_the_home_page_says_the_same():
    """Both are one text, so that neither grows old by itself."""
    shared = README[: README.index("## Scope")].replace("](docs/", "](")
    assert HOME.read_text(encoding="utf-8").startswith(shared)


def test_every_command_exists(capsys):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    commands = set(re.findall(r"^gp-ensembles (\w+)", text, flags=re.MULTILINE))
    assert commands >= {"stream", "resume", "compare", "demo"}
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
    targets = set(re.findall(r"\bmake (demo|test|study|\w+s)\b(?=[ `\n])", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= targets
    for target in targets & {"demo", "test", "study"}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def exists(name):
    """Whether a dotted name can be imported."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part, None)
        return found is not None
    return False


PACKAGES = "|".join(sorted(path.parent.name for path in (ROOT / "gp_ensembles").glob("*/__init__.py")))
BELOW = re.compile(rf"`((?:{PACKAGES})(?:\.\w+)*\.[A-Z]\w+)")  # `papers.sparse.VFE`, `bo.EnsembleModel`


def name_complaints(page):
    """Dotted names in backticks that nobody can import: of the library, of its packages, and of ``gpe``."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names = re.findall(r"`(gp_ensembles(?:\.\w+)+)", text)
    names += [f"gp_ensembles.{name}" for name in re.findall(r"`gpe\.(\w+)", text)]
    names += [f"gp_ensembles.{name}" for name in BELOW.findall(text)]
    return [f"{page.relative_to(ROOT)}: {name}" for name in dict.fromkeys(names) if not exists(name)]


def test_every_name_in_code_exists(tmp_path, monkeypatch):
    assert [found for page in PAGES for found in name_complaints(page)] == []
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("`gp_ensembles.no`, `gpe.auto`, `bo.EnsembleModel`, `bo.Nobody`, `gpe.nowhere()`\n")
    found = name_complaints(tmp_path / "a.md")
    assert found == [f"a.md: gp_ensembles.{name}" for name in ("no", "nowhere", "bo.Nobody")]


def test_the_index_of_papers_names_classes_that_exist():
    """Every name in the column ``here``, alone or below its package."""
    text = (ROOT / "docs" / "papers" / "index.md").read_text(encoding="utf-8")
    cells = [row.split("|")[3] for row in text.splitlines() if row.startswith("|") and row.count("|") == 5]
    missing = []
    for cell in cells[2:]:
        names = re.findall(r"`([A-Za-z_][\w.]*)(?=[`(])", cell)
        package = next((name.rpartition(".")[0] for name in names if "." in name), "")
        for name in names:
            places = (name, f"{package}.{name}", f"ensembles.targets.{name}", f"ensembles.bases.{name}")
            if not any(exists(f"gp_ensembles.{place.removeprefix('gpe.')}") for place in places):
                missing += [] if name == "replace" else [name]
    assert (missing, len(cells) > 25) == ([], True)
