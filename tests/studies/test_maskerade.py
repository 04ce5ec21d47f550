"""The MASKERADE paper's tables: splits, units and scores by their definitions; finished parts are not run again."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from scipy.stats import multivariate_normal, norm

from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, Search, marginalize
from gp_ensembles.bayesian_quadrature.prior import draw_stratified
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.data import Table, load_folder
from studies.__main__ import main
from studies.maskerade import methods as maskerade_methods
from studies.maskerade import study as maskerade
from studies.maskerade.methods import METHODS
from studies.maskerade.predictions import scored
from studies.maskerade.problems import likelihood_of
from studies.maskerade.sets import (
    BLOCKS,
    FIFTEEN_FOLDS,
    TEN_FOLDS,
    TENTHS,
    Sample,
    Split,
    differences,
    load_sample,
    split_sample,
    undone_logarithm,
)
from studies.maskerade.tables import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of data sets beside the repository is absent")
OPTIONS = maskerade.Options(8, 2, ["airline_passengers"], ["maskerade-r-noascents", "sobol", "rbf"])


def make_folder(path: Path, name: str, columns: list[str], rows: list[list[float]], target: str = "y") -> Path:
    """A folder with a manifest and one set, as users have them; another set is added to what is there."""
    path.mkdir(exist_ok=True)
    manifest = path / "manifest.json"
    known = json.loads(manifest.read_text())["datasets"] if manifest.exists() else []
    entry = {"name": name, "file": f"{name}.csv", "features": columns, "target": target}
    manifest.write_text(json.dumps({"datasets": [*known, entry]}))
    with (path / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*columns, target], *rows])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short series under the airline's name, and a series without a target in a row."""
    path = tmp_path_factory.mktemp("sets")
    rows = [[1949 + t / 12, 100 + t + 20 * math.sin(t / 2)] for t in range(50)]
    make_folder(path, "airline_passengers", ["year"], rows)
    make_folder(path, "co2_mauna_loa_monthly", ["year"], [*rows[:3], [1960.0, math.nan]])
    return path


def made_up_split(num_rows: int = 30, num_inputs: int = 1) -> Split:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    y = (5 * X.sum(-1)).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    table = Table(X, 7 + 3 * y, tuple(f"x{d}" for d in range(num_inputs)), "y", "made up")
    return split_sample(Sample(table, ()), torch.arange(0, num_rows, 5))


def test_solar_blocks_are_the_paper_s():
    rows = BLOCKS.choose(391, 3, 5).tolist()
    assert rows == [start + k for start in (16, 92, 166, 242, 316) for k in range(20)]
    with pytest.raises(ValueError, match="row 335, but the set has 300"):
        BLOCKS.choose(300, 0, 0)


@pytest.mark.parametrize(("holdout", "folds", "shuffles"), [(TEN_FOLDS, 10, 1), (FIFTEEN_FOLDS, 5, 3)])
def test_folds_of_a_shuffle_share_all_rows(holdout, folds, shuffles):
    seen = []
    for shuffle in range(shuffles):
        parts = [holdout.choose(308, shuffle * folds + fold, 4) for fold in range(folds)]
        assert torch.cat(parts).sort().values.tolist() == list(range(308))
        assert {len(part) for part in parts} <= {308 // folds, 308 // folds + 1}
        seen.append(parts[0].tolist())
    assert len({tuple(rows) for rows in seen}) == shuffles
    assert holdout.choose(308, 0, 5).tolist() != seen[0]
    assert holdout.limit == folds * shuffles


def test_ninety_ten_splits_leave_nine_tenths_rounded_down():
    rows = TENTHS.choose(144, 0, 0)
    assert len(rows) == 144 - 129
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert rows.tolist() == TENTHS.choose(144, 0, 0).tolist() != TENTHS.choose(144, 1, 0).tolist()
    assert TENTHS.choose(144, 1, 0).tolist() == TENTHS.choose(144, 0, 1).tolist()  # seeds count on


def test_rows_are_scaled_by_the_training_rows_alone():
    X = torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0], [4.0, 5.0, 2.0], [8.0, 6.0, 9.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 2.0, 6.0, 100.0], dtype=torch.float64)
    split = split_sample(Sample(Table(X, y, ("a", "b", "c"), "y", "pump"), ("given",)), torch.tensor([3]))
    assert split.X.tolist() == [[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]]
    assert split.test_X.tolist() == [[2.0, 4.0]]
    unit = math.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3)  # population
    assert split.unit == pytest.approx(unit)
    assert split.y.tolist() == pytest.approx([-2 / unit, -1 / unit, 3 / unit])
    assert split.test_y.tolist() == pytest.approx([97 / unit])
    assert split.notes == ("given", "pump: b constant in the training rows and left out")


