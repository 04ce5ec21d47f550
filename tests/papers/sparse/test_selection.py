"""The default choice of knots: golden data, history and reasons to stop, interruptions, determinism, bad input."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import NormalPrior

from gp_ensembles.papers.sparse import DTC, FITC, VFE, Adadelta, GreedyBlocks, OneAtATime, Simultaneous, SparseGP
from gp_ensembles.papers.sparse import fitting as fitting_module
from gp_ensembles.papers.sparse import greedy as greedy_module
from gp_ensembles.papers.sparse.collapsed import upper_bound
from gp_ensembles.papers.sparse.fitting import Coordinates, initialize_from_subset
from gp_ensembles.papers.sparse.one_at_a_time import BayesianOptimization, RandomSubset
from gp_ensembles.papers.sparse.selection import select_knots
from gp_ensembles.papers.sparse.strategies import LBFGSB
from tests.papers.sparse.problems import fail_at, isotropic, name_of, read_golden, rows, value_of


def select(X, y, strategy, *parts, seed=0, approximation=VFE):
    generator = torch.Generator().manual_seed(seed)
    return select_knots(X, y, *parts, strategy=strategy, approximation=approximation, generator=generator)


def greedy(X, y, kernel=None, *, seed=0, approximation=VFE, **settings):
    """Blocks of rows, which stay rows, from a kernel's own hyperparameters."""
    quick = {"max_knots": 24, "fit_iterations": 8, "subset_size": 0, "polish_iterations": 0}
    own, likelihood = isotropic(0.7, 0.4, 0.1)
    parts = own if kernel is None else kernel, likelihood
    return select(X, y, GreedyBlocks(**quick | settings), *parts, seed=seed, approximation=approximation)


ENDLESS = {"tolerance": 0.0, "gap_tolerance": -1.0}


@torch.no_grad()
def check(found, most):
    """What holds of every selection."""
    X = found.model.train_X
    assert found.knots.shape == (found.model.num_knots, X.shape[-1])
    assert 1 <= found.model.num_knots <= most
    assert torch.equal(found.knots, found.model.knots)
    assert not found.knots.requires_grad
    last = found.history[-1]
    assert last.num_knots == found.model.num_knots
    assert last.objective == pytest.approx(value_of(found.model.objective()), rel=1e-10)
    assert last.upper_bound == pytest.approx(value_of(upper_bound(found.model.projection())), rel=1e-10)
    for name in ("seconds", "objective"):
        values = [getattr(step, name) for step in found.history]
        assert values == sorted(values)
    assert found.stop_reason
    assert bool(found.model.posterior(X[:3]).mean.isfinite().all())


@pytest.mark.slow
def test_boston_reaches_the_exact_process():
    data = read_golden("fixed_boston")
    X, y, half = data["X"], data["y"], float(data["y"].var() / 2.0)
    found = select(X, y, GreedyBlocks(max_knots=80), *isotropic(half, 1.0, half))
    check(found, 80)
    last = found.history[-1]
    assert -1039.0 <= last.objective <= last.upper_bound
    assert float(data["full_logml"]) < last.upper_bound  # hyperparameters of the golden file are no better


def test_knots_are_rows_and_history_says_which():
    X, y = rows(60)
    found = greedy(X, y, reselect=False, **ENDLESS)
    check(found, 24)
    added = [row for step in found.history for row in step.rows]
    assert len(set(added)) == len(added)
    assert torch.equal(found.knots[-len(added) :], X[added])
    assert [(step.num_knots, len(step.rows)) for step in found.history] == [(5, 0), (10, 5), (20, 10), (24, 4)]
    assert "24 knots, the most allowed" in found.stop_reason


def test_tolerance_ends_the_growth():
    found = greedy(*rows(60, noise=1.0), max_knots=60, tolerance=2.0, gap_tolerance=0.0, reselect=False)
    check(found, 59)
    assert "added less than 2.0 nats" in found.stop_reason
    assert all(later.objective - earlier.objective >= 2.0 for earlier, later in pairwise(found.history))


def test_gap_ends_the_growth():
    found = greedy(*rows(100, noise=0.5), max_knots=100, tolerance=0.0, gap_tolerance=1.0, reselect=False)
    check(found, 100)
    assert "bounds of the log evidence are less than 1.0 nats apart" in found.stop_reason
    gaps = [step.upper_bound - step.objective for step in found.history]
    assert gaps[-1] < 1.0 <= min(gaps[:-1])


def test_the_gap_is_that_of_the_bounds_whatever_the_objective():
    found = greedy(*waves(5.0, 80), max_knots=40, tolerance=-1e9, gap_tolerance=0.5, approximation=FITC)
    assert found.stop_reason.startswith("the bounds of the log evidence")
    projection = found.model.projection()
    assert value_of(found.model.upper_bound() - VFE.objective(projection)) < 0.5


