"""The algebra under every collapsed objective: dense linear algebra, golden log densities, gradients, failures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.collapsed import condition, log_density, project

GOLDEN_CASES = ["iso2d", "boston", "bostonard"]


def read_golden(folder, name):
    with np.load(folder / f"knots_fixed_{name}.npz") as file:
        return {key: torch.as_tensor(file[key]).double() for key in file.files}


def squared_exponential(first, second, scale, lengthscale):
    """Covariances by the definition, a matrix of differences and no shortcut."""
    differences = (first.unsqueeze(-2) - second.unsqueeze(-3)) / lengthscale
    return scale**2 * (-0.5 * differences.square().sum(-1)).exp()


def add_diagonal(matrix, value):
    return matrix + value * torch.eye(matrix.shape[-1], dtype=matrix.dtype)


def golden_projection(data, knots=None):
    X, Z = data["X"], data["Z"] if knots is None else knots
    scale, lengthscale, delta = data["sigma"], data["lengthscale"], data["delta"]
    own = add_diagonal(squared_exponential(Z, Z, scale, lengthscale), delta)
    prior = (scale**2 + delta).expand(len(X))
    return project(
        own, squared_exponential(Z, X, scale, lengthscale), prior, data["y"] - data["mean"], data["tau"] ** 2
    )


def random_parts(seed, num_rows, num_knots):
    """Covariances of a random kernel matrix, and everything else that a projection takes."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(num_rows + num_knots, num_rows + num_knots + 2))
    joint = torch.as_tensor(root @ root.T)
    residual = torch.as_tensor(generator.normal(size=num_rows))
    own, cross = joint[:num_knots, :num_knots], joint[:num_knots, num_knots:]
    noise = torch.tensor(generator.uniform(0.1, 3.0), dtype=torch.float64)
    return own, cross, joint.diagonal()[num_knots:].clone(), residual, noise


SIZES = {"seed": st.integers(0, 2**31), "num_rows": st.integers(1, 12), "num_knots": st.integers(1, 6)}


@given(**SIZES)
def test_projection_is_dense_algebra(seed, num_rows, num_knots):
    own, cross, prior, residual, noise = random_parts(seed, num_rows, num_knots)
    projection = project(own, cross, prior, residual, noise)
    through = cross.mT @ torch.linalg.solve(own, cross)
    scale = float(prior.max())
    assert torch.allclose(projection.projected.mT @ projection.projected, through, rtol=1e-8, atol=1e-8 * scale)
    assert torch.allclose(projection.explained, through.diagonal(), rtol=1e-8, atol=1e-8 * scale)
    assert torch.allclose(projection.unexplained, prior - through.diagonal(), rtol=1e-7, atol=1e-7 * scale)
    assert bool((projection.unexplained >= 0.0).all())


@given(**SIZES)
def test_log_density_is_that_of_a_multivariate_normal(seed, num_rows, num_knots):
    own, cross, prior, residual, noise = random_parts(seed, num_rows, num_knots)
    diagonal = noise * torch.linspace(0.5, 2.0, num_rows, dtype=torch.float64)
    dense = (cross.mT @ torch.linalg.solve(own, cross) + torch.diag(diagonal)).numpy()
    expected = multivariate_normal(np.zeros(num_rows), 0.5 * (dense + dense.T)).logpdf(residual.numpy())
    found = log_density(project(own, cross, prior, residual, noise), diagonal)
    assert float(found) == pytest.approx(float(expected), rel=1e-7, abs=1e-7)


@given(**SIZES)
def test_posterior_of_the_knots_is_bayes_rule(seed, num_rows, num_knots):
    own, cross, prior, residual, noise = random_parts(seed, num_rows, num_knots)
    diagonal = noise * torch.linspace(0.5, 2.0, num_rows, dtype=torch.float64)
    projection = project(own, cross, prior, residual, noise)
    posterior = condition(projection, diagonal)
    whitened = torch.eye(num_knots, dtype=torch.float64) + (projection.projected / diagonal) @ projection.projected.mT
    assert torch.allclose(posterior.factor @ posterior.factor.mT, whitened, rtol=1e-9, atol=1e-9)
    # Values u at the knots: a priori N(0, own), seen as cross' own^-1 u under the noise.
    weights = torch.linalg.solve(own, cross)
    precision = torch.linalg.inv(own) + (weights / diagonal) @ weights.mT
    mean = torch.linalg.solve(precision, (weights / diagonal) @ residual)
    learned = projection.lower @ torch.linalg.solve_triangular(
        posterior.factor.mT, posterior.mean.unsqueeze(-1), upper=True
    )
    assert torch.allclose(learned.squeeze(-1), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_log_densities(golden, name):
    data = read_golden(golden, name)
    projection = golden_projection(data)
    diagonal = (data["tau"] ** 2 + data["delta"]).expand_as(data["y"])
    assert float(log_density(projection, diagonal)) == pytest.approx(float(data["dtc_loglik"]), rel=1e-9)
    # What the golden file calls the trace term is the sum of what the knots leave open over twice the noise.
    trace = projection.unexplained.sum() / (2.0 * data["tau"] ** 2)
    assert float(trace) == pytest.approx(abs(float(data["trace_term"])), rel=1e-9)
    assert float(log_density(projection, diagonal) - trace) == pytest.approx(float(data["elbo"]), rel=1e-9)


@pytest.mark.parametrize("name", GOLDEN_CASES)
@pytest.mark.parametrize("kind", ["vfe", "fic"])
def test_golden_posteriors_of_the_knots(golden, name, kind):
    data = read_golden(golden, name)
    projection = golden_projection(data)
    noise = projection.noise + (data["delta"] if kind == "vfe" else projection.unexplained)
    posterior = condition(projection, noise.expand_as(data["y"]))
    back = torch.linalg.solve_triangular(posterior.factor, projection.lower.mT, upper=False)  # (K, K)
    scale = float(data["sigma"]) ** 2
    assert torch.allclose(data["mean"] + back.mT @ posterior.mean, data[f"{kind}_u_mean"], rtol=1e-8, atol=1e-8)
    assert torch.allclose(back.mT @ back, data[f"{kind}_u_cov"], rtol=1e-8, atol=1e-9 * scale)


def test_gradients_by_finite_differences():
    own, cross, prior, residual, noise = random_parts(5, 7, 3)
    wide = noise.expand(7).clone()
    inputs = [part.clone().requires_grad_() for part in (cross, prior, residual, noise, wide)]

    def density(cross, prior, residual, noise, wide):
        projection = project(own, cross, prior, residual, noise)
        return log_density(projection, wide), projection.unexplained.sum(), log_density(projection, noise.expand(7))

    assert torch.autograd.gradcheck(density, inputs)


def test_nothing_is_negative_where_knots_explain_all(golden):
    data = read_golden(golden, "iso2d")
    projection = golden_projection(data | {"delta": data["delta"] * 0.0 + 1e-12}, data["X"])
    assert bool((projection.unexplained >= 0.0).all())
    assert float(projection.unexplained.max()) < 1e-8


def test_coinciding_knots_without_a_nugget_are_refused():
    one = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(NumericalError, match="the covariance of the knots is not positive definite"):
        project(one, one, one[0], one[0], one[0, 0])
    with pytest.raises(NumericalError, match="precision of the knots"):
        condition(project(one[:1, :1], one[:1], one[0], one[0], one[0, 0]), torch.nan * one[0])
