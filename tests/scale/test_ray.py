"""Fleets on a Ray cluster of two machines, which are processes here; all that it does in one process of its own."""

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from gp_ensembles import Fleet
from gp_ensembles.scale.ray_fleet import RayFleet, divide_fleet, shard_of

ROOT = Path(__file__).resolve().parents[2]


def on_a_cluster(test):
    """Mark a test of a cluster, which takes minutes to start."""
    return pytest.mark.slow(pytest.mark.broad(test))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What became of each job of the worker: of one cluster, whichever processes of pytest run these tests."""
    pytest.importorskip("ray", reason="Ray is an optional extra")
    whole = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        whole = whole.parent  # that of all of them
    folder = whole / "ray"
    with FileLock(whole / "ray.lock"):
        if not folder.exists():
            folder.mkdir()
            command = [sys.executable, "-m", "tests.scale.ray_worker", "--folder", str(folder)]
            subprocess.run(command, cwd=ROOT, timeout=900, check=False)  # what was not done says so below

    def of(name: str):
        assert (folder / f"{name}.pickle").exists(), "the cluster ended before this job did"
        what = pickle.loads((folder / f"{name}.pickle").read_bytes())
        assert not isinstance(what, str), what
        return what

    return of


def same(left, right) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in pairs)


@on_a_cluster
def test_shards_say_what_their_fleets_say(found):
    predicted, expected = found("steady")
    for one, other in zip(predicted, expected, strict=True):
        assert same(one, other)
        assert bool(one[0].isfinite().all())


@on_a_cluster
def test_an_actor_and_a_machine_that_are_lost_are_not_missed(found):
    quiet, disturbed, again, expected = found("lost")
    assert same(quiet, disturbed)
    assert same(again, expected)  # from the folder, by another driver


@on_a_cluster
def test_refused_rows_teach_no_shard_anything(found):
    messages, predicted, expected = found("refused")
    assert "series 'series 1': the target of row 7 is infinite" in messages[0]
    assert "KeyError" in messages[1]
    assert "nobody" in messages[1]
    assert same(predicted, expected)


@on_a_cluster
def test_series_leave_come_and_go_out_and_a_lost_actor_knows(found):
    messages, predicted, mean = found("verbs")
    assert ["KeyError" in messages[0], "ValueError" in messages[1]] == [True, True]
    assert "'series 0'" in messages[0]  # series 2 stays, which is asked below
    assert "'copy' are in the fleet already" in messages[1]
    assert same([predicted[0]], [mean])


@on_a_cluster
def test_fits_in_tasks_give_the_numbers_of_a_fit_in_one_process(found):
    ((names, predicted), (alone, expected)), means, message, is_there = found("fits")
    assert names == alone
    assert sum(len(prepared) for prepared, _ in names) == 6
    assert {name: num for _, waiting in names for name, num in waiting.items()} == {"only one row": 1}
    for one, other in zip(predicted, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(*means, rtol=1e-9, atol=1e-9)
    assert "are constant" in message
    assert not is_there


@on_a_cluster
def test_a_task_that_is_killed_in_a_fit_is_run_again_and_one_that_always_is_leaves_nothing(found):
    disturbed, quiet, num_killed, message, left = found("killed")
    assert num_killed == [1, 0, 4]  # Ray runs a task again three times
    for one, other in zip(disturbed, quiet, strict=True):
        assert same(one, other)
        assert bool(one[0].isfinite().all())
    assert message.startswith("ShardLostError: the fit of a shard failed repeatedly")
    assert left == []


@on_a_cluster
def test_data_sets_and_sweeps_give_the_numbers_of_one_process(found):
    done, means, names, scores, alone = found("tasks")
    assert [row["who"] for row in done] == names
    torch.testing.assert_close(torch.tensor([row["mean"] for row in done], dtype=torch.float64), torch.cat(means))
    assert scores == alone
    assert [(one.config, one.seed) for one in scores] == [("short", 0), ("short", 1), ("long", 0), ("long", 1)]


def small() -> Fleet:
    X = torch.linspace(0, 9, 120, dtype=torch.float64).unsqueeze(-1)
    fleet = Fleet(warmup=20)
    fleet.fit(["a", "b", "c", "d"] * 30, X, X.squeeze(-1).sin())
    return fleet


def test_a_fleet_is_divided_into_fleets(tmp_path):
    fleet = small()
    names = ["a", "b", "new"]
    X = torch.ones(3, 1, dtype=torch.float64)
    fleet.observe(names, X, X.squeeze(-1))
    divide_fleet(fleet, tmp_path / "fleet", 3)
    parts = [Fleet.load(tmp_path / "fleet" / f"0-{number}") for number in range(3)]
    assert sorted(name for part in parts for name in part.names) == ["a", "b", "c", "d"]
    assert [name for part in parts for name in part.waiting] == ["new"]
    for number, part in enumerate(parts):
        assert all(shard_of(name, 3) == number for name in (*part.names, *part.waiting))
        for name in part.names:
            assert torch.equal(part.predict([name], X[:1]).mean, fleet.predict([name], X[:1]).mean)
    with pytest.raises(ValueError, match="is not empty; give a new folder"):
        divide_fleet(fleet, tmp_path / "fleet", 2)
    with pytest.raises(ValueError, match="num_shards must be positive"):
        divide_fleet(fleet, tmp_path / "other", 0)
    for refused in (divide_fleet, partial(RayFleet.fit, names=["a"], X=X[:1], y=X[:1, 0])):
        with pytest.raises(TypeError, match=r"fleet must be an object such as Fleet\(warmup=200\), got 'light'"):
            refused("light", folder=tmp_path / "other", num_shards=2)


def test_without_ray_or_a_fleet_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"install gp_ensembles\[ray\]"):
        RayFleet(tmp_path)
    monkeypatch.undo()
    pytest.importorskip("ray", reason="Ray is an optional extra")
    with pytest.raises(FileNotFoundError, match="contains no divided fleet"):
        RayFleet(tmp_path)
