"""Commands end to end: consistent files, causality, missing targets, resumption, kills."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats

from gp_ensembles.cli import commands, scored_stream
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.running import normalized_arguments
from gp_ensembles.data.messy import write_messy_load
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.metrics import nmse
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP, ROWS = 100, 320
FIT = "fit_settings: {method: {LBFGS: {max_iterations: 5}}, num_samples: 1}"
QUICK = ["--pictures", "false", "--report", "false", "--progress", "false"]


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
    assert run_stream(folder, "data.csv", "full", pictures=True) == 0
    return folder


def run_stream(folder, data, out, *options, pictures=False):
    arguments = ["stream", str(folder / data), "--target", "y", "--warmup", str(WARMUP), "--progress", "false"]
    arguments += ["--config", str(folder / "small.yaml"), "--out", str(folder / out)]
    arguments += [f"--pictures={str(pictures).lower()}", f"--report={str(pictures).lower()}"]
    return main([*arguments, *options])


def run_resume(folder, checkpoint, data, out, *options):
    return main(
        ["resume", "--checkpoint", str(folder / checkpoint / "checkpoint.pt"), str(folder / data)]
        + ["--out", str(folder / out), *QUICK, *options]
    )


def column(rows, name):
    return torch.tensor([float(row[name]) if row[name] else math.nan for row in rows], dtype=torch.float64)


def test_a_stream_leaves_everything_it_should(workplace, small):
    names = {path.name for path in (workplace / "full").iterdir()}
    pictures = {"bands.png", "weights.png", "calibration.png", "score.png"}
    assert names == {"predictions.csv", "weights.csv", "summary.json", "checkpoint.pt", "report.html", *pictures}
    summary = json.loads((workplace / "full" / "summary.json").read_text())
    wanted = (
        "model rows num_experts nmse log_score log_score_gaussian log_score_standardized crps coverage_90 fit_seconds "
    )
    wanted += "stream_seconds microseconds_per_row device dtype seed versions baselines"
    assert set(wanted.split()) <= set(summary)
    assert (summary["model"], summary["rows"], summary["num_experts"]) == ("e_doebe", 220, 4)
    assert set(summary["baselines"]) == {"previous value", "warm-up mean", "recursive linear regression"}


def test_the_summary_agrees_with_the_predictions(workplace, small):
    rows = small.read(workplace / "full" / "predictions.csv")
    summary = json.loads((workplace / "full" / "summary.json").read_text())
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


def test_targets_are_those_of_the_file_and_predictions_are_good(workplace, small):
    rows = small.read(workplace / "full" / "predictions.csv")
    assert [row["y"] for row in rows[:3]] == [repr(float(row[2])) for row in small.rows(ROWS)[WARMUP : WARMUP + 3]]
    summary = json.loads((workplace / "full" / "summary.json").read_text())
    assert 0.8 < summary["coverage_90"] < 0.97
    for baseline in summary["baselines"].values():
        assert summary["log_score"] > baseline["log_score"] + 0.3


def test_simple_baselines_are_what_they_say(workplace, small):
    y = torch.tensor([float(row[2]) for row in small.rows(ROWS)], dtype=torch.float64)
    warm, rest = y[:WARMUP], y[WARMUP:]
    found = json.loads((workplace / "full" / "summary.json").read_text())["baselines"]
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


def test_weights_are_those_in_force_before_the_target(workplace, small):
    rows = small.read(workplace / "full" / "weights.csv")
    names = [name for name in rows[0] if name != "row"]
    assert len(names) == 4
    assert all(float(rows[0][name]) == pytest.approx(1 / 4) for name in names)
    assert all(sum(float(row[name]) for name in names) == pytest.approx(1, abs=1e-6) for row in rows)


def test_a_target_changes_no_earlier_prediction_nor_its_own(workplace, small):
    rows = small.rows(ROWS)
    changed = 250
    rows[changed][2] = "1e6"
    small.write(workplace / "changed.csv", rows)
    assert run_stream(workplace, "changed.csv", "changed") == 0
    before, after = (small.read(workplace / name / "predictions.csv") for name in ("full", "changed"))
    last = changed - WARMUP
    mean = torch.stack([column(part, "mean") for part in (before, after)])
    assert float((mean[0] - mean[1])[: last + 1].abs().max()) < 1e-9
    assert float((mean[0] - mean[1])[last + 1 :].abs().max()) > 1
    weights = [small.read(workplace / name / "weights.csv")[last] for name in ("full", "changed")]
    assert weights[0] == weights[1]


def test_missing_targets_are_predicted_and_skipped(workplace, small):
    rows = small.rows(ROWS)
    for row, hole in ((150, ""), (151, "NaN"), (319, "")):
        rows[row][2] = hole
    small.write(workplace / "holes.csv", rows)
    assert run_stream(workplace, "holes.csv", "holes") == 0
    found = small.read(workplace / "holes" / "predictions.csv")
    summary = json.loads((workplace / "holes" / "summary.json").read_text())
    assert (summary["rows"], summary["rows_scored"]) == (220, 217)
    for row in (150, 151, 319):
        entry = found[row - WARMUP]
        assert entry["log_prob"] == ""
        assert entry["y"] == ""
        assert math.isfinite(float(entry["mean"]))
    scored = column(found, "log_prob")
    assert float(scored[~scored.isnan()].mean()) == pytest.approx(summary["log_score"], rel=1e-9)


def test_single_precision_stays_close(workplace, small):
    assert run_stream(workplace, "data.csv", "single", "--dtype", "float32") == 0
    double, single = (json.loads((workplace / name / "summary.json").read_text()) for name in ("full", "single"))
    assert single["dtype"] == "float32"
    assert single["log_score"] == pytest.approx(double["log_score"], abs=0.05)


def test_inputs_far_out_do_not_stop_a_stream(workplace, small):
    rows = small.rows(ROWS)
    rows[200][0], rows[201][1] = "130", "-110"  # 30 standard deviations
    small.write(workplace / "far.csv", rows)
    assert run_stream(workplace, "far.csv", "far") == 0


@pytest.mark.processor
def test_resume_continues_as_if_never_interrupted(workplace, small):
    rows = small.rows(ROWS)
    small.write(workplace / "first.csv", rows[:180])
    small.write(workplace / "second.csv", rows[180:231])
    small.write(workplace / "third.csv", rows[231:])
    assert run_stream(workplace, "first.csv", "part") == 0
    assert run_resume(workplace, "part", "second.csv", "part2") == 0
    assert run_resume(workplace, "part2", "third.csv", "part3") == 0
    for name in ("predictions.csv", "weights.csv"):
        whole = (workplace / "full" / name).read_text().splitlines()
        rest = (workplace / "part3" / name).read_text().splitlines()
        assert rest == [whole[0], *whole[1 + 231 - WARMUP :]]
    full, part = (json.loads((workplace / name / "summary.json").read_text()) for name in ("full", "part3"))
    for key in ("rows", "log_score", "nmse", "crps", "coverage_90", "baselines"):
        assert full[key] == part[key]
    assert part["rows_this_run"] == 89


@pytest.mark.processor
def test_resume_in_place_makes_the_same_files(workplace, small):
    small.write(workplace / "first.csv", small.rows(ROWS)[:180])
    assert run_stream(workplace, "first.csv", "place") == 0
    assert run_resume(workplace, "place", "data.csv", "place", "--skip-seen") == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (workplace / "place" / name).read_bytes() == (workplace / "full" / name).read_bytes()


@pytest.mark.processor
def test_what_a_kill_leaves_is_resumed_bit_for_bit(workplace, monkeypatch):
    """The folder as it is in the middle of a run: what SIGKILL would leave."""
    out, left, observe, calls = workplace / "killed", workplace / "left", OnlineModel.observe, []

    def copy_at_the_third(*arguments):
        calls.append(1)
        if len(calls) == 3:
            shutil.copytree(out, left)
        return observe(*arguments)

    monkeypatch.setattr(OnlineModel, "observe", copy_at_the_third)
    assert run_stream(workplace, "data.csv", "killed", "--checkpoint_seconds", "0") == 0
    monkeypatch.undo()
    assert (left / "predictions.csv.partial").read_text().count("\n") > 90
    assert (left / "checkpoint.pt").exists()
    assert not (left / "summary.json").exists()
    assert run_resume(workplace, "left", "data.csv", "left", "--skip-seen") == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (left / name).read_bytes() == (workplace / "full" / name).read_bytes()


@pytest.mark.slow
def test_a_killed_stream_resumes_bit_for_bit(workplace, small):
    out, reached = workplace / "shot", workplace / "reached"
    program = (
        "import pathlib, signal, torch\n"
        "from gp_ensembles.cli import scored_stream\n"
        "from gp_ensembles.cli.__main__ import main\n"
        "from gp_ensembles.streaming import OnlineModel\n"
        "observe, calls = OnlineModel.observe, []\n"
        "def stop_at_the_third(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3:\n"
        f"        pathlib.Path({str(reached)!r}).touch()\n"
        "        signal.pause()\n"
        "    return observe(*arguments)\n"
        "torch.set_num_threads(1)\n"
        "OnlineModel.observe = stop_at_the_third\n"
        "scored_stream.CHUNK_ROWS = 64\n"
        f"main(['stream', {str(workplace / 'data.csv')!r}, '--target', 'y', '--warmup', '{WARMUP}', '--config', "
        f"{str(workplace / 'small.yaml')!r}, '--out', {str(out)!r}, '--checkpoint_seconds', '0', "
        "'--pictures', 'false', '--report', 'false'])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    while process.poll() is None and not reached.exists():
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert (out / "predictions.csv.partial").read_text().count("\n") > 90
    assert (out / "checkpoint.pt").exists()
    assert not (out / "summary.json").exists()
    assert run_resume(workplace, "shot", "data.csv", "shot", "--skip-seen") == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (out / name).read_bytes() == (workplace / "full" / name).read_bytes()


def test_compare_makes_one_table(workplace, small, capsys):
    (workplace / "line.yaml").write_text(f"ensemble: {{like: oebe, bases: [LinearBasis], {FIT}}}")
    (workplace / "bad.yaml").write_text("ensemble: {like: oebe, bases: [LinearBasis, LinearBasis]}")
    arguments = ["compare", str(workplace / "data.csv"), "--target=y", f"--warmup={WARMUP}", "--progress=false"]
    arguments += ["--out", str(workplace / "compared"), "--configs"]
    good = [str(workplace / "small.yaml"), str(workplace / "line.yaml")]
    assert main([*arguments, *good]) == 0
    reported = capsys.readouterr().out
    assert all(name in reported for name in ("small", "line", "previous value", "log_score"))
    results = json.loads((workplace / "compared" / "compare.json").read_text())
    full = json.loads((workplace / "full" / "summary.json").read_text())
    assert results["small"]["log_score"] == full["log_score"]
    assert len(small.read(workplace / "compared" / "compare.csv")) == 5
    assert main([*arguments, str(workplace / "bad.yaml"), good[1]]) == 2
    assert "bases" in json.loads((workplace / "compared" / "compare.json").read_text())["bad"]["error"]


def test_every_config_is_compared_with_every_seed(workplace, capsys):
    out = workplace / "seeds"
    basis = "{FourierBasis: {num_features: 8, starts: [0.5]}}"
    (workplace / "drawn.yaml").write_text(f"ensemble: {{like: oebe, bases: [{basis}], {FIT}}}")
    arguments = ["compare", str(workplace / "data.csv"), "--target=y", f"--warmup={WARMUP}", "--progress=false"]
    arguments += ["--out", str(out), "--configs", str(workplace / "drawn.yaml")]
    assert main([*arguments, "--seeds", "3", "0"]) == 0
    reported = capsys.readouterr().out
    found = json.loads((out / "compare.json").read_text())
    scores = []
    for seed in (3, 0):
        assert main([*arguments, "--seed", str(seed), "--out", str(workplace / "one")]) == 0
        alone = json.loads((workplace / "one" / "compare.json").read_text())["drawn"]
        assert found[f"drawn, seed {seed}"]["log_score"] == alone["log_score"]
        scores.append(alone["log_score"])
    assert scores[0] != scores[1]
    assert f"drawn: log_score {sum(scores) / 2:.4g} on average over 2 seeds" in reported
    capsys.readouterr()
    for wrong, words in (
        (["--seeds", "1", "1"], "a seed twice"),
        (["--seeds", "1", "--seed", "2"], "give one of them"),
    ):
        assert main([*arguments, *wrong]) == 2
        assert words in capsys.readouterr().err


def test_options_override_the_config_wherever_they_stand():
    assert normalized_arguments(["stream", "d.csv", "--warmup", "5", "--config", "c"])[:3] == [
        "stream",
        "--config",
        "c",
    ]
    assert normalized_arguments(["resume", "--skip-seen", "a.csv"]) == ["resume", "--skip_seen=true", "a.csv"]
    assert normalized_arguments(["stream", "--limit-inputs", "false"]) == ["stream", "--limit_inputs", "false"]


def test_the_score_runs_along(workplace, capsys):
    out = str(workplace / "shown")
    assert main(["stream", str(workplace / "data.csv"), "--target=y", "--warmup=100", "--out", out,
                 "--config=" + str(workplace / "small.yaml"), *QUICK[:4]]) == 0  # fmt: skip
    reported = capsys.readouterr()
    assert "220/220" in reported.err
    assert "log_score=" in reported.err
    assert "recursive linear regression" in reported.out
    assert str(workplace / "shown" / "checkpoint.pt") in reported.out


def test_named_tables_and_folders(workplace, capsys):
    quick = ["--config", str(workplace / "small.yaml"), *QUICK]
    assert main(["stream", "name:airline_passengers", "--warmup", "60", "--out", str(workplace / "air"), *quick]) == 0
    summary = json.loads((workplace / "air" / "summary.json").read_text())
    assert (summary["data"], summary["target"], summary["rows"]) == ("airline_passengers", "passengers", 72)
    entry = {"name": "pump", "file": "data.csv", "features": ["b", "a"], "target": "y"}
    (workplace / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    folder = ["--data-folder", str(workplace), "--features", "a", "--warmup", "100"]
    assert main(["stream", "pump", *folder, "--out", str(workplace / "pump"), *quick]) == 0
    summary = json.loads((workplace / "pump" / "summary.json").read_text())
    assert (summary["features"], summary["rows"]) == (["a"], 220)
    capsys.readouterr()
    assert main(["stream", "name:airline_pasengers", *quick]) == 2
    assert "airline_passengers" in capsys.readouterr().err
    assert main(["stream", "name:airline_passengers", "--target", "y", *quick]) == 2
    assert "passengers" in capsys.readouterr().err
    assert main(["stream", "name:airline_passengers", "--features", "lag_7", *quick]) == 2
    assert "lag_12" in capsys.readouterr().err


def test_the_demo_is_a_stream_of_its_file(tmp_path, capsys, monkeypatch):
    """The demo on a short table and a small model, and the same file as a user gives it."""
    few = FitSettings(LBFGS(max_iterations=5), num_samples=1)
    small = StreamConfig(replace(oebe, bases=(LinearBasis(),), fit_settings=few), warmup=60)
    monkeypatch.setattr(commands, "StreamConfig", lambda: small)
    monkeypatch.setattr(commands, "write_messy_load", partial(write_messy_load, num_rows=240))
    assert main(["demo", "--out", str(tmp_path / "demo"), *QUICK]) == 0
    assert "--target load\n\ncolumn " in capsys.readouterr().out
    (tmp_path / "small.yaml").write_text(f"ensemble: {{like: oebe, bases: [LinearBasis], {FIT}}}\n")
    stream = ["stream", str(tmp_path / "demo" / "load.csv"), "--target", "load", *QUICK]
    assert main([*stream, "--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "user")]) == 0
    for name in ("predictions.csv", "weights.csv"):
        assert (tmp_path / "user" / name).read_bytes() == (tmp_path / "demo" / name).read_bytes()


@pytest.mark.slow
def test_the_demo_beats_its_baselines(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--progress", "false"]) == 0
    reported = capsys.readouterr().out
    assert all(
        str(tmp_path / "demo" / name) in reported for name in ("report.html", "bands.png", "weights.png", "score.png")
    )
    assert "1 gap (after 2024-01-27T00:00:00, 9 steps)" in reported
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
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
        "print(sorted({'botorch', 'gpytorch', 'sklearn', 'matplotlib', 'pandas', 'river'} & set(sys.modules)))\n"
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
