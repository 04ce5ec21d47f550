"""CONTRIBUTING is short, and the packages of its table are those that there are."""

import re
from pathlib import Path

import gp_ensembles

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gp_ensembles.__file__).parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_names_the_packages_that_exist():
    table = TEXT.partition("| package | contents |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    named = [name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    outside = re.findall(r"`(\w+)`", TEXT.partition("Outside the package: ")[2].partition(". [Recipes]")[0])
    assert len(outside) > 5
    assert [name for name in outside if not (ROOT / name).is_dir()] == []
