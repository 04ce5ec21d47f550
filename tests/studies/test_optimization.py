"""Bayesian optimization of the study: regrets by hand, drift, drawn functions, runs that can be repeated."""

import math

import pytest
import torch
from scipy import stats

from studies.optimization import rivals, tables
from studies.optimization.drawn import draw
from studies.optimization.methods import METHODS, clamped, initial_design, logged
from studies.optimization.problems import Problem, cross_validated, drifting, height_at, make_problem, peak_at
from studies.optimization.runs import Runs, Trace, run_one


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def parabola(moves=False, optimum=0.0):
    """A cheap problem on the line."""
    known = None if optimum is None else lambda _: optimum
    return Problem("parabola", 1, lambda X, _: -(X - 0.3).square(), known, moves)


def trace_of(value, optimum, seconds=None):
    seconds = [math.nan] + [1.0] * (len(value) - 1) if seconds is None else seconds
    return Trace(torch.zeros(len(value), 1, dtype=torch.float64), numbers(*value), numbers(*optimum), numbers(*seconds))


def test_regrets_by_hand():
    simple, cumulative = tables.regrets(numbers(1, 3, 2, 3.5), numbers(4, 4, 4, 4))
    assert simple.tolist() == [3, 1, 1, 0.5]
    assert cumulative.tolist() == [3, 4, 6, 6.5]


def test_intervals_are_students():
    samples = numbers(0.3, 1.9, -0.7, 2.2)
    low, high = stats.t.interval(0.95, 3, loc=samples.mean().item(), scale=stats.sem(samples.numpy()))
    found = tables.interval(samples)
    torch.testing.assert_close(torch.stack(found), numbers(samples.mean(), low, high))
    alone = torch.stack(tables.interval(samples[:1]))
    torch.testing.assert_close(alone, numbers(0.3, math.nan, math.nan), equal_nan=True)


def test_a_table_by_hand():
    traces = {
        ("parabola", "a", 0): trace_of([1, 3], [4, 4], [math.nan, 0.5]),
        ("parabola", "a", 1): trace_of([2, 2], [4, 4], [math.nan, 1.5]),
        ("parabola", "b", 0): trace_of([4, 0], [4, 4]),
    }
    runs = Runs({"parabola": parabola(optimum=4.0)}, traces)
    a, b = tables.summarize(runs)
    assert (a.simple.mean, a.cumulative.mean, a.seconds.mean) == (1.5, 4.0, 1.0)
    assert (b.simple.mean, b.cumulative.mean, b.num_seeds) == (0.0, 4.0, 1)
    torch.testing.assert_close(a.simple_curve.mean, (numbers(3, 1).log10() + numbers(2, 2).log10()) / 2)
    assert b.simple_curve.mean.tolist() == [math.log10(tables.FLOOR)] * 2
    text = tables.table_markdown([a, b], runs)
    assert "| parabola | a | 2 | 1.5 (-4.853 to 7.853) |" in text
    assert "| parabola | b | 1 | **0** | **4** | 1 |" in text


def test_differences_are_paired_by_seeds():
    values = {"gp-logei": [[1, 3], [2, 2], [0, 1]], "a": [[1, 3.5], [3, 2], [0, 2.5]]}
    values["b"] = values["gp-logei"]
    traces = {("parabola", m, s): trace_of(v, [4, 4]) for m, runs in values.items() for s, v in enumerate(runs)}
    traces["parabola", "a", 3] = trace_of([0, 0], [4, 4])  # a seed that the other has not run
    runs = Runs({"parabola": parabola(optimum=4.0)}, traces)
    found, same = tables.differences(runs, "gp-logei")
    assert found.num_seeds == 3
    simple = numbers(-0.5, -1.0, -1.5)
    torch.testing.assert_close(torch.stack(found.simple), torch.stack(tables.interval(simple)))
    torch.testing.assert_close(torch.stack(found.cumulative), torch.stack(tables.interval(numbers(-0.5, -1, -1.5))))
    text = tables.differences_markdown([found, same], "gp-logei")
    assert "| parabola | a | -1 (-2.242 to 0.2421) | -1 (-2.242 to 0.2421) | 3 of 3 |" in text
    assert "| all | a | | | 3 of 3 |" in text
    assert "| all | b | | | 0 of 3, 3 tied |" in text
    assert tables.differences_markdown([], "gp-logei") == ""


