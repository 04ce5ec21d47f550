"""The fusion figure: rows, splits and experts by their definitions; finished parts are not run again."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from scipy.stats import norm

from gp_ensembles.fusion import HMC, HMCSettings, LaplaceApproximation
from studies.__main__ import main
from studies.fusion import methods as fusion_methods
from studies.fusion import study as fusion
from studies.fusion.methods import INFERENCES, METHODS, FusionAnswer, FusionTask
from studies.fusion.sets import (
    expert_source,
    made_up_mixture,
    make_priors,
    split_mixture,
    train_experts,
)
from studies.fusion.tables import ORDER, FusionPlan, FusionScores, Setting, findings, table_text
from studies.harness.parts import Record, Results, mean_of

RULES = ["stacking", "equal", "gPoE", "PoE", "barycenter"]
OPTIONS = fusion.Options(splits=2, models=RULES, inference="laplace", num_rows=100)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def split():
    return split_mixture(made_up_mixture(1.0, 100, 0), 0, 0)


@pytest.fixture(scope="module")
def experts(split):
    return expert_source(split, 0, 0)


@pytest.fixture
def small(monkeypatch):
    """Two settings and no picture, where neither is what is tested."""
    monkeypatch.setattr(fusion, "draw_boxes", lambda *arguments: None)
    monkeypatch.setitem(fusion.FIGURES, "3a", fusion.FIGURES["3a"]._replace(experts=(2, 3)))


@pytest.fixture
def quick(monkeypatch):
    """Inferences that are good enough for tests of everything around them."""
    monkeypatch.setitem(
        INFERENCES, "laplace", lambda: LaplaceApproximation(num_restarts=2, max_iterations=40, num_draws=20)
    )
    settings = HMCSettings(num_draws=6, num_warmup=6, max_steps=4)
    monkeypatch.setitem(INFERENCES, "hmc", lambda: HMC(num_chains=4, settings=settings, start_iterations=5))
    monkeypatch.setattr(fusion_methods, "NUM_DRAWS", 6)


def task(split, experts, inference="laplace"):
    generator = torch.Generator().manual_seed(1)
    return FusionTask(split, 2, make_priors(split.X, 5, 0, 0), experts, inference, generator)


def test_rows_come_from_the_mixture_that_their_densities_are_of():
    rows = made_up_mixture(1.0, 2000, 2)
    assert bool((rows.X.abs() < 1).all())
    assert float(rows.X.abs().max()) > 0.98
    # The density of a draw has the entropy of the mixture as its mean: that of one expert plus at most log 3.
    one = norm(scale=0.1).entropy()
    assert one - 0.02 < -float(rows.log_prob.mean()) < one + math.log(3)
    assert float(made_up_mixture(3.0, 400, 2).X.abs().max()) > 2.9


def test_rows_are_functions_of_the_seed():
    first, again, other = made_up_mixture(1.0, 60, 0), made_up_mixture(1.0, 60, 0), made_up_mixture(1.0, 60, 1)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)


def test_splits_take_all_rows_and_center_the_targets_by_the_training_rows():
    rows = made_up_mixture(1.0, 1000, 0)
    split = split_mixture(rows, 0, 0)
    assert (split.X.shape, split.test_X.shape) == ((800, 1), (200, 1))
    assert sorted(torch.cat([split.X, split.test_X]).flatten().tolist()) == sorted(rows.X.flatten().tolist())
    assert float(split.y.mean()) == pytest.approx(0, abs=1e-12)
    place = {x: number for number, x in enumerate(rows.X.flatten().tolist())}
    order = [place[x] for x in split.test_X.flatten().tolist()]
    shift = rows.y[order] - split.test_y
    torch.testing.assert_close(shift, shift[:1].expand(200))
    assert split.truth == pytest.approx(-float(rows.log_prob[order].mean()))
    assert not torch.equal(split.test_y, split_mixture(rows, 0, 1).test_y)


def test_priors_have_the_rows_length_scales_and_share_frequencies_between_sizes(split):
    few, many = make_priors(split.X, 10, 0, 0), make_priors(split.X, 50, 0, 0)
    assert [float(prior.log_hyperparameters[0].exp()) for prior in many] == pytest.approx([0.2, 0.5, 0.5])
    for small, large in zip(few, many, strict=True):
        torch.testing.assert_close(small.frequencies, large.frequencies[:10])
    assert not torch.equal(many.noise.frequencies, many.weight.frequencies)
    with pytest.raises(ValueError, match="1 to 100 frequencies"):
        make_priors(split.X, 101, 0, 0)


def test_experts_train_on_the_first_half_and_stack_on_the_second(split, monkeypatch):
    seen = []

    def fit(evidence):
        seen.append(evidence.model.train_inputs[0])
        return fit_gpytorch_mll(evidence)

    monkeypatch.setattr("studies.fusion.sets.fit_gpytorch_mll", fit)
    found = train_experts(split, 3, torch.Generator().manual_seed(0))
    assert [len(X) for X in seen] == [13, 13, 13]
    rows = torch.cat(seen).flatten().tolist()
    assert len(set(rows)) == 39  # no two share a row
    assert set(rows) <= set(split.X[:40].flatten().tolist())
    torch.testing.assert_close(found.X, split.X[40:])
    assert (found.predictions.mean.shape, found.test.mean.shape) == ((3, 40), (3, 20))
    with pytest.raises(ValueError, match="not enough to train 30 experts"):
        train_experts(split, 30, torch.Generator())


def test_experts_are_trained_once(experts):
    assert experts(2) is experts(2)


def test_rules_are_those_of_their_names(split, experts):
    test = experts(2).test
    mean, variance, y = test.mean.numpy(), test.target_variance.numpy(), split.test_y.numpy()
    found = {name: METHODS[name].run(task(split, experts)).log_prob.numpy() for name in RULES}
    density = norm.pdf(y, mean, np.sqrt(variance))
    np.testing.assert_allclose(found["equal"], np.log(density.mean(0)))
    precision = (1 / variance).sum(0)
    center = (mean / variance).sum(0) / precision
    np.testing.assert_allclose(found["PoE"], norm.logpdf(y, center, precision**-0.5))
    np.testing.assert_allclose(found["gPoE"], norm.logpdf(y, center, (precision / 2) ** -0.5))
    np.testing.assert_allclose(found["barycenter"], norm.logpdf(y, mean.mean(0), np.sqrt(variance).mean(0)))
    stacked = experts(2).predictions.log_prob(experts(2).y).exp().numpy()  # the second half decides
    grid = np.linspace(0, 1, 1001)
    best = grid[np.argmax([np.log(w * stacked[0] + (1 - w) * stacked[1]).sum() for w in grid])]
    np.testing.assert_allclose(found["stacking"], np.log(best * density[0] + (1 - best) * density[1]), atol=2e-3)


@pytest.mark.parametrize("name", ["MoGPE", "PoGPE", "HetGP", "P-BHS", "BHS"])
@pytest.mark.parametrize("inference", ["laplace", "hmc"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_model_predicts_the_test_rows_by_every_inference(name, inference, split, experts, quick):
    found = METHODS[name].run(task(split, experts, inference))
    assert found.log_prob.shape == split.test_y.shape
    assert bool(found.log_prob.isfinite().all())
    assert set(found.checks) == (
        {"rhat", "high_pareto_k", "divergences", "chains_with_weight"} if inference == "hmc" else set()
    )


def test_answers_are_functions_of_the_seed(split, experts, quick):
    first, second = (METHODS["P-BHS"].run(task(split, experts)).log_prob for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_interrupted_chains_are_no_finished_part(split, experts, quick, monkeypatch):
    monkeypatch.setattr(fusion_methods, "NUM_DRAWS", 7)  # more than there will be
    with pytest.raises(KeyboardInterrupt):
        METHODS["BHS"].run(task(split, experts, "hmc"))


@pytest.mark.parametrize(
    ("figure", "settings"),
    [
        ("3a", [(K, 30, 1.0) for K in (2, 3, 4, 5)]),
        ("3b", [(2, M, width) for width in (1.0, 3.0) for M in (10, 30, 50)]),
    ],
)
def test_figures_have_the_settings_of_the_paper_s(figure, settings):
    plan = fusion.make_plan(figure, fusion.Options())
    assert plan.settings == settings
    assert (plan.methods, plan.splits, plan.inference, plan.num_rows) == (list(METHODS), 5, "hmc", 1000)


def test_a_figure_is_written_with_its_picture(tmp_path, quick):
    text = fusion.run("3b", tmp_path, OPTIONS._replace(splits=1, models=["BHS", "equal"]))
    for words in ("more frequencies", "1 split(s) of 100 rows", "inference by laplace", "BHS: linear stacking"):
        assert words in text
    assert "failed" not in text
    names = [f"fusion_figure_3b.{kind}" for kind in ("csv", "json", "png", "txt")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "fusion_parts"]
    # The pool of equal weights has no frequencies: once for each range of the inputs.
    assert len(list((tmp_path / "fusion_parts").iterdir())) == 6 + 2
    rows = read_rows(tmp_path / "fusion_figure_3b.csv")
    assert len(rows) == 12
    assert len({row["nlpd"] for row in rows if row["method"] == "equal"}) == 2


def test_finished_parts_are_not_run_again(tmp_path, monkeypatch, small):
    text = fusion.run("3a", tmp_path, OPTIONS)
    rows = read_rows(tmp_path / "fusion_figure_3a.csv")
    assert len(rows) == 2 * 2 * 5
    content = json.loads((tmp_path / "fusion_figure_3a.json").read_text())
    scores = [float(row["nlpd"]) for row in rows if (row["method"], row["experts"]) == ("PoE", "3")]
    found = next(row for row in content["rows"] if (row["method"], row["num_experts"]) == ("PoE", 3))
    assert found["nlpd"] == pytest.approx(sum(scores) / 2)
    assert found["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / math.sqrt(2))

    def refuse(*arguments):
        raise AssertionError("run again")

    monkeypatch.setattr(fusion, "run_part", refuse)
    assert fusion.run("3a", tmp_path, OPTIONS) == text
    assert "PoE" in fusion.run("3a", tmp_path, OPTIONS._replace(models=["PoE"], splits=1))
    for change in ({"seed": 1}, {"num_rows": 120}):
        with pytest.raises(AssertionError, match="run again"):
            fusion.run("3a", tmp_path, OPTIONS._replace(**change))


def test_an_interruption_leaves_finished_parts_and_no_half_ones(tmp_path, monkeypatch, capsys, small):
    ran = fusion.run_part

    def interrupted(method, *arguments):
        if method == "PoE":
            raise KeyboardInterrupt
        return ran(method, *arguments)

    options = OPTIONS._replace(models=["equal", "PoE"], splits=1)
    monkeypatch.setattr(fusion, "run_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fusion.run("3a", tmp_path, options)
    assert "goes on with them" in capsys.readouterr().err
    assert len(list((tmp_path / "fusion_parts").iterdir())) == 1
    monkeypatch.setattr(fusion, "run_part", ran)
    fusion.run("3a", tmp_path, options)
    assert len(list((tmp_path / "fusion_parts").iterdir())) == 4


def test_what_fails_is_named_and_the_rest_goes_on(tmp_path, monkeypatch, small):
    def failing(task):
        if task.num_experts == 3:
            raise ValueError("no product today")
        return FusionAnswer(torch.full_like(task.split.test_y, math.nan), {})

    monkeypatch.setitem(METHODS, "PoE", METHODS["PoE"]._replace(run=failing))
    options = OPTIONS._replace(models=["equal", "PoE"], splits=1)
    text = fusion.run("3a", tmp_path, options)
    assert "PoE, K = 3, M = 30, |x| < 1, split 1 failed: no product today" in text
    assert "PoE, K = 2, M = 30, |x| < 1, split 1 failed: a density of a test target is not finite" in text
    with pytest.raises(ValueError, match="nothing could be run; PoE, K = 2"):
        fusion.run("3a", tmp_path / "other", options._replace(models=["PoE"]))


def scored(columns: dict[str, list[list[float]]]) -> FusionScores:
    """Scores of methods by number of experts, 2 and up, and split."""
    settings = [Setting(K, 30, 1.0) for K in range(2, 2 + len(columns["BHS"]))]
    plan = FusionPlan(settings, list(columns), 2, "laplace", 0, 100)
    results = Results(plan, ("method", "setting", "split"), 2)
    results.records |= {
        (name, setting, split): Record({}, {"nlpd": by_split[split]}, {})
        for name, by_setting in columns.items()
        for setting, by_split in zip(settings, by_setting, strict=True)
        for split in range(2)
        if not math.isnan(by_split[split])
    }
    return FusionScores(plan, {(1.0, 0): -0.1, (1.0, 1): -0.3}, results)


def test_the_ordering_and_what_more_experts_bring_are_said():
    scores = scored(
        {
            "MoGPE": [[0.5, 0.4], [0.3, 0.402]],
            "PoGPE": [[0.7, 0.6], [0.7, 0.6]],
            "P-BHS": [[0.8, 0.9], [0.65, 0.9]],
            "BHS": [[0.9, 1.0], [1.0, math.nan]],
        }
    )
    assert tuple(scores.plan.methods) == ORDER
    assert findings(scores) == [
        "K = 2, M = 30, |x| < 1: MoGPE < PoGPE < P-BHS < BHS on 2 of 2 split(s)",
        "K = 3, M = 30, |x| < 1: MoGPE < PoGPE < P-BHS < BHS on 0 of 2 split(s)",
        "MoGPE, K = 2 to 3, |x| < 1: 0.450 -> 0.351; better on 1 and worse on 0 of 2 split(s)",
        "PoGPE, K = 2 to 3, |x| < 1: 0.650 -> 0.650; better on 0 and worse on 0 of 2 split(s)",
        "P-BHS, K = 2 to 3, |x| < 1: 0.850 -> 0.775; better on 1 and worse on 0 of 2 split(s)",
        "BHS, K = 2 to 3, |x| < 1: 0.950 -> 1.000; better on 0 and worse on 1 of 1 split(s)",
    ]
    lines = [line.split() for line in table_text(scores).splitlines()]
    assert lines[1][:7] == ["truth", "-", "-", "1", "-0.200", "-0.100", "-0.300"]
    assert lines[-1][:7] == ["BHS", "3", "30", "1", "1.000", "1.000", "nan"]


def test_means_are_over_what_there_is():
    assert mean_of([1.0, math.nan, 3.0]) == 2.0
    assert math.isnan(mean_of([math.nan]))


@pytest.mark.parametrize(
    ("figure", "change", "words"),
    [
        ("3", {}, "must be one of 3a, 3b, got 3"),
        (None, {}, "got None"),
        ("3a", {"models": ["GPT"]}, "no model GPT; choose from MoGPE, PoGPE"),
        ("3a", {"models": []}, "no model"),
        ("3a", {"models": ["PoE", "PoE"]}, "named twice"),
        ("3a", {"inference": "nuts"}, "--inference must be one of hmc, laplace, got nuts"),
        ("3a", {"splits": 0}, "splits=0"),
        ("3a", {"seed": -1}, "seed"),
        ("3a", {"num_rows": 49}, "max_rows=49 is out of range; give at least 50"),
    ],
)
def test_mistakes_are_named_and_cost_nothing(tmp_path, figure, change, words):
    with pytest.raises(ValueError, match=words):
        fusion.run(figure, tmp_path / "out", OPTIONS._replace(**change))
    assert not (tmp_path / "out").exists()


def test_the_command_line_makes_a_figure_and_names_mistakes(tmp_path, capsys, small):
    arguments = ["fusion", "figure-3a", "--trials", "1", "--methods", "equal", "PoE"]
    arguments += ["--inference", "laplace", "--num-rows", "60", "--progress", "false", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "1 split(s) of 60 rows, inference by laplace" in capsys.readouterr().out
    assert main(["fusion", "figure-3", "--out", str(tmp_path)]) == 2
    assert "fusion has no experiment figure-3; choose from" in capsys.readouterr().err
