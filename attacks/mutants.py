"""Small faults put into the code one at a time: how many of them do the tests notice?

``python -m attacks mutants`` draws places in each package by a stated seed, changes one operator, number or decision
there as cosmic-ray does, and runs the tests that reach the line, the quickest first, until one fails. What nobody
notices is printed. ``--packages`` names others, such as ``papers/fusion`` or ``cli/report``; their tests are in a
folder of the same name. It needs the packages cosmic-ray and coverage, and a first run takes the time of the tests,
traced.
"""

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from itertools import accumulate, islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple, final

import pytest
from tqdm import tqdm

from attacks.children import kill_after, start
from attacks.places import Place, change, is_code, mutated, places
from attacks.reach import ROOT, Reach, read
from attacks.telling import Table, Telling

_EXPLAINED = Path(__file__).with_name("explained.json")  # why no test can notice a mutant, by file and change
# drawn from by default, all traced
PACKAGES = ("filters", "meta_learners", "experts", "engine", "streaming", "papers/sparse")
# Imported before the forks, so that a mutant does not wait for them.
_SLOW_IMPORTS: tuple[str, ...] = ("torch", "gpytorch", "botorch.models", "botorch.acquisition", "pandas", "scipy.stats")
_SLOW_IMPORTS += ("sklearn.ensemble", "sklearn.pipeline", "scipy.optimize", "torch.func", "river.base", "narwhals")
_PATIENCE = 60.0  # seconds for imports, before a mutant counts as one that hangs


class Fate(NamedTuple):
    """What became of a mutant.

    Attributes:
        place: Where the fault was.
        change: The line before and after.
        end: ``noticed``, ``unnoticed`` or ``unreached`` (by any test).
        tests: How many tests were to be asked.
    """

    place: Place
    change: str
    end: str
    tests: int


