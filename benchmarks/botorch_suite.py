"""BoTorch's own tests as a judge: how many hold with a model of ours in the place of ``SingleTaskGP``.

    python -m benchmarks.botorch_suite --tests FOLDER
    python -m benchmarks.botorch_suite --tests FOLDER --files acquisition/test_logei.py optim --again

FOLDER is ``test`` of a checkout of BoTorch, best of the installed version (what pip offers holds no tests). All files
that mention ``SingleTaskGP`` run, each in a process of its own, once with BoTorch's class and once with ours. Three
counts are printed: all checks (test functions and their subtests) that hold with either class; those of them that hold
with BoTorch's; and the test functions among these that build one. What a file gave is kept in ``--out``, and
``--again`` runs ours again. ``summary.json`` there has every check that does not hold, by its error.
"""

import argparse
import importlib
import itertools
import json
import multiprocessing
import os
import pkgutil
import re
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import botorch
import pytest
import torch

RIVAL, OURS = "botorch.models:SingleTaskGP", "gp_ensembles.bo:ExactEnsembleModel"
TEST_SECONDS, FILE_SECONDS = 300, 1200
_NUMBERS = re.compile(r"0x[0-9a-f]+|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Judge:
    """A plugin of pytest: puts a class in the place of ``SingleTaskGP`` and writes a line for each test that ends."""

    def __init__(self, name: str, file: Path, out: Path) -> None:
        self.file, self.out = file, out
        self.test, self.built, self.error, self.latest = "", False, "", ""
        self.subtests: list[str] = []
        module, _, attribute = name.partition(":")
        judged = getattr(importlib.import_module(module), attribute)
        initialize = judged.__init__

        def recording(model: Any, *args: Any, **kwargs: Any) -> None:
            callers = itertools.islice(traceback.walk_stack(sys._getframe(1)), 3)
            self.built |= any(frame.f_code.co_filename == str(file) for frame, _ in callers)
            initialize(model, *args, **kwargs)

        recording.__wrapped__ = initialize  # type: ignore[attr-defined]  # what inspect.signature reads
        judged.__init__ = recording
        for place in (botorch.models, botorch.models.gp_regression):  # where tests import it from
            place.SingleTaskGP = judged

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.test, self.built, self.error, self.latest, self.subtests = nodeid.partition("::")[2], False, "", "", []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """A part of it has ended, or a subtest: the first error is kept."""
        report = yield
        self.latest = ""
        if call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception):
            self.latest = "skipped"
        elif call.excinfo is not None:
            text = " ".join(f"{type(call.excinfo.value).__name__}: {call.excinfo.value}".split())
            last = call.excinfo.traceback[-1]
            self.latest = f"{text[:300]} [{Path(str(last.path)).name}, {last.name}]"
        self.error = self.error or self.latest
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report is there: of a subtest, its error is kept too."""
        if isinstance(report, getattr(pytest, "SubtestReport", ())):  # older versions of pytest have none
            self.subtests.append(self.latest)

    def pytest_runtest_logfinish(self) -> None:
        """It has ended."""
        parts = {self.test: self.error, **{f"{self.test} [{n}]": error for n, error in enumerate(self.subtests)}}
        with self.out.open("a", encoding="utf-8") as lines:
            lines.writelines(
                json.dumps({"test": test, "built": self.built and test == self.test, "error": error}) + "\n"
                for test, error in parts.items()
            )


def _run(model: str, file: Path, out: Path) -> None:
    with Path(os.devnull).open("w") as silence:
        for stream in (1, 2):
            os.dup2(silence.fileno(), stream)
    options = ["-c", os.devnull, f"--rootdir={file.parent}", "--import-mode=importlib", "--tb=no"]
    options += ["-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
    pytest.main([str(file), *options], plugins=[Judge(model, file, out)])


def outcomes(model: str, file: Path, kept: Path) -> dict[str, dict[str, Any]]:
    """What the tests of a file give with a class in the place of ``SingleTaskGP``, by their names."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text("")
        process = multiprocessing.get_context("fork").Process(target=_run, args=(model, file, part))
        process.start()
        process.join(FILE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            print(f"{file.name} was ended after {FILE_SECONDS} s", file=sys.stderr)
        part.rename(kept)
    lines = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return {line["test"]: line for line in lines}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=Path, required=True, metavar="FOLDER", help="of a checkout of BoTorch")
    parser.add_argument("--model", default=OURS, help="the class that is judged, as module:name")
    parser.add_argument("--files", nargs="*", default=[""], help="those whose path begins so; all by default")
    parser.add_argument("--again", action="store_true", help="run the judged class again where it was run before")
    parser.add_argument("--out", type=Path, default=Path("out/botorch_suite"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(botorch.__path__, "botorch.", onerror=lambda _: None):
        try:  # all at once, with BoTorch's class, and before processes part
            importlib.import_module(module.name)
        except Exception:  # of a package that is not installed
            continue
    tests = options.tests.resolve()
    names = [str(path.relative_to(tests)) for path in sorted(tests.rglob("test_*.py"))]
    names = [
        name for name in names if name.startswith(tuple(options.files)) and "SingleTaskGP" in (tests / name).read_text()
    ]
    counts: Counter[str] = Counter()
    failed = {}
    for name in names:
        kept = {
            model: options.out / model.replace(":", ".") / f"{name.replace('/', '.')}.jsonl"
            for model in (RIVAL, options.model)
        }
        if options.again:
            kept[options.model].unlink(missing_ok=True)
        rival = outcomes(RIVAL, tests / name, kept[RIVAL])
        ours = outcomes(options.model, tests / name, kept[options.model])
        checks = {test: found for test, found in rival.items() if found["error"] != "skipped"}
        errors = {test: ours[test]["error"] if test in ours else "did not run" for test in checks}
        holding = {test for test, found in checks.items() if not found["error"]}
        own = Counter(
            checks=len(checks),
            rival=len(holding),
            ours=sum(not error for error in errors.values()),
            both=sum(not errors[test] for test in holding),
            built=sum(checks[test]["built"] for test in holding),
            kept=sum(checks[test]["built"] and not errors[test] for test in holding),
        )
        failed |= {f"{name}::{test}": errors[test] for test in sorted(holding) if errors[test]}
        counts.update(own)
        print(f"{own['both']:4} of {own['rival']:3} {name}", flush=True)
    groups: dict[str, list[str]] = defaultdict(list)
    for test, error in failed.items():
        groups[_NUMBERS.sub("#", error)].append(test)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for error, found in ordered:
        print(f"\n{len(found)} x {error}", *found, sep="\n    ")
    held = f"{counts['rival']} hold with SingleTaskGP, {counts['ours']} with {options.model}"
    print(f"\nof {counts['checks']} tests and subtests {held}")
    print(f"of the {counts['rival']} that hold with SingleTaskGP: {counts['both']}")
    print(f"of the {counts['built']} test functions among these that build one: {counts['kept']}")
    summary = {"model": options.model, "botorch": botorch.__version__, **counts, "failed": dict(ordered)}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
