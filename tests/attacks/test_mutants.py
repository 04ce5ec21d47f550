"""Small faults in the code: where they are put, which tests are asked, and that a fork really has the fault."""

import subprocess
import sys
from pathlib import Path

import pytest

from attacks.mutants import PACKAGES, package_named
from attacks.places import unseen

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


@pytest.mark.parametrize("name", [*PACKAGES, "papers/fusion", "cli/report/"])
def test_faults_can_be_drawn_from_any_package_that_has_tests(name):
    assert package_named(name) == name.strip("/")


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
