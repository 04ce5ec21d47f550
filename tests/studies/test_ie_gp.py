"""Figures of the IE-GP paper: gradient descent against a plain loop, regret against dense algebra, scores of runs."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.data import Table, load_folder
from gp_ensembles.metrics import nmse
from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.ie_gp import regret as synthetic_regret
from studies.ie_gp import streams
from studies.ie_gp import study as ie_gp
from studies.ie_gp.methods import METHODS, MethodSettings, run_method
from studies.ie_gp.raker import STEPS, RakerSettings, init_raker, run_raker, tuned_raker

SEEDS = st.integers(0, 2**31 - 1)
SMALL = MethodSettings(num_features=10, batch=30, iterations=2)


def random_problem(seed, num_kernels=3, num_rows=25, num_features=4):
    """Features with norm one, targets of which two are missing."""
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(num_kernels, num_rows, num_features, generator=generator, dtype=torch.float64)
    Phi = Phi / Phi.norm(dim=-1, keepdim=True)
    y = 3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y[[3, 11]] = math.nan
    return Phi, y


def raker_by_hand(Phi, y, step, penalty):
    """The algorithm with weights that are not logarithms, a kernel at a time."""
    num_kernels, num_rows, num_features = Phi.shape
    theta, weights, means = np.zeros((num_kernels, num_features)), np.ones(num_kernels) / num_kernels, []
    for t in range(num_rows):
        values = [float(theta[m] @ Phi[m, t]) for m in range(num_kernels)]
        means.append(sum(w * v for w, v in zip(weights, values, strict=True)) / weights.sum())
        if np.isnan(y[t]):
            continue
        for m in range(num_kernels):
            loss = (y[t] - values[m]) ** 2 + penalty * float(theta[m] @ theta[m])
            gradient = -2 * (y[t] - values[m]) * Phi[m, t] + 2 * penalty * theta[m]
            weights[m] *= math.exp(-step * loss)
            theta[m] = theta[m] - step * gradient
        weights /= weights.sum()
    return np.array(means)


def table_of(name="toms_hardware", num_rows=150, seed=0, num_columns=3):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_rows, num_columns, generator=generator, dtype=torch.float64)
    y = (4 * X[:, 0]).sin() + X[:, 1] + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return Table(X, y, tuple(f"x{j + 1}" for j in range(num_columns)), "y", name)


@pytest.fixture
def folder(tmp_path):
    """Two small streams under names of the paper's, with a manifest."""
    path, entries = tmp_path / "data", []
    path.mkdir()
    for seed, name in enumerate(("toms_hardware", "sarcos_thin10")):
        table = table_of(name, seed=seed)
        rows = [",".join(map(repr, [*x, t])) for x, t in zip(table.X.tolist(), table.y.tolist(), strict=True)]
        (path / f"{name}.csv").write_text("\n".join(["x1,x2,x3,y", *rows]) + "\n")
        entries.append({"name": name, "file": f"{name}.csv", "features": list(table.feature_names), "target": "y"})
    (path / "manifest.json").write_text(json.dumps({"datasets": entries}))
    return path


@settings(max_examples=25)
@given(seed=SEEDS, step=st.sampled_from([0.01, 0.2, 0.45]), penalty=st.sampled_from([0.0, 0.1]))
def test_raker_equals_a_plain_loop(seed, step, penalty):
    Phi, y = random_problem(seed)
    setting = RakerSettings(y.new_tensor(step), y.new_tensor(penalty))
    _, mean = run_raker(init_raker(Phi, setting), Phi, y, setting)
    np.testing.assert_allclose(mean, raker_by_hand(Phi.numpy(), y.numpy(), step, penalty), rtol=1e-9, atol=1e-10)


def test_raker_leaves_its_state_alone_and_keeps_hopeless_kernels_finite():
    Phi, y = random_problem(0)
    setting = RakerSettings(y.new_tensor(0.4), y.new_tensor(0.0))
    state = init_raker(Phi, setting)
    after, mean = run_raker(state, Phi, 1e6 * y, setting)
    assert float(state.weights.abs().sum() + state.log_weights.abs().sum()) == 0.0
    assert bool(mean.isfinite().all())
    assert bool(after.log_weights.isfinite().all())
    with pytest.raises(ValueError, match=r"\(M, B, F\) and y \(B,\)"):
        run_raker(state, Phi, y[1:], setting)


