"""Folders of results between two states: what the next command says and does."""

import errno
import os
import shutil

import pytest

from gp_ensembles.files.operations import watched
from gp_ensembles.files.replacing import JOURNAL
from tests.cli.commands import LINEAR, resume, run, tables_of
from tests.cli.commands import stream as stream_with


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
    (place / "small.yaml").write_text(LINEAR)
    assert stream(place, "good") == 0
    assert stream(place, "other", data="less.csv") == 0
    return place


def earlier(place, out):
    """A folder with the results of another run."""
    shutil.rmtree(place / out, ignore_errors=True)
    shutil.copytree(place / "other", place / out)


def stream(place, out, data="data.csv", **options):
    return stream_with(place, data, out, warmup=40, report=True, **options)


def test_results_that_were_about_to_be_moved_are_there_after_resume(place, capsys, refused):
    earlier(place, "out")
    with watched(stop_after_the_journal), pytest.raises(Stopped):
        stream(place, "out")
    assert (place / "out" / JOURNAL).exists()
    assert (place / "out" / "predictions.csv").exists()
    capsys.readouterr()
    assert resume(place, "data.csv", "out", "--skip-seen", report=True) == 0
    assert "the 80 rows of data were already learned; their results are now in" in capsys.readouterr().out
    assert tables_of(place / "out") == tables_of(place / "good")
    assert sorted(os.listdir(place / "out")) == sorted(os.listdir(place / "good"))
    refused(resume(place, "data.csv", "out", "--skip-seen", report=True), "there is nothing to add")


@pytest.mark.parametrize("after", ["compare", "stream", "forecast"])
def test_whatever_command_comes_next_moves_them(place, after):
    shutil.rmtree(place / "out", ignore_errors=True)
    with watched(stop_after_the_journal), pytest.raises(Stopped):
        stream(place, "out")
    before = tables_of(place / "good")
    if after == "compare":
        words = ("compare", place / "data.csv", "--configs", place / "small.yaml")
        assert run(*words, target="y", warmup=40, out=place / "out") == 0
    elif after == "forecast":
        assert run("forecast", checkpoint=place / "good", horizon=2, out=place / "out") == 0
    else:
        assert stream(place, "out") == 0
    assert tables_of(place / "out") == before
    assert not (place / "out" / JOURNAL).exists()


def test_a_report_for_which_there_is_no_room_costs_no_numbers(place, capsys):
    earlier(place, "out")
    capsys.readouterr()
    with watched(full("report.html")):
        assert stream(place, "out") == 0
    reported = capsys.readouterr().err
    assert "report.html: No space left on device" in reported
    assert "all results are in the folder" in reported
    assert tables_of(place / "out") == tables_of(place / "good")
    assert not (place / "out" / "report.html").exists()  # the earlier run's showed other numbers
