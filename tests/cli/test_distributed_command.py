"""``distributed``: the same bytes on one and on two processes that torchrun starts, cut short and gone on with."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gp_ensembles.cli import distributed_command
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.config import load_config
from gp_ensembles.streaming import OnlineModel

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """ensemble:
  like: oebe
  bases: [{FourierBasis: {num_features: 10}}, LinearBasis]
  random_walk_variances: [1.0e-3]
  fit_settings: {num_samples: 3}
warmup: 60
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=700), "z": rng.normal(size=700)})
    frame["load"] = 100 + 5 * np.sin(frame["x"]) + frame["z"] + 0.1 * rng.normal(size=700)
    frame.loc[5::17, "load"] = np.nan
    frame.to_csv("all.csv", index=False)
    return tmp_path


def words(table, out, *more):
    plain = ["distributed", table, "--target", "load", "--out", out, "--progress", "false", *more]
    return plain if "--resume" in more else [*plain, "--config", "small.yaml"]


def torchrun(num, *given):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num), "--standalone"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, "-m", "gp_ensembles", *given], env=environment, timeout=300, capture_output=True)


def test_it_says_what_stream_says(folder, capsys):
    assert main(words("all.csv", "run")) == 0
    assert "24 experts on 1 processes" in capsys.readouterr().out  # four starts, three draws, two speeds
    found, frame = pd.read_csv("run/predictions.csv"), pd.read_csv("all.csv")
    model = OnlineModel(load_config("small.yaml"))
    X, y = torch.tensor(frame[["x", "z"]].to_numpy()), torch.tensor(frame["load"].to_numpy())
    said = model.observe(X, y)
    lower, upper = said.interval()
    expected = {"mean": said.mean, "std": said.stddev, "lower": lower, "upper": upper, "log_prob": said.log_prob}
    for name, value in expected.items():
        torch.testing.assert_close(torch.tensor(found[name].to_numpy()), value, rtol=1e-7, atol=1e-7, equal_nan=True)
    assert found["row"].tolist() == list(range(61, 701))
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["rows"] == int(found["log_prob"].notna().sum())
    assert summary["log_score"] == pytest.approx(found["log_prob"].mean())
    assert summary["rmse"] == pytest.approx(((found["y"] - found["mean"]) ** 2).mean() ** 0.5)


@pytest.mark.processor
def test_a_run_that_stops_goes_on_to_the_same_bytes(folder, capsys):
    assert main(words("all.csv", "whole")) == 0
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "table.csv").write_text("".join([*rows[:600], "oops,1.0,2.0\n", *rows[601:]]))
    assert main(words("table.csv", "run", "--checkpoint_seconds", "0")) == 2
    assert "oops" in capsys.readouterr().err
    (folder / "table.csv").write_text("".join(rows))
    assert main(words("table.csv", "run", "--resume", "true")) == 0
    assert (folder / "run/predictions.csv").read_bytes() == (folder / "whole/predictions.csv").read_bytes()
    assert main(words("table.csv", "run", "--resume", "true")) == 2
    assert "has come to its end; leave --resume out" in capsys.readouterr().err
    assert main(words("table.csv", "nowhere", "--resume", "true")) == 2
    assert "holds no distributed model" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processor
def test_two_processes_of_torchrun_write_the_bytes_of_one(folder):
    assert main(words("all.csv", "one")) == 0
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "table.csv").write_text("".join([*rows[:600], "oops,1.0,2.0\n", *rows[601:]]))
    failed = torchrun(2, *words("table.csv", "two", "--checkpoint_seconds", "0"))
    assert failed.returncode != 0
    assert b"oops" in failed.stderr
    (folder / "table.csv").write_text("".join(rows))
    done = torchrun(2, *words("table.csv", "two", "--resume", "true"))
    assert done.returncode == 0, done.stderr.decode()
    assert b"on 2 processes" in done.stdout
    assert (folder / "one/predictions.csv").read_bytes() == (folder / "two/predictions.csv").read_bytes()


def test_experts_that_cannot_be_divided_are_refused_in_a_sentence(folder, capsys):
    (folder / "trees.yaml").write_text("ensemble: auto\nwarmup: 60\n")
    refused = ["distributed", "all.csv", "--target", "load", "--progress", "false", "--config", "trees.yaml"]
    assert main(refused) == 2
    assert "cannot lie on several processes yet" in capsys.readouterr().err


