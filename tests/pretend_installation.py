"""What pip would install with the library and some of its extras, and a stand-in for an environment with that alone."""

import functools
import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_BLOCKER = """\
import sys
from importlib.machinery import PathFinder
class Installed(PathFinder):
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def brought(*extras):
    """Names of all that pip installs with the library and some of its extras, as far as it is installed here."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    found, todo = set(), [(Requirement(line), "") for line in lines]
    while todo:
        wanted, extra = todo.pop()
        name = normalized(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": extra})):
            continue
        try:
            extra_experts = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # such as a library for GPUs
            continue
        found.add(name)
        todo += [(Requirement(line), extra) for line in extra_experts for extra in (wanted.extras or {""})]
    return frozenset(found)


def only_installed(*extras):
    """Code after which nothing else can be imported, as in an environment of its own."""
    allowed = brought(*extras) | {"gp-ensembles"}
    owners = metadata.packages_distributions()
    blocked = {module for module, names in owners.items() if not allowed & {normalized(name) for name in names}}
    return _BLOCKER.format(blocked=blocked | {"studies", "tests"})
