"""Knots for variational Gaussian processes: collapsed and dense algebra, GPyTorch's bound, quadrature, selections."""

import math
from itertools import pairwise

import gpytorch
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.approximate_gp import SingleTaskVariationalGP
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    LaplaceLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.priors import GammaPrior
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.operators import DiagLinearOperator
from torch.distributions import MultivariateNormal

from gp_ensembles.likelihoods import (
    GaussHermite,
    LogisticLikelihood,
    LogPoissonLikelihood,
    MulticlassLikelihood,
    OrdinalLikelihood,
    Probit,
)
from gp_ensembles.likelihoods.response import IllegalTargetError, log_prob
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.gauss_hermite import gauss_hermite
from gp_ensembles.sparse import (
    VFE,
    GreedyBlocks,
    Reinitialization,
    fit_sparse,
    greedy_variance_knots,
    select_variational_knots,
)
from gp_ensembles.sparse import fitting as fitting_module
from gp_ensembles.sparse import greedy as greedy_module
from gp_ensembles.sparse.collapsed import LatentPrior, project
from gp_ensembles.sparse.greedy import greedy_elbo_rows, init_candidates, init_candidates_with_sites
from gp_ensembles.sparse.laplace import SparseLaplaceGP
from gp_ensembles.sparse.variational import Sites, SparseVariationalGP, optimize_posterior, posterior_of_sites

LIKELIHOODS = {
    "gaussian": GaussianLikelihood,
    "logistic": LogisticLikelihood,
    "probit": BernoulliLikelihood,
    "poisson": LogPoissonLikelihood,
    "softplus": PoissonLikelihood,
    "ordinal": lambda: OrdinalLikelihood(4, Probit()),
    "student": StudentTLikelihood,
    "laplace": LaplaceLikelihood,
}


def make_data(name, rows=40, seed=0):
    draws = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, 2, generator=draws, dtype=torch.float64)
    latent = 2.0 * torch.sin(7.0 * X[:, 0]) + X[:, 1]
    if name in ("logistic", "probit"):
        return X, torch.bernoulli(latent.sigmoid(), generator=draws)
    if name in ("poisson", "softplus"):
        return X, torch.poisson(latent.exp(), generator=draws)
    if name == "ordinal":
        return X, (latent + 2.0).clamp(0.0, 3.0).round()
    return X, latent + 0.3 * torch.randn(rows, generator=draws, dtype=torch.float64)


def make_kernel(lengthscale=0.4, outputscale=1.5, kernel=RBFKernel):
    made = ScaleKernel(kernel()).double()
    made.base_kernel.lengthscale, made.outputscale = lengthscale, outputscale
    return made


def make_model(name, knots=6, rows=40, seed=0, **options):
    X, y = make_data(name, rows, seed)
    return SparseVariationalGP(X, y, X[:knots] + 0.01, make_kernel(), LIKELIHOODS[name]().double(), **options)


def blocks(**settings):
    return GreedyBlocks(**({"subset_size": 0, "polish_iterations": 0, "fit_iterations": 30} | settings))


def select(name="logistic", rows=80, seed=0, strategy=None, **options):
    X, y = make_data(name, rows)
    strategy = blocks(max_knots=12, num_initial=3, fit_iterations=8) if strategy is None else strategy
    options = {"generator": torch.Generator().manual_seed(seed)} | options
    return select_variational_knots(X, y, make_kernel(), LIKELIHOODS[name]().double(), strategy=strategy, **options)


def latent_prior(model, X):
    """The prior at rows, given the knots."""
    own = model.kernel_matrix(model.knots, model.knots)
    lower = torch.linalg.cholesky(own + torch.diag_embed(torch.full_like(own[0], model.jitter)))
    projected = torch.linalg.solve_triangular(lower, model.kernel_matrix(model.knots, X), upper=False)
    unexplained = model.kernel_diagonal(X) + model.jitter - projected.square().sum(0)
    return LatentPrior(model.mean_module(X), projected, unexplained)


def value_of(tensor):
    return float(tensor.detach())


# The bound


