"""The arena: scores by closed forms, no rival sees a target too early."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gp_ensembles.distributions import Mixture, Recalibrated, StudentTMixture
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.streaming.predictions import OnlinePredictions
from studies.arena import boosting, river_models, series
from studies.arena.bands import FollowingBand, Points, RecentBand, ScaleModelBand, fitted_student, followed_squares
from studies.arena.baselines import Lagged, RecursiveLinear, SeasonalNaive, found_season
from studies.arena.classes import PreviousLabel
from studies.arena.contenders import METHODS
from studies.arena.distributional import OnlineRegression
from studies.arena.learners import Distributional, Learner, run_learner
from studies.arena.optional import is_installed, missing
from studies.arena.ours import OurClasses, Ours, Predicted, Variant
from studies.arena.scores import WINDOW, LocationScale, lattice_unit, score_classes, score_rows, summarize, with_repeats
from studies.arena.sets import Task, entries, load_task
from studies.arena.tables import ArenaPlan, arena_table, summarize_methods
from studies.arena.window_gp import WindowGP
from studies.harness.parts import Record, Results

LINEAR = replace(PRESETS["oebe"], bases=(LinearBasis(), FourierBasis(num_features=10)))
NUM_WARM, NUM_ROWS = 80, 60


def needs(package: str) -> None:
    if not is_installed(package):
        pytest.skip(missing(package))


def drawn(kind: str = "numbers") -> Task:
    generator = np.random.default_rng(3)
    total = NUM_WARM + NUM_ROWS
    X = generator.standard_normal((total, 2))
    y = np.sin(np.arange(total) / 3) + X[:, 0] + 0.3 * generator.standard_normal(total)
    num_classes = 0
    if kind == "classes":
        y, num_classes = (y > 0).astype(float), 2
    return Task("drawn", kind, X[:NUM_WARM], y[:NUM_WARM], X[NUM_WARM:], y[NUM_WARM:], num_classes)


def changed(task: Task, row: int) -> Task:
    """The task with another target in one row, and others in all rows after it."""
    y = task.y.copy()
    y[row:] = 1 - y[row:] if task.num_classes else y[row:] + np.linspace(3, -4, len(y) - row)
    return task._replace(y=y)


# Scores.


def test_targets_on_a_lattice_are_scored_by_the_probabilities_of_its_cells():
    unit, y = 0.5, np.tile([-0.5, 0.0, 1.5], 20)
    assert lattice_unit(y) == lattice_unit(np.append(y, np.nan)) == unit
    assert lattice_unit((y / 3).round(4)) == pytest.approx(unit / 3, rel=1e-3)  # as a file of rounded numbers has them
    assert lattice_unit(y + 1e-3 * np.arange(60)) is None  # no two alike
    assert lattice_unit(np.append(y, 0.3)) is None  # off the lattice
    ones = np.ones(len(y))
    found = score_rows(LocationScale(0 * ones, 0.01 * ones, np.inf * ones), y, unit)
    cells = stats.norm(0, 0.01).cdf(0.25) - stats.norm(0, 0.01).cdf(-0.25)
    assert found.log_prob[1] == pytest.approx(math.log(cells / unit))  # a spike earns no more than its cell
    assert found.log_prob[0] < -25  # and pays where it is not
    wide = score_rows(LocationScale(0 * ones, 50 * ones, np.inf * ones), y, unit)
    assert wide.log_prob == pytest.approx(stats.norm(0, 50).logpdf(y), abs=1e-4)


def test_the_previous_value_has_a_probability_of_its_own_on_a_lattice():
    y, previous = np.array([1.0, 1.0, 2.0]), np.array([0.0, 1.0, 1.0])
    cells = np.log([0.2, 0.3, 0.1])
    shares = [0.5, 0.25, 1.5 / 3]  # of repeats before each row
    wanted = [(1 - shares[0]) * 0.2, shares[1] + (1 - shares[1]) * 0.3, (1 - shares[2]) * 0.1]
    assert np.exp(with_repeats(cells, y, previous, 1.0)) == pytest.approx(wanted)


def test_scores_of_a_student_t_are_those_of_its_definition():
    for df in [2.0, 3.5, 30.0, math.inf]:
        location, scale, y = 0.3, 0.7, np.array([-2.0, 0.1, 1.5])
        scipys = stats.norm(location, scale) if math.isinf(df) else stats.t(df, location, scale)
        ones = np.ones(3)
        found = score_rows(LocationScale(location * ones, scale * ones, df * ones), y)
        assert found.log_prob == pytest.approx(scipys.logpdf(y))
        assert found.u == pytest.approx(scipys.cdf(y))
        assert (found.q05[0], found.q95[0]) == pytest.approx(scipys.interval(0.9))
        for target, crps in zip(y, found.crps, strict=True):
            below = integrate.quad(lambda z, of=scipys: of.cdf(z) ** 2, -np.inf, target)[0]
            above = integrate.quad(lambda z, of=scipys: of.sf(z) ** 2, target, np.inf)[0]
            assert crps == pytest.approx(below + above, rel=1e-6)


def test_crps_of_our_distributions_is_that_of_its_definition():
    generator = torch.Generator().manual_seed(0)
    mean, y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 6), (6,)))
    log_weights = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    variance = torch.tensor([[0.1], [1.0], [9.0]], dtype=torch.float64).expand(3, 6)
    normals = Mixture(log_weights, 3 * mean, variance)
    students = StudentTMixture(*normals, torch.full_like(mean, 5.0))
    maps = (torch.tensor(part, dtype=torch.float64) for part in ([-0.2, -1.7], [0.1, 0.0], [1.0, 1.3]))
    for found in (normals, students, Recalibrated(students, *maps)):
        grid = torch.linspace(-60, 60, 24_001, dtype=torch.float64).unsqueeze(-1)
        cdf = found.cdf(grid.expand(-1, 6))
        exact = torch.trapezoid((cdf - (grid >= y).to(cdf)).square(), grid.squeeze(-1), dim=0)
        predicted = Predicted(OnlinePredictions(found, y, log_weights, 0))
        # The step at the target costs this grid half of its spacing; a table of 2 000 mixtures of 20 normals was right
        # to 2e-3 in every row and to 2e-5 on average.
        assert predicted.crps(y.numpy()) == pytest.approx(exact.numpy(), rel=4e-3, abs=2.6e-3)
        means = grid[-1] - torch.trapezoid(cdf, grid.squeeze(-1), dim=0)
        assert predicted.mean == pytest.approx(means.numpy(), abs=6e-3)  # 2e-3 of deviations of about 3


def test_summary_counts_windows_and_leaves_missing_targets_out():
    num_rows = 2 * WINDOW + 100
    y, ones = np.zeros(num_rows), np.ones(num_rows)
    y[: WINDOW // 2], y[WINDOW : WINDOW + WINDOW // 10], y[-50:] = 9.0, 9.0, np.nan
    found = summarize(score_rows(LocationScale(0 * ones, ones, np.inf * ones), y))
    seen = num_rows - 50
    assert found["windows"] == 0.5
    assert found["coverage"] == pytest.approx(1 - (WINDOW // 2 + WINDOW // 10) / seen)
    assert found["nmse"] == pytest.approx(np.nanmean(y**2) / np.nanvar(y))
    assert found["width"] == pytest.approx(2 * stats.norm.ppf(0.95))


def test_scores_of_classes():
    found = summarize(score_classes(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([1.0, 1.0])))
    assert found == pytest.approx({"log_score": (math.log(0.75) + math.log(0.5)) / 2, "error_rate": 0.5})


# Bands.


def test_followed_squares_are_those_of_a_plain_loop():
    errors = np.random.default_rng(0).standard_normal(50)
    errors[[0, 7]], errors[20] = np.nan, 40.0
    (found,) = followed_squares(errors, (0.9,))
    q: float | None = None
    for error, value in zip(errors, found, strict=True):
        assert value == pytest.approx(1.0 if q is None else q)
        if not math.isnan(error):
            q = error**2 if q is None else 0.9 * q + 0.1 * min(error**2, 25 * q)


def test_a_student_t_is_found_again():
    errors = 0.2 * stats.t(3).rvs(4000, random_state=np.random.default_rng(1))
    df, scale = fitted_student(errors)
    assert df == 3.0
    assert scale == pytest.approx(0.2, rel=0.05)


def test_conformal_intervals_cover_exchangeable_errors():
    generator = np.random.default_rng(2)
    errors = generator.exponential(size=4000) - 1
    points = Points(np.zeros((500, 1)), errors[:500], np.zeros((3500, 1)), errors[500:], np.zeros(3500))
    found = summarize(score_rows(RecentBand().around(points), points.y))
    # 3 500 rows: a standard deviation of 0.005.
    assert found["coverage"] == pytest.approx(0.9, abs=0.02)


# Honesty.


def predictions(model: Learner | Distributional | OurClasses, task: Task) -> list[np.ndarray]:
    """All that a method says of every row."""
    if isinstance(model, Learner):
        return [run_learner(model, task).predicted]
    model.warm_up(task.warm_X, task.warm_y)
    parts = [model.step(task.X[rows], task.y[rows]) for rows in (slice(0, 25), slice(25, NUM_ROWS))]
    if isinstance(parts[0], np.ndarray):
        return [np.concatenate(parts)]
    zeros = [np.zeros_like(part.mean) for part in parts]
    columns = [(part.mean, *part.interval(), part.log_prob(zero)) for part, zero in zip(parts, zeros, strict=True)]
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


MODELS = {
    "previous": (None, lambda: SeasonalNaive(1)),
    "seasonal": (None, lambda: SeasonalNaive()),
    "linear": (None, RecursiveLinear),
    "linear_lags": (None, lambda: Lagged(RecursiveLinear(), 3)),
    "window_gp": (None, lambda: WindowGP(window=60, fit_rows=40, period=30)),
    "ours": (None, lambda: Ours(Variant("linear", LINEAR), 0)),
    "hist_boosting": (None, lambda: boosting.Retrained(boosting.histogram_train(0), 20)),
    "lightgbm": ("lightgbm", lambda: boosting.Retrained(boosting.lightgbm_train(0), 20)),
    "lightgbm_lags": ("lightgbm", lambda: Lagged(boosting.Retrained(boosting.lightgbm_train(0), 20), 2)),
    "river_linear": ("river", river_models.bayesian_linear),
    "river_knn": ("river", river_models.nearest_neighbors),
    "river_tree": ("river", lambda: river_models.adaptive_tree(0)),
    "river_forest": ("river", lambda: river_models.adaptive_forest(0)),
    "river_mondrian": ("river", lambda: river_models.mondrian_forest(0)),
    "ondil": ("ondil", OnlineRegression),
    "auto_arima": ("statsforecast", series.auto_arima),
    "auto_ets": ("statsforecast", series.auto_ets),
}
CLASS_MODELS = {
    "previous_label": (None, lambda: PreviousLabel(2)),
    "ours": (None, lambda: OurClasses(Variant("linear", replace(LINEAR, target=BinaryTarget())), 0)),
    "lightgbm": ("lightgbm", lambda: boosting.RetrainedClassifier(boosting.lightgbm_classes(0, 2), 20)),
    "river_forest": ("river", lambda: river_models.forest_of_classes(0, 2)),
    "river_logistic": ("river", lambda: river_models.logistic(2)),
}
COMPILED = ("ondil",)  # compiles for most of a minute
CASES = [
    pytest.param(kind, *case, id=f"{kind}-{name}", marks=[pytest.mark.slow] if name in COMPILED else [])
    for kind, models in (("numbers", MODELS), ("classes", CLASS_MODELS))
    for name, case in models.items()
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few trees and steps: what is tested does not hang on how good a model is."""
    monkeypatch.setattr(boosting, "TREES", 5)
    monkeypatch.setattr("studies.arena.window_gp.FIRST_STEPS", 3)