def test_polish_and_reselection_do_not_lose():
    others = {"reselect": False}, {}, {"polish_iterations": 60}
    plain, again, polished = (greedy(*rows(60), max_knots=8, **settings) for settings in others)
    for found in (plain, again, polished):
        check(found, 8)
    assert plain.history[-1].objective <= again.history[-1].objective < polished.history[-1].objective
    assert (polished.history[-1].action, polished.history[-1].rows) == ("polish", ())


@pytest.mark.parametrize("objective", [FITC, DTC], ids=name_of)
def test_other_objectives_are_grown_too(objective):
    found = greedy(*rows(60), max_knots=20, tolerance=-1e9, approximation=objective)
    check(found, 20)
    assert found.model.approximation == objective
    # Only a lower bound can meet the upper one: elsewhere growth goes on until there are enough knots.
    assert "apart" not in found.stop_reason
    assert found.model.num_knots == 20


def test_priors_do_not_end_the_growth():
    X, y = rows(60, noise=1.0)
    kernel, _ = isotropic(0.7, 0.4, 0.1)
    # A prior may have a large log density (here 45 nats, a constant), of which no bound of the evidence knows.
    kernel.register_prior("narrow_prior", NormalPrior(0.0, 1e-20), lambda module: module.outputscale * 0.0)
    bare, found = greedy(X, y, max_knots=20), greedy(X, y, kernel, max_knots=20)
    assert found.model.num_knots == bare.model.num_knots == 20
    assert found.stop_reason == bare.stop_reason


FITS = [greedy_module, fitting_module], "fit_sparse"


@pytest.mark.parametrize(("call", "num_knots"), [(1, 5), (3, 10), (5, 20)])
def test_an_interruption_keeps_the_best_so_far(monkeypatch, call, num_knots):
    fail_at(monkeypatch, *FITS, [call], KeyboardInterrupt())
    with pytest.warns(UserWarning, match=r"interrupted with .* knots; the model is the best so far"):
        found = greedy(*rows(60), max_knots=20, polish_iterations=20, **ENDLESS)
    check(found, 20)
    assert (found.stop_reason, found.model.num_knots) == ("interrupted", num_knots)


def test_duplicates_are_no_knots_twice():
    X, y = rows(15)
    X, y = X.repeat(8, 1), y.repeat(8) + 0.05 * torch.as_tensor(np.random.default_rng(1).normal(size=120))
    found = greedy(X, y, max_knots=80, **ENDLESS)
    check(found, 15)
    assert len(torch.unique(found.knots, dim=0)) == len(found.knots)


def test_constant_columns_and_few_rows():
    X, y = rows(60)
    wide = torch.cat([X, 0.0 * X[:, :1] + 7.0], -1)
    check(greedy(wide, y, max_knots=10, polish_iterations=20), 10)
    check(greedy(X[:2], y[:2], max_knots=10), 2)


