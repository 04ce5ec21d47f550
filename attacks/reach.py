"""Lines that each test reaches, and how long it takes: ``python -m attacks.reach FILE TESTS ...``.

Coverage traces one run of the tests, with a context for each test, in a process of its own.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Reach(NamedTuple):
    """What tests reach.

    Attributes:
        lines: The tests that reach a line, by file (relative to the repository) and number of the line.
        seconds: What each test takes, traced.
    """

    lines: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]

    def tests(self, file: str, line: int) -> list[str]:
        """Tests that reach a line, the quickest first; those of the whole file where it runs at import only."""
        reached = self.lines.get(file, {})
        found = reached.get(line, frozenset())
        if not found and line in reached:
            found = frozenset[str]().union(*reached.values())
        return sorted(found, key=lambda test: (self.seconds[test], test))


@final
class _Watch:
    """A plugin of pytest that names contexts and measures tests."""

    def __init__(self, cover: Any) -> None:
        self._cover, self.seconds = cover, dict[str, float]()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Everything that a test does, its fixtures too, is its context."""
        self._cover.switch_context(item.nodeid)
        yield
        self._cover.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and tear-down; a test that fails unharmed kills nothing."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.seconds[report.nodeid] = float("nan")


def trace(file: Path, tests: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run tests traced and write what they reach; returns pytest's exit code."""
    import coverage  # type: ignore[import-not-found, import-untyped, unused-ignore]

    cover = coverage.Coverage(data_file=None, source=[str(ROOT / "gp_ensembles")], config_file=False)
    cover.start()
    watch = _Watch(cover)
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *options, *tests], plugins=[watch])
    cover.stop()
    data = cover.get_data()
    passed = {test: seconds for test, seconds in watch.seconds.items() if seconds == seconds}
    numbers = {test: number for number, test in enumerate(passed)}
    lines = {
        str(Path(name).relative_to(ROOT)): {
            line: sorted(numbers[test] for test in tests if test in numbers)
            for line, tests in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }
    content = {"tests": [[test, round(seconds, 3)] for test, seconds in passed.items()], "lines": lines}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return int(code)


def read(files: Sequence[Path]) -> Reach:
    """What several runs together have reached."""
    lines: dict[str, dict[int, frozenset[str]]] = {}
    seconds: dict[str, float] = {}
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        names = [test for test, _ in content["tests"]]
        seconds.update(content["tests"])
        for name, found in content["lines"].items():
            reached = lines.setdefault(name, {})
            for line, tests in found.items():
                reached[int(line)] = reached.get(int(line), frozenset()) | {names[test] for test in tests}
    return Reach(lines, seconds)


if __name__ == "__main__":
    sys.exit(trace(Path(sys.argv[1]), sys.argv[2:]))
