"""Commands with ``--device`` and ``--dtype``: on a GPU, or its stand-in, they write what they write on the host."""

import contextlib
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.named_configs import config_titles
from gp_ensembles.fleet import Fleet
from tests.cli.commands import LINEAR, summary_of
from tests.cli.conftest import CONFIG, make_rows, write_table

PLAIN = ["--progress", "false"]
QUIET = [*PLAIN, "--report", "false"]
# Moments by quadrature, whose nodes move with round-off.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

# Hyperparameters are fitted as far as a device's own round-off, and drawn along eigenvectors of either sign.
FITTED = {"rtol": 1e-2, "atol": 5e-2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = make_rows(130)
    write_table(tmp_path / "rows.csv", rows[:110])
    write_table(tmp_path / "more.csv", rows[110:])
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / "series.yaml").write_text(f"{LINEAR}warmup: 30\n")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, generator=generator, dtype=torch.float64)
    frame = pd.DataFrame({"meter": ["north", "7", "x, y"] * 50, "x": x.numpy(), "load": (5 + 3 * x).numpy()})
    frame["load"] += 0.1 * torch.randn(150, generator=generator, dtype=torch.float64).numpy()
    frame[:120].to_csv("meters.csv", index=False)
    frame[120:].to_csv("later.csv", index=False)
    return tmp_path


COMMANDS = {
    "stream and resume": [
        "stream rows.csv --target y --config small.yaml --warmup 60 --out OUT/a --report false",
        "resume more.csv --checkpoint OUT/a --out OUT/b --report false",
        "forecast --checkpoint OUT/b --horizon 2 --num_paths 5 --out OUT/f --pictures false",
    ],
    "series": [
        "stream meters.csv --target load --series meter --config series.yaml --out OUT/s",
        "resume later.csv --checkpoint OUT/s --out OUT/t",
    ],
    "compare": ["compare rows.csv --target y --configs small.yaml --warmup 60 --out OUT/c"],
}


def given(command, out):
    return [*command.replace("OUT", out).split(), *PLAIN]


@pytest.mark.parametrize("name", COMMANDS)
def test_files_are_those_of_the_host(name, folder, capsys, gpu):
    for device, where in (("cpu", contextlib.nullcontext()), ("cuda", gpu.here())):
        with where as graphs:
            for number, command in enumerate(COMMANDS[name]):
                where_to = ["--device", device] if number == 0 else []  # then where the run before was
                assert main([*given(command, device), *where_to]) == 0, capsys.readouterr().err
    tables = sorted(path.relative_to("cpu") for path in Path("cpu").rglob("*.csv"))
    assert tables
    for path in tables:
        found, expected = pd.read_csv("cuda" / path), pd.read_csv("cpu" / path)
        reported = [column for column in expected if "second" not in column]
        pd.testing.assert_frame_equal(found[reported], expected[reported], **(FITTED if gpu.round_off else CLOSE))
    summaries = [json.loads(path.read_text()) for path in Path("cuda").rglob("summary.json")]
    assert {reported["device"] for reported in summaries if "device" in reported} <= {gpu.name}
    assert any("device" in reported for reported in summaries) or name == "compare"
    assert name == "series" or sum(graph.num_replays for graph in graphs) > 3
    assert {reported["not_recorded"] for reported in summaries if "not_recorded" in reported} <= {None}


def test_a_run_says_once_why_nothing_was_recorded(folder, capsys, gpu):
    Path("window.yaml").write_text(CONFIG + "  rule: FixedShare\n  extra_experts: [{WindowGP: {num_rows: 30}}]\n")
    words = ["stream", "rows.csv", "--target", "y", "--config", "window.yaml", "--warmup", "60", "--out", "gpu"]
    with gpu.here() as graphs:
        assert main([*words, *QUIET, "--device", "cuda"]) == 0
    assert graphs == []
    predicted = "WindowExpert cannot be an expert of a graph"
    assert capsys.readouterr().out.count(f"no CUDA graph was recorded: {predicted}") == 1
    assert json.loads(Path("gpu/summary.json").read_text())["not_recorded"].startswith(predicted)


def test_series_of_a_gpu_go_on_on_the_host(folder, refused, gpu):
    with gpu.here():
        assert main([*given(COMMANDS["series"][0], "gpu"), "--device", "cuda", "--dtype", "float32"]) == 0
    assert Fleet.notes_in("gpu/s/fleet")["device"] == "cuda"
    again = given(COMMANDS["series"][1], "gpu")
    if not torch.cuda.is_available():
        refused(main(again), "torch finds no such GPU; use cpu (--device cpu)")
    assert main([*again, "--device", "cpu"]) == 0
    summary = json.loads(Path("gpu/t/summary.json").read_text())
    assert (summary["device"], summary["dtype"], summary["rows_read"]) == ("cpu", "float32", 150)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(folder, capsys):
    for commands in COMMANDS.values():
        assert main([*given(commands[0], "none"), "--device", "cuda"]) == 2
        reported = capsys.readouterr().err
        assert reported.count("\n") == 1
        assert "torch finds no such GPU; use cpu (--device cpu)" in reported


LABELS = {"counts": 5, "die_gp_classes": 2, "e_doebe_classes": 2, "ie_gp_classes": 2, "sie_gp_classes": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", config_titles())
def test_every_config_runs_in_single_precision(name, folder):
    """Scores beside those in double precision, on a table with noise."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(160, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0].sin() + X[:, 1] + 0.3 * torch.randn(160, generator=generator, dtype=torch.float64)
    if name in LABELS:
        y = ((y + 2).clamp(0, 3.99) / 4 * LABELS[name]).floor()
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv("noisy.csv", index=False)
    scores = []
    for dtype in ("float64", "float32"):
        words = ["stream", "noisy.csv", "--target", "y", "--config", name, "--warmup", "100", "--dtype", dtype]
        assert main([*words, "--out", dtype, *QUIET]) == 0
        summary = summary_of(Path(dtype))
        assert summary["dtype"] == dtype
        scores.append(summary["log_score"])
    assert scores[1] == pytest.approx(scores[0], abs=0.1)