def test_an_unknown_optimum_is_the_best_of_all_runs_and_said_so():
    nan = math.nan
    traces = {("parabola", "a", 0): trace_of([1, 3], [nan, nan]), ("parabola", "b", 0): trace_of([5, 0], [nan, nan])}
    runs = Runs({"parabola": parabola(optimum=None)}, traces)
    a, b = tables.summarize(runs)
    assert (a.simple.mean, b.simple.mean) == (2, 0)
    assert (a.cumulative.mean, b.cumulative.mean) == (6, 5)
    assert "counted from 5, the best value that any run" in tables.table_markdown([a, b], runs)


def test_nothing_is_higher_than_the_peak_that_drifts(generator):
    for evaluation in [0, 13, 50, 99, 1234]:
        peak = peak_at(evaluation, numbers(0))
        grid = torch.cartesian_prod(*[torch.linspace(0, 1, 201, dtype=torch.float64)] * 2)
        values = torch.cat([drifting(row.unsqueeze(0), evaluation) for row in grid[:: grid.shape[0] // 400]])
        near = peak + 1e-3 * torch.randn(50, 2, generator=generator, dtype=torch.float64)
        values = torch.cat([values, *(drifting(row.unsqueeze(0), evaluation) for row in near)])
        assert bool(((peak > 0) & (peak < 1)).all())
        assert drifting(peak.unsqueeze(0), evaluation).item() == height_at(evaluation)
        assert values.max() < height_at(evaluation)


def test_test_functions_reach_their_optimum_in_the_unit_cube():
    places = {
        "branin": [(math.pi + 5) / 15, 2.275 / 15],
        "ackley5": [0.5] * 5,
        "levy4": [0.55] * 4,
        "rosenbrock4": [0.4] * 4,
        "rastrigin3": [0.5] * 3,
        "michalewicz2": [2.202905 / math.pi, 0.5],
        "hartmann6": [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573],
    }
    for name, place in places.items():
        problem = make_problem(name)
        value = problem.evaluate(numbers(place), 0).item()
        assert value == pytest.approx(problem.optimum(0), abs=1e-4)


@pytest.fixture(scope="module")
def drawn():
    return [draw(seed) for seed in range(3000)]


@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5, math.inf])
def test_drawn_functions_have_the_covariance_of_their_kernel(smoothness, drawn):
    functions = [f for f in drawn if f.smoothness == smoothness]
    X = torch.full((2, 3), 0.4, dtype=torch.float64)
    X[1, 0] += 0.1
    values = torch.stack([function.at(X).squeeze(-1) for function in functions])
    r = 0.1 / torch.logspace(-1, 0, 2001, dtype=torch.float64)  # length scales are log-uniform from 0.1 to 1
    kernel = {
        0.5: lambda: (-r).exp(),
        1.5: lambda: (1 + 3**0.5 * r) * (-(3**0.5) * r).exp(),
        2.5: lambda: (1 + 5**0.5 * r + 5 / 3 * r**2) * (-(5**0.5) * r).exp(),
        math.inf: lambda: (-(r**2) / 2).exp(),
    }[smoothness]()
    for products, expected in ((values[:, 0].square(), 1.0), (values.prod(-1), float(kernel.mean()))):
        error = products.std().item() / math.sqrt(len(functions))
        assert abs(products.mean().item() - expected) < 4 * error


def test_the_optimum_of_a_drawn_function_is_its_highest_value(generator):
    for seed in range(2):
        problem = make_problem("drawn", seed)
        values = problem.evaluate(torch.rand(20_000, 3, generator=generator, dtype=torch.float64), 0)
        assert float(values.max()) <= problem.optimum(0)
        assert float(values.max()) > problem.optimum(0) - 1  # in units of the prior deviation
    assert make_problem("drawn", 1).optimum(0) != make_problem("drawn", 2).optimum(0)


def test_tuning_is_the_score_of_that_machine():
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import KFold
    from sklearn.svm import SVR

    X, y = load_diabetes(return_X_y=True, scaled=False)
    found = cross_validated(X, y, numbers(0.6, 0.4, 2 / 3))
    y = (y - y.mean()) / y.std(ddof=1)
    scores = []
    for train, test in KFold(5, shuffle=True, random_state=0).split(X):
        mean, scale = X[train].mean(0), X[train].std(0)
        machine = SVR(C=1.0, gamma=0.01, epsilon=0.1).fit((X[train] - mean) / scale, y[train])
        error = y[test] - machine.predict((X[test] - mean) / scale)
        scores.append(1 - (error**2).sum() / ((y[test] - y[test].mean()) ** 2).sum())
    assert found == pytest.approx(sum(scores) / 5, rel=1e-4)  # as far as the machine's own tolerance goes
    assert found == cross_validated(*load_diabetes(return_X_y=True, scaled=False), numbers(0.6, 0.4, 2 / 3))


def test_bad_values_come_nearer_and_the_best_stay_best(generator):
    """Whatever the units, in the same order."""
    Y = -torch.randn(41, 1, generator=generator, dtype=torch.float64).mul(3).exp()
    for tail in (clamped, logged):
        kept = tail(Y)
        order = Y.squeeze(-1).argsort()
        assert bool((kept[order].diff(dim=0) >= 0).all())
        assert kept.argmax() == Y.argmax()
        standard, units = (part / part.std() for part in (kept - kept.mean(), tail(1e3 * Y) - tail(1e3 * Y).mean()))
        torch.testing.assert_close(standard, units)
        assert kept.std() / (kept.max() - kept.median()) < 3 < Y.std() / (Y.max() - Y.median())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "jax" not in method.needs])
