"""What the command line does about the report: written beside the summary, left out, or told in one line."""

import pytest

from gp_ensembles.cli import commands
from gp_ensembles.cli.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("command")
    small.write(folder / "data.csv", small.rows(200))
    (folder / "small.yaml").write_text(small.config)
    return folder


def stream(folder, out, *options):
    arguments = ["stream", str(folder / "data.csv"), "--target", "y", "--warmup", "60", "--out", str(folder / out)]
    return main([*arguments, "--config", str(folder / "small.yaml"), "--progress=false", *options])


def test_a_run_whose_report_cannot_be_drawn_is_not_lost(folder, capsys, monkeypatch):
    def fails(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(commands, "report_html", fails)
    assert stream(folder, "failing") == 0
    reported = capsys.readouterr()
    assert reported.err.count("\n") == 1
    assert "no report.html: RuntimeError: no ink" in reported.err
    assert {"summary.json", "predictions.csv", "checkpoint.pt"} <= {
        path.name for path in (folder / "failing").iterdir()
    }
    assert "report.html" not in reported.out
