"""All rows as knots where affordable, else an adaptive number: the exact model, budgets, defaults, bad input."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import NormalPrior
from torch import Tensor

from gp_ensembles.papers.sparse import ExactGP, SparseGP, select_knots
from gp_ensembles.papers.sparse import adaptive as adaptive_module
from gp_ensembles.papers.sparse import fitting as fitting_module
from gp_ensembles.papers.sparse.adaptive import AdaptiveKnots
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.fitting import Coordinates, fit_sparse
from gp_ensembles.papers.sparse.selection import LinearTrend, default_kernel
from gp_ensembles.papers.sparse.strategies import Selection
from tests.papers.sparse.problems import fail_at, isotropic, noise_of, slopes, value_of


def make_data(num_rows: int = 60, seed: int = 0, copies: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of two columns, the first ``copies`` of them twice with other targets."""
    draws = np.random.default_rng(seed)
    X = torch.as_tensor(draws.uniform(size=(num_rows, 2)))
    X = torch.cat([X[:copies], X])
    noise = 0.1 * torch.as_tensor(draws.normal(size=len(X)))
    return X, torch.sin(7.0 * X[:, 0]) + 2.0 * X[:, 1] + noise


def make_exact(copies: int = 0) -> ExactGP:
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.3, torch.tensor([0.3, 0.8])
    return ExactGP(*make_data(30, copies=copies), kernel, noise_of(0.02))


