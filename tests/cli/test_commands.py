"""Commands end to end: consistent files, causality, missing targets, resumption, kills."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats

from gp_ensembles.cli import commands, scored_stream
from gp_ensembles.cli.running import normalized_arguments
from gp_ensembles.data.synthetic import write_messy_load
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.metrics import nmse
from gp_ensembles.streaming import StreamConfig
from tests.cli.commands import FIT, LINEAR, resume, run, stream, summary_of, tables_of

WARMUP, ROWS = 100, 320


@pytest.fixture(autouse=True, scope="module")
def _short_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scored_stream, "CHUNK_ROWS", 64)
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, small):
    """A folder with the table, the config and the results of one uninterrupted stream."""
    folder = tmp_path_factory.mktemp("stream")
    (folder / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(folder / "data.csv", small.rows(ROWS))
    assert stream(folder, "data.csv", "full", warmup=WARMUP, report=True) == 0
    return folder


def column(rows, name):
    return torch.tensor([float(row[name]) if row[name] else math.nan for row in rows], dtype=torch.float64)


def test_the_summary_agrees_with_the_predictions(workplace, small):
    rows = small.read(workplace / "full" / "predictions.csv")
    summary = summary_of(workplace / "full")
    assert list(rows[0]) == ["row", "mean", "std", "q05", "q95", "log_prob", "y"]
    assert [int(row["row"]) for row in rows] == list(range(WARMUP + 1, ROWS + 1))
    y, mean = column(rows, "y"), column(rows, "mean")
    assert float(nmse(mean, y)) == pytest.approx(summary["nmse"], rel=1e-9)
    assert float(column(rows, "log_prob").mean()) == pytest.approx(summary["log_score"], rel=1e-9)
    inside = (column(rows, "q05") <= y) & (y <= column(rows, "q95"))
    assert float(inside.double().mean()) == pytest.approx(summary["coverage_90"], abs=1e-12)
    spread = column(rows, "std")
    gaussian = -0.5 * ((y - mean) / spread).square() - spread.log() - 0.5 * math.log(2 * math.pi)
    assert float(gaussian.mean()) == pytest.approx(summary["log_score_gaussian"], rel=1e-9)
    shift = summary["log_score_standardized"] - summary["log_score"]
    assert shift == pytest.approx(math.log(summary["target_scale"]))


def test_simple_baselines_are_what_they_say(workplace, small):
    y = torch.tensor([float(row[2]) for row in small.rows(ROWS)], dtype=torch.float64)
    warm, rest = y[:WARMUP], y[WARMUP:]
    found = summary_of(workplace / "full")["baselines"]
    previous = followed(y[WARMUP - 1 : -1], float(warm.diff().square().mean()), rest)
    assert found["previous value"]["log_score"] == pytest.approx(previous)
    mean = followed(warm.mean().expand(rest.shape), float(warm.var(correction=0)), rest)
    assert found["warm-up mean"]["log_score"] == pytest.approx(mean)


def followed(location, squared_scale, y):
    """Mean log density of Student-t bands of four degrees of freedom whose scale follows the errors."""
    scores = []
    for center, target in zip(location.tolist(), y.tolist(), strict=True):
        scores.append(stats.t(4, center, squared_scale**0.5).logpdf(target))
        square = (target - center) ** 2
        squared_scale *= 0.95 + 0.05 * 5 * square / (4 * squared_scale + square)
    return sum(scores) / len(scores)


@pytest.mark.processor
def test_resume_continues_as_if_never_interrupted(workplace, small):
    rows = small.rows(ROWS)
    small.write(workplace / "first.csv", rows[:180])
    small.write(workplace / "second.csv", rows[180:231])
    small.write(workplace / "third.csv", rows[231:])
    assert stream(workplace, "first.csv", "part", warmup=WARMUP) == 0
    assert resume(workplace, "second.csv", "part2", checkpoint=workplace / "part") == 0
    assert resume(workplace, "third.csv", "part3", checkpoint=workplace / "part2") == 0
    for name in ("predictions.csv", "weights.csv"):
        whole = (workplace / "full" / name).read_text().splitlines()
        rest = (workplace / "part3" / name).read_text().splitlines()
        assert rest == [whole[0], *whole[1 + 231 - WARMUP :]]
    full, part = (summary_of(workplace / name) for name in ("full", "part3"))
    for key in ("rows", "log_score", "nmse", "crps", "coverage_90", "baselines"):
        assert full[key] == part[key]
    assert part["rows_this_run"] == 89


def test_compare_makes_one_table(workplace, small, capsys):
    (workplace / "line.yaml").write_text(LINEAR)
    usual = {"target": "y", "warmup": WARMUP, "out": workplace / "compared"}
    data, small_yaml, line = (workplace / name for name in ("data.csv", "small.yaml", "line.yaml"))
    assert run("compare", data, "--configs", small_yaml, line, **usual) == 0
    reported = capsys.readouterr().out
    assert all(name in reported for name in ("small", "line", "previous value", "log_score"))
    results = json.loads((workplace / "compared" / "compare.json").read_text())
    full = summary_of(workplace / "full")
    assert results["small"]["log_score"] == full["log_score"]
    assert len(small.read(workplace / "compared" / "compare.csv")) == 5


def test_every_config_is_compared_with_every_seed(workplace, capsys, refused):
    out = workplace / "seeds"
    basis = "{FourierBasis: {num_features: 8, starts: [0.5]}}"
    (workplace / "drawn.yaml").write_text(f"ensemble: {{like: oebe, bases: [{basis}], {FIT}}}")
    words = ("compare", workplace / "data.csv", "--configs", workplace / "drawn.yaml")
    usual = {"target": "y", "warmup": WARMUP, "out": out}
    assert run(*words, "--seeds", 3, 0, **usual) == 0
    reported = capsys.readouterr().out
    found = json.loads((out / "compare.json").read_text())
    scores = []
    for seed in (3, 0):
        assert run(*words, **usual | {"seed": seed, "out": workplace / "one"}) == 0
        alone = json.loads((workplace / "one" / "compare.json").read_text())["drawn"]
        assert found[f"drawn, seed {seed}"]["log_score"] == alone["log_score"]
        scores.append(alone["log_score"])
    assert scores[0] != scores[1]
    assert f"drawn: log_score {sum(scores) / 2:.4g} on average over 2 seeds" in reported
    for wrong, message in (("--seeds 1 1", "repeats a seed"), ("--seeds 1 --seed 2", "give one of them")):
        refused(run(*words, *wrong.split(), **usual), message)


def test_options_override_the_config_wherever_they_stand():
    for given, found in (
        ("stream d.csv --warmup 5 --config c", "stream --config c d.csv --warmup 5"),
        ("resume --skip-seen a.csv", "resume --skip_seen=true a.csv"),
        ("stream --limit-inputs false", "stream --limit_inputs false"),
    ):
        assert normalized_arguments(given.split()) == found.split()


def test_named_tables_and_folders(workplace, refused):
    config = workplace / "small.yaml"
    assert run("stream", "name:airline_passengers", warmup=60, out=workplace / "air", config=config) == 0
    summary = summary_of(workplace / "air")
    assert (summary["data"], summary["target"], summary["rows"]) == ("airline_passengers", "passengers", 72)
    entry = {"name": "pump", "file": "data.csv", "features": ["b", "a"], "target": "y"}
    (workplace / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    options = {"data_folder": workplace, "features": "a", "warmup": 100, "out": workplace / "pump"}
    assert run("stream", "pump", config=config, **options) == 0
    summary = summary_of(workplace / "pump")
    assert (summary["features"], summary["rows"]) == (["a"], 220)
    for name, options, words in (
        ("airline_pasengers", {}, "airline_passengers"),
        ("airline_passengers", {"target": "y"}, "passengers"),
        ("airline_passengers", {"features": "lag_7"}, "lag_12"),
    ):
        refused(run("stream", f"name:{name}", config=config, **options), words)


def test_the_demo_is_a_stream_of_its_file(tmp_path, capsys, monkeypatch):
    """The demo on a short table and a small model, and the same file as a user gives it."""
    few = FitSettings(LBFGS(max_iterations=5), num_samples=1)
    small = StreamConfig(replace(oebe, bases=(LinearBasis(),), fit_settings=few), warmup=60)
    monkeypatch.setattr(commands, "StreamConfig", lambda: small)
    monkeypatch.setattr(commands, "write_messy_load", partial(write_messy_load, num_rows=240))
    assert run("demo", out=tmp_path / "demo") == 0
    assert "--target load\n\ncolumn " in capsys.readouterr().out
    (tmp_path / "small.yaml").write_text(LINEAR)
    options = {"target": "load", "config": tmp_path / "small.yaml", "out": tmp_path / "user"}
    assert run("stream", tmp_path / "demo" / "load.csv", **options) == 0
    assert tables_of(tmp_path / "user") == tables_of(tmp_path / "demo")


@pytest.mark.slow
def test_the_demo_beats_its_baselines(tmp_path, capsys):
    assert run("demo", out=tmp_path / "demo", report=True) == 0
    reported = capsys.readouterr().out
    assert str(tmp_path / "demo" / "report.html") in reported
    assert "1 gap (after 2024-01-27T00:00:00, 9 steps)" in reported
    summary = summary_of(tmp_path / "demo")
    assert all(summary["log_score"] > baseline["log_score"] + 0.5 for baseline in summary["baselines"].values())
    assert all(summary["nmse"] < 0.5 * baseline["nmse"] for baseline in summary["baselines"].values())
    assert 0.87 < summary["coverage_90"] < 0.93
    activated_at = {entry["name"]: entry["activated_at"] for entry in summary["inputs"] if entry["was_constant"]}
    assert list(activated_at) == ["solar"]
    assert activated_at["solar"] > 1250


def test_help_and_version_import_nothing_slow(tmp_path):
    """In a process of its own, as is the module without a command."""
    code = (
        "import runpy, sys\n"
        "from gp_ensembles.cli.__main__ import main\n"
        "assert main(['--version']) == 0\n"
        "assert main(['configs']) == 0\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "slow = {'botorch', 'gpytorch', 'scipy', 'sklearn', 'matplotlib', 'pandas', 'river'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
        "sys.argv = ['gp-ensembles']\n"
        "runpy.run_module('gp_ensembles', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("gp_ensembles ")
    assert any(line.strip().startswith("stream ") for line in lines)
    assert "[]" in lines
    assert "stream,resume,forecast,compare,demo" in "".join(lines[lines.index("[]") :])
