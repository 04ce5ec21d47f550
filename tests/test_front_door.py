"""``import gp_ensembles``: cheap, lazy, and every name that its stub tells type checkers exists."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import gp_ensembles as gpe

STUB = Path(gpe.__file__).with_suffix(".pyi")


def told() -> dict[str, str]:
    """Names of the stub, and where each comes from."""
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, "a stub exports what is imported as itself"
                found[alias.name] = f"gp_ensembles.{node.module}" if node.module else "gp_ensembles"
    return found


def test_every_name_is_there_and_is_what_the_stub_says():
    names = told()
    assert set(names) == set(gpe.__all__) <= set(dir(gpe))
    assert len(names) <= 40
    for name, module in names.items():
        if module == "gp_ensembles":
            assert getattr(gpe, name) is importlib.import_module(f"gp_ensembles.{name}")
        else:
            assert getattr(gpe, name) is getattr(importlib.import_module(module), name)


def test_nothing_is_loaded_before_it_is_used():
    program = (
        "import sys, gp_ensembles\n"
        "heavy = {'torch', 'gpytorch', 'botorch', 'sklearn', 'scipy', 'matplotlib', 'pandas', 'river'}\n"
        "print(sorted(heavy & set(sys.modules)), gp_ensembles.__version__)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == f"[] {gpe.__version__}\n"


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(gpe, "no_such_name")
