"""The freeze: a file of numbers, and what differs between two of them."""

import math

import numpy as np
import pytest

from benchmarks.freeze import __main__ as freeze
from benchmarks.freeze.streams import SETS, stream_entries
from benchmarks.freeze.tools import study_entries, tool_entries
from studies.registry import PAPERS


def written(path, **arrays):
    np.savez(path, **{name.replace("__", ":"): np.asarray(value) for name, value in arrays.items()})
    return str(path)


def test_equal_files_are_equal_nan_and_infinities_included(tmp_path, capsys):
    arrays = {"a__mean": [1.0, math.nan, -math.inf], "a__labels": ["pump"]}
    files = [written(tmp_path / f"{name}.npz", **arrays) for name in ("old", "new")]
    assert freeze.main(["compare", *files]) == 0
    assert capsys.readouterr().out == "equal\n"


@pytest.mark.parametrize(
    ("new", "predicted"),
    [
        ([1.0, 2.0 + 1e-6], "differs in 1 of 2 numbers, by 1e-06, relatively 5e-07, at [1]"),
        ([1.0, math.nan], "relatively inf"),
        ([1.0, 2.0, 3.0], "has shape (2,) in OLD, (3,) in NEW"),
    ],
)
def test_a_difference_is_noticed(tmp_path, capsys, new, predicted):
    files = [written(tmp_path / "old.npz", a__mean=[1.0, 2.0]), written(tmp_path / "new.npz", a__mean=new)]
    assert freeze.main(["compare", *files]) == 1
    assert predicted in capsys.readouterr().out


def test_missing_entries_are_named_once_and_errors_are_not_numbers(tmp_path, capsys):
    one, error = np.array(1.0), np.array("ValueError: no")
    old = {"a:mean": one, "b:mean": one, "b:stddev": one, "c:mean": one, "d:error": error}
    new = {"a:mean": one, "a:log_prob": one, "c:error": error, "d:error": np.array("ValueError: other words")}
    found = freeze.compare(old, new)
    missing = ("b is missing from NEW", "c:mean is missing from NEW")
    assert found.differences == [*missing, "a:log_prob is missing from OLD", "c:error is missing from OLD"]
    assert found.remarks == ["d:error reads otherwise"]
    assert freeze.compare(old, new, only=["d"]).differences == []


def test_every_set_and_every_study_is_there():
    names = {*stream_entries(), *tool_entries()}
    assert len(SETS) >= 10
    for way in ("blocks", "rows", "ahead", "saved"):
        assert {f"stream/{name}/{preset}/{way}" for name in SETS for preset in ("auto", "light")} <= names
    assert {name.split("/")[0] for name in names} == {"stream", "many", "estimators", "papers", "botorch"}
    every, short = (set(study_entries(which, None)) for which in ("all", "short"))
    assert len(every) == sum(len(paper.experiments) for paper in PAPERS.values())
    assert short
    assert short <= every


def test_an_entry_is_written_and_equals_itself_but_not_another(tmp_path, capsys):
    files = [str(tmp_path / f"{name}.npz") for name in ("old", "new")]
    for file in files:
        assert freeze.main(["write", file, "--only", "botorch/thompson"]) == 0
    assert freeze.main(["compare", *files]) == 0
    with np.load(files[0]) as file:
        arrays = dict(file)
    name = "botorch/thompson:suggested"
    np.savez(files[1], **{**arrays, name: arrays[name] + 1e-6})
    assert freeze.main(["compare", *files]) == 1
    assert f"{name} differs in 4 of 4 numbers" in capsys.readouterr().out