def test_with_a_normal_likelihood_the_bound_is_the_collapsed_one():
    model = make_model("gaussian")
    seen = model.projection()
    noise = model.likelihood.noise.squeeze(-1)
    residual = model.train_y - model.mean_module(model.train_X)
    expected = VFE().objective(seen._replace(residual=residual, noise=noise))
    assert value_of(model.objective()) == pytest.approx(value_of(expected), abs=1e-8)
    assert model.optimize_posterior().num_steps <= 2


@pytest.mark.parametrize("name", sorted(set(LIKELIHOODS) - {"laplace"}))  # whose quadrature has kinks
def test_gpytorch_has_the_same_bound_and_no_better_posterior(name):
    model = make_model(name)
    exported = model.export().train()
    objective = VariationalELBO(exported.likelihood, exported.model, num_data=40)
    value = 40 * objective(exported.model(model.train_X), model.train_y)
    assert value_of(value) == pytest.approx(value_of(model.objective()), abs=1e-6)
    slopes = torch.autograd.grad(value, list(exported.model.variational_parameters()))
    assert max(float(slope.tril().abs().max() if slope.ndim == 2 else slope.abs().max()) for slope in slopes) < 5e-3


@pytest.mark.parametrize("name", ["logistic", "poisson", "student"])
def test_gradients_are_those_of_finite_differences(name):
    model = make_model(name)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad(model.objective(), parameters)
    step = 1e-4
    for parameter, slope in zip(parameters, slopes, strict=True):
        for place in range(min(parameter.numel(), 3)):
            values = []
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    parameter.view(-1)[place] += sign * step
                    values.append(float(model.objective()))
                    parameter.view(-1)[place] -= sign * step
            difference = (values[0] - values[1]) / (2.0 * step)
            assert float(slope.reshape(-1)[place]) == pytest.approx(difference, rel=1e-3, abs=2e-3)


@pytest.mark.parametrize("batch_size", [1, 7, 39, 40])
def test_batches_of_rows_change_nothing(batch_size):
    whole, parts = make_model("poisson"), make_model("poisson", batch_size=batch_size)
    results = []
    for model in (whole, parts):
        value = model.objective()
        results.append((value, *torch.autograd.grad(value, list(model.parameters()))))
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("rows", "name"), [(2, "poisson"), (3, "poisson"), (3, "logistic")])
def test_the_bound_is_below_the_evidence(rows, name):
    draws = torch.Generator().manual_seed(rows)
    X = torch.rand(rows, 1, generator=draws, dtype=torch.float64)
    y = torch.arange(rows, dtype=torch.float64) if name == "poisson" else (X.squeeze(-1) > X.median()).double()
    model = SparseVariationalGP(X, y, X[:1], make_kernel(), LIKELIHOODS[name](), ConstantMean())
    nodes, weights = gauss_hermite(60, like=X)
    grid = torch.cartesian_prod(*[nodes] * rows)
    log_weights = torch.cartesian_prod(*[weights.log()] * rows).sum(-1)
    covariance = model.kernel_matrix(X, X) + model.jitter * torch.diag_embed(torch.ones_like(y))
    latent = grid @ torch.linalg.cholesky(covariance).mT
    evidence = value_of((log_weights + log_prob(model.likelihood, latent, y).sum(-1)).logsumexp(0))
    bounds = [value_of(model.with_knots(X[:count]).objective()) for count in range(1, rows + 1)]
    assert max(bounds) <= evidence
    assert bounds[-1] == pytest.approx(evidence, abs=0.1)
    assert all(after >= before - 1e-6 for before, after in pairwise(bounds))


@settings(max_examples=25)
@given(
    name=st.sampled_from(["gaussian", "logistic", "probit", "poisson", "ordinal"]),
    seed=st.integers(0, 10**6),
    lengthscale=st.floats(0.1, 2.0),
    knots=st.integers(1, 6),
)
def test_a_further_knot_never_lowers_the_bound(name, seed, lengthscale, knots):
    X, y = make_data(name, 15, seed)
    model = SparseVariationalGP(X, y, X[:knots], make_kernel(lengthscale), LIKELIHOODS[name]().double())
    further = model.with_knots(torch.cat([X[:knots], X[knots : knots + 1] + 0.05]))
    assert value_of(further.objective()) >= value_of(model.objective()) - 1e-6


