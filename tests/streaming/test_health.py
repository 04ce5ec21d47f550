"""What is found of a stream, by hand; and what a command line ends with."""

import json
import math
from dataclasses import replace

import pytest
import torch

from gp_ensembles.calibration.levels import count_coverage, init_coverage
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.scored_stream import Timings
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.health import HealthLimits, health

SPEC = replace(oebe, bases=(LinearBasis(), LinearBasis(name="other")), static=True, random_walk_variances=(1e-3,))
WARMUP = 40


@pytest.fixture(name="model")
def _model():
    X, y = rows()
    return OnlineModel(StreamConfig(SPEC, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])


def rows(num_rows=240):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, 10 + X[:, 0] + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def by_name(found):
    return {finding.name: finding for finding in found}


def test_a_stream_as_it_should_be_is_well(model):
    X, y = rows()
    model.observe(X[WARMUP:], y[WARMUP:])
    found = health(model)
    assert all(finding.ok for finding in found)
    weights = list(model.weights.values())
    entropy = -sum(weight * math.log(weight) for weight in weights if weight > 0)
    assert by_name(found)["effective experts"].value == pytest.approx(math.exp(entropy))
    lower, upper = model.interval_levels(0.9)
    assert by_name(found)["interval levels"].value == pytest.approx(abs(upper - lower - 0.9))


def test_what_is_lacking_or_out_of_reach_is_counted(model):
    X, y = rows()
    X[WARMUP:140, 1] = torch.nan
    X[150:160, 0] = 1e5
    model.observe(X[WARMUP:], y[WARMUP:])
    found = by_name(health(model))
    assert found["inputs imputed"].value == pytest.approx(100 / 400)
    assert not found["inputs imputed"].ok
    assert found["inputs moved"].value == pytest.approx(model.anomaly_counts.inputs_moved / 400)
    assert not found["inputs moved"].ok
    lenient = HealthLimits(inputs_imputed=0.3, inputs_moved=0.1, coverage_gap=10.0)
    assert all(finding.ok for finding in health(model, lenient))
    strict = by_name(health(model, HealthLimits(least_experts=9.0)))
    assert not strict["effective experts"].ok


def test_an_expert_that_is_out_and_promises_that_break(model):
    X, y = rows()
    moments = model.online.state.experts[0].moments
    moments.view(-1, *moments.shape[-2:])[0] = torch.nan
    model.observe(X[WARMUP:80], y[WARMUP:80])
    hits = torch.ones(200, dtype=torch.float64)
    hits[::4] = 0
    counted = count_coverage(init_coverage(hits), hits, hits, 0.9)
    found = by_name(health(model, coverage=counted, slowdown=5.0))
    assert found["coverage gap"].meaning == "intervals of 90 % covered 75 % of the targets"
    out = found["experts in quarantine"]
    assert (out.value, out.ok) == (1, False)
    assert out.meaning.startswith("1 experts are in quarantine after a failure: ")
    assert found["coverage gap"].value == pytest.approx(0.15)
    assert not found["coverage gap"].ok
    assert (found["slowdown"].value, found["slowdown"].ok) == (pytest.approx(5), False)
    few = count_coverage(init_coverage(hits), hits[:50], hits[:50], 0.9)
    assert "coverage gap" not in by_name(health(model, coverage=few))  # too few to tell


def test_nothing_is_found_before_there_is_a_model_and_limits_are_checked():
    assert health(OnlineModel(StreamConfig(SPEC, warmup=WARMUP))) == ()
    with pytest.raises(ValueError, match=r"slowdown must not be negative, got -1"):
        HealthLimits(slowdown=-1.0)


def test_the_clock_keeps_the_first_thousand_rows_and_the_last():
    clock = Timings(5.0, 0.0)
    for seconds, num_rows in ((1.0, 600), (2.0, 600), (4.0, 500)):
        clock = clock.after(seconds, num_rows)
    assert clock == Timings(5.0, 7.0, 3.0, 1200, 4.0, 500)
    assert clock.slowdown == pytest.approx((4 / 500) / (3 / 1200))
    # A short table, and a few rows of a run that goes on: mostly overhead.
    assert Timings(5.0, 0.0).after(1.0, 240).after(0.2, 7).slowdown is None
    assert clock.after(0.5, 24).slowdown is None


def test_strict_ends_with_code_three(tmp_path, capsys):
    X, y = rows()
    X[100:200, 1] = torch.nan
    lines = [
        f"{a:.6f},{'' if b != b else f'{b:.6f}'},{t:.6f}" for (a, b), t in zip(X.tolist(), y.tolist(), strict=True)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    (tmp_path / "small.yaml").write_text("ensemble: {like: oebe, bases: [LinearBasis]}\nwarmup: 40\n")
    quiet = ["--report", "false", "--progress", "false", "--out", str(tmp_path / "out")]
    run = ["stream", str(tmp_path / "data.csv"), "--target", "y", "--config", str(tmp_path / "small.yaml"), *quiet]
    assert main(run) == 0
    assert "warning: 25 % of the inputs were missing (limit 0.2)" in capsys.readouterr().out
    assert main([*run, "--strict"]) == 3
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [one["name"] for one in summary["health"] if not one["ok"]] == ["inputs imputed"]
