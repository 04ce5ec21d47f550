"""The wheel as a stranger installs it: away from the checkout, without and with the extra ``cli``.

It runs what the README promises.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.pretend_installation import ROOT, only_installed

AWAY = """\
import os, sys
sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, "studies"))]
"""
COMMAND = "from gp_ensembles.__main__ import main\nsys.exit(main())\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel installed, and another one to work in."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    source, target, elsewhere = place / "source", place / "target", place / "elsewhere"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "out", "dist", "tests", "notebooks")
    shutil.copytree(ROOT, source, ignore=left_out)
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(place), str(source)]
    subprocess.run([*pip, *wheel], check=True, cwd=place)
    (built,) = place.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(built)], check=True)
    return built, target, elsewhere


def run(installed, code, *arguments, extras=(), expected=0):
    """What a program says that sees the wheel, its dependencies and those of some extras only."""
    _, target, elsewhere = installed
    environment = {**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", AWAY + only_installed(*extras) + code, *arguments]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == expected, done.stderr
    return done.stdout or done.stderr


def command(installed, *arguments):
    return run(installed, COMMAND, *arguments, extras=("cli",))


def test_the_wheel_holds_the_package_and_the_configs_and_nothing_else(installed):
    names = zipfile.ZipFile(installed[0]).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gp_ensembles"}
    configs = {Path(name).name for name in names if name.startswith("gp_ensembles/configs/")}
    assert configs == {path.name for path in (ROOT / "configs").rglob("*.yaml")}
    assert {"gp_ensembles/py.typed", "gp_ensembles/data/tables/SOURCES.md"} <= set(names)


def test_it_is_the_installed_package_that_runs(installed):
    found = run(installed, "import gp_ensembles\nprint(gp_ensembles.__file__)\n")
    assert Path(found.strip()).parent == installed[1] / "gp_ensembles"
    run(installed, "import importlib.util\nassert importlib.util.find_spec('studies') is None\n")


def test_the_demo_runs_with_the_extra(installed):
    assert "rows predicted" in command(installed, "demo", "--progress", "false", "--out", "demo")
    summary = json.loads((installed[2] / "demo" / "summary.json").read_text(encoding="utf-8"))
    assert summary["rows"] == 1667
    assert (installed[2] / "demo" / "report.html").stat().st_size > 1e6
    assert summary["log_score"] > max(scores["log_score"] for scores in summary["baselines"].values())


def test_a_config_is_found_by_name(installed):
    assert "auto " in command(installed, "configs")
    rows = "\n".join(f"{k / 50},{(k * 7 % 13) / 13},{(k / 50) ** 2 + (k * 5 % 11) / 11}" for k in range(150))
    (installed[2] / "small.csv").write_text(f"a,b,y\n{rows}\n", encoding="utf-8")
    arguments = ["stream", "small.csv", "--target", "y", "--config", "oe_linear", "--warmup", "60"]
    command(installed, *arguments, "--progress", "false", "--out", "small")
    assert json.loads((installed[2] / "small" / "summary.json").read_text(encoding="utf-8"))["rows"] == 90