def test_one_input_keeps_its_unit_and_constant_sets_are_refused():
    split = made_up_split()
    assert split.X.min() > 0
    assert split.X.max() < 1
    X, y = torch.arange(4, dtype=torch.float64).unsqueeze(-1), torch.ones(4, dtype=torch.float64)
    for inputs, targets, words in ((X, y, "the targets of pump"), (0 * X, X[:, 0], "all inputs of pump")):
        with pytest.raises(ValueError, match=words):
            split_sample(Sample(Table(inputs, targets, ("a",), "y", "pump"), ()), torch.tensor([0]))


def test_a_logarithm_is_undone_only_where_the_raw_set_is_absent(tmp_path):
    raw = [0.01, 0.2, 5.0, 62.42]
    logs = torch.tensor(raw, dtype=torch.float64).log()
    rows = [[float(t), float(value - logs.mean())] for t, value in enumerate(logs)]
    make_folder(tmp_path / "a", "yacht", ["froude"], rows)
    sample = load_sample(tmp_path / "a", "yacht_raw")
    torch.testing.assert_close(sample.table.y, torch.tensor(raw, dtype=torch.float64))
    assert "logarithm" in sample.notes[0]
    make_folder(tmp_path / "a", "yacht_raw", ["froude"], [[0.0, 3.0], [1.0, 4.0]])
    sample = load_sample(tmp_path / "a", "yacht_raw")
    assert sample.table.y.tolist() == [3.0, 4.0]
    assert "nothing had to be undone" in sample.notes[0]
    assert undone_logarithm(logs[:1]).item() == pytest.approx(0.01)


def test_differences_stand_at_the_later_month_and_end_with_the_authors_copy():
    X = torch.tensor([[2020.3], [2020.4], [2020.5], [2020.7]], dtype=torch.float64)
    table = differences(Table(X, torch.tensor([1.0, 3.0, 2.0, 50.0], dtype=torch.float64), ("t",), "co2", "co2"))
    assert table.X.squeeze(-1).tolist() == [2020.4, 2020.5]
    assert table.y.tolist() == [2.0, -1.0]


@needs_shared
def test_the_sets_of_the_tables_are_what_they_are_said_to_be():
    from_logs = undone_logarithm(load_folder(SHARED, "yacht").y).sort().values
    torch.testing.assert_close(from_logs, load_sample(SHARED, "yacht_raw").table.y.sort().values, rtol=1e-3, atol=1e-3)
    assert load_sample(SHARED, "solar_lean2004").table.feature_names == ("year",)
    assert load_sample(SHARED, "autompg_raw").table.X.shape == (392, 8)
    co2 = load_sample(SHARED, "co2_global_monthly")
    assert co2.table.X.max() < 2020.6
    assert co2.table.y.abs().max() < 5  # differences, not levels
    for layout in LAYOUTS.values():
        for name in layout.sets:
            table = load_sample(SHARED, name).table
            rows = layout.holdout.choose(len(table.y), 0, 0)
            assert len(split_sample(load_sample(SHARED, name), rows).test_y) == len(rows)