@pytest.mark.slow
def test_more_processes_than_pieces_of_experts_are_refused(folder):
    (folder / "few.yaml").write_text(CONFIG.replace("{FourierBasis: {num_features: 10}}, ", "").replace("3}", "1}"))
    done = torchrun(3, "distributed", "all.csv", "--target", "load", "--config", "few.yaml", "--progress", "false")
    assert done.returncode != 0
    assert b"3 processes for 2 pieces of experts; take fewer processes" in done.stderr
    assert not (folder / "out/distributed/predictions.csv").exists()


def test_a_partial_table_of_another_run_is_never_taken_for_this_ones(folder, capsys):
    assert main(words("all.csv", "run")) == 0
    before = (folder / "run/predictions.csv").read_bytes()
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "bad.csv").write_text("".join([*rows[:70], "oops,1.0,2.0\n", *rows[71:]]))
    assert main(words("bad.csv", "run")) == 2
    capsys.readouterr()
    assert main(words("all.csv", "run", "--resume", "true")) == 2
    assert "has come to its end" in capsys.readouterr().err
    assert (folder / "run/predictions.csv").read_bytes() == before


def test_a_table_shorter_than_what_was_read_is_refused(folder, capsys):
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "bad.csv").write_text("".join([*rows[:600], "oops,1.0,2.0\n", *rows[601:]]))
    assert main(words("bad.csv", "run", "--checkpoint_seconds", "0")) == 2
    (folder / "few.csv").write_text("".join(rows[:100]))
    capsys.readouterr()
    assert main(words("few.csv", "run", "--resume", "true")) == 2
    assert "few has fewer rows than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--series", "x"], "distributed takes tables of one series; stream takes --series"),
        (["--classes", "0,1"], "distributed predicts numbers; stream takes --classes"),
        (["--explain", "true"], "stream --explain"),
        (["--timeout", "0"], "--timeout is a positive number of seconds, got 0"),
    ],
)
def test_options_that_it_cannot_have_are_refused(more, message, folder, capsys):
    assert main(words("all.csv", "run", *more)) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_the_group_has_the_timeout_that_was_given(folder, monkeypatch, capsys):
    def begin(backend, timeout):
        raise ValueError(f"{backend} for {timeout:g} s")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed_command, "begin_group", begin)
    assert main(words("all.csv", "run")) == 2
    assert "gloo for 300 s" in capsys.readouterr().err
    assert main(words("all.csv", "run", "--timeout", "20")) == 2
    assert "gloo for 20 s" in capsys.readouterr().err


def started(rank, port, *given):
    """One of two processes, as torchrun would start it."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    own |= {"MASTER_PORT": str(port), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gp_ensembles", *given]
    return subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_alone_gives_up_in_time(rank, folder):
    """The other one never comes; four seconds, and what it takes to begin on a busy machine."""
    start = time.monotonic()
    alone = started(rank, free_port(), *words("all.csv", "run", "--timeout", "4"))
    said = alone.communicate(timeout=60)[1].decode()
    assert alone.returncode == 1
    assert f"rank {rank} of 2 did not meet the others within 4 s" in said
    assert time.monotonic() - start < 30
    assert not (folder / "run/predictions.csv").exists()


@pytest.mark.parametrize("fails", ["before they meet", "after it"])
def test_where_the_first_process_fails_alone_the_other_one_ends(fails, folder):
    port, start = free_port(), time.monotonic()
    if fails == "before they meet":
        (folder / "file").write_text("")
        first = started(0, port, *words("all.csv", "file", "--timeout", "5"))
    else:
        (folder / "run").mkdir()
        (folder / "run/model").write_text("a file where the states go")
        first = started(0, port, *words("all.csv", "run", "--timeout", "5"))
    second = started(1, port, *words("all.csv", "elsewhere", "--timeout", "5"))
    errors = [one.communicate(timeout=100)[1].decode() for one in (first, second)]
    assert first.returncode == 2
    assert second.returncode == 1
    assert "RankLostError" in errors[1]
    assert time.monotonic() - start < 60
    assert not (folder / "run/predictions.csv").exists()


def test_a_run_without_a_checkpoint_is_not_gone_on_with(folder, capsys):
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "bad.csv").write_text("".join([*rows[:70], "oops,1.0,2.0\n", *rows[71:]]))
    assert main(words("bad.csv", "run")) == 2
    capsys.readouterr()
    assert main(words("all.csv", "run", "--resume", "true")) == 2
    said = capsys.readouterr().err
    assert "the run in run ended before its first checkpoint, and nothing of it is left to go on from" in said
    assert "leave --resume out to begin anew" in said
    assert main(words("all.csv", "run")) == 0
