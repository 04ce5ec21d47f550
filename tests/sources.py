"""The Python files of a folder as trees, for the tests of how the house is built."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file; each is parsed once, for all tests of a process."""
    return ast.parse(text)


def sources(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below ``folder``, by its path from there."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder), parsed(path.read_text(encoding="utf-8"))
