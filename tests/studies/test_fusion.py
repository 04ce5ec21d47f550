"""The fusion figure: rows, splits and experts by their definitions."""

import json
import math

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from scipy.stats import norm

from studies.fusion import study as fusion
from studies.fusion.methods import METHODS, FusionTask, Sampling, sampling_of
from studies.fusion.sets import DRAWN, expert_source, made_up_mixture, make_priors, split_rows, train_experts
from studies.fusion.tables import ORDER, FusionPlan, FusionScores, Making, Setting, findings, paired_text, table_text
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results
from studies.harness.sources import Sources
from tests.studies.sets import read_rows

RULES = ["stacking", "equal", "gPoE", "PoE"]
LAPLACE = sampling_of("laplace", 0, 0, False)


@pytest.fixture(scope="module")
def split():
    return split_rows(made_up_mixture(1.0, 100, 0), 0, 0)


@pytest.fixture(scope="module")
def experts(split):
    return expert_source(split, 0, 0)


@pytest.fixture
def small(monkeypatch):
    """Two settings and no picture, where neither is what is tested."""
    monkeypatch.setattr(fusion, "draw_boxes", lambda *arguments: None)
    monkeypatch.setitem(fusion.FIGURES, "3a", fusion.FIGURES["3a"]._replace(experts=(2, 3)))


@pytest.fixture
def choices(tmp_path):
    return Choices(Sources(None), tmp_path, 2, methods=RULES)


def run(figure, choices, num_rows=100):
    return fusion.run(figure, choices, LAPLACE, Making(num_rows))


def task(split, experts, inference="laplace"):
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(inference, 4, 6, False)
    return FusionTask(split, 2, make_priors(split.X, 5, 0, 0), experts, sampling, generator)


def test_rows_come_from_the_mixture_that_their_densities_are_of():
    rows = made_up_mixture(1.0, 2000, 2)
    assert bool((rows.X.abs() < 1).all())
    assert float(rows.X.abs().max()) > 0.98
    # The density of a draw has the entropy of the mixture as its mean: that of one expert plus at most log 3.
    one = norm(scale=0.1).entropy()
    assert one - 0.02 < -float(rows.truth.at(rows.X).log_prob(rows.y).mean()) < one + math.log(3)
    assert float(made_up_mixture(3.0, 400, 2).X.abs().max()) > 2.9
    drawn = made_up_mixture(1.0, 2000, 2, DRAWN).truth.at(rows.X)
    torch.testing.assert_close(drawn.component_mean, rows.truth.at(rows.X).component_mean)
    assert float(drawn.component_variance.amax() / drawn.component_variance.amin()) > 10


def test_splits_take_all_rows_and_center_the_targets_by_the_training_rows():
    rows = made_up_mixture(1.0, 1000, 0)
    split = split_rows(rows, 0, 0)
    assert (split.X.shape, split.test_X.shape) == ((800, 1), (200, 1))
    assert sorted(torch.cat([split.X, split.test_X]).flatten().tolist()) == sorted(rows.X.flatten().tolist())
    assert float(split.y.mean()) == pytest.approx(0, abs=1e-12)
    place = {x: number for number, x in enumerate(rows.X.flatten().tolist())}
    order = [place[x] for x in split.test_X.flatten().tolist()]
    shift = rows.y[order] - split.test_y
    torch.testing.assert_close(shift, shift[:1].expand(200))
    assert split.center == pytest.approx(float(shift[0]))
    assert split.truth == pytest.approx(-float(rows.truth.at(rows.X[order]).log_prob(rows.y[order]).mean()))
    assert not torch.equal(split.test_y, split_rows(rows, 0, 1).test_y)


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


