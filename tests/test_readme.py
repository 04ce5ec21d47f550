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
OPTIONAL = {"ax.md": "ax"}  # what a page needs beside the package's own development tools
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_every_python_block_runs_in_order(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # examples may write files
    if page.name in OPTIONAL:
        pytest.importorskip(OPTIONAL[page.name], reason="an optional extra")
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "add_tracking_metric is deprecated", DeprecationWarning)  # Ax calls its own
        for block in blocks:
            exec(compile(block, page.name, "exec"), namespace)
    assert not any("print(" in block for block in blocks) or capsys.readouterr().out


@each_page
def test_every_link_and_config_exists(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        is_made = "/generated/" in target  # by make docs
        assert "://" in target or is_made or (page.parent / target).exists(), target
    for target in re.findall(r"\bconfigs/[a-z0-9_*]+\.yaml", text):
        assert list(ROOT.glob(target)) or list(ROOT.glob(f"studies/{target}")), target


def test_the_readme_is_short():
    """A screen and the pictures; the rest is on pages."""
    assert len(README.splitlines()) <= 70


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


@each_page
def test_every_name_in_code_exists(page):
    """Dotted names in backticks that start with a package of ours can be imported."""
    for name in re.findall(r"`(gp_ensembles(?:\.\w+)+)`", page.read_text(encoding="utf-8")):
        parts = name.split(".")
        for split in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:split]))
            except ModuleNotFoundError:
                continue
            for part in parts[split:]:
                found = getattr(found, part)
            break
