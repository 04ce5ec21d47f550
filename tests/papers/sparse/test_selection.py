"""The default choice of knots: golden data, history and reasons to stop, interruptions, determinism, bad input."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import NormalPrior

from gp_ensembles.papers.sparse import (
    DTC,
    FITC,
    VFE,
    Adadelta,
    BayesianOptimization,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Simultaneous,
    SparseGP,
    select_knots,
)
from gp_ensembles.papers.sparse import fitting as fitting_module
from gp_ensembles.papers.sparse import greedy as greedy_module
from gp_ensembles.papers.sparse.collapsed import TightVFE, upper_bound
from gp_ensembles.papers.sparse.fitting import Coordinates, fit_sparse, initialize_from_subset
from gp_ensembles.papers.sparse.optimizers import LBFGSB


def name_of(approximation):
    return type(approximation).__name__


def value_of(tensor):
    return float(tensor.detach())


def make_data(seed=0, num_rows=60, noise=0.1):
    draws = np.random.default_rng(seed)
    X = torch.as_tensor(draws.uniform(size=(num_rows, 2)))
    y = (
        torch.sin(9.0 * X[:, 0])
        + X[:, 1] * torch.cos(6.0 * X[:, 1])
        + noise * torch.as_tensor(draws.normal(size=num_rows))
    )
    return X, y


def start(lengthscale=1.0, outputscale=0.7, noise=0.1):
    kernel, likelihood = ScaleKernel(RBFKernel()).double(), GaussianLikelihood().double()
    kernel.outputscale, kernel.base_kernel.lengthscale, likelihood.noise = outputscale, lengthscale, noise
    return kernel, likelihood


def select(X, y, strategy=None, seed=0, **settings):
    kernel, likelihood = start(0.4)
    strategy = GreedyBlocks(max_knots=24) if strategy is None else strategy
    if isinstance(strategy, GreedyBlocks):
        strategy = replace(
            strategy,
            fit_iterations=min(strategy.fit_iterations, 8),
            subset_size=0,
            # knots stay rows
            polish_iterations=0
            if strategy.polish_iterations == GreedyBlocks.polish_iterations
            else strategy.polish_iterations,
        )
    generator = torch.Generator().manual_seed(seed)
    return select_knots(X, y, kernel, likelihood, strategy=strategy, generator=generator, **settings)


def check(found, X, most):
    """What holds of every selection."""
    assert found.knots.shape == (found.model.num_knots, X.shape[-1])
    assert 1 <= found.model.num_knots <= most
    assert torch.equal(found.knots, found.model.knots)
    assert not found.knots.requires_grad
    last = found.history[-1]
    assert last.num_knots == found.model.num_knots
    assert last.objective == pytest.approx(value_of(found.model.objective()), rel=1e-10)
    assert last.upper_bound == pytest.approx(value_of(upper_bound(found.model.projection())), rel=1e-10)
    assert [step.seconds for step in found.history] == sorted(step.seconds for step in found.history)
    objectives = [step.objective for step in found.history]
    assert objectives == sorted(objectives)
    assert found.stop_reason
    assert bool(found.model.posterior(X[:3]).mean.isfinite().all())


@pytest.mark.slow
def test_boston_reaches_the_exact_process(golden):
    with np.load(golden / "knots_fixed_boston.npz") as file:
        X, y, full = (torch.as_tensor(file[key]) for key in ("X", "y", "full_logml"))
    half = float(y.var() / 2.0)
    kernel, likelihood = start(1.0, half, half)
    generator = torch.Generator().manual_seed(0)
    strategy = GreedyBlocks(max_knots=80)
    found = select_knots(X, y, kernel, likelihood, strategy=strategy, generator=generator)
    check(found, X, 80)
    assert found.history[-1].objective >= -1039.0
    assert found.history[-1].objective <= found.history[-1].upper_bound
    assert float(full) < found.history[-1].upper_bound  # hyperparameters of the golden file are no better


def test_knots_are_rows_and_history_says_which():
    X, y = make_data()
    found = select(X, y, GreedyBlocks(max_knots=24, tolerance=0.0, gap_tolerance=-1.0, reselect=False))
    check(found, X, 24)
    added = [row for step in found.history for row in step.rows]
    assert len(set(added)) == len(added)
    assert torch.equal(found.knots[-len(added) :], X[added])
    sizes = [step.num_knots for step in found.history]
    assert sizes == [5, 10, 20, 24]
    assert [len(step.rows) for step in found.history] == [0, 5, 10, 4]
    assert "24 knots, the most allowed" in found.stop_reason


def test_tolerance_ends_the_growth():
    X, y = make_data(noise=1.0)
    found = select(X, y, GreedyBlocks(max_knots=60, tolerance=2.0, gap_tolerance=0.0, reselect=False))
    check(found, X, 60)
    assert found.model.num_knots < 60
    assert "added less than 2.0 nats" in found.stop_reason
    objectives = [step.objective for step in found.history]
    assert all(later - earlier >= 2.0 for earlier, later in pairwise(objectives))


def test_gap_ends_the_growth():
    X, y = make_data(num_rows=100, noise=0.5)
    found = select(X, y, GreedyBlocks(max_knots=100, tolerance=0.0, gap_tolerance=1.0, reselect=False))
    check(found, X, 100)
    assert "bounds of the log evidence are less than 1.0 nats apart" in found.stop_reason
    assert found.history[-1].upper_bound - found.history[-1].objective < 1.0
    assert all(step.upper_bound - step.objective >= 1.0 for step in found.history[:-1])


def test_polish_and_reselection_do_not_lose():
    X, y = make_data()
    plain = select(X, y, GreedyBlocks(max_knots=8, reselect=False))
    again = select(X, y, GreedyBlocks(max_knots=8))
    polished = select(X, y, GreedyBlocks(max_knots=8, polish_iterations=60))
    for found in (plain, again, polished):
        check(found, X, 8)
    assert plain.history[-1].objective <= again.history[-1].objective < polished.history[-1].objective
    assert polished.history[-1].action == "polish"
    assert polished.history[-1].rows == ()


@pytest.mark.slow
def test_polished_is_at_least_as_good_as_kmeans_and_lbfgs():
    X, y = make_data()
    polished = select(X, y, GreedyBlocks(max_knots=10, polish_iterations=100))
    kernel, likelihood = start()
    knots = greedy_module.kmeans_knots(X, 10, generator=torch.Generator().manual_seed(0))
    simultaneous = fit_sparse(SparseGP(X, y, knots, kernel, likelihood), knots=True, max_iterations=150)
    assert polished.history[-1].objective > simultaneous.objective - 3.0  # another local maximum


def test_the_generator_decides():
    X, y = make_data()
    strategy = GreedyBlocks(max_knots=12, num_candidates=30)
    first, second, third = (select(X, y, strategy, seed) for seed in (1, 1, 2))
    assert torch.equal(first.knots, second.knots)
    assert [step._replace(seconds=0.0) for step in first.history] == [
        step._replace(seconds=0.0) for step in second.history
    ]
    assert not torch.equal(first.knots, third.knots)


def test_candidates_are_a_few_rows_in_every_step(monkeypatch):
    X, y = make_data()
    seen = []
    original = greedy_module.greedy_elbo_rows

    def spy(model, num_rows, *, num_candidates=None, **settings):
        seen.append(num_candidates)
        return original(model, num_rows, num_candidates=num_candidates, **settings)

    monkeypatch.setattr(greedy_module, "greedy_elbo_rows", spy)
    select(X, y, GreedyBlocks(max_knots=12, num_candidates=20))
    assert set(seen) == {20}


@pytest.mark.parametrize("objective", [FITC(), DTC(), TightVFE()], ids=name_of)
def test_other_objectives_are_grown_too(objective):
    X, y = make_data(noise=0.3)
    found = select(X, y, GreedyBlocks(max_knots=20, tolerance=-1e9), approximation=objective)
    check(found, X, 20)
    assert isinstance(found.model.approximation, type(objective))
    # Only a lower bound can meet the upper one: elsewhere growth goes on until there are enough knots.
    if not isinstance(objective, TightVFE):
        assert "apart" not in found.stop_reason
        assert found.model.num_knots == 20


def test_priors_do_not_end_the_growth():
    X, y = make_data(noise=1.0)
    bare = select(X, y, GreedyBlocks(max_knots=20))
    kernel, likelihood = start(0.4)
    # A prior may have a large log density (here 45 nats, a constant), of which no bound of the evidence knows.
    kernel.register_prior("narrow_prior", NormalPrior(0.0, 1e-20), lambda module: module.outputscale * 0.0)
    generator = torch.Generator().manual_seed(0)
    strategy = GreedyBlocks(max_knots=20, fit_iterations=8, subset_size=0, polish_iterations=0)
    found = select_knots(X, y, kernel, likelihood, strategy=strategy, generator=generator)
    assert found.model.num_knots == bare.model.num_knots == 20
    assert found.stop_reason == bare.stop_reason


def test_any_kernel_is_taken():
    X, y = make_data()
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2))
    found = select_knots(
        X, y, kernel, strategy=GreedyBlocks(max_knots=10, fit_iterations=5, polish_iterations=5, subset_size=20)
    )
    check(found, X, 10)


def interrupt_at(call, monkeypatch):
    original, calls = greedy_module.fit_sparse, []

    def fit(*arguments, **settings):
        calls.append(1)
        if len(calls) == call:
            original(*arguments, **(settings | {"max_iterations": 2}))
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    for module in (greedy_module, fitting_module):
        monkeypatch.setattr(module, "fit_sparse", fit)


def unless_interrupted(X, y, strategy):
    try:
        return select(X, y, strategy)
    except KeyboardInterrupt:  # which would end all tests
        return pytest.fail("nothing was kept")


@pytest.mark.parametrize("call", [1, 3, 5])
def test_an_interruption_keeps_the_best_so_far(monkeypatch, call):
    X, y = make_data()
    strategy = GreedyBlocks(max_knots=20, tolerance=0.0, gap_tolerance=-1.0, polish_iterations=20, subset_size=0)
    interrupt_at(call, monkeypatch)
    with pytest.warns(UserWarning, match=r"interrupted with .* knots; the model is the best so far"):
        found = unless_interrupted(X, y, strategy)
    check(found, X, 20)
    assert found.stop_reason == "interrupted"
    assert found.model.num_knots == [5, 5, 10, 20, 20][call - 1]


def test_an_error_is_not_hidden(monkeypatch):
    X, y = make_data()
    calls = []
    original = greedy_module.fit_sparse

    def fit(*arguments, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("full")
        return original(*arguments, **settings)

    for module in (greedy_module, fitting_module):
        monkeypatch.setattr(module, "fit_sparse", fit)
    with pytest.raises(MemoryError, match="full"):
        select(X, y)


def test_duplicates_are_no_knots_twice():
    X, y = make_data(num_rows=15)
    X, y = X.repeat(8, 1), y.repeat(8) + 0.05 * torch.as_tensor(np.random.default_rng(1).normal(size=120))
    found = select(X, y, GreedyBlocks(max_knots=80, tolerance=0.0, gap_tolerance=-1.0))
    check(found, X, 15)
    assert len(torch.unique(found.knots, dim=0)) == len(found.knots)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3, 5, 6])
def test_few_knots_are_few(most):
    X, y = make_data()
    check(select(X, y, GreedyBlocks(max_knots=most)), X, most)


def test_constant_columns_and_few_rows():
    X, y = make_data()
    found = select(torch.cat([X, 0.0 * X[:, :1] + 7.0], -1), y, GreedyBlocks(max_knots=10, polish_iterations=20))
    check(found, found.model.train_X, 10)
    few = select(X[:2], y[:2], GreedyBlocks(max_knots=10))
    check(few, X[:2], 2)


def test_targets_may_be_a_column():
    X, y = make_data()
    flat, column = select(X, y, GreedyBlocks(max_knots=6)), select(X, y.unsqueeze(-1), GreedyBlocks(max_knots=6))
    assert torch.equal(flat.knots, column.knots)


X0, Y0 = make_data(0, 20)
BAD = {
    "one row": ((X0[:1], Y0[:1]), "there is one row; give at least two"),
    "constant": ((X0, 0.0 * Y0 + 3.0), "the targets are constant"),
    "nan target": ((X0, Y0.index_fill(0, torch.tensor([4]), torch.nan)), "targets must be finite, but row 4"),
    "nan input": ((X0.index_fill(0, torch.tensor([3]), torch.nan), Y0), "inputs must be finite, but row 3, column 0"),
    "infinite input": ((X0.index_fill(0, torch.tensor([3]), torch.inf), Y0), "inputs must be finite, but row 3"),
    "rows": ((X0, Y0[:5]), "do not fit"),
    "flat inputs": ((X0[:, 0], Y0), "do not fit"),
    "none": ((X0[:0], Y0[:0]), "do not fit"),
    "dtypes": ((X0, Y0.float()), "share a real dtype"),
}


def test_bad_input_is_refused():
    for arguments, message in BAD.values():
        with pytest.raises(ValueError, match=message):
            select(*arguments)


def test_impossible_numbers_are_refused():
    for build in [
        lambda: GreedyBlocks(max_knots=0),
        lambda: GreedyBlocks(num_initial=0),
        lambda: GreedyBlocks(num_candidates=0),
        lambda: GreedyBlocks(fit_iterations=0),
        lambda: Simultaneous(0),
    ]:
        with pytest.raises(ValueError, match=r"at least"):
            build()


# --- the start -------------------------------------------------------------------------------------------------------


def fast_waves(frequency, num_rows=300):
    generator = torch.Generator().manual_seed(1)
    X = torch.linspace(0, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    return X, torch.sin(frequency * X.squeeze(-1)) + 0.1 * torch.randn(num_rows, dtype=X.dtype, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [20.0, 60.0])
def test_fast_functions_are_no_noise(frequency):
    """GPyTorch's own start is a lengthscale of 0.69: from there, five knots take everything for noise."""
    X, y = fast_waves(frequency)
    generator = torch.Generator().manual_seed(0)
    found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=GreedyBlocks(), generator=generator)
    assert found.model.likelihood.noise.item() == pytest.approx(0.01, rel=0.3)
    exact = SparseGP(X, y, X, found.model.covar_module, found.model.likelihood, found.model.mean_module)
    assert found.history[-1].objective == pytest.approx(float(exact.objective().detach()), abs=0.5)


