"""The knot-selection table: splits, starts and scores by their definitions; finished parts are not run again."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from gp_ensembles.data import Table
from studies.__main__ import main
from studies.harness.parts import Results
from studies.knots import study as knots
from studies.knots.figures import made_up_rows, run_figure
from studies.knots.methods import METHODS, KnotAnswer, KnotTask, exact_process, start_values
from studies.knots.pictures import draw_growth
from studies.knots.sets import SETS, load_set, split_rows
from studies.knots.study import scored
from studies.knots.tables import LAYOUTS, SCORES

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of data sets beside the repository is absent")
OPTIONS = knots.Options(splits=2, max_knots=6)
BOSTON = ["crim", "rm", "ptratio", "lstat"]


def write_set(path: Path, name: str, columns: list[str], rows: list[list[float]], target: str) -> Path:
    """A folder with a manifest and one set, as users have them."""
    path.mkdir(exist_ok=True)
    entry = {"name": name, "file": f"{name}.csv", "features": columns, "target": target}
    (path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    with (path / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*columns, target], *rows])
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up rows under Boston's name, five of them censored."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(65, 4)) * [1, 3, 5, 20] + [0, 5, 15, 2]
    y = 20 + 4 * (X[:, 1] - 6) ** 2 - 0.3 * X[:, 3] + 0.5 * rng.normal(size=65)
    y[:5] = 50.0
    rows = np.column_stack([X, y]).tolist()
    return write_set(tmp_path_factory.mktemp("sets"), "boston_raw", BOSTON, rows, "medv")


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes longer than everything else where pictures are not what is tested."""
    monkeypatch.setattr(knots, "draw_scores", lambda *arguments: None)


@pytest.fixture
def split(folder):
    return split_rows(load_set(folder, "boston"), 0.8, 3)


def task(split, max_knots=6, start=None):
    return KnotTask(split, max_knots, start, torch.Generator().manual_seed(1))


def test_boston_has_three_inputs_and_no_censored_rows(folder):
    table = load_set(folder, "boston")
    assert table.feature_names == ("rm", "ptratio", "lstat")
    assert table.X.shape == (60, 3)
    assert table.y.max() < 50


def test_splits_are_standardized_by_the_training_rows_alone(split, folder):
    assert (split.X.shape, split.test_X.shape) == ((48, 3), (12, 3))
    torch.testing.assert_close(split.X.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(split.X.std(0), torch.ones(3, dtype=torch.float64))
    table = load_set(folder, "boston")
    assert sorted(torch.cat([split.y, split.test_y]).tolist()) == sorted(table.y.tolist())  # targets as they are
    again, other = split_rows(table, 0.8, 3), split_rows(table, 0.8, 4)
    assert torch.equal(split.test_y, again.test_y)
    assert not torch.equal(split.test_y, other.test_y)


@pytest.mark.parametrize(("rows", "train"), [(490, 392), (1503, 1202), (9568, 4784)])
def test_training_rows_are_as_many_as_the_paper_s(rows, train):
    share = {490: "boston", 1503: "airfoil", 9568: "ccpp"}[rows]
    X = torch.arange(rows, dtype=torch.float64).unsqueeze(-1)
    found = split_rows(Table(X, X.squeeze(-1), ("x",), "y", "line"), SETS[share].train_share, 0)
    assert len(found.y) == train


@needs_shared
@pytest.mark.parametrize(("name", "rows", "inputs"), [("boston", 490, 3), ("airfoil", 1503, 5), ("ccpp", 9568, 4)])
def test_the_sets_are_the_paper_s(name, rows, inputs):
    assert load_set(SHARED, name).X.shape == (rows, inputs)


def test_hyperparameters_start_where_the_paper_s_do():
    y = torch.tensor([0.0, 4.0, 8.0], dtype=torch.float64)
    kernel, likelihood = start_values(y)
    assert float(kernel.outputscale.detach()) == pytest.approx(8.0)
    assert float(likelihood.noise.detach()) == pytest.approx(8.0)
    assert float(kernel.base_kernel.lengthscale.detach()) == pytest.approx(1.0)


def test_the_full_process_is_scikit_learn_s(split):
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = process.kernels
    start = float(split.y.var()) / 2
    wide = (1e-5, 1e5)
    kernel = kernels.ConstantKernel(start, wide) * kernels.RBF(1.0, wide) + kernels.WhiteKernel(start, wide)
    oracle = process.GaussianProcessRegressor(kernel, alpha=0.0)
    center = float(split.y.mean())
    oracle.fit(split.X.numpy(), split.y.numpy() - center)
    found = exact_process(task(split))
    assert found.objective == pytest.approx(oracle.log_marginal_likelihood_value_, abs=1e-3)
    mean, deviation = oracle.predict(split.test_X.numpy(), return_std=True)
    np.testing.assert_allclose(found.mean.numpy(), mean + center, atol=0.02)
    np.testing.assert_allclose((found.variance + found.noise).sqrt().numpy(), deviation, rtol=0.02)
    assert found.knots.shape == (0, 3)


def test_scores_are_those_of_their_definitions():
    mean, variance = torch.tensor([[0.0, 1.0, 2.0], [0.5, 1.5, 0.1]], dtype=torch.float64)
    y = torch.tensor([0.3, 0.0, 5.0], dtype=torch.float64)
    found = scored(KnotAnswer(mean, variance, 0.25, -7.0, torch.zeros(4, 2), {}), y)
    each = [-norm.logpdf(float(y[k]), float(mean[k]), math.sqrt(variance[k] + 0.25)) for k in range(3)]  # noise once
    assert found["mnlp"] == pytest.approx(sorted(each)[1])
    assert found["mean_nlp"] == pytest.approx(sum(each) / 3)
    twice = [-norm.logpdf(float(y[k]), float(mean[k]), math.sqrt(variance[k] + 0.5)) for k in range(3)]
    assert found["mnlp_twice"] == pytest.approx(sorted(twice)[1])
    assert found["srmse"] == pytest.approx(math.sqrt((0.09 + 1 + 9) / 3) / np.std(y.numpy(), ddof=1))
    assert (found["knots"], found["objective"]) == (4, -7)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name != "FGP"])
