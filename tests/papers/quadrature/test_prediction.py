"""Predictions: golden mixtures, densities that integrate to one, independence of points, pruning, BoTorch."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gp_ensembles.numerics import NumericalError
from gp_ensembles.papers.quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel, root_mixture, root_products
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters, inferred
from gp_ensembles.papers.quadrature.quadrature import jackknife_sd, root_weights, rows_without_each_group
from tests.papers.quadrature.cases import prior_of, seeded, tensor, unflatten

DRAWS = Search(PriorPolicy(), initial_share=1.0, num_ascents=0, use_periodogram=False)


def found_of(num_inputs=1, num_rows=8, evaluations=30, offset=0.0, frequency=0.4, search=DRAWS, seed=0):
    generator = seeded(seed)
    X = 4.0 * torch.rand(num_rows, num_inputs, dtype=torch.float64, generator=generator)
    noise = 0.1 * torch.randn(num_rows, dtype=torch.float64, generator=generator)
    y = torch.sin(2 * torch.pi * frequency * X.sum(-1)) + noise + offset
    prior = prior_of(3, num_inputs, scale=0.5, location=-1.2, width=0.4, noise=inferred(1e-2, 1.0))
    return marginalize(RegressionProblem(X, y, prior), Budget(evaluations, draws=0), search, generator=generator)


@pytest.fixture(scope="module")
def found():
    return found_of()


@pytest.fixture(scope="module")
def model(found):
    return found.model()


def roots_of(found, hyperparameters, weights, X, total=None):
    """Products of roots of targets at X, with the prior mean."""
    mean, variance = found.problem.likelihoods.condition(hyperparameters).marginals(X)
    products = root_products(mean + found.problem.mean, variance + hyperparameters.noise.unsqueeze(-1))
    return root_mixture(weights, products, total)


def points(count, num_inputs=1, seed=1):
    generator = seeded(seed)
    return 6.0 * torch.rand(count, num_inputs, dtype=torch.float64, generator=generator) - 1.0


@pytest.fixture(scope="module")
def golden_case(archive):
    values = archive("maskerade_predictive")
    one = torch.ones(12, dtype=torch.float64)
    hyperparameters = KernelHyperparameters(unflatten(values["theta"], 1), one, values["noise"] * one)
    conditioned = DenseLikelihood(values["X"].unsqueeze(-1), values["y"]).condition(hyperparameters)
    return values, conditioned, hyperparameters


def test_golden_predictions_of_each_kernel(golden_case):
    values, conditioned, _ = golden_case
    Xs = values["Xs"].unsqueeze(-1)
    mean, covariance = conditioned.predict(Xs)
    torch.testing.assert_close(mean, values["means"], rtol=0, atol=1e-10)
    noisy = covariance + values["noise"] * torch.diag_embed(Xs.new_ones(5))
    torch.testing.assert_close(noisy, values["covs"], rtol=0, atol=1e-9)
    means, variances = conditioned.marginals(Xs)
    torch.testing.assert_close(means, mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(variances, covariance.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-9)


def test_golden_products_of_roots(golden_case):
    values, conditioned, hyperparameters = golden_case
    means, variances = conditioned.marginals(values["Xs"].unsqueeze(-1))
    mixture = root_mixture(values["W"], root_products(means, variances + hyperparameters.noise.unsqueeze(-1)))
    mean, variance = mixture.moments()
    torch.testing.assert_close(mean, values["marginal_mean"], rtol=0, atol=1e-9)
    torch.testing.assert_close(variance, values["marginal_var"], rtol=0, atol=1e-9)
    torch.testing.assert_close(mixture.mass, values["marginal_mass"], rtol=0, atol=1e-9)
    unnormalized = values["marginal_mean_unnormalised"]
    torch.testing.assert_close(mean * mixture.mass, unnormalized, rtol=0, atol=1e-9)
    assert bool(mixture.usable.all())


def test_golden_mixture_of_positive_weights(golden_case):
    values, _, hyperparameters = golden_case
    problem = RegressionProblem(values["X"].unsqueeze(-1), values["y"], prior_of(), mean=0.0)
    model = KernelMixtureModel(problem, hyperparameters, values["diag_weights"].log())
    posterior = model.posterior(values["Xs"].unsqueeze(-1), observation_noise=True)
    torch.testing.assert_close(posterior.mean.squeeze(-1), values["diag_mean"], rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.variance.squeeze(-1), values["diag_var"], rtol=0, atol=1e-9)
    # the joint density under each kernel, at test values of the file
    each = [
        stats.multivariate_normal(m.numpy(), c.numpy()).logpdf(values["ys"].numpy())
        for m, c in zip(posterior.component_mean.squeeze(-1), posterior.component_covariance.squeeze(-3), strict=True)
    ]
    np.testing.assert_allclose(each, values["test_loglik_components"], rtol=0, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_products_of_roots_are_what_they_say(seed, count):
    """Mass and moments of the density, from square roots of normal densities themselves."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(count, count))
    matrix = matrix @ matrix.T
    mean, variance = rng.normal(size=(count, 2)), rng.lognormal(size=(count, 2))
    mixture = root_mixture(torch.tensor(matrix), root_products(torch.tensor(mean), torch.tensor(variance)))
    y = np.linspace(-60.0, 60.0, 20_001)
    for i in range(2):
        roots = np.sqrt(stats.norm(mean[:, i], np.sqrt(variance[:, i])).pdf(y[:, None]))
        density = np.einsum("ti,ij,tj->t", roots, matrix, roots)
        mass = np.trapezoid(density, y)
        assert mixture.mass[i].item() == pytest.approx(mass, rel=1e-8)
        center = np.trapezoid(density * y, y) / mass
        spread = np.trapezoid(density * (y - center) ** 2, y) / mass
        found = [part[i].item() for part in mixture.moments()]
        assert found == pytest.approx([center, spread], rel=1e-7, abs=1e-9)


