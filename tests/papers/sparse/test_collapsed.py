"""Collapsed objectives: dense algebra, golden values, bounds and limits, gradients, failures."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.sparse import DIC, DTC, FIC, FITC, VFE
from gp_ensembles.papers.sparse.collapsed import condition, log_density, project, upper_bound
from tests.papers.sparse.problems import CASES, CodedVFE, Problem, name_of, read_golden

ALL = [VFE, DTC, DIC, FITC, FIC]
seeds = given(st.integers(0, 2**31))


@given(seed=st.integers(0, 2**31), num_rows=st.integers(1, 12), num_knots=st.integers(1, 6))
def test_projection_density_and_posterior_are_dense_algebra(seed, num_rows, num_knots):
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(num_rows + num_knots, num_rows + num_knots + 2))
    joint, residual = torch.as_tensor(root @ root.T), torch.as_tensor(draws.normal(size=num_rows))
    own, cross, prior = joint[:num_knots, :num_knots], joint[:num_knots, num_knots:], joint.diagonal()[num_knots:]
    noise = torch.tensor(draws.uniform(0.1, 3.0), dtype=torch.float64)
    projection = project(own, cross, prior, residual, noise)
    through, scale = cross.mT @ torch.linalg.solve(own, cross), float(prior.max())
    assert torch.allclose(projection.projected.mT @ projection.projected, through, rtol=1e-8, atol=1e-8 * scale)
    assert torch.allclose(projection.explained, through.diagonal(), rtol=1e-8, atol=1e-8 * scale)
    assert torch.allclose(projection.unexplained, prior - through.diagonal(), rtol=1e-7, atol=1e-7 * scale)
    assert bool((projection.unexplained >= 0.0).all())

    diagonal = noise * torch.linspace(0.5, 2.0, num_rows, dtype=torch.float64)
    dense = (through + torch.diag(diagonal)).numpy()
    expected = multivariate_normal(np.zeros(num_rows), 0.5 * (dense + dense.T)).logpdf(residual.numpy())
    assert float(log_density(projection, diagonal)) == pytest.approx(float(expected), rel=1e-7, abs=1e-7)

    posterior = condition(projection, diagonal)
    whitened = torch.eye(num_knots, dtype=torch.float64) + (projection.projected / diagonal) @ projection.projected.mT
    assert torch.allclose(posterior.factor @ posterior.factor.mT, whitened, rtol=1e-9, atol=1e-9)
    # Values u at the knots: a priori N(0, own), seen as cross' own^-1 u under the noise.
    weights = torch.linalg.solve(own, cross)
    precision = torch.linalg.inv(own) + (weights / diagonal) @ weights.mT
    mean = torch.linalg.solve(precision, (weights / diagonal) @ residual)
    learned = projection.lower @ torch.linalg.solve(posterior.factor.mT, posterior.mean)
    assert torch.allclose(learned, mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_golden_posteriors_of_the_knots(name):
    data = read_golden(f"fixed_{name}")
    projection = Problem.golden(data).project()
    for kind, more in (("vfe", data["delta"]), ("fic", projection.unexplained)):
        posterior = condition(projection, (projection.noise + more).expand_as(data["y"]))
        back = torch.linalg.solve_triangular(posterior.factor, projection.lower.mT, upper=False)  # (K, K)
        scale = float(data["sigma"]) ** 2
        assert torch.allclose(data["mean"] + back.mT @ posterior.mean, data[f"{kind}_u_mean"], rtol=1e-8, atol=1e-8)
        assert torch.allclose(back.mT @ back, data[f"{kind}_u_cov"], rtol=1e-8, atol=1e-9 * scale)


def test_nothing_is_negative_where_knots_explain_all():
    problem = Problem.golden(read_golden("fixed_iso2d"))
    unexplained = replace(problem, delta=torch.tensor(1e-12, dtype=torch.float64)).project(problem.X).unexplained
    assert 0.0 <= float(unexplained.min()) <= float(unexplained.max()) < 1e-8


def test_coinciding_knots_without_a_nugget_are_refused():
    one = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(NumericalError, match="the covariance of the knots is not positive definite"):
        project(one, one, one[0], one[0], one[0, 0])
    with pytest.raises(NumericalError, match="precision of the knots"):
        condition(project(one[:1, :1], one[:1], one[0], one[0], one[0, 0]), torch.nan * one[0])


# --- approximations ---------------------------------------------------------------------------------------------------


def dense_objective(approximation, projection):
    """Log density under the whole N x N covariance, penalties one row at a time."""
    through = (projection.projected.mT @ projection.projected).numpy()
    gap = projection.prior.numpy() - through.diagonal()
    noise = float(projection.noise)
    covariance = through + np.diag(noise + gap * (approximation in (FITC, FIC)))
    density = multivariate_normal(np.zeros(len(gap)), covariance).logpdf(projection.residual.numpy())
    return density - (gap.sum() / (2.0 * noise) if approximation == VFE else 0.0)


@pytest.mark.parametrize("approximation", ALL, ids=name_of)
def test_objective_is_dense_algebra(approximation):
    for seed in range(4):
        projection = Problem.random(seed).project()
        expected = dense_objective(approximation, projection)
        assert float(approximation.objective(projection)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_golden_objectives(name):
    data = read_golden(f"fixed_{name}")
    projection, coded = Problem.golden(data).project(), CodedVFE(data["delta"])
    density, trace = log_density(projection, coded.diagonal(projection)), coded.penalty(projection)
    assert float(density) == pytest.approx(float(data["dtc_loglik"]), rel=1e-9)
    assert float(trace) == pytest.approx(abs(float(data["trace_term"])), rel=1e-9)
    assert float(coded.objective(projection)) == pytest.approx(float(data["elbo"]), rel=1e-9)
    difference = {"iso2d": -3.9e-4, "boston": -3.3e-7, "bostonard": 2.1e-4}[name]  # as the golden README has it
    assert float(VFE.objective(projection) - data["elbo"]) == pytest.approx(difference, rel=0.05)
    for approximation in (FITC, FIC):
        assert float(approximation.objective(projection)) == pytest.approx(float(data["fic_logml"]), rel=1e-9)
    assert float(VFE.objective(projection)) <= float(data["full_logml"]) <= float(upper_bound(projection))


@pytest.mark.parametrize("name", CASES)
def test_golden_gradients(name):
    for kind in ("elbo", "fic"):
        data = read_golden(f"fixed_{name}")
        order = ("sigma", "lengthscale", "tau") if len(data["lengthscale"]) == 1 else ("sigma", "tau", "lengthscale")
        logs = {part: data[part].log().requires_grad_() for part in order}
        Z = data["Z"].clone().requires_grad_()
        projection = Problem.golden(data | {part: value.exp() for part, value in logs.items()} | {"Z": Z}).project()
        (FIC if kind == "fic" else CodedVFE(data["delta"])).objective(projection).backward()
        slopes = torch.cat([logs[part].grad.reshape(-1) for part in order])
        assert torch.allclose(slopes, data[f"{kind}_grad_logtheta"], rtol=1e-7, atol=1e-7)
        assert torch.allclose(Z.grad, data[f"{kind}_grad_knots"], rtol=1e-7, atol=1e-7)


def log_evidence(problem):
    """Exact, of the function with its nugget."""
    noise = (problem.noise + problem.delta) * torch.eye(len(problem.X), dtype=torch.float64)
    covariance = problem.covariance(problem.X, problem.X) + noise
    return float(multivariate_normal(np.zeros(len(problem.X)), covariance.numpy()).logpdf(problem.y.numpy()))


@seeds
def test_bounds_are_in_order_and_further_knots_raise_them(seed):
    problem = Problem.random(seed, num_knots=5)
    projection, exact = problem.project(), log_evidence(problem)
    slack = 1e-7 * (1.0 + abs(exact))
    assert float(VFE.objective(projection)) - slack <= exact <= float(upper_bound(projection)) + slack
    values = [float(VFE.objective(problem.project(problem.Z[:count]))) for count in range(1, 6)]
    assert all(later >= earlier - 1e-6 * (1.0 + abs(earlier)) for earlier, later in pairwise(values))


@pytest.mark.parametrize("approximation", ALL, ids=name_of)
def test_gradients_of_objectives_by_finite_differences(approximation):
    problem = Problem.random(3, num_rows=8, num_knots=3)

    def value(logs, Z, y):
        scale, lengthscale, noise = logs.exp()
        moved = replace(problem, y=y, Z=Z, scale=scale, lengthscale=lengthscale, noise=noise, delta=1e-8 * scale**2)
        return approximation.objective(moved.project()), upper_bound(moved.project())

    logs = torch.stack([problem.scale, problem.lengthscale, problem.noise]).log()
    assert torch.autograd.gradcheck(value, [part.clone().requires_grad_() for part in (logs, problem.Z, problem.y)])