def test_scores_are_those_of_the_mixture():
    split = made_up_split()._replace(test_y=torch.tensor([0.3, -1.0], dtype=torch.float64), unit=2.5)
    log_weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    mean = torch.tensor([[0.0, -0.5], [1.0, -2.0]], dtype=torch.float64)
    covariance = torch.tensor([[[1.0, 0.4], [0.4, 0.5]], [[0.3, -0.1], [-0.1, 2.0]]], dtype=torch.float64)
    found = scored(MixturePosterior(log_weights, mean.unsqueeze(-1), covariance.unsqueeze(-3)), split)
    weights, y = (0.3, 0.7), [0.3, -1.0]
    joint = sum(w * multivariate_normal(m, c).pdf(y) for w, m, c in zip(weights, mean, covariance, strict=True))
    moments = list(zip(weights, mean, covariance, strict=True))
    each = [math.log(sum(w * norm.pdf(y[k], m[k], c[k, k].sqrt()) for w, m, c in moments)) for k in range(2)]
    rmse = math.sqrt(((0.7 * 1.0 - 0.3) ** 2 + (0.3 * -0.5 + 0.7 * -2.0 + 1.0) ** 2) / 2)
    assert found["log_prob_joint"] == pytest.approx(math.log(joint))
    assert found["log_prob_sum"] == pytest.approx(sum(each))
    assert found["log_prob"] == pytest.approx(sum(each) / 2)
    assert found["log_prob_raw"] == pytest.approx(sum(each) / 2 - math.log(2.5))
    assert found["rmse_standardized"] == pytest.approx(rmse)
    assert found["rmse"] == pytest.approx(2.5 * rmse)
    assert found["mse_standardized"] == pytest.approx(rmse**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_learns_within_its_budget(name):
    split = made_up_split()
    answer = METHODS[name].run(split, 8, torch.Generator().manual_seed(3))
    found = scored(answer.posterior, split)
    assert all(math.isfinite(value) for value in found.values())
    assert found["rmse_standardized"] < 1.2
    assert float(answer.posterior.log_weights.exp().sum()) == pytest.approx(1.0)
    assert answer.posterior.component_mean.shape[-2] == len(split.test_y)
    assert math.isfinite(answer.diagnostics["best_log_likelihood"])
    if name not in ("rbf", "matern"):  # they converge instead
        assert answer.evaluations == 8


@pytest.mark.parametrize("name", ["sobol", "sm", "matern"])
def test_methods_for_several_inputs_are_functions_of_the_seed(name):
    split = made_up_split(20, 2)
    first, again, other = (
        scored(METHODS[name].run(split, 8, torch.Generator().manual_seed(seed)).posterior, split) for seed in (3, 3, 4)
    )
    assert first == again
    assert (first == other) == (name == "matern")  # which draws nothing


def test_the_average_of_prior_draws_is_that_of_their_likelihoods():
    split = made_up_split()
    answer = METHODS["sobol"].run(split, 50, torch.Generator().manual_seed(0))
    problem = RegressionProblem(split.X, split.y)
    values = problem.evaluate(draw_stratified(problem.prior, 50, generator=torch.Generator().manual_seed(0)))
    assert answer.diagnostics["log_evidence"] == pytest.approx(float(values.exp().mean().log()))
    weights = values.softmax(-1).sort(descending=True).values
    kept = int(answer.diagnostics["kernels"])
    assert weights[:kept].sum() >= 1 - 1e-3
    assert weights[: kept - 1].sum() < 1 - 1e-3
    torch.testing.assert_close(answer.posterior.log_weights.exp(), weights[:kept] / weights[:kept].sum())


def test_a_single_kernel_predicts_as_scikit_learn_does():
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = process.kernels
    split = made_up_split(40)
    answer = METHODS["rbf"].run(split, 100, torch.Generator())
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.RBF(0.3) + kernels.WhiteKernel(0.01, (1e-6, 1.0))
    oracle = process.GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=0)
    oracle.fit(split.X.numpy(), split.y.numpy())
    assert answer.diagnostics["best_log_likelihood"] == pytest.approx(oracle.log_marginal_likelihood_value_, abs=0.05)
    mean = torch.as_tensor(oracle.predict(split.test_X.numpy()))
    torch.testing.assert_close(answer.posterior.mean.squeeze(-1), mean, atol=0.03, rtol=0)


