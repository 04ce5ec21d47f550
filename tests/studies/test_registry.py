"""Every paper's experiments on one command line, with tables that users bring and printed numbers beside ours."""

import csv
import math
import re
from pathlib import Path

import pytest
import torch

from studies.__main__ import experiment_parser, main
from studies.harness.comparison import estimate, paired
from studies.harness.experiment import Choices, found_sets
from studies.harness.sources import PaperSet, Sources
from studies.registry import PAPERS, paper_named

STUDIES = Path(__file__).resolve().parents[2] / "studies"
PAGES = [
    path
    for folder in ("docs", "notebooks", "benchmarks")
    for path in sorted((STUDIES.parent / folder).rglob("*"))
    if path.suffix in {".md", ".py"} and "python -m studies " in path.read_text(encoding="utf-8")
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "arm_thin.csv").write_text("time,angle,torque\n0,1,2\n1,2,5\n")
    entry = '{"name": "arm_thin", "file": "arm_thin.csv", "features": ["angle"], "target": "torque"}'
    (tmp_path / "data" / "manifest.json").write_text('{"datasets": [' + entry + "]}")
    return tmp_path / "data"


def test_every_experiment_says_what_it_is_and_has_a_command():
    complaints = []
    for paper, experiment in [(each, one) for each in PAPERS.values() for one in each.experiments]:
        values = experiment_parser(paper, experiment).parse_args(["--quick", "true"])
        wanted = {
            "a title": bool(experiment.title),
            "a protocol": bool(experiment.protocol),
            "sizes": experiment.paper_size.trials >= experiment.quick_size.trials >= 1,
            "a name of its own": [one.name for one in paper.experiments].count(experiment.name) == 1,
            "sets with names of their own": len({one.name for one in experiment.sets}) == len(experiment.sets),
            "--quick": bool(values.quick),
            "--as-published": (values.get("as_published") is None) == (not experiment.published),
        }
        complaints += [f"{paper.name} {experiment.name}: {what}" for what, is_there in wanted.items() if not is_there]
    assert complaints == []


def test_several_numbers_are_several_words():
    paper = paper_named("maskerade")
    values = experiment_parser(paper, paper.experiment("table-6")).parse_args(["--observations", "100", "500"])
    assert values.observations == [100, 500]


def test_bad_words_are_one_sentence(tmp_path, capsys):
    for words, message in [
        (["gardening", "figure-1"], "there is no paper gardening"),
        (["knots", "figure-9"], "knots has no experiment figure-9; choose from figure-1"),
        (["knots", "boston", "--data-set", "boston"], "--data-set is NAME=FILE:TARGET"),
        (["knots", "boston", "--data-set", "boston=nowhere.csv:y"], "there is no file nowhere.csv"),
        (["knots", "boston", "--data-set", f"moon={__file__}:y"], "the experiment has no such set; its sets are bos"),
    ]:
        assert main([*words, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_table_of_ones_own_takes_the_place_of_a_set_with_all_its_columns(folder, tmp_path):
    wanted = PaperSet("arm", ("arm_full", "arm_thin"), "every tenth row")
    found = Sources(folder).find(wanted)
    assert (found.table.feature_names, found.file, found.is_own) == (("angle",), "arm_thin", False)
    assert found.note == "arm_thin stands for arm: every tenth row"
    own = Sources(folder, [f"arm={folder / 'arm_thin.csv'}:torque"]).find(wanted)
    assert (own.table.feature_names, own.table.name, own.is_own) == (("time", "angle"), "arm", True)
    assert torch.equal(own.table.y, found.table.y)
    choices = Choices(Sources(folder), tmp_path, 1)
    sets, notes = found_sets(choices, [wanted, PaperSet("leg")])
    assert [one.name for one in sets] == ["arm"]
    assert any("give --data-set leg=FILE:TARGET" in note for note in notes)
    with pytest.raises(ValueError, match="leg is left out"):
        found_sets(choices._replace(sets=["leg"]), [wanted, PaperSet("leg")])
    with pytest.raises(ValueError, match="twice"):
        Sources(folder, [f"arm={folder / 'arm_thin.csv'}:torque"] * 2)


def test_estimates_and_paired_tests_are_the_textbook_ones():
    first, second = [1.0, 2.5, 3.0, 4.0, math.nan], [0.5, 1.0, 3.5, 2.0, 1.0]
    gains = [0.5, 1.5, -0.5, 2.0]
    mean = sum(gains) / 4
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / 3)
    found = paired(first, second)
    assert (found.num, found.num_larger) == (4, 3)
    assert found.mean == pytest.approx(mean)
    assert found.median == pytest.approx(1.0)
    statistic = mean / (deviation / 2)
    # Student's t with three degrees of freedom has a distribution function in closed form.
    x = statistic / math.sqrt(3)
    upper = 0.5 - (math.atan(x) + x / (1 + x * x)) / math.pi
    assert found.t_p_value == pytest.approx(2 * upper)
    assert estimate(gains).error == pytest.approx(deviation / 2)
    assert math.isnan(estimate([]).mean)
    assert math.isnan(paired([1.0], [1.0]).wilcoxon_p_value)


def test_printed_numbers_belong_to_experiments():
    for path in sorted(STUDIES.glob("*/printed.csv")):
        paper = next(one for one in PAPERS.values() if one.name.replace("-", "_") == path.parent.name)
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["experiment"] for row in rows} <= {one.name for one in paper.experiments}
        assert all(row["where"] for row in rows)
        keys = [(row["experiment"], row["set"], row["method"], row["score"]) for row in rows]
        assert len(set(keys)) == len(keys)


def test_commands_that_pages_name_exist():
    complaints = []
    for path in PAGES:
        for paper, what in re.findall(r"python -m studies ([\w-]+) (\S+?)[`\s]", path.read_text(encoding="utf-8")):
            if paper not in ("list", "arena") and what not in {one.name for one in paper_named(paper).experiments}:
                complaints.append(f"{path.name}: {paper} {what}")
    assert complaints == []
