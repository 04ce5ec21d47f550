"""The README tells the truth: its Python runs, its commands, files and links exist."""

import re
from pathlib import Path

import pytest

from gp_ensembles.cli.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_python_block_runs_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert capsys.readouterr().out


def test_every_link_and_config_exists():
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    configs = re.findall(r"configs/[a-z0-9_*]+\.yaml", README)
    assert links
    assert configs
    for target in [*links, *configs]:
        assert list(ROOT.glob(target)), target


def test_every_command_exists(capsys):
    commands = set(re.findall(r"^gp-ensembles (\w+)", README, flags=re.MULTILINE))
    assert commands >= {"stream", "resume", "compare", "demo"}
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
    targets = set(re.findall(r"make (\w+)", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_name_in_code_exists():
    """Dotted names in backticks that start with a package of ours can be imported."""
    import importlib

    for name in re.findall(r"`(gp_ensembles(?:\.\w+)+)`", README):
        parts = name.split(".")
        for split in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:split]))
            except ModuleNotFoundError:
                continue
            for part in parts[split:]:
                found = getattr(found, part)
            break
