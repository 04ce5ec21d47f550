"""Exact gains of candidate knots, against the objective evaluated once for each candidate."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.papers.sparse import VFE, SparseGP
from gp_ensembles.papers.sparse.collapsed import log_density, project
from gp_ensembles.papers.sparse.greedy import greedy_elbo_rows, init_candidates


def squared_exponential(first, second, scale, lengthscale):
    differences = (first.unsqueeze(-2) - second.unsqueeze(-3)) / lengthscale
    return scale**2 * (-0.5 * differences.square().sum(-1)).exp()


class Problem:
    """Rows, knots and hyperparameters at which objectives are evaluated one by one."""

    def __init__(self, X, y, Z, scale, lengthscale, noise, delta):
        self.X, self.y, self.Z = X, y, Z
        self.scale, self.lengthscale, self.noise, self.delta = scale, lengthscale, noise, delta

    @classmethod
    def random(cls, seed, num_rows=30, num_knots=4, delta=1e-6):
        draws = np.random.default_rng(seed)
        X = torch.as_tensor(draws.uniform(-2.0, 2.0, size=(num_rows, 2)))
        y = torch.as_tensor(draws.normal(size=num_rows))
        Z = torch.as_tensor(draws.uniform(-2.0, 2.0, size=(num_knots, 2)))
        scale, lengthscale, deviation = torch.as_tensor(draws.uniform(0.4, 1.5, size=3))
        return cls(X, y, Z, scale, lengthscale, deviation**2, delta)

    @classmethod
    def golden(cls, folder, name):
        with np.load(folder / f"knots_fixed_{name}.npz") as file:
            data = {key: torch.as_tensor(file[key]).double() for key in file.files}
        residual = data["y"] - data["mean"]
        scale, lengthscale, noise = data["sigma"], data["lengthscale"], data["tau"] ** 2
        return cls(data["X"], residual, data["Z"], scale, lengthscale, noise, data["delta"]), data

    def between(self, first, second):
        return squared_exponential(first, second, self.scale, self.lengthscale)

    def prior(self, X):
        return (self.scale**2 + self.delta).expand(len(X))

    def project(self, knots):
        own = self.between(knots, knots) + self.delta * torch.eye(len(knots), dtype=torch.float64)
        return project(own, self.between(knots, self.X), self.prior(self.X), self.y, self.noise)

    def candidates(self, knots, others):
        return init_candidates(
            self.project(knots), self.between(knots, others), self.between(others, self.X), self.prior(others)
        )

    def brute_force(self, knots, others):
        before = VFE().objective(self.project(knots))
        after = [VFE().objective(self.project(torch.cat([knots, other.unsqueeze(0)]))) for other in others]
        return torch.stack(after) - before


def test_gains_are_differences_of_the_bound():
    for seed in range(5):
        problem = Problem.random(seed)
        others = torch.cat([problem.X, problem.X.mean(0, keepdim=True) + 0.123])  # a candidate may be no row
        gains = problem.candidates(problem.Z, others).gains()
        assert torch.allclose(gains, problem.brute_force(problem.Z, others), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", ["iso2d", "boston"])
def test_golden_objectives_with_one_knot_more(golden, name):
    problem, data = Problem.golden(golden, name)
    rows = slice(None, None, 1 if name == "iso2d" else 9)
    found = problem.candidates(problem.Z, problem.X[rows]).gains()
    assert torch.allclose(found, problem.brute_force(problem.Z, problem.X[rows]), rtol=0.0, atol=1e-9)
    coded = []  # the reference has the nugget in the noise of its density, too
    for row in problem.X[rows]:
        projection = problem.project(torch.cat([problem.Z, row.unsqueeze(0)]))
        wide = (problem.noise + problem.delta).expand_as(problem.y)
        coded.append(log_density(projection, wide) - projection.unexplained.sum() / (2.0 * problem.noise))
    tolerance = 1e-9 * abs(float(data["elbo"])) if name == "iso2d" else 1e-6
    assert torch.allclose(torch.stack(coded), data["candidate_elbo"][rows], rtol=0.0, atol=tolerance)
    # Best candidate and order hardly depend on where the nugget is.
    assert int(found.argmax()) == int(data["candidate_elbo"][rows].argmax())


def test_gains_after_several_knots():
    for seed in range(3):
        problem = Problem.random(seed, num_rows=40, num_knots=3)
        rows = torch.arange(0, 40, 2)  # candidates are some of the rows only
        state, knots = problem.candidates(problem.Z, problem.X[rows]), problem.Z
        for _ in range(8):
            gains = state.gains()
            best = int(gains.argmax())
            expected = problem.brute_force(knots, problem.X[rows])
            fresh = torch.tensor([not bool((knots == row).all(-1).any()) for row in problem.X[rows]])
            assert torch.allclose(gains[fresh], expected[fresh], rtol=0.0, atol=1e-9)
            assert bool((gains[~fresh] == 0.0).all())
            state.add_knot(best, rows)
            knots = torch.cat([knots, problem.X[rows[best : best + 1]]])
        again = problem.candidates(knots, problem.X[rows])
        assert torch.allclose(state.covariance, again.covariance, rtol=0.0, atol=1e-9)
        assert torch.allclose(state.weighted, again.weighted, rtol=0.0, atol=1e-8)


def test_gains_after_knots_that_were_given_twice():
    problem = Problem.random(11, num_rows=20)
    problem = Problem(torch.cat([problem.X, problem.X[:5]]), torch.cat([problem.y, problem.y[:5] + 0.1]), problem.Z,
                      problem.scale, problem.lengthscale, problem.noise, 1e-6)  # fmt: skip
    rows = torch.arange(25)
    state = problem.candidates(problem.Z, problem.X)
    state.add_knot(0, rows)
    knots = torch.cat([problem.Z, problem.X[:1]])
    gains = state.gains()
    assert torch.allclose(gains[1:], problem.brute_force(knots, problem.X)[1:], rtol=0.0, atol=1e-9)
    assert float(gains[20]) < 1e-4 * float(gains.max())  # the twin of the new knot


@given(st.integers(0, 2**31))
def test_gains_are_never_negative(seed):
    problem = Problem.random(seed, num_rows=12, num_knots=3)
    assert float(problem.candidates(problem.Z, problem.X).gains().min()) >= -1e-9


def test_a_knot_adds_nothing_again():
    problem = Problem.random(2, delta=1e-12)
    gains = problem.candidates(problem.X[:4], problem.X).gains()
    assert bool((gains[:4] == 0.0).all())
    assert float(gains[4:].min()) > 0.0


def sparse_model(seed=0, kernel=None, nugget=1e-6):
    problem = Problem.random(seed, num_rows=40)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.1
    kernel = ScaleKernel(RBFKernel()) if kernel is None else kernel
    return SparseGP(problem.X, problem.y, problem.X[:2], kernel, likelihood, nugget=nugget)


@pytest.mark.parametrize("kernel", [None, ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2))])
def test_greedy_rows_are_the_best_of_brute_force(kernel):
    model = sparse_model(kernel=kernel)
    found = greedy_elbo_rows(model, 3)
    for row, gain in zip(found.rows.tolist(), found.gains, strict=True):
        with torch.no_grad():
            before = model.objective()
            grown = [model.with_knots(torch.cat([model.knots, x.unsqueeze(0)])) for x in model.train_X]
            # The nugget is a share of the average variance at the knots, which is one number for these kernels.
            gains = torch.stack([other.objective() for other in grown]) - before
        assert int(gains.argmax()) == row
        assert float(gains[row]) == pytest.approx(float(gain), abs=1e-9)
        model = grown[row]


def test_greedy_rows_of_a_random_subset(generator):
    model = sparse_model()
    state = generator.get_state()
    found = greedy_elbo_rows(model, 4, num_candidates=10, generator=generator)
    again = greedy_elbo_rows(model, 4, num_candidates=10, generator=generator.clone_state().set_state(state))
    assert torch.equal(found.rows, again.rows)
    assert len(set(found.rows.tolist())) == 4
    other = greedy_elbo_rows(model, 4, num_candidates=10, generator=generator)
    assert not torch.equal(found.rows, other.rows)
    assert float(found.gains.sum()) < float(greedy_elbo_rows(model, 4).gains.sum())


def test_greedy_rows_stop_when_nothing_is_left():
    model = sparse_model()
    assert len(greedy_elbo_rows(model, 3, tolerance=1e9).rows) == 0
    assert len(greedy_elbo_rows(model, 0).rows) == 0
    everything = greedy_elbo_rows(model, 1000)
    assert len(everything.rows) <= 40
    assert len(set(everything.rows.tolist())) == len(everything.rows)


def test_greedy_rows_leave_the_model_as_it_is():
    model = sparse_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    greedy_elbo_rows(model, 3)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
