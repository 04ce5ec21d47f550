"""Streams of classes, levels and counts from the command line: scores, files, resumption, clear errors."""

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from tests.cli.commands import FIT, resume, stream, summary_of

BASES = "bases: [LinearBasis, {FourierBasis: {num_features: 10, starts: [0.5]}}]"
TARGETS = {
    "binary": "BinaryTarget",
    "classes": "{ClassTarget: {num_classes: 3}}",
    "levels": "{LevelTarget: {num_levels: 3}}",
    "counts": "CountTarget",
}


def make_rows(kind, num_rows=180):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    f = 2 * torch.sin(2 * X[:, 0]) + X[:, 1]
    u = torch.rand(num_rows, generator=g, dtype=torch.float64)
    if kind == "binary":
        y = (u < torch.sigmoid(f)).double()
    elif kind in ("classes", "levels"):
        y = torch.bucketize(f + torch.logit(u), torch.tensor([-1.0, 1.0], dtype=torch.float64)).double()
    else:
        y = torch.poisson((0.4 * f + 1).exp(), generator=g)
    return [[*(f"{v:.5f}" for v in x), str(int(t))] for x, t in zip(X.tolist(), y.tolist(), strict=True)]


@pytest.fixture(
    params=[pytest.param(kind, marks=() if kind == "binary" else pytest.mark.slow) for kind in TARGETS], name="kind"
)
def _kind(request):
    return request.param


def run(folder, data, out, kind, **options):
    settings = ("like: e_doebe", BASES, FIT, "random_walk_variances: [0.001]", f"target: {TARGETS[kind]}")
    (folder / "small.yaml").write_text("\n  ".join(["ensemble:", *settings]))
    return stream(folder, data, out, **options)


def test_a_stream_is_scored_and_resumed(tmp_path, small, kind):
    rows = make_rows(kind)
    rows[90][2] = ""  # a missing target
    small.write(tmp_path / "all.csv", rows)
    small.write(tmp_path / "head.csv", rows[:110])
    small.write(tmp_path / "tail.csv", rows[110:])
    assert run(tmp_path, "all.csv", "all", kind) == 0
    summary = summary_of(tmp_path / "all")
    table = small.read(tmp_path / "all" / "predictions.csv")
    seen = [row for row in table if row["y"]]
    assert len(table) == 120
    assert summary["rows_scored"] == len(seen) == 119
    y = [float(row["y"]) for row in seen]
    if kind == "counts":
        assert summary["nmse"] < summary["baselines"]["warm-up frequencies"]["nmse"]
        assert summary["crps"] < summary["baselines"]["previous value"]["crps"]
        assert "p0" not in table[0]
    else:
        classes = 2 if kind == "binary" else 3
        shares = [[float(row[f"p{c}"]) for c in range(classes)] for row in seen]
        assert all(math.isclose(sum(share), 1, abs_tol=1e-6) for share in shares)
        assert summary["log_loss"] == pytest.approx(log_loss(y, shares, labels=range(classes)), abs=2e-3)
        assert summary["error_rate"] == pytest.approx(
            sum(max(range(classes), key=share.__getitem__) != t for share, t in zip(shares, y, strict=True)) / 119
        )
        assert summary["error_rate"] < summary["baselines"]["warm-up frequencies"]["error_rate"]
        if kind == "binary":
            assert summary["brier"] == pytest.approx(2 * brier_score_loss(y, [share[1] for share in shares]))

    assert run(tmp_path, "head.csv", "head", kind) == 0
    assert resume(tmp_path, "tail.csv", "rest", checkpoint=tmp_path / "head") == 0
    assert small.read(tmp_path / "rest" / "predictions.csv") == table[50:]
    resumed = summary_of(tmp_path / "rest")
    for name in ("log_score", "rows_scored"):
        assert resumed[name] == summary[name]