def test_subset_scales_are_those_of_the_exact_process():
    X, y = fast_waves(40.0, 90)
    model = SparseGP(X, y, X[::30], ScaleKernel(RBFKernel()))
    found = initialize_from_subset(model, 90)
    exact = SparseGP(X, y, X, found.covar_module, found.likelihood, found.mean_module)
    coordinates = Coordinates(exact)
    assert float(coordinates.evaluate(coordinates.read())[1].abs().max()) < 1.0
    assert torch.equal(found.knots, model.knots)
    assert torch.equal(found.train_X, X)
    assert model.covar_module.outputscale.item() == pytest.approx(math.log(2.0))  # the model is as it was


# --- other strategies ------------------------------------------------------------------------------------------------


def test_simultaneous_optimization_moves_all_knots():
    X, y = make_data()
    knots = X[:6].clone()
    found = select(X, y, Simultaneous(knots))
    assert bool((found.knots != knots).any(-1).all())
    assert found.history[-1].objective > found.history[0].objective
    few = select(X, y, Simultaneous(6, Adadelta(max_iterations=20)))
    assert few.knots.shape == (6, 2)
    assert few.history[-1].objective > few.history[0].objective


def test_the_gap_is_that_of_the_bounds_whatever_the_objective():
    X, y = fast_waves(5.0, 80)
    found = select(X, y, GreedyBlocks(max_knots=40, tolerance=-1e9, gap_tolerance=0.5), approximation=FITC())
    assert found.stop_reason.startswith("the bounds of the log evidence")
    projection = found.model.projection()
    assert value_of(found.model.upper_bound() - VFE().objective(projection)) < 0.5