def test_a_table_is_written_and_finished_parts_are_not_run_again(folder, tmp_path, monkeypatch):
    text = maskerade.run(5, folder, tmp_path, OPTIONS)
    for words in ("The paper's RMSE is rmse_standardized", "paper: MASKERADE", "0.162", "airline_passengers: 90/10"):
        assert words in text
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["maskerade_parts"] + [f"maskerade_table_5.{kind}" for kind in ("csv", "json", "png", "txt")]
    with (tmp_path / "maskerade_table_5.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["part"]) for row in rows] == [(m, str(p)) for p in range(2) for m in OPTIONS.methods]
    content = json.loads((tmp_path / "maskerade_table_5.json").read_text())
    mean = sum(float(row["rmse"]) for row in rows if row["method"] == "sobol") / 2
    assert next(r for r in content["rows"] if r["method"] == "sobol")["mean"]["rmse"] == pytest.approx(mean)

    def refuse(*arguments):
        raise AssertionError("run again")

    monkeypatch.setattr(maskerade, "run_part", refuse)
    assert maskerade.run(5, folder, tmp_path, OPTIONS) == text
    assert maskerade.run(5, folder, tmp_path, OPTIONS._replace(methods=["rbf"], folds=1)).count("rbf") == 1
    with pytest.raises(AssertionError, match="run again"):  # another budget is another part
        maskerade.run(5, folder, tmp_path, OPTIONS._replace(evaluations=9))


def test_an_interruption_leaves_finished_parts_and_no_half_ones(folder, tmp_path, monkeypatch, capsys):
    ran = maskerade.run_part

    def interrupted(method, *arguments):
        if method == "rbf":
            raise KeyboardInterrupt
        return ran(method, *arguments)

    monkeypatch.setattr(maskerade, "run_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        maskerade.run(5, folder, tmp_path, OPTIONS)
    assert "goes on with them" in capsys.readouterr().err
    assert len(list((tmp_path / "maskerade_parts").iterdir())) == 2
    monkeypatch.setattr(maskerade, "run_part", ran)
    maskerade.run(5, folder, tmp_path, OPTIONS)
    assert len(list((tmp_path / "maskerade_parts").iterdir())) == 6


def test_a_search_cut_short_is_no_finished_part(monkeypatch):
    def cut(problem, budget, search, **options):
        return marginalize(problem, Budget(budget.evaluations - 3, draws=0), Search(num_ascents=0), **options)

    monkeypatch.setattr(maskerade_methods, "marginalize", cut)
    with pytest.raises(KeyboardInterrupt):
        METHODS["maskerade-r"].run(made_up_split(), 12, torch.Generator().manual_seed(0))


def test_what_fails_is_named_and_the_rest_goes_on(folder, tmp_path, monkeypatch):
    ran = maskerade.run_part

    def failing(method, *arguments):
        if method == "sobol":
            raise ValueError("no likelihoods today")
        return ran(method, *arguments)

    monkeypatch.setattr(maskerade, "run_part", failing)
    options = OPTIONS._replace(folds=1, sets=["airline_passengers", "co2_mauna_loa_monthly"], methods=["sobol", "rbf"])
    text = maskerade.run(5, folder, tmp_path, options)
    assert "airline_passengers, sobol, part 1 failed: no likelihoods today" in text
    assert "co2_mauna_loa_monthly, all methods failed: co2_mauna_loa_monthly has rows without a target" in text
    assert "\nrbf" in text
    with pytest.raises(ValueError, match="nothing could be run; airline_passengers, sobol: no likelihoods today"):
        maskerade.run(5, folder, tmp_path / "other", options._replace(methods=["sobol"]))


def test_evidence_is_shown_as_it_was_known(tmp_path):
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    table = [[*r, math.sin(4 * sum(r))] for r in rows.tolist()]
    folder = make_folder(tmp_path / "sets", "airfoil_raw", ["a", "b"], table)
    text = maskerade.run(6, folder, tmp_path, maskerade.Options(20, methods=["maskerade-r-noascents"]))
    header = next(line for line in text.splitlines() if line.startswith("method") and "after" in line)
    assert [word for word in header.split() if word.isdigit()] == ["6", "10", "15", "20"]
    assert (tmp_path / "maskerade_table_6.png").exists()
    (part,) = (tmp_path / "maskerade_parts").iterdir()
    curves = json.loads(part.read_text())["curves"]
    assert curves["evaluations"][-1] == 20
    last = next(line for line in reversed(text.splitlines()) if line.startswith("maskerade-r-noascents"))
    assert float(last.split()[-3]) == pytest.approx(curves["log_evidence"][-1], rel=1e-4)


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        (7, {}, "must be one of 1, 2, 3, 4, 5, 6, got 7"),
        (None, {}, "got None"),
        (2, {"sets": ["airline_passengers"]}, "no set airline_passengers; choose from"),
        (5, {"methods": ["maskerade-x"]}, "no method maskerade-x"),
        (5, {"methods": ["sm", "sm"]}, "named twice"),
        (5, {"evaluations": 4}, "evaluations=4"),
        (5, {"folds": 0}, "folds=0"),
        (2, {"folds": 11, "sets": None}, "at least 1 and at most 10"),
        (5, {"seed": -1}, "seed"),
    ],
)
def test_mistakes_are_named_and_cost_nothing(folder, tmp_path, table, change, words):
    with pytest.raises(ValueError, match=words):
        maskerade.run(table, folder, tmp_path / "out", OPTIONS._replace(**change))
    assert not (tmp_path / "out").exists()


