"""Places in the code where a small fault can be put, as cosmic-ray does, and the code with it."""

import ast
import difflib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_Position = tuple[int, int]
# Left out: faults that Python itself refuses for numbers and tensors, and those that need to be told of variables.
_TOO_PLAIN = (
    "Shift",
    "_BitOr",
    "_BitAnd",
    "_BitXor",
    "_USub_Invert",
    "_USub_Not",
    "VariableReplacer",
    "VariableInserter",
)
_UNSEEN = ("final", "overload", "override", "abstractmethod", "runtime_checkable")  # decorators for type checkers
_GUARDS = ("strict", "stacklevel")  # arguments that change nothing while the code is right


class Place(NamedTuple):
    """One fault at one place.

    Attributes:
        file: Relative to the repository.
        line: Where.
        operator: What cosmic-ray calls it.
        occurrence: Which one of this operator's in the file.
    """

    file: str
    line: int
    operator: str
    occurrence: int


def places(file: Path, root: Path) -> list[list[Place]]:
    """All faults of a file, those at one place together.

    Args:
        file: A module.
        root: What its name is relative to.
    """
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from cosmic_ray.plugins import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        get_operator,
        operator_names,
    )

    source = file.read_text(encoding="utf-8")
    nodes, hidden = list(ast_nodes(get_ast(source))), list(unseen(source))
    found: dict[_Position, list[Place]] = {}
    for name in operator_names():
        if name.endswith(_TOO_PLAIN):
            continue
        operator, occurrence = get_operator(name)(), itertools.count()
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                place = Place(str(file.relative_to(root)), start[0], name, next(occurrence))
                if not any(first <= start < last for first, last in hidden):
                    found.setdefault(start, []).append(place)
    return [found[start] for start in sorted(found)]


def mutated(place: Place, root: Path) -> str:
    """The file's code with the fault."""
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from cosmic_ray.plugins import get_operator  # type: ignore[import-not-found, import-untyped, unused-ignore]

    source = (root / place.file).read_text(encoding="utf-8")
    code: str = mutate_code(source, get_operator(place.operator)(), place.occurrence)
    return code


def is_code(place: Place, root: Path) -> bool:
    """Whether Python can read the file with the fault: a star in a signature is taken for a product, for one."""
    try:
        ast.parse(mutated(place, root))
    except SyntaxError:
        return False
    return True


def change(place: Place, root: Path) -> str:
    """The line before and after, in one line."""
    before, after = (root / place.file).read_text(encoding="utf-8").splitlines(), mutated(place, root).splitlines()
    lines = [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
    return " -> ".join(line[2:].strip() for line in lines) or place.operator


def unseen(source: str) -> Iterator[tuple[_Position, _Position]]:
    """What is there for readers and type checkers only: annotations, unions of types, decorators, some arguments."""
    lines = source.splitlines()

    def where(line: int, byte: int) -> _Position:
        return line, len(lines[line - 1].encode()[:byte].decode())

    def span(node: ast.expr) -> tuple[_Position, _Position]:
        return where(node.lineno, node.col_offset), where(node.end_lineno or 0, node.end_col_offset or 0)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield span(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield span(node.returns)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_type(node.right):
            yield span(node)
        elif isinstance(node, ast.keyword) and node.arg in _GUARDS:
            yield span(node.value)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Name) and decorator.id in _UNSEEN:
                    line, column = span(decorator)[0]
                    yield (line, column - 1), span(decorator)[1]


def _is_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name[:1].isupper() or (isinstance(node, ast.Constant) and node.value is None)
