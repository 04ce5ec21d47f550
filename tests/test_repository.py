"""The repository as a stranger gets it: files, versions, packaging, notebooks, and no trace of anybody's machine."""

import json
import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import gp_ensembles
from tests.pretend_installation import PROJECT, ROOT, normalized

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FILTERS = SETTINGS["tool"]["pytest"]["ini_options"]["filterwarnings"]
# Written in pieces, so that this file does not accuse itself.
PRIVATE = re.compile("/(?:tm" + "p|wor" + "k|far" + "m|ro" + "ot|ho" + "me)/|pypi" + r"\.org|files\.python" + "hosted")


def tracked() -> list[Path]:
    """Files under version control, or a skip where this is not a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def private_complaints(paths: list[Path]) -> list[str]:
    """Lines with absolute paths of a machine or hosts of a package registry."""
    complaints = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        complaints += [f"{path.name}:{k} {line[:90]}" for k, line in enumerate(lines, 1) if PRIVATE.search(line)]
    return complaints


def output_complaints(notebooks: list[Path]) -> list[str]:
    """Notebook cells that carry outputs or counts of a run."""
    complaints = []
    for path in notebooks:
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell.get("outputs") or cell.get("execution_count") is not None:
                complaints.append(f"{path.name}: cell {number} has stored outputs")
    return complaints


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalized(name): version for name, version in found.items()}


def bounds(wanted: list[str]) -> dict[str, str]:
    """The lowest version of each requirement, those of the package's own extras included."""
    found: dict[str, str] = {}
    for line in map(Requirement, wanted):
        if normalized(line.name) == "gp-ensembles":
            for extra in line.extras:
                found |= bounds(PROJECT["optional-dependencies"][extra])
        else:
            (lowest,) = line.specifier
            assert lowest.operator == ">=", f"{line} has no lowest version"
            found[normalized(line.name)] = lowest.version
    return found


def test_no_trace_of_a_machine():
    assert private_complaints([path for path in tracked() if path.name != "constraints.txt"]) == []


def test_notebooks_have_no_stored_outputs():
    assert output_complaints(sorted((ROOT / "notebooks").glob("*.ipynb"))) == []


def test_the_recipe_for_conda_names_every_dependency():
    text = (ROOT / "packaging" / "conda-forge" / "meta.yaml").read_text(encoding="utf-8")
    run = re.split(r"^  run:$", text, flags=re.MULTILINE)[1].split("\ntest:")[0]
    named = {
        re.sub(r"^pytorch", "torch", line.strip("- ")).replace(" ", "").lower() for line in run.splitlines() if line
    }
    assert {spec.replace(" ", "").lower() for spec in PROJECT["dependencies"]} <= named


def test_the_citation_is_of_this_version_and_of_the_date_in_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == gp_ensembles.__version__
    heading = f"## [{citation['version']}] - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_the_version_stands_in_one_place():
    assert metadata.version("gp_ensembles") == gp_ensembles.__version__
    predicted = re.compile(rf"version\w*\s*[=:]\s*['\"]{re.escape(gp_ensembles.__version__)}['\"]")
    files = [path for path in tracked() if path.suffix in {".py", ".toml", ".cfg"}]
    assert [path.name for path in files if predicted.search(path.read_text(encoding="utf-8"))] == ["__init__.py"]


def test_pins_cover_every_dependency():
    # The arena's rivals are not installed with the pins: statsforecast wants an older pandas.
    extras = [names for extra, names in PROJECT["optional-dependencies"].items() if extra != "arena"]
    wanted = [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]
    names = {normalized(re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0]) for line in wanted}
    assert names - {"gp-ensembles"} <= set(pins())


def test_the_lowest_pins_are_the_bounds_of_pyproject():
    """Whoever moves a bound makes the file again, by the command at its top."""
    pinned = pins("constraints-lowest.txt")
    found = bounds([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
    assert len(found) > 25
    moved = {name: (bound, pinned[name]) for name, bound in found.items() if Version(bound) != Version(pinned[name])}
    assert moved == {}


def test_pins_admit_the_lowest_python():
    """Also its first patch release, which a system may have for years."""
    lowest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    refused = {}
    for name, version in pins().items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system
            continue
        wanted = found.metadata["Requires-Python"]
        if found.version == version and wanted and lowest not in SpecifierSet(wanted):
            refused[f"{name}=={version}"] = wanted
    assert lowest == "3.11.0"
    assert refused == {}


def test_pins_are_exact_and_hold_no_address():
    files = [ROOT / "constraints.txt", ROOT / "constraints-lowest.txt"]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][\w.]*", line)] == []


def test_tests_run_on_the_threads_they_are_given():
    assert torch.get_num_threads() == int(os.environ.get("OMP_NUM_THREADS", "1"))


def test_what_is_deprecated_and_let_pass_is_not_ours():
    """The one warning of deprecation that pyproject.toml lets pass is of other libraries."""
    (reported,) = {line.split(":")[1] for line in FILTERS if line != "error"}
    assert re.match(reported, "`torch.jit.script` is deprecated.")
    files = [path for path in tracked() if path.suffix == ".py" and path.parts[len(ROOT.parts)] != "tests"]
    assert [path.name for path in files if "torch." + "jit" in path.read_text(encoding="utf-8")] == []


def test_private_lines_are_found(tmp_path):
    planted = tmp_path / "planted.md"
    planted.write_text("fine: a/b\nsee " + "/wo" + "rk/" + "main\nfrom pypi" + ".org\n")
    assert [line.split(" ")[0] for line in private_complaints([planted])] == ["planted.md:2", "planted.md:3"]


def test_stored_outputs_are_found(tmp_path):
    planted = tmp_path / "planted.ipynb"
    cells = [
        {"cell_type": "markdown", "source": []},
        {"cell_type": "code", "outputs": [], "execution_count": None},
        {"cell_type": "code", "outputs": [{"text": "1"}], "execution_count": None},
        {"cell_type": "code", "outputs": [], "execution_count": 3},
    ]
    planted.write_text(json.dumps({"cells": cells}))
    assert output_complaints([planted]) == [f"planted.ipynb: cell {k} has stored outputs" for k in (2, 3)]


def test_what_the_workflows_run_exists():
    """Every ``run`` of a workflow is a target of the Makefile or a script that is here."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    workflows = [yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    jobs = [job for workflow in workflows for job in workflow["jobs"].values()]
    runs = {step["run"] for job in jobs for step in job["steps"] if "run" in step}
    matrix = {row["make"] for job in jobs for row in job.get("strategy", {}).get("matrix", {}).get("include", ())}
    made = {re.sub(r" [A-Z]+=\w+$", "", line.removeprefix("make ")) for line in runs if line.startswith("make ")}
    assert made - {"${{ matrix.make }}"} | matrix <= targets
    assert len(made) > 2
    assert {line for line in runs if not line.startswith("make ")} == {"bash .ci/run"}
    assert (ROOT / ".ci" / "run").is_file()