def test_the_folder_of_the_sets_is_needed(tmp_path):
    with pytest.raises(ValueError, match="--data"):
        maskerade.run(5, None, tmp_path)
    with pytest.raises(FileNotFoundError, match="manifest"):
        maskerade.run(5, tmp_path, tmp_path / "out")


def test_the_command_line_makes_a_table(folder, tmp_path, capsys):
    arguments = ["maskerade", "table-5", "--data", str(folder), "--evaluations", "8", "--trials", "1"]
    arguments += ["--sets", "airline_passengers", "--methods", "rbf", "sobol", "--progress", "false"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "paper: MASKERADE" in capsys.readouterr().out
    assert main(["maskerade", "table-7", "--out", str(tmp_path)]) == 2
    assert "maskerade has no experiment table-7" in capsys.readouterr().err


@pytest.mark.parametrize("table", list(LAYOUTS))
def test_every_layout_names_methods_that_there_are(table):
    assert set(LAYOUTS[table].methods) <= set(METHODS)


@pytest.mark.slow
@needs_shared
def test_a_real_table(tmp_path):
    options = maskerade.Options(20, 1, ["yacht_raw"], ["maskerade-r", "sm"])
    text = maskerade.run(2, SHARED, tmp_path, options)
    assert "47.2" in text
    content = json.loads((tmp_path / "maskerade_table_2.json").read_text())
    assert content["rows"][0]["mean"]["rmse"] < 6  # predicting the mean gives 15


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "name"),
    [(300, 1, "DenseLikelihood"), (2001, 1, "ToeplitzLikelihood"), (2001, 2, "SparseLikelihood")],
)
def test_the_likelihood_is_one_that_the_rows_can_bear(num_rows, num_inputs, name):
    X = torch.rand(num_rows, num_inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if num_inputs == 1:
        X = torch.arange(num_rows, dtype=torch.float64).unsqueeze(-1)
    split = made_up_split()._replace(X=X, y=X[:, 0])
    assert type(likelihood_of(split)).__name__ == name


def test_table_4_of_a_small_copy(tmp_path):
    """The command on a made-up series of a set's name; the larger likelihoods have tests of their own."""
    rows = [[t, math.sin(0.3 * t)] for t in range(40)]
    make_folder(tmp_path / "data", "sterling_eri", ["t"], rows)
    options = maskerade.Options(8, 1, ["sterling_eri"], ["maskerade-r-noascents", "sobol"])
    text = maskerade.run(4, tmp_path / "data", tmp_path / "out", options)
    assert "paper: MASKERADE" in text
    assert "0.523" in text
    assert "335" in text