def test_unsound_products_of_roots_are_known_as_such():
    products = root_products(tensor([0.0, 0.0], [3.0, 0.0]), tensor([1.0, 1.0], [1.0, 1.0]))
    matrix = tensor([2.0, -1.5], [-1.5, 2.0])
    mixture = root_mixture(matrix, products)
    assert mixture.usable.tolist() == [False, True], "where kernels disagree, weights of sum one have a mass of three"
    small = root_mixture(0.1 * matrix, products)
    assert small.usable.tolist() == [False, False], "most of the mass is lost"
    negative = root_mixture(tensor([-1.0, 0.0], [0.0, 2.0]), root_products(tensor([5.0], [0.0]), tensor([1.0], [1.0])))
    assert negative.usable.tolist() == [False], "of negative variance"


def test_questions_that_make_no_sense(model):
    with pytest.raises(BotorchTensorDimensionError, match=r"1 output\(s\), requested \[1\]"):
        model.posterior(points(2), output_indices=[1])
    for X in (points(2, 2), tensor(1.0)):
        with pytest.raises(BotorchTensorDimensionError, match=r"must have shape \(..., q, 1\)"):
            model.posterior(X)
    assert model.num_outputs == 1


def test_a_covariance_that_cannot_be_factorized_is_named():
    X = torch.zeros(3, 1, dtype=torch.float64)
    kernels = unflatten(tensor([1.0, 0.0, 1.0]), 1)
    hyperparameters = KernelHyperparameters(kernels, tensor(1.0), tensor(-1e-3))
    with pytest.raises(NumericalError, match="covariance of the training rows under kernel 0"):
        DenseLikelihood(X, tensor(0.0, 1.0, 2.0)).condition(hyperparameters)


def test_pruning_moves_no_probability_by_more_than_it_says(found):
    full, X = found.model(0.0), points(5).unsqueeze(-2)
    y = torch.linspace(-4.0, 4.0, 201, dtype=torch.float64).reshape(-1, 1, 1, 1)
    z = torch.linspace(-6.0, 6.0, 4001, dtype=torch.float64)  # all events together: the total variation
    for tolerance in [0.0, 1e-4, 1e-2, 0.2, 0.9]:
        rows, log_weights = found.top(tolerance)
        left_out = 1.0 - found.log_weights[rows].exp().sum()
        assert left_out <= tolerance + 1e-12
        assert log_weights.exp().sum().item() == pytest.approx(1.0)
        assert bool((log_weights.diff() <= 1e-12).all()), "heaviest first"
        if len(rows) > 1:
            assert 1.0 - found.log_weights[rows[:-1]].exp().sum() > tolerance, "no kernel more than needed"
        pruned = found.model(tolerance)
        assert pruned.num_experts == len(rows)
        one, other = (part.posterior(X, observation_noise=True) for part in (full, pruned))
        assert (one.marginals.cdf(y.flatten(1)) - other.marginals.cdf(y.flatten(1))).abs().max() <= tolerance + 1e-9
        gap = (one.density(z.reshape(-1, 1, 1, 1)) - other.density(z.reshape(-1, 1, 1, 1))).abs()
        assert 0.5 * torch.trapezoid(gap.squeeze(), z, dim=0).max() <= tolerance + 1e-4
    for tolerance in [1.0, -0.1, float("nan")]:
        with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
            found.model(tolerance)