@pytest.mark.parametrize(("kind", "package", "make"), CASES)
def test_no_prediction_depends_on_its_own_target_or_later_ones(kind, package, make):
    if package is not None:
        needs(package)
    task, row = drawn(kind), 33
    first, second = predictions(make(), task), predictions(make(), changed(task, row))
    for one, other in zip(first, second, strict=True):
        assert len(one) == NUM_ROWS
        assert np.isfinite(one).all()
        # A row's bits may hang on what is summed beside it.
        np.testing.assert_allclose(one[: row + 1], other[: row + 1], rtol=1e-9, atol=1e-12)
    assert any(not np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def train_mean(X, y):
    return lambda rows: np.full(len(rows), y.mean())


def test_no_band_depends_on_its_own_error_or_later_ones():
    recent = (RecentBand(is_scaled, 30, 10) for is_scaled in (True, False))
    for is_warm, band in product([True, False], [FollowingBand(20, 40), *recent, ScaleModelBand(train_mean, 20, 10)]):
        generator, row = np.random.default_rng(0), 33
        warm = generator.standard_normal(NUM_WARM) if is_warm else np.full(NUM_WARM, np.nan)
        mean, y = generator.standard_normal((2, NUM_ROWS))
        points = Points(np.zeros((NUM_WARM, 1)), warm, np.zeros((NUM_ROWS, 1)), y, mean)
        other = points._replace(y=np.where(np.arange(NUM_ROWS) < row, y, 5 * y + 3))
        predicted = [(*band.around(given).interval(), band.around(given).scale) for given in (points, other)]
        for one, two in zip(*predicted, strict=True):
            np.testing.assert_array_equal(one[: row + 1], two[: row + 1])
            assert not np.array_equal(one, two)


# Rivals by their definitions.


def test_seasonal_naive_and_its_season():
    y = np.tile([1.0, 2.0, 5.0, 3.0], 35)
    task = drawn()._replace(warm_y=y[:NUM_WARM], y=y[NUM_WARM:])
    assert found_season(task.warm_y) == 4
    np.testing.assert_array_equal(run_learner(SeasonalNaive(), task).predicted, task.y)
    np.testing.assert_array_equal(run_learner(SeasonalNaive(1), task).predicted[1:], task.y[:-1])


def test_recursive_linear_regression_is_ridge_regression_of_all_rows_before():
    task = drawn()
    X = np.concatenate([task.warm_X, task.X])
    y = np.concatenate([task.warm_y, task.y])
    lags = np.stack([np.concatenate([np.zeros(k), y[:-k]]) for k in (2, 1)], -1)
    phi = np.concatenate([np.ones((len(y), 1)), X, lags], 1)
    predicted = run_learner(Lagged(RecursiveLinear(), 2), task).predicted
    for row in (0, 30, NUM_ROWS - 1):
        past = phi[: NUM_WARM + row]
        weights = np.linalg.solve(past.T @ past + 0.1 * np.eye(5), past.T @ y[: NUM_WARM + row])
        assert predicted[row] == pytest.approx(phi[NUM_WARM + row] @ weights, rel=1e-8)


def test_the_window_process_predicts_as_one_row_at_a_time():
    task, model = drawn(), WindowGP(window=50, fit_rows=40, period=10_000)
    model.warm_up(task.warm_X, task.warm_y)
    process = model.process
    X, y = (torch.from_numpy(np.concatenate(part)) for part in ((task.warm_X, task.X), (task.warm_y, task.y)))
    found = model.step(task.X[:5], task.y[:5])
    with torch.no_grad():
        for row in range(5):
            past = slice(0, NUM_WARM + row)  # the first block still has all rows before it
            K = process.covariance(X[past], X[past])
            K = K + process.noise * torch.eye(len(K), dtype=K.dtype)
            k = process.covariance(X[past], X[NUM_WARM + row : NUM_WARM + row + 1])
            mean = process.mean.constant + (k.T @ torch.linalg.solve(K, y[past] - process.mean.constant)).squeeze()
            prior = process.covariance(X[NUM_WARM + row : NUM_WARM + row + 1], X[NUM_WARM + row : NUM_WARM + row + 1])
            variance = (prior + process.noise - k.T @ torch.linalg.solve(K, k)).squeeze()
            assert float(found.location[row]) == pytest.approx(float(mean))
            assert float(found.scale[row]) == pytest.approx(float(variance.sqrt()))
    assert len(model.y) == 50


def test_previous_label_counts_changes():
    task = drawn("classes")._replace(warm_y=np.array([0.0, 0, 1] * 20), y=np.array([1.0, 0]), X=np.zeros((2, 1)))
    # After a one came a zero 19 times; after a zero came a zero 20 times and a one 20 times.
    expected = np.array([[19.5, 0.5], [19.5, 1.5]]) / [[20], [21]]
    assert run_learner(PreviousLabel(2), task).predicted == pytest.approx(expected)


# Sets, parts and tables.


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(5)
    x, rows = generator.standard_normal(640), np.arange(640)
    wave, label = np.sin(rows / 5) + 0.1 * x, (x > 0).astype(int)
    lines = {"sum": "flow,x,hour", "wave": "hour,height", "sides": "x,side"}
    for name, columns in (("sum", (2 + 3 * x, x, rows)), ("wave", (rows, wave)), ("sides", (x, label))):
        cells = "\n".join(",".join(repr(value.item()) for value in row) for row in zip(*columns, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"{lines[name]}\n{cells}\n")
    listed = [
        ("sum", "regression", ["x"], "flow"),
        ("wave", "time-series", [], "height"),
        ("sides", "classification", ["x"], "side"),
        ("tiny", "regression", ["x"], "flow"),
        ("faces", "latent", ["x"], "flow"),
    ]
    keys = ("name", "task", "features", "target")
    sets = [{**dict(zip(keys, entry, strict=True)), "file": f"{entry[0]}.csv", "rows": 640} for entry in listed]
    sets[3]["rows"] = 599
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": sets}))
    return tmp_path


def test_sets_are_chosen_and_standardized_by_the_warm_up(folder):
    found = {entry.name: entry for entry in entries(folder)}
    kinds = {name: entry.kind for name, entry in found.items()}
    assert kinds == {"sum": "numbers", "wave": "series", "sides": "classes"}
    task = load_task(found["sum"], 300)
    assert (task.warm_X.shape, task.X.shape) == ((160, 1), (300, 1))
    assert (task.warm_y.mean(), task.warm_y.std()) == pytest.approx((0, 1), abs=1e-12)
    assert task.warm_X == pytest.approx(task.warm_y[:, np.newaxis])
    assert load_task(found["wave"], 100).warm_X.shape == (160, 1)
    sides = load_task(found["sides"], 100)
    assert (sides.num_classes, set(sides.y)) == (2, {0.0, 1.0})


def test_marks_are_taken_from_the_best_baseline_of_each_set():
    results = Results(ArenaPlan(["flow"], {"flow": "numbers"}, list(METHODS), 100), ("set", "method", "seed"), 1)
    scores = {"auto": (1.0, 0.2), "previous": (0.5, 0.3), "linear": (0.75, 0.1), "river_knn": (9.0, 0.01)}
    for method, (log_score, crps) in scores.items():
        others = {"coverage": 0.9, "windows": 1.0, "width": 2.0, "microseconds": 5.0}
        results.records["flow", method, 0] = Record({}, {"log_score": log_score, "crps": crps, **others}, {})
    assert "| flow | +0.250 | 0.500 | 0.900 | 1.000 | 2.000 |" in arena_table(results)
    summaries = summarize_methods(results, False)
    assert summaries["auto"].rank == 2
    assert summaries["river_knn"].best == 1
    assert summaries["previous"].difference == -0.5
    assert summaries["linear"].ratio == pytest.approx(0.5)