def test_tuning_keeps_the_setting_with_the_least_error_and_what_it_learned():
    Phi, y = random_problem(4, num_rows=300)
    y = (Phi[1] * Phi.new_tensor([1.0, -2.0, 0.5, 3.0])).sum(-1)
    X = torch.arange(300, dtype=torch.float64).unsqueeze(-1)

    def features(rows):
        return Phi[:, rows.squeeze(-1).long()]

    state, best = tuned_raker(features, X, y, 300)
    errors = {}
    for factor in STEPS:
        for penalty in (0.0, 1e-4, 1e-2):
            setting = RakerSettings(y.new_tensor(min(factor / 300**0.5, 0.9)), y.new_tensor(penalty))
            learned, mean = run_raker(init_raker(Phi, setting), Phi, y, setting)
            errors[float(setting.step), penalty] = (float((y - mean).square().mean()), learned)
    least = min(errors, key=lambda key: errors[key][0])
    assert (float(best.step), float(best.penalty)) == least
    torch.testing.assert_close(tuple(state), tuple(errors[least][1]))
    with pytest.raises(ValueError, match="at least one row"):
        tuned_raker(features, X, y, 0)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_predicts_before_it_sees_and_lives_with_gaps(name):
    table = table_of(num_rows=140)
    y = table.y.clone()
    y[[70, 100]] = math.nan
    stream = streams.scaled_stream(table._replace(y=y), 80)
    run = run_method(METHODS[name], stream, SMALL, seed=3)
    assert run.mean.shape == run.log_prob.shape == (60,)
    assert run.ends == [*range(0, 60, 8), 60]  # the clock is read eight times however short the stream
    assert run.seconds[-1] > 0
    changed = stream._replace(y=torch.cat([stream.y[:30], 50 + stream.y[30:]]))
    other = run_method(METHODS[name], changed, SMALL, seed=3)
    torch.testing.assert_close(other.mean[:31], run.mean[:31], rtol=1e-9, atol=1e-9)
    assert float((other.mean[31:] - run.mean[31:]).abs().max()) > 0.1
    assert float(nmse(run.mean, stream.y)) < 0.8
    if name.endswith("Raker"):
        assert bool(run.log_prob.isnan().all())
    else:
        assert torch.equal(run.log_prob.isfinite(), ~stream.y.isnan())


def task():
    """The figures of streams with a short warm-up."""
    return streams.TASK._replace(
        prepare=lambda table, seed: streams.scaled_stream(table, 60), settings=SMALL, constants={"num_warmup": 60}
    )


def choices(folder, out, **change):
    return Choices(Sources(folder), out, 2)._replace(**change)


def test_a_figure_has_the_scores_of_its_runs(folder, tmp_path):
    out, two, methods = tmp_path / "out", streams.FIGURES[0], ["IE-GP", "Raker"]
    text = ie_gp.run_figure(task(), two, choices(folder, out, methods=methods))
    assert "sarcos_thin10 stands for sarcos" in text
    assert "air_quality is left out" in text
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [[s, m] for s in ("toms_hardware", "sarcos") for m in methods]
    first = json.loads((out / "stream_parts" / "toms_hardware_IE-GP_0.json").read_text())
    stream = streams.scaled_stream(load_folder(folder, "toms_hardware"), 60)
    run = run_method(METHODS["IE-GP"], stream, SMALL, 0)
    assert first["scores"]["nmse"] == pytest.approx(float(nmse(run.mean, stream.y)), rel=1e-9)
    assert first["curves"]["nmse"][-1] == pytest.approx(first["scores"]["nmse"])
    own = stream.standardizer.inverse_mean(run.mean) - load_folder(folder, "toms_hardware").y[60:]
    assert first["scores"]["mse_last_1000"] == pytest.approx(float(own.square().mean()), rel=1e-9)
    assert first["scores"]["log_score"] == pytest.approx(float(run.log_prob.mean()), rel=1e-9)
    parts = [[out / "stream_parts" / f"sarcos_{m}_{seed}.json" for seed in (0, 1)] for m in methods]
    ours, theirs = (sum(json.loads(path.read_text())["scores"]["nmse"] for path in paths) / 2 for paths in parts)
    compared = next(line for line in lines if line.split()[:2] == ["sarcos", "Raker"] and " of 2" in line)
    assert float(compared.split()[2]) == pytest.approx(ours - theirs, rel=1e-2)
    ie_gp.run_figure(task(), streams.FIGURES[2], choices(folder, out, methods=methods))
    timed = [line.split(",") for line in (out / "figure_4.csv").read_text().splitlines()]
    scores = [json.loads(path.read_text())["scores"] for path in parts[0]]
    whole = [one["fit_seconds"] + one["stream_seconds"] for one in scores]
    last = [line for line in timed if line[:2] == ["sarcos", "IE-GP"]][-1]
    assert [float(last[3]), float(last[5])] == pytest.approx([min(whole), max(whole)], rel=1e-5)