def test_every_method_starts_alike_and_can_be_repeated(name, monkeypatch):
    monkeypatch.setattr(rivals, "EPOCHS", 20)
    problem = make_problem("drifting")
    state = torch.random.get_rng_state()
    trace = run_one(problem, name, seed=5, num_iterations=2, num_initial=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    again = run_one(problem, name, seed=5, num_iterations=1, num_initial=4)  # a shorter run is a longer one's beginning
    assert torch.equal(trace.X[:-1], again.X)
    assert torch.equal(trace.value[:-1], again.value)
    assert trace.X.shape == (6, 2)
    assert bool(((trace.X >= 0) & (trace.X <= 1)).all())
    one = torch.ones(2, dtype=torch.float64)
    assert torch.equal(trace.X[:4], initial_design(torch.stack([0 * one, one]), 4, seed=5))
    assert trace.num_initial == 4
    by_hand = torch.cat([drifting(x.unsqueeze(0), t) for t, x in enumerate(trace.X)]).squeeze(-1)
    torch.testing.assert_close(trace.value, by_hand)
    assert trace.optimum.tolist() == [height_at(t) for t in range(6)]


# Draw on the device itself: a GPU has random numbers of its own.
DRAWN = ("random", "gp-ts", "egp-ts", "egp-ts-dynamic")


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.runs_anywhere])
def test_points_are_suggested_on_a_gpu_as_on_the_host(method, gpu):
    expected, draws = run_one(make_problem("branin"), method, 0, 1, num_initial=6), method in DRAWN and gpu.draws
    with gpu.here():
        found = run_one(make_problem("branin"), method, 0, 1, 6, "cuda")
        again = run_one(make_problem("branin"), method, 0, 1, 6, "cuda") if draws else found
    if draws:
        torch.testing.assert_close(again.X, found.X)
        found, expected = (part._replace(X=part.X[:-1]) for part in (found, expected))
    torch.testing.assert_close(found.X, expected.X, **gpu.close(rtol=0, atol=1e-8))
