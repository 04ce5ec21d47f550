"""Adaptive intervals on the command line: columns, what the summary says of them, and resumption to the bit."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.cli.predictions import interval_table
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.cli.summary import interval_lines, summarize_run, summary_table
from gp_ensembles.data import Table
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import CountTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.tables.rows import Rows
from tests.cli.commands import InMemoryRows, open_table, summary_of
from tests.cli.commands import stream as stream_with

SMALL = replace(oebe, bases=(LinearBasis(),), fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1))


def after(rows, start=100, stop=None):
    """Rows behind the warm-up."""
    part = slice(start, stop)
    return InMemoryRows(Rows(rows.X[part], rows.y[part], None, None, start + 1, None))


def table(num_rows=1200):
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    y = 20 + 3 * X[:, 0] + torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y[100:] = 20 + (y[100:] - 20) / 2  # calmer than the warm-up
    y[[150, 151]] = torch.nan
    return Table(X, y, ("a", "b"), "y", "made")


def test_what_is_counted_is_what_is_written():
    rows = table()
    stream = ScoredStream.start(StreamConfig(SMALL, warmup=100, coverages=(0.9, 0.5)), open_table(rows, 100))
    chunks = list(stream.chunks(after(rows)))
    assert stream.extra_columns == ("q25", "q75")
    y = torch.cat([chunk.y for chunk in chunks])
    seen = ~y.isnan()
    found = interval_table(stream.coverages)
    for name, lower, upper in (
        ("0.9", [chunk.rows.lower for chunk in chunks], [chunk.rows.upper for chunk in chunks]),
        ("0.5", [chunk.interval_ends["q25"] for chunk in chunks], [chunk.interval_ends["q75"] for chunk in chunks]),
    ):
        low, high = torch.cat(lower), torch.cat(upper)
        inside = ((low < y) & (y < high))[seen].double()
        assert found[name]["coverage"] == pytest.approx(float(inside.mean()))
        assert found[name]["mean_width"] == pytest.approx(float((high - low)[seen].mean()))
        assert found[name]["windows"] == 2
        assert abs(found[name]["coverage"] - float(name)) < min(0.02, found[name]["bound"])
    summary = summarize_run(stream)
    assert summary["coverage_90"] == found["0.9"]["coverage"]
    lines = interval_lines(summary)
    assert len(lines) == 2
    assert lines[0].startswith("intervals of 90 %: covered ")
    assert lines[0] in summary_table(summary)


def test_columns_and_options(tmp_path, small, capsys):
    small.write(tmp_path / "data.csv", small.rows(140))
    (tmp_path / "small.yaml").write_text(small.config + "coverages: [0.9, 0.95]\n", encoding="utf-8")
    assert stream_with(tmp_path, "data.csv", "both") == 0
    printed = capsys.readouterr().out
    assert "intervals of 90 %: covered" in printed
    assert "intervals of 95 %: covered" in printed
    rows = small.read(tmp_path / "both" / "predictions.csv")
    assert list(rows[0])[-2:] == ["q025", "q975"]
    assert all(float(row["q025"]) < float(row["q975"]) for row in rows)
    assert stream_with(tmp_path, "data.csv", "none", recalibrate=False, coverages="[]") == 0
    assert "intervals of" not in capsys.readouterr().out
    summary = summary_of(tmp_path / "none")
    assert summary["intervals"] == {}
    assert summary["config"]["recalibrate"] is False
    assert stream_with(tmp_path, "data.csv", "wrong", coverages="[1.2]") == 2
    assert "a coverage must be above 0 and below 1, got 1.2" in capsys.readouterr().err


def test_counts_have_no_adaptive_intervals():
    rows = table(200)
    counts = rows._replace(y=rows.y.nan_to_num(20).round())
    stream = ScoredStream.start(StreamConfig(replace(SMALL, target=CountTarget()), warmup=100), open_table(counts, 100))
    list(stream.chunks(after(counts)))
    assert stream.coverages == {}
    assert summarize_run(stream)["intervals"] == {}