@final
class _Fault(MetaPathFinder):
    """Imports one module with other code than its file has."""

    def __init__(self, file: str, code: str) -> None:
        parts = Path(file).with_suffix("").parts
        self._name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._file, self._code = str(ROOT / file), code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of the module, if it is the one."""
        if fullname != self._name:
            return None
        folder = [str(Path(self._file).parent)] if self._file.endswith("__init__.py") else None
        loader = _Loader(fullname, self._file, self._code)
        return spec_from_file_location(fullname, self._file, loader=loader, submodule_search_locations=folder)


@final
class _Loader(SourceFileLoader):
    """Gives the code that it was given."""

    def __init__(self, name: str, path: str, code: str) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        """Compile it; nothing is cached."""
        return compile(self._code, self.path, "exec", dont_inherit=True)


def fate(place: Place, reach: Reach, seconds: float, reported: Path) -> Fate:
    """Put a fault into a forked process and run the tests that reach it, the quickest first.

    Args:
        place: The fault.
        reach: Which tests reach it.
        seconds: Tests beyond this sum are not asked.
        reported: A file for what the tests print.
    """
    tests = reach.tests(place.file, place.line)
    sums = accumulate(reach.seconds[test] for test in tests)
    tests = [test for test, total in zip(tests, sums, strict=True) if total <= seconds or test == tests[0]]
    what = change(place, ROOT)
    if not tests:
        return Fate(place, what, "unreached", 0)
    code = mutated(place, ROOT)
    patience = _PATIENCE + 5 * sum(reach.seconds[test] for test in tests)
    has_passed = do_pass(place.file, code, tests, reported, patience)
    return Fate(place, what, "unnoticed" if has_passed else "noticed", len(tests))


def do_pass(file: str, code: str, tests: Sequence[str], reported: Path, patience: float = 300.0) -> bool:
    """Whether tests pass, before so many seconds are over, in a fork where a file has this code."""

    def ask() -> int:
        sys.meta_path.insert(0, _Fault(file, code))
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))

    return kill_after(start(ask, reported), patience) == 0


def _check_unharmed(drawn: Sequence[Place], reach: Reach, reported: Path) -> None:
    """Tests must pass in the same way without a fault, or everything would count as noticed."""
    for place in drawn[:5]:
        tests = reach.tests(place.file, place.line)[:20]
        if tests and not do_pass(place.file, (ROOT / place.file).read_text(encoding="utf-8"), tests, reported):
            raise RuntimeError(f"tests fail without any fault: {reported.read_text(encoding='utf-8')[-2000:]}")


def draw(package: str, number: int, seed: int) -> tuple[list[Place], int]:
    """Draw places of a package, and one fault at each; returns them and the number of places there are."""
    files = sorted((ROOT / "gp_ensembles" / package).rglob("*.py"))
    everywhere = [some for file in files for some in places(file, ROOT)]
    choose = random.Random(f"{package} {seed}")
    some = (choose.choice(one) for one in choose.sample(everywhere, len(everywhere)))
    return list(islice((place for place in some if is_code(place, ROOT)), number)), len(everywhere)


def _reach(folder: Path, packages: Sequence[str]) -> Reach:
    """What is known of the tests; those of packages of which nothing is known are traced."""
    for package in packages:
        if not (file := _reach_file(folder, package)).exists():
            print(f"tracing tests/{package}", flush=True)
            command = [sys.executable, "-m", "attacks.reach", str(file), f"tests/{package}"]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return read([_reach_file(folder, package) for package in packages])


def _reach_file(folder: Path, package: str) -> Path:
    return folder / f"{package.replace('/', '.')}.json"


def package_named(name: str) -> str:
    """A package of the library and the folder of its tests, as both are called.

    Raises:
        argparse.ArgumentTypeError: If one of the two does not exist.
    """
    package = name.strip("/")
    for place in ("gp_ensembles", "tests"):
        if not package or not (ROOT / place / package).is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {place}/{package}")
    return package


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0, 2 where a package is missing."""
    telling = Telling("mutants", __doc__)
    options = telling.options
    options.add_argument("--number", type=int, default=40, help="mutants of each package")
    options.add_argument("--seed", type=int, default=0, help="of the places")
    options.add_argument("--seconds", type=float, default=60, help="of tests that a mutant must survive")
    options.add_argument("--packages", nargs="+", type=package_named, default=list(PACKAGES), metavar="PACKAGE")
    options.add_argument("--reach", type=Path, default=Path("out/reach"), help="a folder for which test reaches what")
    options.add_argument("--known", type=Path, default=None, help="a file of fates: those noticed are not tried again")
    values = telling.read(argv)
    if missing := [name for name in ("cosmic_ray", "coverage") if find_spec(name) is None]:
        print(f"attacks mutants: {missing[0]} is missing: pip install cosmic-ray coverage", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    reach = _reach(values.reach, list(dict.fromkeys([*PACKAGES, *values.packages])))
    known = _known(values.known)
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)
    assert "gp_ensembles" not in sys.modules, "the faults are put in as modules are imported"
    fates: dict[str, list[Fate]] = {}
    totals: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder  # what a mutant fails on is no example for others
        for package in values.packages:
            drawn, totals[package] = draw(package, values.number, values.seed)
            _check_unharmed(drawn, reach, Path(folder) / "told.txt")
            for place in tqdm(drawn, package):
                found = known.get(place) or fate(place, reach, values.seconds, Path(folder) / "told.txt")
                fates.setdefault(package, []).append(found)
                if values.known is not None and place not in known:
                    with values.known.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
    telling.tell(*_tables(fates, totals))
    return 0


def _known(file: Path | None) -> dict[Place, Fate]:
    """Mutants that were noticed before."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    fates = [Fate(Place(*place), *rest) for place, *rest in lines]
    return {fate.place: fate for fate in fates if fate.end == "noticed"}


def _tables(fates: dict[str, list[Fate]], totals: dict[str, int]) -> list[Table]:
    """Noticed by package, of all and of those that could be noticed; and what was not noticed, with the reason."""
    everything = [one for some in fates.values() for one in some]
    reasons = json.loads(_EXPLAINED.read_text(encoding="utf-8"))
    rows = []
    for package, drawn in [*fates.items(), ("all", everything)]:
        noticed = sum(one.end == "noticed" for one in drawn)
        same = sum(one.end != "noticed" and _key(one) in reasons for one in drawn)
        number, others = totals.get(package, sum(totals.values())), max(len(drawn) - same, 1)
        shares = [f"{100 * noticed / len(drawn):.0f} %", f"{100 * noticed / others:.0f} %"]
        rows.append([package, number, len(drawn), noticed, same, *shares])
    columns = ["package", "places", "mutants", "noticed", "explained", "noticed of all", "of those not explained"]
    lost = [one for one in everything if one.end != "noticed"]
    where = [[one.place.file, f"`{one.change}`", reasons.get(_key(one), "open")] for one in lost]
    tables = [Table("Mutants noticed by the tests, by package", columns, rows)]
    return [*tables, Table("What no test noticed", ["file", "change", "why"], where)] if where else tables


def _key(fate: Fate) -> str:
    return f"{fate.place.file}: {fate.change}"