def test_static_regret_equals_dense_algebra_and_stays_below_its_bound():
    for seed in range(3):
        num_rows, num_features, noise = 90, 12, 0.01
        draw = torch.Generator().manual_seed(seed)
        curves = synthetic_regret.static_regret_curves(num_rows, num_features, generator=draw)
        assert curves.num_rows[-1] == num_rows
        assert all(regret <= bound for regret, bound in zip(curves.regret, curves.bound, strict=True))
        y, Phi = static_draw(num_rows, num_features, seed)
        covariance = Phi @ Phi.mT + noise * torch.eye(num_rows, dtype=torch.float64)
        evidence = torch.distributions.MultivariateNormal(y.new_zeros(num_rows), covariance).log_prob(y)
        ensemble = evidence.logsumexp(0) - math.log(11)
        precision = Phi.mT @ Phi / noise + torch.eye(num_features, dtype=torch.float64)
        weights = torch.linalg.solve(precision, Phi.mT @ y.unsqueeze(-1) / noise)
        errors = y - (Phi @ weights).squeeze(-1)
        rivals = (-0.5 * (errors.square() / noise + math.log(2 * math.pi * noise))).sum(-1)
        assert curves.regret[-1] == pytest.approx(float(rivals.max() - ensemble), rel=1e-7)


def static_draw(num_rows, num_features, seed):
    """The data and features of the static test, drawn again."""
    generator = torch.Generator().manual_seed(seed)
    X = 10 * torch.randn(num_rows, 1, dtype=torch.float64, generator=generator)
    y = (2 * X[:, 0]).sin() + (3 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, dtype=X.dtype, generator=generator)
    ((_, features),) = synthetic_regret.KernelDictionary(num_features).build(X, generator=generator)
    with torch.no_grad():
        return y, features(X)


def test_switching_regret_stays_below_its_bound_where_averaging_does_not():
    for test in [synthetic_regret.WAVES, synthetic_regret.NEW_INPUTS]:
        curves = synthetic_regret.switching_regret_curves(test, 300, 30, generator=torch.Generator().manual_seed(0))
        assert all(regret <= bound for regret, bound in zip(curves.regret, curves.bound, strict=True))
        assert curves.rival[-1] > curves.bound[-1]
        per_row = [bound / rows for bound, rows in zip(curves.bound, curves.num_rows, strict=True)]
        assert per_row == sorted(per_row, reverse=True)


@pytest.mark.slow
def test_toms_hardware_is_predicted_well(shared):
    """The median of three draws; a single one lies anywhere from 4.2e-4 to 7.8e-4 (twelve were tried)."""
    stream = streams.scaled_stream(load_folder(shared / "data", "toms_hardware"), 1000)
    errors = []
    for seed in range(3):
        run = run_method(METHODS["IE-GP"], stream, MethodSettings(), seed)
        errors.append(float(stream.standardizer.inverse_std(stream.y - run.mean)[-1000:].square().mean()))
    assert sorted(errors)[1] < 6.5e-4
