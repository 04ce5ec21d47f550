"""The Python files of a folder as trees, and the site's extensions, for the tests of code and documentation."""

import ast
import importlib.util
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import gp_ensembles

EXTENSIONS = Path(__file__).resolve().parents[1] / "docs" / "extensions"


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file; each is parsed once, for all tests of a process."""
    return ast.parse(text)


def sources(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below ``folder``, by its path from there."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder), parsed(path.read_text(encoding="utf-8"))


def library_classes() -> list[type]:
    """The classes of the library."""
    found: dict[str, type] = {}
    for info in pkgutil.walk_packages(gp_ensembles.__path__, "gp_ensembles."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__.startswith("gp_ensembles."):
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return list(found.values())


def extension(name: str) -> ModuleType:
    """A module of ``docs/extensions``."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location(name, EXTENSIONS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
