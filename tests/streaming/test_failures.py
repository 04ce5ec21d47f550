"""Experts that fail on a stream: the model goes on, says so in rows of the stream, and resumes with the same bits."""

import json
from dataclasses import replace

import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.engine import quarantine
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import light, oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.health import failures

SPEC = replace(oebe, bases=(LinearBasis(), LinearBasis(name="other")), static=True, random_walk_variances=(1e-3,))
WARMUP = 40


def stream(num_rows=140):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, 10 + X[:, 0] + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def broken(spec, monkeypatch):
    """A model whose second expert has lost its variance after 60 rows."""
    monkeypatch.setattr(quarantine, "QUARANTINE_ROWS", 50)
    X, y = stream()
    model = OnlineModel(StreamConfig(spec, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    model.observe(X[WARMUP:60], y[WARMUP:60])
    model.online.state.experts[0].moments.view(-1, *model.online.state.experts[0].moments.shape[-2:])[0] = torch.nan
    return model, X[60:], y[60:]


def test_rows_are_those_of_the_stream(monkeypatch):
    for spec in (SPEC, replace(light, bases=(LinearBasis(), LinearBasis(name="other")))):
        model, X, y = broken(spec, monkeypatch)
        for start in range(0, 20):  # rows by themselves, too
            predicted = model.observe(X[start : start + 1], y[start : start + 1])
            assert bool(torch.isfinite(predicted.log_prob).all())
            assert bool(torch.isfinite(model.predict(X[:3]).mean).all())
        report = failures(model)[0]
        assert (report.row, report.returns) == (61, 111)
        assert model.weights[report.name] == 0
        model.observe(X[20:], y[20:])
        assert failures(model)[0].returns is None
        assert model.forecast(X[:2]).paths.isfinite().all()


def test_the_command_line_tells_of_it(tmp_path, monkeypatch, capsys):
    X, y = stream(400)
    lines = [f"{a:.6f},{b:.6f},{t:.6f}" for (a, b), t in zip(X.tolist(), y.tolist(), strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    learn = OnlineModel.observe
    calls = []

    def breaking(self, *arguments):
        calls.append(1)
        if len(calls) == 1:
            moments = self.online.state.experts[0].moments
            moments.view(-1, *moments.shape[-2:])[0] = torch.nan
        return learn(self, *arguments)

    monkeypatch.setattr(OnlineModel, "observe", breaking)
    options = ["--target", "y", "--config", "light", "--warmup", "100", "--progress", "false"]
    assert main(["stream", str(tmp_path / "data.csv"), *options, "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (failure,) = summary["failures"]
    assert (failure["row"], failure["times"]) == (101, 1)
    assert f"{failure['name']} failed at row 101 (" in capsys.readouterr().out
    assert "experts quarantined after a failure" in (tmp_path / "out" / "report.html").read_text()