def test_every_method_selects_at_most_the_knots_allowed_and_stays_below_the_evidence(name, split):
    needed = METHODS[name].needs is not None
    found = METHODS[name].run(task(split, start=split.X[:4] if needed else None))
    assert len(found.knots) == 4 if needed else 1 <= len(found.knots) <= 6
    if name != "OBFk":
        assert found.objective <= exact_process(task(split)).objective + 1e-3
    assert bool((found.variance > 0).all())
    assert found.history["history_knots"][-1] == len(found.knots)
    assert found.history["history_objective"][-1] == pytest.approx(found.objective, abs=1e-6)


@pytest.mark.parametrize("name", ["ORVk", "default"])
def test_selections_are_functions_of_the_seed(name, split):
    first, second = (METHODS[name].run(task(split)) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.knots, second.knots)


def test_simultaneous_optimization_needs_the_knots_it_starts_from(split):
    with pytest.raises(ValueError, match="knots of OBVk are needed"):
        METHODS["SVO"].run(task(split))


@pytest.mark.parametrize("name", ["OBVk", "default"])
def test_fewer_knots_than_one_begins_with_are_allowed(name, split):
    assert len(METHODS[name].run(task(split, 2)).knots) <= 2


def test_an_interrupted_selection_is_no_finished_part(split, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gp_ensembles.sparse.one_at_a_time.OneAtATime.search", interrupt)
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        METHODS["OBVk"].run(task(split))


@pytest.mark.slow
def test_a_table_of_all_methods_is_written_with_pictures(folder, tmp_path):
    text = knots.run("boston", folder, tmp_path, OPTIONS._replace(splits=1))
    for words in ("(R: OBVk)", "(0.4007)", "MNLP is the median", "SVO: simultaneous from OBVk's knots", *METHODS):
        assert words in text
    assert "failed" not in text
    kinds = ("csv", "json", "png", "txt")
    files = ["knots_boston_growth.png", "knots_parts", *(f"knots_boston.{kind}" for kind in kinds)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    rows = {row["method"]: row for row in read_rows(tmp_path / "knots_boston.csv")}
    assert list(rows) == list(METHODS)
    exact = rows.pop("FGP")
    assert (exact["aukl_f"], exact["knots"]) == ("0.0", "")
    assert all(float(row["aukl_f"]) > 0 and float(row["knots"]) <= 6 for row in rows.values())
    assert rows["OBVk"]["knots"] == rows["SVk"]["knots"] == rows["SVO"]["knots"]


def test_finished_parts_are_not_run_again(folder, tmp_path, monkeypatch, no_pictures):
    options = OPTIONS._replace(methods=["ORVk", "FGP"])
    text = knots.run("boston", folder, tmp_path, options)
    rows = read_rows(tmp_path / "knots_boston.csv")
    assert [(row["method"], row["split"]) for row in rows] == [(m, s) for s in "01" for m in ("FGP", "ORVk")]
    content = json.loads((tmp_path / "knots_boston.json").read_text())
    scores = [float(row["srmse"]) for row in rows if row["method"] == "ORVk"]
    found = next(row for row in content["rows"] if row["method"] == "ORVk")
    assert found["mean"]["srmse"] == pytest.approx(sum(scores) / 2)
    assert found["deviation"]["srmse"] == pytest.approx(abs(scores[0] - scores[1]) / math.sqrt(2))

    def refuse(*arguments):
        raise AssertionError("run again")

    monkeypatch.setattr(knots, "run_part", refuse)
    assert knots.run("boston", folder, tmp_path, options) == text
    assert knots.run("boston", folder, tmp_path, options._replace(methods=["FGP"], splits=1)).count("FGP: full") == 1
    with pytest.raises(AssertionError, match="run again"):
        knots.run("boston", folder, tmp_path, options._replace(max_knots=5))


def test_methods_bring_what_they_start_from_and_keep_their_order():
    assert knots.make_plan("boston", OPTIONS._replace(methods=["SVO", "FGP"])).methods == ["FGP", "OBVk", "SVO"]


def test_divergences_need_the_full_process(folder, tmp_path, no_pictures):
    text = knots.run("boston", folder, tmp_path, OPTIONS._replace(methods=["ORVk"], splits=1))
    header, row = (next(line for line in text.splitlines() if line.startswith(word)) for word in ("method", "ORVk "))
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert shown["aukl_f"] == shown["aukl_y"] == "-"
    assert float(shown["srmse"]) < 1


def test_an_interruption_leaves_finished_parts_and_no_half_ones(folder, tmp_path, monkeypatch, capsys, no_pictures):
    ran = knots.run_part

    def interrupted(method, *arguments):
        if method == "ORVk":
            raise KeyboardInterrupt
        return ran(method, *arguments)

    options = OPTIONS._replace(methods=["FGP", "ORVk"], splits=1)
    monkeypatch.setattr(knots, "run_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        knots.run("boston", folder, tmp_path, options)
    assert "goes on with them" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "knots_parts").iterdir()] == ["boston-0-FGP-6-seed0.json"]
    monkeypatch.setattr(knots, "run_part", ran)
    knots.run("boston", folder, tmp_path, options)
    assert len(list((tmp_path / "knots_parts").iterdir())) == 2


def test_what_fails_is_named_and_the_rest_goes_on(folder, tmp_path, monkeypatch, no_pictures):
    ran = knots.run_part

    def failing(method, *arguments):
        if method == "OBVk":
            raise ValueError("no proposals today")
        return ran(method, *arguments)

    monkeypatch.setattr(knots, "run_part", failing)
    options = OPTIONS._replace(methods=["FGP", "OBVk", "SVk"], splits=1)
    text = knots.run("boston", folder, tmp_path, options)
    assert "OBVk, split 1 failed: no proposals today" in text
    assert "SVk, split 1 failed: it starts from the knots of OBVk, which failed" in text
    with pytest.raises(ValueError, match="nothing could be run; OBVk: no proposals today"):
        knots.run("boston", folder, tmp_path / "other", options._replace(methods=["OBVk"]))


def test_a_split_with_a_constant_input_is_named(tmp_path):
    rows = [[float(k), 3.0, 1.0, float(k % 7), float(k % 5)] for k in range(30)]
    path = write_set(tmp_path / "sets", "boston_raw", BOSTON, rows, "medv")
    with pytest.raises(ValueError, match="nothing could be run; all methods: rm, ptratio of boston_raw is constant"):
        knots.run("boston", path, tmp_path, OPTIONS)


@pytest.mark.parametrize(
    ("dataset", "change", "words"),
    [
        ("yacht", {}, "must be one of boston, airfoil, ccpp, got yacht"),
        (None, {}, "got None"),
        ("airfoil", {}, "has no set named airfoil_raw or airfoil"),
        ("boston", {"methods": ["GPT"]}, "no method GPT; choose from FGP, OBVk"),
        ("boston", {"methods": ["FGP", "FGP"]}, "named twice"),
        ("boston", {"splits": 0}, "splits=0"),
        ("boston", {"max_knots": 0}, "max_knots=0"),
        ("boston", {"seed": -1}, "seed"),
    ],
)
def test_mistakes_are_named_and_cost_nothing(folder, tmp_path, dataset, change, words):
    with pytest.raises(ValueError, match=words):
        knots.run(dataset, folder, tmp_path / "out", OPTIONS._replace(**change))
    assert not (tmp_path / "out").exists()


def test_sets_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--data"):
        knots.run("boston", None, tmp_path)
    with pytest.raises(FileNotFoundError, match="manifest"):
        knots.run("boston", tmp_path, tmp_path / "out")
    rows = [[float(k), 3.0, 1.0, 2.0, 5.0] for k in range(12)]
    few = write_set(tmp_path / "few", "boston_raw", BOSTON, rows[:9], "medv")
    with pytest.raises(ValueError, match="boston_raw has 9 usable rows"):
        knots.run("boston", few, tmp_path / "out")
    missing = write_set(tmp_path / "missing", "boston_raw", BOSTON, [*rows, [1, 1, 1, 1, math.nan]], "medv")
    with pytest.raises(ValueError, match="boston_raw has rows without a target"):
        knots.run("boston", missing, tmp_path / "out")


def test_no_growth_is_drawn_without_a_selection(folder, tmp_path, no_pictures):
    knots.run("boston", folder, tmp_path, OPTIONS._replace(methods=["FGP"], splits=1))
    assert not (tmp_path / "knots_boston_growth.png").exists()
    nothing = Results(None, ("method", "split"), 1)
    assert not draw_growth(nothing, ["FGP"], "boston", tmp_path / "none.png")


@pytest.mark.parametrize("number", [1, 2])
def test_figures_are_written_with_their_numbers(number, tmp_path):
    text = knots.run(None, None, tmp_path, figure=number)
    rows = read_rows(tmp_path / f"knots_figure_{number}.csv")
    assert (tmp_path / f"knots_figure_{number}.png").exists()
    if number == 1:
        best = max(rows, key=lambda row: float(row["VFE"]))
        shown = next(line for line in text.splitlines() if line.startswith("VFE")).split()
        assert float(shown[2]) == pytest.approx(float(best["VFE"]), rel=1e-3)
        assert float(shown[3]) == pytest.approx(float(best["place"]), rel=1e-3)
        assert min(float(row["VFE"]) for row in rows) >= float(shown[1]) - 0.01  # a knot never takes anything away
    else:
        assert (tmp_path / "knots_figure_2_selected.png").exists()
        bound = {line.split("  ")[0]: float(line.split()[2]) for line in text.splitlines() if "refinement" in line[:20]}
        assert bound["after refinement"] > bound["before refinement"]
        assert all(float(r["after refinement, lower"]) < float(r["after refinement, mean"]) for r in rows)


def test_figures_are_functions_of_the_seed():
    X, y = made_up_rows(3)
    assert torch.equal(y, made_up_rows(3)[1])
    assert not torch.equal(X, made_up_rows(4)[0])
    with pytest.raises(ValueError, match="--seed"):
        run_figure(1, Path("nowhere"), -1)


def test_the_command_line_makes_a_table_and_a_figure(folder, tmp_path, capsys):
    arguments = ["knots", "boston", "--data", str(folder), "--trials", "1", "--max-knots", "6"]
    arguments += ["--methods", "FGP", "--progress", "false", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "(R: FGP)" in capsys.readouterr().out
    assert main(["knots", "figure-7", "--out", str(tmp_path)]) == 2
    assert "knots has no experiment figure-7" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", list(SETS))
def test_every_set_has_a_layout_that_fits_it(dataset):
    assert all(set(known.scores) <= set(SCORES) for known in LAYOUTS[dataset].known)


@pytest.mark.slow
@needs_shared
def test_a_real_table(tmp_path):
    options = knots.Options(splits=1, max_knots=40, methods=["FGP", "default"])
    knots.run("boston", SHARED, tmp_path, options)
    content = json.loads((tmp_path / "knots_boston.json").read_text())
    exact, ours = (row["mean"] for row in content["rows"][:2])
    assert ours["knots"] <= 40
    assert abs(ours["srmse"] - exact["srmse"]) < 0.01
    assert abs(ours["mnlp"] - exact["mnlp"]) < 0.02
    assert exact["objective"] - 2 < ours["objective"] < exact["objective"] + 1e-3