def test_the_search_ends_at_the_same_place_from_anywhere():
    model = make_model("poisson")
    first = model.optimize_posterior()
    rows = LatentPrior(*(part.detach() for part in latent_prior(model, model.train_X)))
    draws = torch.Generator().manual_seed(1)
    far = Sites(*(50.0 * torch.rand(40, generator=draws, dtype=torch.float64) for _ in range(2)))

    def expected(mean, variance):
        latent = gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(variance))
        return model.likelihood.expected_log_prob(model.train_y, latent)

    other = optimize_posterior(rows, expected, far)
    assert float(first.bound) == pytest.approx(float(other.bound), rel=1e-8)
    assert torch.allclose(first.posterior.mean, other.posterior.mean, atol=1e-4)


def test_large_counts_are_reached_by_steps_that_are_halved():
    X = torch.linspace(0.0, 1.0, 30, dtype=torch.float64).unsqueeze(-1)
    y = (1000.0 * (1.0 + X.squeeze(-1))).round()
    model = SparseVariationalGP(X, y, X[::6], make_kernel(outputscale=25.0), LogPoissonLikelihood(), ConstantMean())
    fitted = model.optimize_posterior()
    mean, _ = fitted.posterior.marginals(latent_prior(model, X))
    assert value_of((mean - y.log()).abs().mean()) < 0.05


@pytest.mark.parametrize(
    ("likelihood", "y", "constant"),
    [
        (LogPoissonLikelihood(), [900.0, 1100.0, 1000.0], math.log(1000.0)),
        (LogisticLikelihood(), [1.0, 0.0] + 98 * [1.0], math.log(99.0)),
        (GaussianLikelihood(), [5.0, 6.0, 7.0] * 20, 6.0),
    ],
)
def test_the_mean_starts_at_the_best_constant(likelihood, y, constant):
    X = torch.linspace(0.0, 1.0, len(y), dtype=torch.float64).unsqueeze(-1)
    model = SparseVariationalGP(X, X.new_tensor(y), X[:1], make_kernel(), likelihood)
    assert value_of(model.mean_module.constant) == pytest.approx(constant, rel=0.06)


def test_the_posterior_of_sites_is_that_of_dense_algebra():
    draws = torch.Generator().manual_seed(0)
    V, W, shift = (torch.randn(*shape, generator=draws, dtype=torch.float64) for shape in ((3, 8), (8,), (8,)))
    rows, sites = LatentPrior(0.0 * W, V, 0.0 * W), Sites(W.square(), shift)
    found = posterior_of_sites(rows, sites)
    covariance = torch.linalg.inv(torch.diag_embed(torch.ones_like(V[:, 0])) + (V * W.square()) @ V.mT)
    assert torch.allclose(found.root @ found.root.mT, covariance, atol=1e-12)
    assert torch.equal(found.root, found.root.tril())
    assert torch.allclose(found.mean, covariance @ (V @ shift), atol=1e-12)
    prior = MultivariateNormal(torch.zeros_like(found.mean), torch.diag_embed(torch.ones_like(found.mean)))
    dense = torch.distributions.kl_divergence(MultivariateNormal(found.mean, covariance), prior)
    assert float(found.divergence()) == pytest.approx(float(dense), abs=1e-10)
    with pytest.raises(NumericalError, match="precision of the knots"):
        posterior_of_sites(rows, Sites(torch.full_like(W, -10.0), shift))


def test_a_bound_that_is_nowhere_finite_is_an_error():
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(NumericalError, match="not finite under the prior"):
        optimize_posterior(
            LatentPrior(one, one.unsqueeze(0), one), lambda mean, variance: (mean + variance) / 0.0, Sites(one, one)
        )


# Gains


def table(seed=0, rows=25, knots=4, candidates=6):
    """A projection, candidates at rows, and what measures them."""
    X, y = make_data("gaussian", rows, seed)
    kernel, nugget = make_kernel(), 1e-6
    Z, places = X[:knots] + 0.03, torch.arange(10, 10 + candidates)
    with torch.no_grad():
        own = kernel(Z, Z).to_dense() + nugget * torch.diag_embed(torch.ones_like(Z[:, 0]))
        prior = kernel(X, diag=True) + nugget
        projection = project(own, kernel(Z, X).to_dense(), prior, y, y.new_tensor(0.2))
        return (
            projection,
            (kernel(Z, X[places]).to_dense(), kernel(X[places], X).to_dense(), prior[places]),
            places,
            (X, Z, kernel, nugget),
        )