def test_bad_input_is_refused():
    X, y = rows(20)
    for arguments, message in [
        ((X[:1], y[:1]), "only one row has a target; give at least two"),
        ((X, 0.0 * y + 3.0), "the targets are constant"),
        ((X, y.index_fill(0, torch.tensor([4]), torch.inf)), r"targets must be finite, but targets\[4, 0\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            greedy(*arguments)
    for settings in ({"max_knots": 0}, {"fit_iterations": 0}):
        with pytest.raises(ValueError, match="at least"):
            GreedyBlocks(**settings)
    with pytest.raises(ValueError, match="at least"):
        Simultaneous(0)


# --- the start -------------------------------------------------------------------------------------------------------


def waves(frequency, num_rows=300, noise=0.1):
    X = torch.linspace(0, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    draws = torch.randn(num_rows, dtype=X.dtype, generator=torch.Generator().manual_seed(1))
    return X, torch.sin(frequency * X.squeeze(-1)) + noise * draws


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [20.0, 60.0])
def test_fast_functions_are_no_noise(frequency):
    """GPyTorch's own start is a lengthscale of 0.69: from there, five knots take everything for noise."""
    X, y = waves(frequency)
    found = select(X, y, GreedyBlocks(), ScaleKernel(RBFKernel()))
    assert found.model.likelihood.noise.item() == pytest.approx(0.01, rel=0.3)
    exact = SparseGP(X, y, X, found.model.covar_module, found.model.likelihood, found.model.mean_module)
    assert found.history[-1].objective == pytest.approx(value_of(exact.objective()), abs=0.5)


@pytest.mark.slow
def test_low_noise_does_not_need_all_knots():
    X, y = waves(12.0, 150, noise=0.01)
    found = select(X, y, GreedyBlocks(fit_iterations=15, polish_iterations=0), ScaleKernel(RBFKernel()))
    assert len(found.knots) <= 40
    assert "most allowed" not in found.stop_reason


def test_subset_scales_are_those_of_the_exact_process():
    X, y = waves(40.0, 90)
    model = SparseGP(X, y, X[::30], ScaleKernel(RBFKernel()))
    found = initialize_from_subset(model, 90)
    exact = SparseGP(X, y, X, found.covar_module, found.likelihood, found.mean_module)
    coordinates = Coordinates(exact)
    assert float(coordinates.evaluate(coordinates.read())[1].abs().max()) < 1.0
    assert torch.equal(found.knots, model.knots)
    assert torch.equal(found.train_X, X)
    assert model.covar_module.outputscale.item() == pytest.approx(math.log(2.0))  # the model is as it was


# --- all strategies --------------------------------------------------------------------------------------------------


class Detached(Kernel):
    """A kernel without a gradient in its inputs."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        return RBFKernel.forward(self, x1.detach(), x2.detach(), diag=diag, **params)


STRATEGIES = {
    "greedy": GreedyBlocks(max_knots=8, fit_iterations=5, polish_iterations=5, subset_size=20),
    "one at a time": OneAtATime(RandomSubset(5), max_knots=7, optimizer=LBFGSB(10)),
    # Rows are proposed, not places, so that neither stationarity nor a derivative is needed.
    "optimization": OneAtATime(BayesianOptimization(3, 6), start=2, max_knots=5),
    "simultaneous": Simultaneous(5, LBFGSB(20)),
}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


@each_strategy
@pytest.mark.parametrize(
    "kernel",
    [LinearKernel() + ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2)), Detached()],
    ids=["linear and rbf", "rough", "without gradient"],
)
def test_any_kernel_is_taken(kernel, strategy):
    found = select(*rows(60), strategy, kernel)
    check(found, 8)
    assert found.history[-1].objective >= found.history[0].objective


@each_strategy
def test_what_is_given_stays_as_it_is_and_may_be_held(strategy):
    X, y = rows(60)
    kernel, likelihood = isotropic(0.7, 0.3, 0.05)
    select(X, y, strategy, kernel, likelihood)
    assert (kernel.outputscale.item(), likelihood.noise.item()) == (pytest.approx(0.7), pytest.approx(0.05))
    held = [part.double().requires_grad_(False) for part in (kernel, likelihood, ConstantMean())]
    found = select(X, y, strategy, *held)
    assert found.model.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.3)
    assert found.history[-1].objective >= found.history[0].objective


def test_simultaneous_optimization_moves_all_knots():
    X, y = rows(60)
    for start, optimizer in ((X[:6].clone(), LBFGSB(200)), (6, Adadelta(max_iterations=20))):
        found = select(X, y, Simultaneous(start, optimizer), *isotropic(0.7, 0.4, 0.1))
        assert found.knots.shape == (6, 2)
        assert not bool((found.knots == start).all(-1).any())
        assert found.history[-1].objective > found.history[0].objective


def test_knots_at_categories_move_along_the_rest():
    X, y = rows(60)
    X = torch.cat([X[:, :1], (3 * X[:, 1:]).floor()], -1)
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * CategoricalKernel(active_dims=(1,)))
    found = select(X, y, Simultaneous(X[:10], LBFGSB(50)), kernel)
    assert torch.equal(found.knots[:, 1], X[:10, 1])
    assert found.history[-1].objective > found.history[0].objective + 1.0


def test_what_cannot_be_learned_is_said():
    X, y = rows(60)
    with pytest.warns(UserWarning, match="minimum noise variance"):
        greedy(X, 1e-6 * y, max_knots=6)
    strategy = GreedyBlocks(max_knots=6, subset_size=0, polish_iterations=20)
    with pytest.warns(UserWarning, match="ended a factor of 10000 from the start"):
        select(X, 1e6 * y, strategy, *isotropic(0.7, 1.0, 0.1))


def test_white_noise_is_called_so_whatever_the_draw_and_a_function_is_not():
    """Of these draws of few rows the kernel explains a half and nine tenths."""
    for seed in (0, 5):
        numbers = torch.Generator().manual_seed(seed)
        X, noise = (draw(40, 2, generator=numbers, dtype=torch.float64) for draw in (torch.rand, torch.randn))
        with pytest.warns(UserWarning, match=r"explains \d+\.\d% of the variance .*, no more than by chance"):
            select_knots(X, noise[:, 0])
    select_knots(X, 3 * (4 * X[:, 0]).sin() + noise[:, 0])  # without a warning, which would be an error