def test_predictions_fall_back_on_positive_weights(found, monkeypatch):
    X = points(6)
    invalid_rows = found_of()

    def lost(surrogate, nodes, distances):
        return 1e-6 * root_weights(surrogate, nodes, distances)

    monkeypatch.setattr("gp_ensembles.papers.quadrature.kernel_mixture.root_weights", lost)
    predicted = invalid_rows.quadrature.predict(X)
    assert not bool(predicted.from_roots.any())
    expected = invalid_rows.model(0.0).posterior(X.unsqueeze(-2), observation_noise=True)
    torch.testing.assert_close(predicted.mean, expected.mean.flatten(), rtol=0, atol=1e-2)
    torch.testing.assert_close(predicted.variance, expected.variance.flatten(), rtol=2e-2, atol=1e-3)
    assert bool((predicted.mean_sd > 0).all())


@settings(max_examples=25)
@given(size=st.integers(2, 35))
def test_groups_of_the_jackknife(size):
    parts = rows_without_each_group(torch.zeros(size))
    assert len(parts) == min(size, 10)
    left_out = torch.cat([torch.tensor(sorted(set(range(size)) - set(rows.tolist()))) for rows in parts])
    assert left_out.sort().values.tolist() == list(range(size)), "each value is left out once"


def test_the_jackknife_of_an_average_is_its_standard_error():
    values = torch.tensor(np.random.default_rng(0).normal(size=(10, 3)))
    replicates = [(values.sum(0) - value) / 9 for value in values]
    torch.testing.assert_close(jackknife_sd(torch.stack(replicates)), values.std(0) / 10**0.5, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [1e6, -1e9])
