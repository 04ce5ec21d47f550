"""Studies by case and trial: means by hand, one seed one table, and a run that was cut goes on."""

import json
import statistics

import pytest
import torch

from studies.__main__ import main
from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.harness.trials import run_cases

CHEAP = [
    *(("ie-gp", name) for name in ("lemma-1", "lemma-2", "theorem-1", "figure-10", "figure-11")),
    ("follow-ups", "consensus"),
]
WITHOUT_PARTS = [("knots", "figure-1"), ("knots", "figure-2")]  # seconds each, with nothing to go on with


class Counted:
    """A case that counts its calls, and is interrupted at one of them."""

    def __init__(self, interrupted_at=0):
        self.calls, self.interrupted_at = 0, interrupted_at

    def __call__(self, generator):
        self.calls += 1
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        return {"value": torch.randn((), generator=generator, dtype=torch.float64).item(), "rows": 7}


def study(out, case, trials=3, seed=0, **settings):
    choices = Choices(Sources(None), out, trials, seed=seed)
    return run_cases(choices, "study", "A study", {"first": case, "second case": case}, settings)


def test_means_and_standard_errors_are_those_of_the_draws(tmp_path):
    study(tmp_path, Counted(), trials=4, seed=5)
    draws = [Counted()(torch.Generator().manual_seed(seed))["value"] for seed in range(5, 9)]
    rows = [line.split(",") for line in (tmp_path / "study.csv").read_text().splitlines()]
    found = {(case, score): (float(mean), float(error), int(num)) for case, score, mean, error, num in rows[1:]}
    expected = (statistics.fmean(draws), statistics.stdev(draws) / 2, 4)
    assert found["second case", "value"] == pytest.approx(expected, rel=1e-6)
    assert found["first", "rows"][:2] == (7.0, 0.0)


def test_an_interrupted_run_goes_on_where_it_was_cut(tmp_path, capsys):
    cut = Counted(interrupted_at=5)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "cut", cut)
    assert "the same command goes on with them" in capsys.readouterr().err
    assert not (tmp_path / "cut" / "study.csv").exists()
    rest = Counted()
    study(tmp_path / "cut", rest)
    assert (cut.calls, rest.calls) == (5, 2)
    study(tmp_path / "whole", Counted())
    assert (tmp_path / "cut" / "study.csv").read_text() == (tmp_path / "whole" / "study.csv").read_text()


def test_other_settings_more_trials_and_a_torn_file_are_run_and_the_rest_is_not(tmp_path):
    study(tmp_path, Counted(), rows=10)
    more, other, torn = Counted(), Counted(), Counted()
    study(tmp_path, more, trials=5, rows=10)
    assert more.calls == 4
    study(tmp_path, other, trials=5, rows=20)
    assert other.calls == 10
    one = tmp_path / "runs" / "study_second_case_1.json"
    one.write_text(one.read_text()[:20])
    study(tmp_path, torn, trials=5, rows=20)
    assert torn.calls == 1
    assert json.loads(one.read_text())["settings"] == {"rows": 20, "case": "second case", "seed": 1}


def tables(paper, experiment, out):
    assert main([paper, experiment, "--quick", "true", "--out", str(out)]) == 0
    files = {one.name: one.read_text() for one in out.glob("*.csv")}
    assert files
    return files


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "experiment"), CHEAP + WITHOUT_PARTS)
def test_a_cheap_experiment_gives_one_table(paper, experiment, tmp_path):
    first, second = (tables(paper, experiment, tmp_path / name) for name in ("first", "second"))
    assert first == second
