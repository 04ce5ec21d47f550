"""Commands killed at their operations on files, on full disks, without power, at random: what is left can be used."""

import json
import os
import re
import subprocess
import sys

import pytest

from attacks.faults import KILLED, PowerCut
from gp_ensembles.files.operations import OpenFile, fsync_folder, rename, watched
from gp_ensembles.files.replacing import write_text

ALL = re.compile(r"(\d+) of (\1)$")  # cells of the tables: survived of tried


def attack(tmp_path, *options):
    """What ``python -m attacks kills`` tells, in a process of its own, which forks: how many were tried by command.

    Returns ``{command: {fault: tried}}`` and ``{kind of operation: tried}``; whatever did not survive fails the test.
    """
    path = tmp_path / "kills.json"
    call = [sys.executable, "-W", "ignore", "-m", "attacks", "kills", "--out", str(path), *options]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert path.exists(), done.stderr
    reported = json.loads(path.read_text())
    assert done.returncode == 0, reported["tables"][-1]
    assert reported["survived"] == reported["tried"]
    tables = {table["title"]: table for table in reported["tables"]}
    by_command = tables.pop("Survived of tried, by command")
    by_operation = tables.pop("By the operation at which the fault was", {"rows": []})
    assert not tables, "something has fallen"
    tried = {
        job: {fault: number(cell) for fault, cell in zip(by_command["columns"][1:], cells, strict=True) if cell != "-"}
        for job, *cells in by_command["rows"]
    }
    assert sum(sum(faults.values()) for faults in tried.values()) == reported["tried"]
    return tried, {kind: number(cell) for kind, cell in by_operation["rows"]}


def number(cell):
    """How many were tried, of a cell that says that all survived."""
    match = ALL.match(cell)
    assert match, cell
    return int(match[1])


def test_a_stream_survives_a_sample_of_kills_and_power_cuts(tmp_path):
    faults = ["--jobs", "resume in place", "--faults", "kill", "cut", "--every", "59", "--offset", "2", "--runs", "0"]
    tried, _ = attack(tmp_path, *faults)
    assert tried.keys() == {"resume in place"}
    assert tried["resume in place"].keys() == {"kill", "cut"}


EVERYTHING = {"stream", "stream over results", "stream with a report", "resume in place", "resume elsewhere"} | {
    *("compare", "forecast", "lines", "study")
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.broad)])
def test_every_command_survives_a_kill_at_its_operations(every, tmp_path):
    tried, operations = attack(tmp_path, "--faults", "kill", "--every", str(every), "--runs", "0")
    assert tried.keys() == EVERYTHING
    assert sum(faults["kill"] for faults in tried.values()) == sum(operations.values()) > 500 / every
    assert every > 1 or {"open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"} <= operations.keys()


@pytest.mark.slow
@pytest.mark.parametrize("every", [50, pytest.param(5, marks=pytest.mark.broad)])
def test_every_command_survives_torn_writes_full_disks_and_power_cuts(every, tmp_path):
    tried, _ = attack(tmp_path, "--faults", "torn", "full", "cut", "names", "--every", str(every), "--runs", "0")
    assert tried.keys() == EVERYTHING
    assert all(min(faults[fault] for fault in ("full", "cut", "names")) > 25 // every for faults in tried.values())


@pytest.mark.slow
@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.broad)])
def test_every_command_survives_kills_at_random_moments(runs, tmp_path):
    tried, _ = attack(tmp_path, "--every", "0", "--runs", str(runs))
    assert runs < 200 or tried.keys() == EVERYTHING
    assert sum(faults["random"] for faults in tried.values()) == runs


# The attack's own oracle of power cuts, on writers of known merit.


def careless(path):
    """No fsync of the content."""
    partial = path.with_name("partial")
    with OpenFile(partial) as file:
        file.write(b"new")
    rename(partial, path)
    fsync_folder(path.parent)


def forgetful(path):
    """No fsync of the folder."""
    partial = path.with_name("partial")
    with OpenFile(partial) as file:
        file.write(b"new")
        file.fsync()
    rename(partial, path)


def careful(path):
    write_text(path, "new")


@pytest.mark.parametrize(
    ("write", "keeps_names", "found"),
    [
        *((careless, False, b""), (careless, True, b"")),
        *((forgetful, False, b"old"), (forgetful, True, b"new")),
        *((careful, False, b"new"), (careful, True, b"new")),
    ],
)
def test_a_power_cut_shows_what_was_not_synced(tmp_path, monkeypatch, write, keeps_names, found):
    """A file is replaced, and the power fails right after that."""
    root = tmp_path / "disk"
    root.mkdir()
    (root / "file").write_bytes(b"old")
    seen = []

    def leave(code):
        seen.append(code)
        raise SystemExit

    with watched(lambda operation: seen.append(operation.kind)):
        write(root / "file")
    (root / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "_exit", leave)
    cut = PowerCut(len(seen), root, keeps_names)
    with watched(cut):
        write(root / "file")
        with pytest.raises(SystemExit):
            fsync_folder(tmp_path)  # the operation that is not reached
    assert seen[-1] == KILLED
    assert (root / "file").read_bytes() == found
