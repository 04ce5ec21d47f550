"""Folders of results between two states: what the next command says and does."""

import errno
import os
import shutil

import pytest

from gp_ensembles.cli.__main__ import main
from gp_ensembles.files.operations import watched
from gp_ensembles.files.transaction import JOURNAL

QUICK = ["--progress", "false", "--pictures", "false"]
FIT = "fit_settings: {method: {LBFGS: {max_iterations: 5}}, num_samples: 1}"


class Stopped(BaseException):
    """The process ends."""


def stop_after_the_journal(operation):
    """Nothing is moved once the tables may be."""
    place = operation.path.parent
    if operation.kind == "rename" and operation.path.name == "predictions.csv" and (place / JOURNAL).exists():
        raise Stopped


def full(name):
    """A disk on which one file does not find room."""

    def refuse(operation):
        if operation.kind == "write" and name in operation.path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return refuse


@pytest.fixture(scope="module")
def place(tmp_path_factory, small):
    """A table, a config, and the results of a run and of one over fewer rows."""
    place = tmp_path_factory.mktemp("interrupted")
    small.write(place / "data.csv", small.rows(80))
    small.write(place / "less.csv", small.rows(70))
    (place / "c.yaml").write_text(f"ensemble: {{like: oebe, bases: [LinearBasis], {FIT}}}\nwarmup: 40")
    assert stream(place, "good") == 0
    assert stream(place, "other", data="less.csv") == 0
    return place


def earlier(place, out):
    """A folder with the results of another run."""
    shutil.rmtree(place / out, ignore_errors=True)
    shutil.copytree(place / "other", place / out)


def stream(place, out, *options, data="data.csv"):
    given = ["stream", str(place / data), "--target", "y", "--config", str(place / "c.yaml"), *QUICK]
    return main([*given, "--out", str(place / out), *options])


def resume(place, out):
    given = ["resume", str(place / "data.csv"), "--checkpoint", str(place / out / "checkpoint.pt"), "--skip-seen"]
    return main([*given, *QUICK, "--out", str(place / out)])


def tables(place, out):
    return [(place / out / name).read_bytes() for name in ("predictions.csv", "weights.csv")]


def test_results_that_were_about_to_be_moved_are_there_after_resume(place, capsys):
    earlier(place, "out")
    with watched(stop_after_the_journal), pytest.raises(Stopped):
        stream(place, "out")
    assert (place / "out" / JOURNAL).exists()
    assert (place / "out" / "predictions.csv").exists()
    capsys.readouterr()
    assert resume(place, "out") == 0
    assert "the 80 rows of data were learned before; their results are now in" in capsys.readouterr().out
    assert tables(place, "out") == tables(place, "good")
    assert sorted(os.listdir(place / "out")) == sorted(os.listdir(place / "good"))
    assert resume(place, "out") == 2
    assert "there is nothing to add" in capsys.readouterr().err


@pytest.mark.parametrize("after", ["compare", "stream", "forecast"])
def test_whatever_command_comes_next_moves_them(place, after):
    shutil.rmtree(place / "out", ignore_errors=True)
    with watched(stop_after_the_journal), pytest.raises(Stopped):
        stream(place, "out")
    before = tables(place, "good")
    if after == "compare":
        given = ["compare", str(place / "data.csv"), "--target", "y", "--configs", str(place / "c.yaml")]
        assert main([*given, "--out", str(place / "out"), "--progress", "false"]) == 0
    elif after == "forecast":
        given = ["forecast", "--checkpoint", str(place / "good"), "--horizon", "2", "--pictures", "false"]
        assert main([*given, "--out", str(place / "out")]) == 0
    else:
        assert stream(place, "out") == 0
    assert tables(place, "out") == before
    assert not (place / "out" / JOURNAL).exists()


def test_a_report_for_which_there_is_no_room_costs_no_numbers(place, capsys):
    earlier(place, "out")
    capsys.readouterr()
    with watched(full("report.html")):
        assert stream(place, "out") == 0
    reported = capsys.readouterr().err
    assert "report.html: No space left on device" in reported
    assert "all results are in the folder" in reported
    assert tables(place, "out") == tables(place, "good")
    assert not (place / "out" / "report.html").exists()  # the earlier run's showed other numbers


@pytest.mark.parametrize("name", ["predictions.csv.partial", "weights.csv.partial"])
def test_rows_for_which_there_is_no_room_are_in_no_checkpoint(place, capsys, name):
    shutil.rmtree(place / "out", ignore_errors=True)
    with watched(full(name)):
        assert stream(place, "nothing") == 2  # there is no room for the first line
    assert not (place / "nothing").exists()
    seen = []

    def later(operation):
        if operation.kind == "write" and operation.path.name == name:  # a chunk: headers go to a partial file
            seen.append(operation)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    capsys.readouterr()
    with watched(later):
        assert stream(place, "out", "--checkpoint_seconds", "0") == 2
    reported = capsys.readouterr().err
    assert reported.count("error:") == 1
    assert f"{name}: No space left on device; make room" in reported
    assert len(seen) == 1
    assert resume(place, "out") == 0
    assert tables(place, "out") == tables(place, "good")