def test_an_offset_of_the_targets_moves_means_only(offset):
    X = points(40)
    y = torch.sin(2 * torch.pi * 0.4 * X[:, 0]) + 0.1 * torch.cos(31.0 * X[:, 0])
    plain, moved = (
        marginalize(RegressionProblem(X, y + c), Budget(40, draws=0), generator=seeded(1)) for c in (0.0, offset)
    )
    plain, moved = (found.predict(X[:5] + 0.01) for found in (plain, moved))
    torch.testing.assert_close(moved.mean - offset, plain.mean, rtol=0, atol=1e-3)  # 1e9 keeps seven digits
    torch.testing.assert_close(moved.variance, plain.variance, rtol=2e-3, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_waves_may_run_along_either_diagonal(sign):
    generator = seeded(0)
    X = torch.rand(80, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(3.0 * torch.pi * (X[:, 0] + sign * X[:, 1]))
    found = marginalize(RegressionProblem(X[:40], y[:40]), Budget(100, draws=0), generator=seeded(1))
    error = (found.predict(X[40:]).mean - y[40:]).square().mean().sqrt()
    assert float(error) < 0.06, "half-normal means would give 0.12 and more on one of them"


@pytest.fixture(scope="module")
def outliers():
    """A few targets are far off, of 25; several kernels have weight."""
    generator = seeded(3)
    X = 4.0 * torch.rand(25, 1, dtype=torch.float64, generator=generator)
    y = torch.sin(2.0 * X[:, 0]) + 0.1 * torch.randn(25, dtype=torch.float64, generator=generator)
    y[::7] += 1.5
    prior = prior_of(2, scale=0.5, location=-1.2, width=0.4, noise=inferred(1e-1, 1.0))
    found = marginalize(RegressionProblem(X, y, prior), Budget(60, draws=0), DRAWS, generator=generator)
    assert float(found.log_weights.exp().max()) < 0.9
    return found, X, y


def test_tails_are_those_of_errors_of_rows_left_out_by_refitting(outliers):
    """Every row is taken out of the processes and of the weights; the t of largest likelihood, by scipy."""
    found, X, y = outliers
    rows, log_weights = found.top()
    kernels, problem = found.hyperparameters(rows), found.problem
    every = DenseLikelihood(X, y - problem.mean)(*kernels)
    z, spreads = [], []
    for row in range(len(X)):
        kept = torch.arange(len(X)) != row
        others = DenseLikelihood(X[kept], y[kept] - problem.mean)
        weights = (log_weights + others(*kernels) - every).softmax(0)
        mean, variance = (part[:, 0] for part in others.condition(kernels).marginals(X[row : row + 1]))
        variance = variance + kernels.noise
        spreads.append(variance)
        center = weights @ mean
        spread = weights @ (variance + (mean - center).square())
        z.append(float((y[row] - problem.mean - center) / spread.sqrt()))
    df, scale = found.tails
    assert df < 10, "there are outliers"

    def loss(df, scale):
        return -stats.t.logpdf(z, df, scale=scale).sum()

    assert loss(df, scale) <= min(loss(df, scale * 0.999), loss(df, scale * 1.001))
    for other in (3.0, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 32.0, 1e9):
        best = min(loss(other, s) for s in np.geomspace(0.3 * scale, 3.0 * scale, 201))
        assert loss(df, scale) <= best + 1e-3
    # far from all rows, variances beyond those of the rows left out are as they are
    far = X.new_tensor([[30.0], [80.0]])
    mean, variance = (part.mT for part in found.problem.likelihoods.condition(kernels).marginals(far))
    variance, most = variance + kernels.noise, torch.stack(spreads).amax(0)
    assert scale < 1, "else nothing is made narrower"
    assert bool((variance > most).any())
    squares = torch.where(variance > most, scale**2 * most + variance - most, scale**2 * variance)
    weights, predicted = log_weights.exp(), found.predict(far)
    center = mean @ weights
    spread = (df / (df - 2) * squares + (mean - center[:, None]).square()) @ weights
    torch.testing.assert_close(predicted.variance, spread, rtol=1e-9, atol=0)


def test_predictions_are_a_mixture_of_students_t(outliers):
    found, X, _ = outliers
    Z = X[4:8] + 0.02  # not beyond the rows
    rows, log_weights = found.top()
    kernels = found.hyperparameters(rows)
    mean, variance = found.problem.likelihoods.condition(kernels).marginals(Z)
    center, scale = (mean + found.problem.mean).numpy(), (variance + kernels.noise[:, None]).sqrt().numpy()
    law = stats.t(found.tails.degrees_of_freedom, center, scale * found.tails.scale)
    weights = log_weights.exp().numpy()[:, None]
    predicted, y = found.predict(Z), np.linspace(-1.0, 2.0, 4)
    np.testing.assert_allclose(predicted.log_prob(torch.tensor(y)), np.log((weights * law.pdf(y)).sum(0)), rtol=1e-9)
    np.testing.assert_allclose(predicted.mean, (weights * center).sum(0), rtol=1e-9)
    for level in (0.05, 0.5, 0.95):
        at = predicted.quantile(level).numpy()
        np.testing.assert_allclose((weights * law.cdf(at)).sum(0), level, atol=1e-6)
    drawn = predicted.sample(4000, generator=seeded(0))
    assert drawn.shape == (4000, 4)
    shares = (drawn <= predicted.quantile(0.9)).double().mean(0)
    assert float((shares - 0.9).abs().max()) < 4 * (0.09 / 4000) ** 0.5


@pytest.mark.slow
def test_the_default_leaves_the_evidence_out_where_it_takes_minutes():
    X = torch.rand(30, 3, generator=seeded(0), dtype=torch.float64)
    found = marginalize(RegressionProblem(X, (9 * X[:, 0]).sin()), generator=seeded(0))
    assert found.num_evaluations == Budget().evaluations
    assert found.log_evidence_sd == float("inf")
    assert "no draws for importance sampling" in found.doubt


def test_products_of_roots_know_of_kernels_left_out(found):
    """Weights of products of roots cancel one another: those of a few kernels alone mean nothing."""
    weights = found.quadrature.root_weights
    for tolerance, complete in ((0.0, True), (0.7, False)):
        rows, _ = found.top(tolerance)
        missing = (weights[rows][:, rows].sum() - weights.sum()).abs() > 0.05 * weights.sum().abs()
        some = roots_of(found, found.hyperparameters(rows), weights[rows][:, rows], points(3), weights.sum())
        assert bool(some.complete) == complete != bool(missing)
