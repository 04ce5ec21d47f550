"""Exact gains of candidate knots, against the objective evaluated once for each candidate."""

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles.papers.sparse import VFE, SparseGP
from gp_ensembles.papers.sparse.greedy import greedy_elbo_rows, init_candidates, left_open, whiten_rows
from tests.papers.sparse.problems import CodedVFE, Problem, noise_of, read_golden


def candidates_of(problem, knots, others):
    projection, prior = problem.project(knots), problem.prior(others)
    _, *left = left_open(projection, problem.covariance(knots, others), problem.covariance(others, problem.X), prior)
    return init_candidates(projection, whiten_rows(projection), *left, 1e-9 * prior.max())


def brute_force(problem, knots, others):
    after = [VFE.objective(problem.project(torch.cat([knots, other.unsqueeze(0)]))) for other in others]
    return torch.stack(after) - VFE.objective(problem.project(knots))


@pytest.mark.parametrize("name", ["iso2d", "boston"])
def test_golden_objectives_with_one_knot_more(name):
    data = read_golden(f"fixed_{name}")
    problem, step = Problem.golden(data), 1 if name == "iso2d" else 9
    rows, golden = problem.X[::step], data["candidate_elbo"][::step]
    found = candidates_of(problem, problem.Z, rows).gains()
    assert torch.allclose(found, brute_force(problem, problem.Z, rows), rtol=0.0, atol=1e-9)
    reference = CodedVFE(problem.delta)  # which has the nugget in the noise of its density, too
    coded = [reference.objective(problem.project(torch.cat([problem.Z, row.unsqueeze(0)]))) for row in rows]
    tolerance = 1e-9 * abs(float(data["elbo"])) if name == "iso2d" else 1e-6
    assert torch.allclose(torch.stack(coded), golden, rtol=0.0, atol=tolerance)
    # Best candidate and order hardly depend on where the nugget is.
    assert int(found.argmax()) == int(golden.argmax())


def test_gains_after_several_knots():
    for seed in range(3):
        problem = Problem.random(seed, 40, 3, nugget=1e-6)
        rows = torch.arange(0, 40, 2)  # candidates are some of the rows only
        X, knots = problem.X[rows], problem.Z
        state = candidates_of(problem, knots, X)
        for _ in range(8):
            gains, expected = state.gains(), brute_force(problem, knots, X)
            fresh = torch.tensor([not bool((knots == row).all(-1).any()) for row in X])
            assert torch.allclose(gains[fresh], expected[fresh], rtol=0.0, atol=1e-9)
            assert bool((gains[~fresh] == 0.0).all())
            best = int(gains.argmax())
            state.add_knot(best, rows)
            knots = torch.cat([knots, X[best : best + 1]])
        again = candidates_of(problem, knots, X)
        assert torch.allclose(state.covariance, again.covariance, rtol=0.0, atol=1e-9)
        assert torch.allclose(state.weighted, again.weighted, rtol=0.0, atol=1e-8)


def test_gains_after_knots_that_were_given_twice():
    problem = Problem.random(11, 20, nugget=1e-6)
    X, y = torch.cat([problem.X, problem.X[:5]]), torch.cat([problem.y, problem.y[:5] + 0.1])
    problem = replace(problem, X=X, y=y)
    state = candidates_of(problem, problem.Z, X)
    state.add_knot(0, torch.arange(25))
    gains = state.gains()
    expected = brute_force(problem, torch.cat([problem.Z, X[:1]]), X)
    assert torch.allclose(gains[1:], expected[1:], rtol=0.0, atol=1e-9)
    assert float(gains[20]) < 1e-4 * float(gains.max())  # the twin of the new knot


def sparse_model(kernel=None):
    problem = Problem.random(0, 40)
    kernel = ScaleKernel(RBFKernel()) if kernel is None else kernel
    return SparseGP(problem.X, problem.y, problem.X[:2], kernel, noise_of(0.1), nugget=1e-6)


@pytest.mark.parametrize("kernel", [None, ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2))])
def test_greedy_rows_are_the_best_of_brute_force(kernel):
    model = sparse_model(kernel)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows, added = greedy_elbo_rows(model, 3)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for row, gain in zip(rows.tolist(), added, strict=True):
        with torch.no_grad():
            grown = [model.with_knots(torch.cat([model.knots, x.unsqueeze(0)])) for x in model.train_X]
            # The nugget is a share of the average variance at the knots, which is one number for these kernels.
            gains = torch.stack([other.objective() for other in grown]) - model.objective()
        assert int(gains.argmax()) == row
        assert float(gains[row]) == pytest.approx(float(gain), abs=1e-9)
        model = grown[row]


def test_greedy_rows_of_a_random_subset():
    def choose(seed):
        generator = torch.Generator().manual_seed(seed)
        return greedy_elbo_rows(sparse_model(), 4, num_candidates=10, generator=generator)

    rows, gains = choose(0)
    assert torch.equal(rows, choose(0)[0])
    assert len(set(rows.tolist())) == 4
    assert not torch.equal(rows, choose(1)[0])
    assert float(gains.sum()) < float(greedy_elbo_rows(sparse_model(), 4)[1].sum())


def test_greedy_rows_stop_when_nothing_is_left():
    model = sparse_model()
    assert [len(part) for part in greedy_elbo_rows(model, 0)] == [0, 0]
    everything = greedy_elbo_rows(model, 1000)[0].tolist()
    assert len(set(everything)) == len(everything) <= 40