def dense(model: SparseModel, noise: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log evidence, and the function's mean and covariance at other rows, by the targets' whole covariance."""
    kernel, mean = model.covar_module, model.mean_module
    with torch.no_grad():
        own, cross = kernel(model.train_X).to_dense() + torch.diag(noise), kernel(X, model.train_X).to_dense()
        residual = model.train_y - mean(model.train_X)
        evidence = torch.distributions.MultivariateNormal(torch.zeros_like(residual), own).log_prob(residual)
        gain = torch.linalg.solve(own, cross.mT).mT
        return evidence, mean(X) + gain @ residual, kernel(X).to_dense() - gain @ cross.mT


@pytest.mark.parametrize(("copies", "more"), [(0, 0), (7, 0), (7, 9)])
def test_evidence_gradients_and_predictions_are_the_dense_ones(copies: int, more: int) -> None:
    model, (X, _) = make_exact(copies), make_data(6, seed=1)
    if more:
        new_X, new_y = make_data(more, seed=2)
        model = model.condition_on_observations(new_X, new_y.unsqueeze(-1))
    evidence, mean, covariance = dense(model, model.likelihood.noise.detach().expand_as(model.train_y), X)
    assert value_of(model.objective()) == pytest.approx(float(evidence), abs=1e-9)
    with torch.no_grad():
        assert float(model.objective()) == pytest.approx(float(evidence), abs=1e-9)
        assert float(model.upper_bound()) == pytest.approx(float(evidence), abs=1e-9)
    assert model.num_knots == 30 + more
    posterior, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(noisy.variance.squeeze(-1), covariance.diagonal() + 0.02, rtol=1e-7, atol=1e-8)
    value = ExactMarginalLogLikelihood(model.likelihood, model)(model.train()(model.train_X), model.train_y)
    assert value_of(value) * len(model.train_y) == pytest.approx(float(evidence), abs=1e-6)
    coordinates = Coordinates(model)
    point = coordinates.read()
    torch.testing.assert_close(slopes(coordinates, point), coordinates.evaluate(point)[1], rtol=1e-5, atol=1e-6)


def test_what_an_exact_model_refuses() -> None:
    model = make_exact()
    for call, words in (
        (lambda: model.train()(model.train_X + 1.0), "only its training inputs"),
        (lambda: model.with_knots(model.knots[:3]).posterior(model.train_X), "knots of an exact .* distinct rows"),
        (lambda: ExactGP(*make_data(5), RBFKernel(), BernoulliLikelihood()), "must be a GaussianLikelihood"),
        (lambda: model.condition_on_observations(torch.zeros(2, 3), torch.zeros(2, 1)), r"shape \(..., q, 2\)"),
    ):
        with pytest.raises((ValueError, BotorchTensorDimensionError), match=words):
            call()


def test_the_prior_mean_does_not_see_units() -> None:
    X, y = make_data()
    trend = LinearTrend(X, y)
    trend.weights.data.copy_(torch.tensor([0.5, -2.0]))
    other = LinearTrend(1e6 * X + 3.0, 1e-4 * y + 7.0).double()
    other.weights.data.copy_(trend.weights.data)
    shifted = 1e4 * (other(1e6 * X + 3.0) - 7.0)
    torch.testing.assert_close(shifted, trend(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "columns"), [({"ard_num_dims": 3}, [[0], [1], [2]]), ({}, [[0, 1, 2]]), ({"active_dims": [1]}, [[1]])]
)
def test_scales_begin_at_the_spread_of_the_data(settings: dict[str, Any], columns: list[list[int]]) -> None:
    X, y = make_data()
    X = torch.cat([X * X.new_tensor([1.0, 10.0]), torch.full_like(X[:, :1], 4.0)], -1)
    spread = X.std(0, unbiased=False)
    spread[2] = 1.0  # a constant column has none
    assert torch.equal(default_kernel(X, y).base_kernel.lengthscale[0], spread)
    model = ExactGP(X, y, ScaleKernel(MaternKernel(**settings)).double(), noise_of(0.02))
    fitting_module.rescale(model, 0.5 * fitting_module.spread_of(X))
    found = model.covar_module.base_kernel.lengthscale[0]
    torch.testing.assert_close(found, 0.5 * torch.stack([spread[some].mean() for some in columns]))
    half = 0.5 * (y - model.mean_module(X)).square().mean()
    torch.testing.assert_close((model.covar_module.outputscale, model.likelihood.noise), (half, half.reshape(1)))


# --- the selection ----------------------------------------------------------------------------------------------------


def choose(X: Tensor, y: Tensor, *parts: torch.nn.Module, **settings: int | float) -> Selection:
    generator = torch.Generator().manual_seed(0)
    return select_knots(X, y, *parts, strategy=AdaptiveKnots(**settings), generator=generator)


def test_few_rows_are_all_knots() -> None:
    X, y = make_data(copies=5)
    found = choose(X, y)
    assert isinstance(found.model, ExactGP)
    assert found.stop_reason == "all 60 distinct rows are knots: the model is exact"
    assert found.knots.shape == (60, 2)
    assert found.history[-1].objective == found.history[-1].upper_bound
    assert found.model.likelihood.noise.item() == pytest.approx(0.01, rel=0.5)
    assert isinstance(found.model.mean_module, LinearTrend)
    assert found.model.mean_module.weights[1].item() == pytest.approx(2.0 * float(X[:, 1].std() / y.std()), rel=0.3)


def test_the_kernel_mean_and_likelihood_may_be_given() -> None:
    X, y = make_data()
    kernel, likelihood = isotropic(0.7, 0.7, 0.7)
    kernel.base_kernel.register_prior("narrow", NormalPrior(0.4, 1e-3), "lengthscale")
    found = choose(X, y, kernel, likelihood)
    assert found.model.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.4, abs=0.01)
    held = [part.requires_grad_(False) for part in (ScaleKernel(RBFKernel()).double(), likelihood, LinearTrend(X, y))]
    found = choose(X, y, *held)
    assert torch.equal(found.model.covar_module.base_kernel.lengthscale, held[0].base_kernel.lengthscale)


def test_few_rows_have_a_constant_mean() -> None:
    X, y = make_data(20)
    found = choose(X, y)
    assert not isinstance(found.model.mean_module, LinearTrend)
    with pytest.warns(UserWarning, match="no more than by chance"):
        one, two = select_knots(X[:1].repeat(2, 1), y[:2]), select_knots(X[:2], y[:2])
    assert (one.model.num_knots, two.model.num_knots) == (1, 2)


def test_many_rows_have_knots_until_the_bounds_meet() -> None:
    X, y = make_data(500)
    found = choose(X, y, max_knots=400, exact_rows=100, fit_rows=100, gap_tolerance=5.0)
    assert isinstance(found.model, SparseGP)
    assert found.stop_reason == "the bounds of the log evidence are less than 5.0 nats apart"
    grown = [step for step in found.history if step.action == "knots"]
    assert all(len(set(step.rows)) == step.num_knots for step in grown)
    assert grown[-1].upper_bound - grown[-1].objective < 5.0
    assert [step.objective for step in found.history] == sorted(step.objective for step in found.history)


def test_the_result_says_how_far_the_bounds_are() -> None:
    X, y = make_data(120)
    with pytest.warns(UserWarning, match=r"with 4 knots the bounds .* nats apart, .* per row: more knots may predict"):
        found = choose(X, y, max_knots=4, exact_rows=50, fit_rows=50)
    assert found.stop_reason.startswith("there are 4 knots, the most allowed; the bounds are ")
    assert found.history[-1].action == "polish"
    assert found.history[-1].objective > found.history[-2].objective


def test_rows_that_explain_everything_end_the_growth() -> None:
    X, y = make_data(900)
    kernel, _ = isotropic(0.7, 50.0, 0.1)
    found = choose(X, y, kernel.requires_grad_(False), exact_rows=0, fit_rows=200, gap_tolerance=-1.0)
    assert "rows explain the entire prior" in found.stop_reason
    assert len(found.knots) < 100


@pytest.mark.parametrize("exact_rows", [0, 10_000])
def test_a_budget_that_ends_leaves_a_model(exact_rows: int) -> None:
    X, y = make_data(600)
    found = choose(X, y, exact_rows=exact_rows, max_seconds=1e-3)
    assert "the budget of 0.001 s" in found.stop_reason
    assert len(found.history) == 1
    assert float(found.knots[:, 0].amax() - found.knots[:, 0].amin()) > 0.9  # not those with the smallest inputs
    assert bool(found.model.posterior(X[:3]).mean.isfinite().all())


@pytest.mark.parametrize("call", [1, 4, 5])
def test_an_interruption_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    X, y = make_data(150)
    fail_at(monkeypatch, [fitting_module, adaptive_module], "fit_sparse", [call], KeyboardInterrupt())
    with pytest.warns(UserWarning, match="interrupted with 150 knots; the model is the best so far"):
        found = choose(X, y)
    assert found.stop_reason == "interrupted"
    assert math.isfinite(found.history[-1].objective)


def test_impossible_settings_are_refused() -> None:
    for settings in ({"max_knots": 0}, {"fit_rows": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            AdaptiveKnots(**settings)
    for settings in ({"exact_rows": -1}, {"gap_tolerance": math.nan}, {"max_seconds": 0.0}, {"max_seconds": math.nan}):
        with pytest.raises(ValueError, match=r"exact_rows must be at least 0, .* and max_seconds above 0"):
            AdaptiveKnots(**settings)


@pytest.mark.parametrize("kind", [ExactGP, SparseGP])
@pytest.mark.parametrize("copies", [0, 4])
def test_known_noise_is_each_rows_own(copies: int, kind: type[SparseModel]) -> None:
    """Objective and predictions against dense algebra; with a knot at every row nothing is approximated."""
    X, y = make_data(12, copies=copies)
    noise = torch.linspace(0.01, 0.5, len(y), dtype=torch.float64)
    kernel = ScaleKernel(RBFKernel()).double()
    options = {} if kind is ExactGP else {"knots": X[copies:], "nugget": 1e-12}
    model = kind(X, y, kernel=kernel, mean=ZeroMean(), train_Yvar=noise.unsqueeze(-1), **options)
    at, _ = make_data(5, seed=2)
    evidence, mean, covariance = dense(model, noise, at)
    with torch.no_grad():
        torch.testing.assert_close(model.objective(), evidence, rtol=1e-5, atol=1e-5)
        posterior = model.posterior(at)
        torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance, rtol=1e-5, atol=1e-6)
    assert fit_sparse(model, max_iterations=10).objective >= float(evidence) - 1e-5
    value = ExactMarginalLogLikelihood(model.likelihood, model)(model.train()(model.train_inputs[0]), y)
    assert value_of(value) == pytest.approx(value_of(model.objective()) / len(y), abs=1e-5)
    with pytest.raises(ValueError, match="not both"):
        kind(X, y, kernel=kernel, likelihood=GaussianLikelihood(), train_Yvar=noise, **options)
