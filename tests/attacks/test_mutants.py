"""Small faults in the code: where they are put, which tests are asked, and that a fork really has the fault."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from attacks.mutants import PACKAGES, package_named
from attacks.places import unseen
from attacks.reach import Reach, read

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
@final
class A:
    x: int | None = 1 | 2

    def f(self, a: list[int] = [3], *, b: B = 4) -> C | D:
        return zip(a, b, strict=True), isinstance(a, E | F), g(strict=a - b)
"""


def test_annotations_and_guards_are_no_places():
    lines = SOURCE.splitlines()
    hidden = {lines[first - 1][start:end] for (first, start), (_, end) in unseen(SOURCE)}
    assert hidden == {"@final", "int | None", "list[int]", "B", "C | D", "True", "E | F", "a - b"}


def test_columns_are_of_characters_not_of_bytes():
    spans = list(unseen("α = 1; x: int = 2"))
    assert spans == [((1, 10), (1, 13))]


def test_the_quickest_tests_are_asked_first_and_those_of_the_file_for_what_runs_at_import():
    reach = Reach({"a.py": {1: frozenset(), 2: frozenset("xz"), 3: frozenset("y")}}, {"x": 3.0, "y": 2.0, "z": 1.0})
    assert reach.tests("a.py", 2) == ["z", "x"]
    assert reach.tests("a.py", 1) == ["z", "y", "x"]
    assert reach.tests("a.py", 9) == reach.tests("b.py", 1) == []


def test_what_several_runs_reached_is_put_together(tmp_path):
    (tmp_path / "one.json").write_text('{"tests": [["x", 1.5]], "lines": {"a.py": {"2": [0], "3": []}}}')
    (tmp_path / "two.json").write_text('{"tests": [["y", 0.5]], "lines": {"a.py": {"2": [0]}, "b.py": {"1": [0]}}}')
    reach = read([tmp_path / "one.json", tmp_path / "two.json"])
    assert reach.lines == {"a.py": {2: frozenset("xy"), 3: frozenset()}, "b.py": {1: frozenset("y")}}
    assert reach.seconds == {"x": 1.5, "y": 0.5}


@pytest.mark.parametrize("name", [*PACKAGES, "papers/fusion", "cli/report/"])
def test_faults_can_be_drawn_from_any_package_that_has_tests(name):
    assert package_named(name) == name.strip("/")


@pytest.mark.parametrize("name", ["nothing", "", "golden"])
def test_packages_that_do_not_exist_are_refused(name):
    with pytest.raises(argparse.ArgumentTypeError, match=f"no folder gp_ensembles/{name}"):
        package_named(name)


SCRIPT = """
import sys
from pathlib import Path
from attacks.mutants import do_pass

file, test = "gp_ensembles/numerics/simplex.py", "tests/numerics/test_simplex.py"
code = Path(file).read_text()
told = Path(sys.argv[1])
assert do_pass(file, code, [test], told), told.read_text()
assert not do_pass(file, code.replace("    return ", "    return 2 * ", 1), [test], told)
assert not do_pass(file, code + "\\nraise OSError", [test], told)
assert do_pass(file, code, [test], told)
"""


@pytest.mark.slow
def test_a_fork_has_the_fault_and_the_next_one_has_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "told.txt")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
