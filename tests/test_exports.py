"""What packages export: every name stands in a document, and somebody outside the package uses it or reads of it."""

import ast
import functools
import importlib
import json
import pkgutil
import re
from pathlib import Path

import gp_ensembles

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gp_ensembles.__file__).parent

# The packages that are held to it.
ROOMS = (
    *("bo", "calibration", "data", "distributions", "engine", "ensembles", "experts", "features", "filters", "fleet"),
    *("likelihoods", "meta_learners", "metrics", "numerics", "plots", "scale", "spectral", "streaming"),
    *("papers.fusion", "papers.gplvm", "papers.quadrature", "papers.sparse"),
)
MOST_NAMES = 220  # in all packages together, the front door among them
CODE = [path for part in ("gp_ensembles", "studies", "benchmarks", "tests") for path in (ROOT / part).rglob("*.py")]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def quoted(text: str) -> set[str]:
    """Words in backticks, and in blocks of code."""
    blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
    rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("``", "`")
    return words(" ".join([*blocks, *re.findall(r"`[^`]+`", rest)]))


@functools.cache
def pages() -> frozenset[str]:
    """Words of code in what users read: README, docs and notebooks."""
    found: set[str] = set()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if path.is_relative_to(ROOT / "docs" / "generated"):  # left by a build of the site, absent from a fresh clone
            continue
        text = path.read_text(encoding="utf-8")
        found |= frozenset() if "{eval-rst}" in text else quoted(text)  # pages of the reference list all names
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            found |= words(text) if cell["cell_type"] == "code" else quoted(text)
    return frozenset(found)


@functools.cache
def identifiers(path: Path) -> frozenset[str]:
    """Names that the code of a file speaks of."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
    return frozenset(found)


@functools.cache
def mentioned(path: Path) -> frozenset[str]:
    """Every word of a file, which is quickly found."""
    return frozenset(words(path.read_text(encoding="utf-8")))


def is_used(name: str, room: str) -> bool:
    """Whether code outside a package and its tests speaks of a name."""
    own = (PACKAGE / room.replace(".", "/"), ROOT / "tests" / room.replace(".", "/"))
    return any(
        name in mentioned(path) and not any(path.is_relative_to(part) for part in own) and name in identifiers(path)
        for path in CODE
    )


def complaints(room: str) -> list[str]:
    package = importlib.import_module(f"gp_ensembles.{room}")
    documented = pages() | quoted(package.__doc__ or "")
    found = [f"{name} stands in no document" for name in package.__all__ if name not in documented]
    unused = (name for name in package.__all__ if name not in pages() and not is_used(name, room))
    return [*found, *(f"{name} has no user outside its package" for name in unused)]


def test_every_exported_name_is_documented_and_used():
    assert [f"{room}: {complaint}" for room in ROOMS for complaint in complaints(room)] == []


def test_few_names_are_exported():
    packages = pkgutil.walk_packages(gp_ensembles.__path__, "gp_ensembles.")
    rooms = [gp_ensembles, *(importlib.import_module(package.name) for package in packages if package.ispkg)]
    assert gp_ensembles.__all__
    assert sum(len(getattr(room, "__all__", ())) for room in rooms) <= MOST_NAMES


def test_a_breach_is_found(monkeypatch):
    from gp_ensembles import spectral

    monkeypatch.setattr(spectral, "__all__", [*spectral.__all__, "never_heard_of"])
    assert complaints("spectral") == [
        "never_heard_of stands in no document",
        "never_heard_of has no user outside its package",
    ]
