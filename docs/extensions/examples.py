"""Examples of the reference with the imports that they need: copied into an empty session, they run.

Doctests know the names of the module that an example stands in; a reader does not.
"""

import ast
import builtins
import doctest
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from sphinx.application import Sphinx


def needed(text: str) -> list[str]:
    """Names that the examples of a docstring use and do not define, in their order."""
    tree = ast.parse("".join(one.source for one in doctest.DocTestParser().get_examples(text)))
    known, used = set(dir(builtins)), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used.append((node.lineno, node.col_offset, node.id))
            else:
                known.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    return [name for name in dict.fromkeys(name for _, _, name in sorted(used)) if name not in known]


def _home(name: str, thing: object, module: str) -> str:
    """The shortest module that has it: the package that exports it, where there is one."""
    parts = (getattr(thing, "__module__", None) or module).split(".")
    homes = [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
    return next(home for home in [*homes, module] if vars(importlib.import_module(home)).get(name) is thing)


def imports(text: str, module: str) -> Iterator[str]:
    """Lines that import what the examples of a docstring need.

    Args:
        text: The docstring.
        module: The module that it stands in; names that it lacks are left out, which only skipped examples use.
    """
    names = vars(sys.modules[module])
    homes: dict[str, list[str]] = {}
    for name in (name for name in needed(text) if name in names):
        thing = names[name]
        if isinstance(thing, ModuleType):
            yield f"import {thing.__name__}" if thing.__name__ == name else f"import {thing.__name__} as {name}"
        else:
            homes.setdefault(_home(name, thing, module), []).append(name)
    for home, found in homes.items():
        yield f"from {home} import {', '.join(found)}"


def with_imports(lines: list[str], module: str) -> list[str]:
    """The lines of a docstring with imports before its first example."""
    first = next((k for k, line in enumerate(lines) if line.lstrip().startswith(">>> ")), None)
    if first is None:
        return lines
    indent = lines[first].partition(">>>")[0]
    found = [f"{indent}>>> {line}" for line in imports("\n".join(lines), module)]
    return [*lines[:first], *found, *lines[first:]]


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""

    def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        module = inspect.getmodule(inspect.unwrap(obj.fget if isinstance(obj, property) else obj))  # type: ignore[arg-type]
        if module is not None and module.__name__.startswith("gp_ensembles"):
            lines[:] = with_imports(lines, module.__name__)

    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", process, priority=100)  # before the sections are read
    return {"parallel_read_safe": True, "parallel_write_safe": True}
