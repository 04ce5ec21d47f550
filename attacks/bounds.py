"""The fast suite on other versions: which Python, which torch, what passed.

``python -m attacks bounds lowest --out attacks/numbers/bounds.json``, with the Python of ``.venv-lowest``, runs the
fast suite and adds its line to the file; the line that this Python and these versions had there before goes. Versions
that are not those of the named set are refused, so that no line says what was not run.
"""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from xml.etree import ElementTree

from attacks.telling import Table, Telling

# What the versions of a set stand in; the newest are whatever there was on the day.
SETS: Final[Mapping[str, str | None]] = {
    "lowest": "constraints-lowest.txt",
    "pinned": "constraints.txt",
    "newest": None,
}
TOLD: Final = ("torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy", "scikit-learn", "pandas")
COUNTS: Final = ("passed", "failed", "skipped")


def others(pins: str, installed: Mapping[str, str]) -> list[str]:
    r"""Pinned distributions that are installed in another version.

    Args:
        pins: Lines of ``name==version``; those that begin with ``#`` are comments.
        installed: Version of each installed distribution.

    Returns:
        A clause for each; none where all that is installed is as pinned. What is not installed is no difference.

    Example:
        >>> others("# pins\nnumpy==2.0.0\ntorch==2.11.0\njax==0.9.2", {"numpy": "2.1.0", "torch": "2.11.0+cpu"})
        ['numpy is 2.1.0, not 2.0.0']
    """
    found = []
    for line in pins.splitlines():
        name, _, version = line.partition("==")
        has = installed.get(name, version).partition("+")[0]
        if not line.lstrip().startswith("#") and has != version:
            found.append(f"{name} is {has}, not {version}")
    return found


def count(junit: Path) -> dict[str, int]:
    """How many tests passed, failed (or could not begin) and were skipped, from a file that pytest has written."""
    suites = list(ElementTree.parse(junit).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return dict(zip(COUNTS, (tests - failures - errors - skipped, failures + errors, skipped), strict=True))


def merged(before: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Records with this one in the place of that of the same set on the same Python, sets in their order.

    Example:
        >>> old = [{"versions": "newest", "python": "3.13"}, {"versions": "lowest", "python": "3.11", "passed": 1}]
        >>> merged(old, {"versions": "lowest", "python": "3.11", "passed": 2})
        [{'versions': 'lowest', 'python': '3.11', 'passed': 2}, {'versions': 'newest', 'python': '3.13'}]
    """
    here = record["versions"], record["python"]
    kept = [one for one in before if (one["versions"], one["python"]) != here]
    order = list(SETS)
    return sorted([*kept, record], key=lambda one: (order.index(one["versions"]), one["python"]))


def run(junit: Path) -> None:
    """Run the fast suite here and leave its counts in a file; a suite in which tests fail is one that was run."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not slow", "--junitxml"]
    code = subprocess.run([*command, str(junit)], check=False).returncode
    if code not in (0, 1):
        raise RuntimeError(f"pytest ended with {code}, its own words stand above")


def main(argv: Sequence[str]) -> int:
    """Run the fast suite, or read what it has left; returns 1 where a test failed, 2 for versions of another set."""
    telling = Telling("bounds", __doc__)
    telling.options.add_argument("versions", choices=SETS, help="the set of versions that is installed")
    telling.options.add_argument("--junit", type=Path, default=None, help="counts of a suite that was run here before")
    values = telling.read(argv)
    installed = {_normal(one.name): one.version for one in metadata.distributions()}
    pins = SETS[values.versions]
    wrong = others(Path(pins).read_text(encoding="utf-8"), installed) if pins else []
    if wrong:
        print(f"attacks: these are not the versions of {pins}: {'; '.join(wrong)}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        junit = values.junit or Path(folder) / "junit.xml"
        if values.junit is None:
            run(junit)
        counts = count(junit)
    reported = {name: installed[_normal(name)].partition("+")[0] for name in TOLD}
    record = {"versions": values.versions, "python": platform.python_version(), **reported, **counts}
    known = values.out is not None and values.out.is_file()
    records = merged(json.loads(values.out.read_text(encoding="utf-8"))["records"] if known else [], record)
    rows = [[one[name] for name in record] for one in records]
    telling.tell(Table("The fast suite, by versions", list(record), rows), records=records)
    return int(counts["failed"] > 0)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