def dense_bound(X, Z, kernel, nugget, sites):
    """log N(z; 0, Q + D) less half the trace, by dense algebra."""
    with torch.no_grad():
        own = kernel(Z, Z).to_dense() + nugget * torch.diag_embed(torch.ones_like(Z[:, 0]))
        cross = kernel(Z, X).to_dense()
        explained = cross.mT @ torch.linalg.solve(own, cross)
        open_ = kernel(X, diag=True) + nugget - explained.diagonal()
        covariance = explained + torch.diag_embed(1.0 / sites.precision)
        targets = sites.shift / sites.precision
        density = MultivariateNormal(torch.zeros_like(targets), covariance).log_prob(targets)
        return float(density - 0.5 * (sites.precision * open_).sum())


def test_equal_sites_have_the_gains_of_equal_noise():
    projection, measured, places, _ = table()
    precision = (1.0 / projection.noise).expand_as(projection.residual)
    local = init_candidates_with_sites(projection, Sites(precision, projection.residual * precision), *measured)
    plain = init_candidates(projection, *measured)
    assert torch.allclose(local.gains(), plain.gains(), rtol=1e-9, atol=1e-9)
    for index in (2, 5, 0):
        local.add_knot(index, places)
        plain.add_knot(index, places)
        assert torch.allclose(local.gains(), plain.gains(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_gains_under_any_sites_are_those_of_brute_force(seed):
    projection, measured, places, (X, Z, kernel, nugget) = table(seed)
    draws = torch.Generator().manual_seed(seed)
    precision = torch.rand(25, generator=draws, dtype=torch.float64).square() * 20.0 + 1e-3
    sites = Sites(precision, projection.residual * precision)
    local = init_candidates_with_sites(projection, sites, *measured)
    for taken in (3, 1, None):
        before = dense_bound(X, Z, kernel, nugget, sites)
        brute = [
            dense_bound(X, torch.cat([Z, X[place : place + 1]]), kernel, nugget, sites) - before
            for place in places.tolist()
        ]
        known = [bool((X[place] == Z).all(-1).any()) for place in places.tolist()]
        brute = [0.0 if knot else gain for knot, gain in zip(known, brute, strict=True)]
        assert local.gains().tolist() == pytest.approx(brute, rel=1e-9, abs=1e-9)
        if taken is not None:
            local.add_knot(taken, places)
            Z = torch.cat([Z, X[places[taken : taken + 1]]])


def test_rows_without_curvature_count_as_next_to_nothing():
    projection, measured, _, _ = table()
    precision = torch.rand(25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shift = projection.residual * precision
    without = precision.clone()
    without[7] = -0.5
    shift[7] = 0.0
    gains = init_candidates_with_sites(projection, Sites(without, shift), *measured).gains()
    without[7] = 1e-14
    assert torch.allclose(
        gains, init_candidates_with_sites(projection, Sites(without, shift), *measured).gains(), atol=1e-8
    )
    nothing = torch.zeros_like(shift)
    assert not init_candidates_with_sites(projection, Sites(nothing, nothing), *measured).gains().abs().gt(1e-6).any()


@pytest.mark.parametrize("name", ["logistic", "probit", "poisson", "ordinal"])
def test_local_gains_are_close_to_what_the_bound_gains(name):
    model = make_model(name, knots=12)
    sites = model.optimize_posterior().sites
    C = model.train_X[20:]
    with torch.no_grad():
        prior = model.kernel_diagonal(C) + model.jitter
        measured = (model.kernel_matrix(model.knots, C), model.kernel_matrix(C, model.train_X), prior)
        gains = init_candidates_with_sites(model.projection(), sites, *measured).gains()
        before = float(model.objective())
        true = [float(model.with_knots(torch.cat([model.knots, row.unsqueeze(0)])).objective()) - before for row in C]
    exact = gains.new_tensor(true)
    assert float((gains - exact).abs().max()) < 0.25 * float(exact.max())
    assert float(exact[gains.argmax()]) > 0.7 * float(exact.max())


# Selections


def check(found, strategy):
    assert found.knots.shape[0] <= strategy.max_knots
    assert torch.equal(found.knots, found.model.knots.detach())
    objectives = [step.objective for step in found.history]
    assert all(after >= before for before, after in pairwise(objectives))
    assert [step.seconds for step in found.history] == sorted(step.seconds for step in found.history)
    assert found.history[-1].num_knots == found.knots.shape[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_any_likelihood_finds_knots(name):
    strategy = blocks(max_knots=6, num_initial=3, fit_iterations=4)
    found = select(name, strategy=strategy)
    check(found, strategy)
    assert found.history[-1].objective > found.history[0].objective
    exported = found.model.export().train()
    X, y = make_data(name, 80)
    value = 80 * VariationalELBO(exported.likelihood, exported.model, num_data=80)(exported.model(X), y)
    assert value_of(value) == pytest.approx(found.history[-1].objective, abs=1e-5)


def test_rows_of_blocks_are_the_knots():
    found = select(strategy=blocks(max_knots=12, num_initial=3, fit_iterations=5, reselect=False))
    X, _ = make_data("logistic", 80)
    chosen = [row for step in found.history for row in step.rows]
    assert torch.equal(found.knots[3:], X[chosen])
    assert [step.action for step in found.history] == ["start", "block", "block"]
    assert "most allowed" in found.stop_reason


def test_predictions_are_as_good_as_those_of_laplace():
    X, y = make_data("logistic", 300)
    train, test = slice(0, 200), slice(200, 300)
    strategy = blocks(max_knots=20, fit_iterations=15)
    options = {"generator": torch.Generator().manual_seed(0)}
    found = select_variational_knots(
        X[train], y[train], make_kernel(), LogisticLikelihood(), strategy=strategy, **options
    )
    laplace = SparseLaplaceGP(X[train], y[train], found.knots, make_kernel(), LogisticLikelihood())
    fit_sparse(laplace, max_iterations=30)
    losses = []
    for model in (found.model.export(), laplace):
        with torch.no_grad():
            posterior = model.posterior(X[test])
        scores = GaussHermite().log_prob(
            LogisticLikelihood(), posterior.mean.squeeze(-1), posterior.variance.squeeze(-1), y[test]
        )
        losses.append(-float(scores.mean()))
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert losses[0] < math.log(2.0)


def test_the_exported_model_predicts_as_the_collapsed_one():
    model = make_model("poisson")
    exported = model.export()
    query = torch.rand(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    first, second = model.posterior(query), exported.posterior(query)
    assert torch.allclose(first.mean, second.mean, atol=1e-6)
    assert torch.allclose(first.distribution.covariance_matrix, second.distribution.covariance_matrix, atol=1e-5)
    query.requires_grad_()
    acquisition = UpperConfidenceBound(exported, beta=0.2)(query[:, :1])
    assert bool(torch.autograd.grad(acquisition.sum(), query)[0].isfinite().all())


def test_a_state_makes_the_same_model_again():
    found = select()
    X, y = make_data("logistic", 80)
    fresh = SingleTaskVariationalGP(
        X,
        y.unsqueeze(-1),
        likelihood=LogisticLikelihood(),
        covar_module=make_kernel(),
        inducing_points=torch.zeros_like(found.knots),
    )
    exported = found.model.export()
    fresh.load_state_dict(exported.state_dict(), keep_transforms=False)
    query = X[:5] + 0.02
    first, second = (model.posterior(query) for model in (exported, fresh))
    assert torch.allclose(first.mean, second.mean, atol=1e-10)
    assert torch.allclose(first.variance, second.variance, atol=1e-10)


def test_the_model_learns_on_from_minibatches():
    found = select()
    X, y = make_data("logistic", 80)
    model = found.model.export().train()
    objective = VariationalELBO(model.likelihood, model.model, num_data=80)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in torch.arange(80).split(20):
        optimizer.zero_grad()
        loss = -objective(model.model(X[batch]), y[batch])
        loss.backward()
        optimizer.step()
        assert bool(loss.isfinite())


def test_batches_must_have_rows():
    with pytest.raises(ValueError, match="batch_size"):
        select(batch_size=0)


def test_scales_from_a_subset_and_other_strategies():
    found = select(strategy=blocks(max_knots=8, subset_size=30, fit_iterations=5))
    assert found.history[-1].objective > found.history[0].objective
    found = select(
        strategy=Reinitialization(8, greedy_variance_knots, num_rounds=2, fit_iterations=5, polish_iterations=5)
    )
    assert found.knots.shape == (8, 2)
    assert found.history[-1].objective > found.history[0].objective


def test_the_generator_decides():
    strategy = blocks(max_knots=8, num_initial=2, num_candidates=15, fit_iterations=4)
    first, again, other = (select(seed=seed, strategy=strategy) for seed in (3, 3, 4))
    assert torch.equal(first.knots, again.knots)
    assert [step.objective for step in first.history] == [step.objective for step in again.history]
    assert first.knots.shape != other.knots.shape or not torch.equal(first.knots, other.knots)


def test_knots_end_where_they_add_nothing():
    X = torch.linspace(0.0, 1.0, 60, dtype=torch.float64).unsqueeze(-1)
    y = (5.0 + 4.0 * X.squeeze(-1)).round()
    found = select_variational_knots(X, y, make_kernel(), LogPoissonLikelihood())
    assert found.knots.shape[0] < 40
    assert "added less than 0.01 nats" in found.stop_reason or "no row" in found.stop_reason


def test_fast_waves_are_not_taken_for_chance():
    X = torch.linspace(0.0, 1.0, 300, dtype=torch.float64).unsqueeze(-1)
    y = torch.poisson((2.0 + torch.sin(60.0 * X.squeeze(-1))).exp(), generator=torch.Generator().manual_seed(0))
    found = select_variational_knots(
        X,
        y,
        make_kernel(lengthscale=0.05),
        LogPoissonLikelihood(),
        strategy=blocks(max_knots=40, fit_iterations=15),
        generator=torch.Generator().manual_seed(0),
    )
    assert float(found.model.covar_module.base_kernel.lengthscale.detach()) < 0.1
    assert found.knots.shape[0] > 10


def test_priors_and_polish():
    X, y = make_data("poisson", 60)
    kernel = make_kernel(kernel=MaternKernel)
    kernel.register_prior("outputscale_prior", GammaPrior(2.0, 0.5), "outputscale")
    strategy = blocks(max_knots=6, num_initial=3, fit_iterations=5, polish_iterations=5)
    found = select_variational_knots(X, y, kernel, LogPoissonLikelihood(), strategy=strategy)
    check(found, strategy)
    assert found.history[-1].action == "polish"
    assert found.history[-1].objective > found.history[-2].objective
    model = found.model.export().train()
    value = 60 * VariationalELBO(model.likelihood, model.model, num_data=60)(model.model(X), y)
    assert value_of(value) == pytest.approx(found.history[-1].objective, abs=1e-5)


def test_duplicates_few_rows_and_single_precision():
    X = torch.tensor([[0.0], [0.0], [0.5], [1.0]], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    found = select_variational_knots(X, y, make_kernel(), LogPoissonLikelihood())
    assert found.knots.shape[0] <= 3
    single = select_variational_knots(X.float(), y.float(), make_kernel().float(), LogPoissonLikelihood())
    assert single.model.posterior(X.float()).mean.dtype == torch.float32


def test_rows_are_chosen_once():
    model = make_model("logistic", knots=1)
    found = greedy_elbo_rows(model, 30)
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert bool((found.gains > 0.0).all())


def test_further_rows_are_those_of_a_model_of_all():
    X, y = make_data("poisson", 40)
    half = SparseVariationalGP(X[:20], y[:20], X[:5], make_kernel(), LogPoissonLikelihood(), ConstantMean())
    half.optimize_posterior()
    both = half.condition_on_observations(X[20:], y[20:].unsqueeze(-1))
    whole = SparseVariationalGP(X, y, X[:5], make_kernel(), LogPoissonLikelihood(), ConstantMean())
    assert value_of(both.objective()) == pytest.approx(value_of(whole.objective()), abs=1e-6)
    assert half.train_X.shape[0] == 20
    with pytest.raises(ValueError, match="unknown settings"):
        half.condition_on_observations(X, y.unsqueeze(-1), weight=y)
    with pytest.raises(InputDataError, match="infers its noise"):
        half.condition_on_observations(X, y.unsqueeze(-1), noise=y.unsqueeze(-1))
    with pytest.raises(IllegalTargetError):
        half.condition_on_observations(X[:1], -y.new_ones(1, 1))


# Interruptions and errors


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_an_interruption_keeps_the_best_so_far(monkeypatch, call):
    original, calls = greedy_module.fit_sparse, []

    def fit(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            original(*arguments, **(options | {"max_iterations": 1}))
            raise KeyboardInterrupt
        return original(*arguments, **options)

    for module in (greedy_module, fitting_module):
        monkeypatch.setattr(module, "fit_sparse", fit)
    strategy = blocks(max_knots=12, num_initial=3, tolerance=0.0, fit_iterations=3)
    with pytest.warns(UserWarning, match=r"interrupted with .* knots; the model is the best so far"):
        found = select(strategy=strategy)
    check(found, strategy)
    assert found.stop_reason == "interrupted"
    assert found.knots.shape[0] == [3, 3, 6, 12][call - 1]


def test_knots_that_cannot_be_used_end_the_search(monkeypatch):
    original = greedy_module.fit_sparse

    def fit(model, **options):
        if model.num_knots > 3:
            raise NumericalError("the covariance of the knots is not positive definite")
        return original(model, **options)

    for module in (greedy_module, fitting_module):
        monkeypatch.setattr(module, "fit_sparse", fit)
    found = select(strategy=blocks(max_knots=12, num_initial=3, fit_iterations=3))
    assert found.knots.shape[0] == 3
    assert found.stop_reason == "the objective could not be evaluated with further knots"


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (MulticlassLikelihood(3), [0.0, 1.0, 2.0], "latent vectors"),
        (FixedNoiseGaussianLikelihood(torch.ones(3)), [0.0, 1.0, 2.0], "same for all rows"),
        (LogPoissonLikelihood(), [0.0, -1.0, 2.0], "target -1 in row 1"),
        (LogisticLikelihood(), [0.0, 1.0, 2.0], "target 2 in row 2"),
        (LogPoissonLikelihood(), [2.0, 2.0, 2.0], "constant"),
        (LogPoissonLikelihood(), [2.0, math.nan, 2.0], "finite"),
        (LogPoissonLikelihood(), [2.0, 1.0], "do not fit"),
    ],
)
def test_bad_input_is_refused(likelihood, y, message):
    X = torch.linspace(0.0, 1.0, 3, dtype=torch.float64).unsqueeze(-1)
    with pytest.raises(ValueError, match=message):
        select_variational_knots(X, X.new_tensor(y), make_kernel(), likelihood)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_knots": 0}, "max_knots"),
        ({"num_initial": 0}, "num_initial"),
        ({"num_candidates": 0}, "num_candidates"),
        ({"fit_iterations": 0}, "fit_iterations"),
        ({"polish_iterations": -1}, "polish_iterations"),
        ({"tolerance": math.nan}, "tolerance"),
    ],
)
def test_a_strategy_that_chooses_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        select(strategy=blocks(**options))


def test_large_counts_do_not_break_the_bound():
    """A posterior that is not found must not pass for a bad one: nothing that is worse is ever kept."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(100, 2, generator=generator, dtype=torch.float64)
    y = (3.0 * torch.sin(6.0 * X[:, 0]) * X[:, 1] + 6.0).exp().round()
    strategy = blocks(max_knots=12, fit_iterations=15, polish_iterations=10)
    found = select_variational_knots(X, y, ScaleKernel(RBFKernel()).double(), LogPoissonLikelihood(), strategy=strategy)
    objectives = [step.objective for step in found.history]
    assert objectives == sorted(objectives)
    assert objectives[-1] > -5000.0