# --- what reviews found ----------------------------------------------------------------------------------------------


class Detached(Kernel):
    """A kernel without a gradient in its inputs."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        return RBFKernel.forward(self, x1.detach(), x2.detach(), diag=diag, **params)


@pytest.mark.parametrize(
    "strategy",
    [
        GreedyBlocks(max_knots=8, fit_iterations=5, polish_iterations=5, subset_size=20),
        OneAtATime(RandomSubset(5), max_knots=7, optimizer=LBFGSB(10)),
        Simultaneous(5, LBFGSB(20)),
    ],
    ids=["greedy", "one at a time", "simultaneous"],
)
def test_kernels_without_gradients_in_inputs(strategy):
    X, y = make_data()
    found = select_knots(X, y, ScaleKernel(Detached()), strategy=strategy)
    assert found.history[-1].objective >= found.history[0].objective


def test_knots_that_are_categories_do_not_lose_them():
    X, y = make_data()
    X = torch.cat([X[:, :1], (3 * X[:, 1:]).floor()], -1)
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * CategoricalKernel(active_dims=(1,)))
    model = SparseGP(X, y, X[:12], kernel)
    before = value_of(model.objective())
    assert fit_sparse(model, knots=True, max_iterations=20).objective >= before
    assert value_of(model.objective()) >= before


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "targets"), [(1e-6, 1.0), (1e6, 1.0), (1.0, 1e6)])
def test_scales_of_the_data_do_not_matter_much(inputs, targets):
    X, y = make_data()
    found = select_knots(inputs * X, targets * y, ScaleKernel(RBFKernel()))
    mean = found.model.posterior(inputs * X).mean.squeeze(-1).detach() / targets
    assert float((mean - y).square().mean()) < 0.05 * float(y.var())


def test_what_cannot_be_learned_is_said():
    X, y = make_data()
    with pytest.warns(UserWarning, match="least noise variance"):
        select(X, 1e-6 * y, GreedyBlocks(max_knots=6))
    kernel, likelihood = start()
    with pytest.warns(UserWarning, match="ended ten thousand times off the start"):
        select_knots(
            X, 1e6 * y, kernel, likelihood, strategy=GreedyBlocks(max_knots=6, subset_size=0, polish_iterations=20)
        )


@pytest.mark.parametrize("strategy", [GreedyBlocks(max_knots=8, polish_iterations=10), OneAtATime(max_knots=7)])
def test_hyperparameters_may_be_held(strategy):
    X, y = make_data()
    kernel, likelihood = start(0.3, 1.0, 0.05)
    kernel.requires_grad_(False), likelihood.requires_grad_(False)
    mean = ConstantMean().double().requires_grad_(False)
    found = select_knots(X, y, kernel, likelihood, mean, strategy=strategy)
    assert found.model.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.3)
    assert found.history[-1].objective >= found.history[0].objective


def test_what_is_given_stays_as_it_is():
    X, y = make_data()
    kernel, likelihood = start()
    quick = GreedyBlocks(max_knots=6, fit_iterations=3, polish_iterations=3, subset_size=20)
    for strategy in (quick, Simultaneous(4, LBFGSB(3)), OneAtATime(max_knots=6, optimizer=LBFGSB(3))):
        select_knots(X, y, kernel, likelihood, strategy=strategy)
        assert kernel.outputscale.item() == pytest.approx(0.7)
        assert likelihood.noise.item() == pytest.approx(0.1)


@pytest.mark.slow
def test_low_noise_does_not_need_all_knots():
    X = torch.linspace(0, 1, 150, dtype=torch.float64).unsqueeze(-1)
    noise = torch.randn(150, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.sin(12.0 * X.squeeze(-1)) + 0.01 * noise
    found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=GreedyBlocks(fit_iterations=15, polish_iterations=0))
    assert len(found.knots) <= 40
    assert "most allowed" not in found.stop_reason


def test_without_gradients_around():
    X, y = make_data()
    with torch.no_grad():
        found = select(X, y, GreedyBlocks(max_knots=6))
    assert found.history[-1].objective > found.history[0].objective


def test_knots_at_categories_move_along_the_rest():
    X, y = make_data()
    X = torch.cat([X[:, :1], (3 * X[:, 1:]).floor()], -1)
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * CategoricalKernel(active_dims=(1,)))
    found = select_knots(X, y, kernel, strategy=Simultaneous(X[:10], LBFGSB(50)))
    assert torch.equal(found.knots[:, 1], X[:10, 1])
    assert found.history[-1].objective > found.history[0].objective + 1.0


@pytest.mark.parametrize(
    "kernel",
    [LinearKernel() + ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel(nu=0.5)), Detached()],
    ids=["linear and rbf", "rough", "without gradient"],
)
def test_bayesian_optimization_takes_any_kernel(kernel):
    """Rows are proposed, not places, so that neither stationarity nor a derivative is needed."""
    X, y = make_data()
    strategy = OneAtATime(BayesianOptimization(3, 6), start=2, max_knots=5)
    found = select_knots(X, y, kernel, strategy=strategy)
    values = [step.objective for step in found.history]
    assert values == sorted(values)
    assert found.stop_reason