def test_rules_are_those_of_their_names(split, experts):
    test = experts(2).test
    mean, variance, y = test.mean.numpy(), test.target_variance.numpy(), split.test_y.numpy()
    found = {name: METHODS[name].run(task(split, experts)).log_prob.numpy() for name in RULES}
    assert experts(2) is experts(2)  # they are trained once
    density = norm.pdf(y, mean, np.sqrt(variance))
    np.testing.assert_allclose(found["equal"], np.log(density.mean(0)))
    precision = (1 / variance).sum(0)
    center = (mean / variance).sum(0) / precision
    np.testing.assert_allclose(found["PoE"], norm.logpdf(y, center, precision**-0.5))
    np.testing.assert_allclose(found["gPoE"], norm.logpdf(y, center, (precision / 2) ** -0.5))
    stacked = experts(2).predictions.log_prob(experts(2).y).exp().numpy()  # the second half decides
    grid = np.linspace(0, 1, 1001)
    best = grid[np.argmax([np.log(w * stacked[0] + (1 - w) * stacked[1]).sum() for w in grid])]
    np.testing.assert_allclose(found["stacking"], np.log(best * density[0] + (1 - best) * density[1]), atol=2e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_numpyro_and_our_chains_agree(split, experts):
    pytest.importorskip("numpyro", reason="NumPyro is an optional extra")
    samplings = [Sampling(name, 4, 150, False) for name in ("hmc", "nuts")]
    found = [METHODS["BHS"].run(task(split, experts)._replace(sampling=one)).log_prob.mean() for one in samplings]
    assert float(found[0] - found[1]) == pytest.approx(0, abs=0.01)


def test_means_are_of_the_splits_and_chains_have_parts_of_their_own(tmp_path, choices, small):
    run("3a", choices)
    rows = read_rows(tmp_path / "fusion_figure_3a.csv")
    assert len(rows) == 2 * 2 * 4
    content = json.loads((tmp_path / "fusion_figure_3a.json").read_text())
    scores = [float(row["nlpd"]) for row in rows if (row["method"], row["experts"]) == ("PoE", "3")]
    found = next(row for row in content["rows"] if (row["method"], row["num_experts"]) == ("PoE", 3))
    expected = (sum(scores) / 2, abs(scores[0] - scores[1]) / 2)  # the standard error of two numbers
    assert (found["nlpd"], found["error"]) == pytest.approx(expected)
    plans = [
        fusion.make_plan("3a", choices, sampling_of("hmc", 0, 0, published), Making(100)) for published in (False, True)
    ]
    first, second = (fusion.part_settings("BHS", Setting(2, 30, 1.0), 0, plan) for plan in plans)
    assert first != second


def scored(columns: dict[str, list[list[float]]]) -> FusionScores:
    """Scores of methods by number of experts, 2 and up, and split."""
    settings = [Setting(K, 30, 1.0) for K in range(2, 2 + len(columns["BHS"]))]
    plan = FusionPlan(settings, list(columns), 2, LAPLACE, 0)
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
    columns = [[0.5, 0.4], [0.3, 0.402]], [[0.7, 0.6]] * 2, [[0.8, 0.9], [0.65, 0.9]], [[0.9, 1.0], [1.0, math.nan]]
    scores = scored(dict(zip(ORDER, columns, strict=True)))
    assert ORDER == ("MoGPE", "PoGPE", "P-BHS", "BHS")
    assert findings(scores) == [
        "K = 2, M = 30, |x| < 1: MoGPE < PoGPE < P-BHS < BHS on 2 of 2 split(s)",
        "K = 3, M = 30, |x| < 1: MoGPE < PoGPE < P-BHS < BHS on 0 of 2 split(s)",
        "MoGPE, K = 2 to 3, |x| < 1: 0.450 -> 0.351; better on 1 and worse on 0 of 2 split(s)",
        "PoGPE, K = 2 to 3, |x| < 1: 0.650 -> 0.650; better on 0 and worse on 0 of 2 split(s)",
        "P-BHS, K = 2 to 3, |x| < 1: 0.850 -> 0.775; better on 1 and worse on 0 of 2 split(s)",
        "BHS, K = 2 to 3, |x| < 1: 0.950 -> 1.000; better on 0 and worse on 1 of 1 split(s)",
    ]
    lines = [line.split() for line in table_text(scores).splitlines()]
    assert lines[1][:9] == ["truth", "-", "-", "1", "-0.200", "±", "0.100", "-0.100", "-0.300"]
    assert lines[-1][:7] == ["BHS", "3", "30", "1", "1.000", "1.000", "nan"]
    first = next(line for line in paired_text(scores).splitlines() if line.startswith("K = 2"))
    assert first.split()[-9:] == ["MoGPE", "less", "PoGPE", "-0.200", "2", "of", "2", "-", "0.5"]
