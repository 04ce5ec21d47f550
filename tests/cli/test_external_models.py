"""External models on the command line: columns of forecasts with gaps, the lines of the summary, and resumption."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LinearRegression

from gp_ensembles.cli.commands import Output, stream
from gp_ensembles.cli.config import load_config
from gp_ensembles.data import Table
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import ExternalModel, ForecastColumns
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.experts.adapters import RegressorAdapter
from gp_ensembles.streaming import StreamConfig
from tests.cli.commands import FIT, open_table, resume, summary_of
from tests.cli.commands import stream as stream_with

CONFIG = f"""\
ensemble:
  like: auto
  {FIT}
  bases: [LinearBasis]
  random_walk_variances: [0.001]
  lags: null
  extra_experts: [{{Boosting: {{num_trees: 3, every: 50}}}}, {{ForecastColumns: {{columns: [nwp], deviation: spread}}}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, small):
    """A folder with a table, its first and last rows, and a config."""
    folder = tmp_path_factory.mktemp("external_models")
    (folder / "external.yaml").write_text(CONFIG, encoding="utf-8")
    rows = [
        [a, "" if number % 7 == 2 else f"{float(y) + 0.1 * float(b):.6f}", 1.5, y]
        for number, (a, b, y) in enumerate(small.rows(200))
    ]
    header = ("a", "nwp", "spread", "y")
    small.write(folder / "data.csv", rows, header)
    small.write(folder / "first.csv", rows[:120], header)
    return folder


def stream_external(place, data, out, **options):
    return stream_with(place, data, out, config=place / "external.yaml", **options)


def test_summaries_report_external_models_and_a_resumed_run_tells_the_same(place, capsys, small):
    assert stream_external(place, "data.csv", "whole") == 0
    reported = capsys.readouterr().out
    gaps = sum(number % 7 == 2 for number in range(60, 200))
    absent = "last absent because it returned no prediction (NaN)"
    assert f"forecast/0: predicted {140 - gaps} of 140 rows; {absent}" in reported
    assert "boosting/0: log score -" in reported
    assert "boosting/0: predicted" not in reported
    summary = summary_of(place / "whole")
    whole = summary["external_models"]
    forecast, boosting = whole["forecast/0"], whole["boosting/0"]
    assert (forecast["num_targets"], forecast["num_absent"]) == (140 - gaps, gaps)
    assert forecast["regret"] < forecast["bound"]
    rows = small.read(place / "whole" / "predictions.csv")
    weights = [float(row["boosting/0"]) for row in small.read(place / "whole" / "weights.csv")]
    assert boosting["mean_weight"] == pytest.approx(sum(weights) / len(rows), rel=1e-6)
    # Without recalibration, which comes after the mixture, the ensemble's score is that of the table of scores.
    assert stream_external(place, "data.csv", "plain", recalibrate=False, coverages="[]") == 0
    scores = summary_of(place / "plain")
    assert scores["external_models"]["boosting/0"]["ensemble_log_score"] == pytest.approx(scores["log_score"], abs=1e-9)
    assert stream_external(place, "first.csv", "part") == 0
    assert resume(place, "data.csv", "rest", "--skip-seen", checkpoint=place / "part") == 0
    rest = summary_of(place / "rest")["external_models"]
    assert rest == whole
    predicted = {row["row"]: row["mean"] for row in small.read(place / "whole" / "predictions.csv")}
    assert all(predicted[row["row"]] == row["mean"] for row in small.read(place / "rest" / "predictions.csv"))


def test_one_column_may_be_a_word_and_settings_of_the_ensemble_stand_under_it(tmp_path):
    config = tmp_path / "one.yaml"
    config.write_text("ensemble: {like: oebe, extra_experts: [{ForecastColumns: {columns: nwp}}]}", encoding="utf-8")
    assert load_config(config).ensemble.extra_experts == (ForecastColumns("nwp"),)
    for key, value in (("target", "BinaryTarget"), ("bases", "[LinearBasis]"), ("like", "oebe")):
        config.write_text(f"warmup: 50\n{key}: {value}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=f"{key} is a setting of the ensemble and belongs under it, as in {{ens"):
            load_config(config)


def test_what_has_no_name_in_files_is_refused_before_anything_is_fitted(tmp_path, monkeypatch):
    """No run of hours is lost to a checkpoint that cannot be written."""
    monkeypatch.setattr("gp_ensembles.streaming.model.OnlineModel.fit", None)
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = ExternalModel(RegressorAdapter(LinearRegression()))
    config = StreamConfig(replace(oebe, bases=(LinearBasis(),), extra_experts=(own,)), warmup=30)
    rows = open_table(Table(X, X[:, 0], ("a", "b"), "y", "rows"), 30)
    with pytest.raises(TypeError, match=r"ExternalModel cannot be saved.*pickle.dump\(model, file\)"):
        stream(rows, config, Output(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("page", ["command_line", "external_models"])
def test_configs_in_the_documents_can_be_read(page, tmp_path):
    text = (Path(__file__).resolve().parents[2] / "docs" / "how_to" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    specs = []
    for block in blocks:
        (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
        specs.append(load_config(tmp_path / "config.yaml").ensemble)
    assert len(specs) == {"command_line": 2, "external_models": 1}[page]
    assert specs[-1].forecast_columns[0] == "nwp"
    assert page == "external_models" or isinstance(specs[0].target, BinaryTarget)
