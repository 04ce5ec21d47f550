"""The check-list of a release: run every step, stop at what fails, leave ``dist`` ready for upload.

    python packaging/release.py [--only STEP ...] [--without STEP ...]

Steps run in this order: tree, changelog, build, check, install, types, interface, broad, lowest, docs; with the
extra ``release``.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
_LEAST_TYPED = 0.95  # of public names


class StepFailedError(Exception):
    """A step of the check-list does not pass."""


def version() -> str:
    """The version of the package, from the one place where it stands."""
    text = (ROOT / "gp_ensembles" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    if found is None:
        raise StepFailedError("gp_ensembles/__init__.py has no __version__")
    return found.group(1)


def tree() -> str:
    """What is built is what is committed, and a tag that is being published is the version."""
    changed = _output_of("git", "status", "--porcelain")
    tag = os.environ.get("GITHUB_REF_NAME", "")
    if tag.startswith("v") and tag != f"v{version()}":
        raise StepFailedError(f"the tag is {tag} and the package is {version()}")
    if changed:
        raise StepFailedError(f"commit or remove first:\n{changed}")
    return _output_of("git", "rev-parse", "--short", "HEAD")


def changelog() -> str:
    """The version has a section with a date in the changelog."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version())}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, flags=re.MULTILINE):
        raise StepFailedError(f"CHANGELOG.md has no section '## [{version()}] - YEAR-MONTH-DAY'; rename Unreleased")
    return version()


def build() -> str:
    """A wheel and a source archive, in an empty ``dist``."""
    for old in DIST.glob("*"):
        old.unlink()
    _run(sys.executable, "-m", "build", "--outdir", str(DIST))
    return ", ".join(sorted(path.name for path in DIST.iterdir()))


def check() -> str:
    """Their descriptions are well formed."""
    _run(sys.executable, "-m", "twine", "check", "--strict", *(str(path) for path in sorted(DIST.iterdir())))
    return "well formed"


def install() -> str:
    """The wheel alone in an environment does what needs no extra; with the extras ``cli`` and ``plots``, the demo."""
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        _run(*pip, torch)  # first and alone: pip's own settings choose between its builds
        _run(*pip, str(wheel))
        _run(str(python), str(ROOT / "packaging" / "bare_use.py"), where=place)
        _run(*pip, f"{wheel}[cli,plots]")
        command = str(python.with_name("gp-ensembles"))
        _run(command, "demo", "--out", str(place / "demo"), "--progress", "false", where=place)
        made = (place / "demo" / "summary.json").stat().st_size
    return f"summary.json of {made} bytes"


def types() -> str:
    """How many public names of the wheel have whole types, and what a checker says of a script that uses it."""
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        zipfile.ZipFile(wheel).extractall(place)
        score = _share_of_whole_types(place)
        shutil.copy(ROOT / "packaging" / "typed_use.py", place)
        _pyright(place, "typed_use.py")
    if score < _LEAST_TYPED:
        raise StepFailedError(f"{score:.1%} of public names have whole types, fewer than {_LEAST_TYPED:.0%}")
    return f"{score:.1%} of public names have whole types"


def _share_of_whole_types(place: Path) -> float:
    """What pyright says of the package in a folder; 0 to 1."""
    printed = _pyright(place, "--verifytypes", "gp_ensembles", "--ignoreexternal", "--outputjson", may_complain=True)
    try:
        report = json.loads(printed)["typeCompleteness"]
    except (json.JSONDecodeError, KeyError):
        raise StepFailedError(f"pyright said {printed[-300:]!r}") from None
    if not report.get("pyTypedPath"):
        raise StepFailedError("pyright found no gp_ensembles/py.typed in the wheel")
    return float(report["completenessScore"])


def _pyright(place: Path, *words: str, may_complain: bool = False) -> str:
    # It asks the first python of the path where packages are, whatever its option for that says.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *words],
        cwd=place, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(place), "PATH": path},
    )  # fmt: skip
    if done.returncode and not may_complain:
        raise StepFailedError(f"pyright said {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout or done.stderr


def interface() -> str:
    """Public names that changed since the last tag, for whoever reads; none are refused before 1.0."""
    tags = [
        tag
        for tag in _output_of("git", "tag", "--list", "v*", "--sort=-version:refname").split()
        if tag != f"v{version()}"
    ]
    if not tags:
        return "no release to compare with"
    done = subprocess.run(
        [sys.executable, "-m", "griffe", "check", "gp_ensembles", "--against", tags[0]],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"against {tags[0]}:\n{done.stdout}{done.stderr}".rstrip()


def broad() -> str:
    """The tests that CI leaves out."""
    _run("make", "broad")
    return "passed"


def lowest() -> str:
    """The tests with the lowest versions that are admitted."""
    _run("make", "test-lowest")
    return "passed"


def docs() -> str:
    """The site builds without a warning."""
    _run("make", "docs")
    return "out/site"


STEPS: dict[str, Callable[[], str]] = {
    step.__name__: step for step in (tree, changelog, build, check, install, types, interface, broad, lowest, docs)
}


def main(argv: Sequence[str]) -> int:
    """Run the steps; returns 0, or 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="only these steps")
    parser.add_argument("--without", nargs="+", choices=STEPS, default=[], help="all but these")
    values = parser.parse_args(argv)
    for name in (name for name in STEPS if name in values.only and name not in values.without):
        try:
            print(f"{name}: {STEPS[name]()}", flush=True)
        except StepFailedError as error:
            print(f"{name}: NOT passed: {error}", flush=True)
            return 1
    return 0


def _run(*words: str, where: Path = ROOT) -> None:
    done = subprocess.run(words, cwd=where, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        raise StepFailedError(f"{' '.join(words[:4])} ... ended with {done.returncode}")


def _output_of(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
