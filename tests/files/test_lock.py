"""One owner of a folder: others are refused with its name, those that are no more are followed."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from gp_ensembles.cli.__main__ import main
from gp_ensembles.files.lock import LOCK, FolderInUseError, Owner, owned

HOLD = "import sys, time\nfrom pathlib import Path\nfrom gp_ensembles.files.lock import owned\n" + (
    "with owned(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
)


@pytest.fixture
def holder(tmp_path):
    """A process that owns a folder."""
    folder = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield folder, process
        process.kill()


@pytest.fixture
def gone():
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def sign(folder, **changes):
    """Leave a lock file as another process would."""
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(json.dumps(Owner.here()._replace(**changes)) + "\n")


def take(folder):
    with owned(folder):
        return json.loads((folder / LOCK).read_text())[0]


def test_a_folder_has_one_owner_whom_others_are_told_of(holder):
    folder, process = holder
    words = f"process {process.pid} on {re.escape(socket.gethostname())}, since 20"
    with pytest.raises(FolderInUseError, match=words):
        take(folder)
    assert json.loads((folder / LOCK).read_text())[0] == process.pid  # it is not disturbed
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / LOCK).exists()
    assert take(folder) == os.getpid()
    assert not (folder / LOCK).exists()


def test_within_a_process_there_is_one_owner_too_and_an_error_frees_the_folder(tmp_path):
    with owned(tmp_path), pytest.raises(FolderInUseError, match=f"process {os.getpid()}"):
        take(tmp_path)
    assert take(tmp_path) == os.getpid()
    with pytest.raises(KeyboardInterrupt), owned(tmp_path):
        raise KeyboardInterrupt
    assert take(tmp_path) == os.getpid()


def test_locks_that_were_never_signed_or_are_stale_are_taken_over(tmp_path, gone):
    for text in ("", "half of a", "[]", '["x", 1]', "3", '{"a": 1}'):
        (tmp_path / LOCK).write_text(text)
        assert take(tmp_path) == os.getpid()
    for changes in ({"pid": gone}, {"pid": os.getpid()}, {"boot": "before the last start"}, {"host": "renamed"}):
        sign(tmp_path, **changes)
        assert take(tmp_path) == os.getpid()


def test_a_lock_of_another_machine_is_refused_with_what_to_do(tmp_path):
    sign(tmp_path, host="far.example.org", boot="another")
    before = (tmp_path / LOCK).read_text()
    with pytest.raises(FolderInUseError) as caught:
        take(tmp_path)
    assert re.search(f"on far.example.org.*if it does not, remove {tmp_path / LOCK}", str(caught.value))
    assert (tmp_path / LOCK).read_text() == before
    (tmp_path / LOCK).unlink()
    assert take(tmp_path) == os.getpid()


def test_without_locks_of_the_kernel_the_file_is_the_lock(monkeypatch, tmp_path):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    warned = pytest.warns(UserWarning, match="flock not supported")
    with warned, owned(tmp_path), pytest.raises(FolderInUseError, match="another process"):
        take(tmp_path)
    assert os.listdir(tmp_path) == []


def test_partial_files_of_processes_that_are_no_more_are_removed(holder, gone, tmp_path):
    place = tmp_path / "other"
    place.mkdir()
    names = [f".a.csv.{gone}.partial", f".a.csv.{holder[1].pid}.partial", ".a.csv.note.partial", "a.csv.partial"]
    for name in names:
        (place / name).write_text("half")
    take(place)
    assert sorted(os.listdir(place)) == sorted(names[1:])


def test_commands_refuse_a_folder_that_another_run_writes_into(holder, capsys):
    folder, process = holder
    place = folder.parent
    (place / "data.csv").write_text("a,y\n" + "".join(f"{k % 7},{k % 5}\n" for k in range(60)))
    (place / "c.yaml").write_text("ensemble: {like: oebe, bases: [LinearBasis]}\nwarmup: 20")
    (folder / "predictions.csv").write_text("results of before")
    before, table = sorted(os.listdir(folder)), str(place / "data.csv")
    stream = ["stream", table, "--target", "y", "--config", str(place / "c.yaml"), "--out", str(folder)]
    checkpoint = ["--checkpoint", str(folder / "checkpoint.pt")]
    for given in (
        stream,
        ["resume", table, *checkpoint],
        ["compare", table, "--target", "y", "--configs", str(place / "c.yaml")],
        ["forecast", *checkpoint, "--horizon", "2"],
        ["demo"],
        ["stream", "-", "--target", "y", "--format", "jsonl"],
    ):
        assert main([*given, "--out", str(folder)]) == 2
        reported = capsys.readouterr().err
        assert f"process {process.pid} on {socket.gethostname()}" in reported
        assert "choose another" in reported
        assert sorted(os.listdir(folder)) == before
    assert main([*stream, "--explain", "true"]) == 0  # which writes nothing
    process.kill()
    process.wait()
    assert main([*stream, "--report", "false"]) == 0
    assert sorted(os.listdir(folder)) == ["checkpoint.pt", "predictions.csv", "summary.json", "weights.csv"]


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert main(["stream", str(tmp_path / "no.csv"), "--target", "y", "--out", str(out)]) == 2
    assert "no.csv" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
