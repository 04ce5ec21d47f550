"""The line of a suite: counts with their versions, and none of versions that are absent."""

import json
import platform
from types import SimpleNamespace

import pytest
import torch

from attacks import bounds

JUNIT = """<?xml version="1.0"?><testsuites name="pytest tests">
<testsuite name="pytest" errors="{errors}" failures="{failures}" skipped="3" tests="20" time="7.0"/></testsuites>"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Run the attack on a file of counts; the code it ends with, and its records."""
    monkeypatch.chdir(tmp_path)

    def attack(versions, failures=0, errors=0):
        (tmp_path / "junit.xml").write_text(JUNIT.format(failures=failures, errors=errors))
        code = bounds.main([versions, "--junit", "junit.xml", "--out", "bounds.json"])
        return code, json.loads((tmp_path / "bounds.json").read_text()) if code < 2 else None

    return attack


def test_a_suite_becomes_a_line_and_the_next_one_takes_its_place(suite, capsys):
    code, content = suite("newest", failures=2, errors=1)
    assert code == 1
    assert [content["records"][0][name] for name in bounds.COUNTS] == [14, 3, 3]
    code, content = suite("newest")
    (record,) = content["records"]
    assert (code, record["passed"], record["failed"], record["skipped"]) == (0, 17, 0, 3)
    assert record["torch"] == torch.__version__.partition("+")[0]
    (table,) = content["tables"]
    assert table["columns"][:3] == ["versions", "python", "torch"]
    assert table["rows"] == [list(record.values())]
    assert table["rows"][0][:2] == ["newest", platform.python_version()]


def test_versions_that_are_not_those_of_the_set_are_refused(suite, tmp_path, capsys):
    (tmp_path / "constraints-lowest.txt").write_text("# the lowest\ntorch==0.4.1\n")
    assert suite("lowest")[0] == 2
    assert f"torch is {torch.__version__.partition('+')[0]}, not 0.4.1" in capsys.readouterr().err
    assert not (tmp_path / "bounds.json").exists()
    (tmp_path / "constraints-lowest.txt").write_text("# the lowest\nno-such-distribution==1.0\n")
    assert suite("lowest")[0] == 0


def test_each_set_keeps_a_line_for_each_python():
    def record(versions, python, passed=0):
        return {"versions": versions, "python": python, "passed": passed}

    ordered = [("lowest", "3"), ("pinned", "3.11.7"), ("pinned", "3.12.1"), ("newest", "3.13.0")]
    records = []
    for one in reversed(ordered):
        records = bounds.merged(records, record(*one))
    assert [(one["versions"], one["python"]) for one in records] == ordered
    assert [one["passed"] for one in bounds.merged(records, record("pinned", "3.12.1", 7))] == [0, 0, 7, 0]


def test_a_suite_that_does_not_run_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(bounds.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=5))
    with pytest.raises(RuntimeError, match="pytest ended with 5"):
        bounds.run(tmp_path / "junit.xml")


@pytest.mark.slow
def test_the_suite_is_run_where_no_counts_are_given(monkeypatch, tmp_path):
    """On a suite of two tests, one of which fails."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_two.py").write_text("def test_one():\n    pass\n\ndef test_other():\n    raise OSError\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    bounds.run(tmp_path / "junit.xml")
    assert bounds.count(tmp_path / "junit.xml") == {"passed": 1, "failed": 1, "skipped": 0}
