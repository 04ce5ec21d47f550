"""Batched L-BFGS: its memory against the dense update formula, its minima and its price against SciPy's L-BFGS-B."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from gp_ensembles.numerics.minimize import inverse_hessian_product, minimize, no_pairs, remember


def normals(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def with_gradient(function):
    """Values and gradients by autograd of a function of points and the numbers of their problems."""

    def both(points, problems):
        free = points.detach().requires_grad_()
        value = function(free, problems)
        (gradient,) = torch.autograd.grad(value.sum(), free)
        return value.detach(), gradient

    return both


def valley(points, _=None):
    """Rosenbrock's function of any number of variables."""
    steep = 100 * (points[:, 1:] - points[:, :-1].square()).square()
    return (steep + (1 - points[:, :-1]).square()).sum(-1)


def dense_inverse(pairs, size):
    """H after each update H <- (I - r s y') H (I - r y s') + r s s', from the newest pair's scaled identity."""
    step, change = pairs[-1]
    identity = torch.eye(size, dtype=torch.float64, device="cpu")
    inverse = identity * (step @ change) / (change @ change)
    for step, change in pairs:
        weight = 1 / (step @ change)
        left = identity - weight * torch.outer(step, change)
        inverse = left @ inverse @ left.T + weight * torch.outer(step, step)
    return inverse


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 5), count=st.integers(1, 6), memory=st.integers(1, 4))
def test_the_product_is_that_of_the_dense_update(seed, size, count, memory):
    source = torch.Generator().manual_seed(seed)
    root = normals(source, 2, size, size)
    hessian = root @ root.mT + torch.eye(size, dtype=torch.float64, device="cpu")
    vector, kept = normals(source, 2, size), [[], []]
    pairs = no_pairs(vector, memory)
    for _ in range(count):
        step = normals(source, 2, size)
        moved = torch.rand(2, generator=source) < 0.8  # searches take their steps at different times
        change = (hessian @ step.unsqueeze(-1)).squeeze(-1)
        pairs = remember(pairs, step, change, moved)
        for number in moved.nonzero().flatten().tolist():
            kept[number].append((step[number], change[number]))
    found = inverse_hessian_product(vector, pairs)
    for number in range(2):
        if kept[number]:
            expected = dense_inverse(kept[number][-memory:], size) @ vector[number]
        else:
            expected = vector[number] / vector[number].norm()
        torch.testing.assert_close(found[number], expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), size=st.integers(1, 6))
def test_quadratics_are_minimized(seed, size):
    generator = torch.Generator().manual_seed(seed)
    root, target = normals(generator, 3, size, size), normals(generator, 3, size)
    matrix = root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64)

    def function(points, problems):
        error = (points - target[problems]).unsqueeze(-1)
        return 0.5 * (error.mT @ matrix[problems] @ error).flatten()

    found = minimize(with_gradient(function), torch.zeros_like(target), max_iterations=500, loss_tolerance=1e-12)
    assert bool(found.converged.all())
    assert float(found.value.max()) < 1e-7


FUNCTIONS = {
    "valley of two": (valley, 2),
    "valley of ten": (valley, 10),
    "fourth powers": (lambda x, _=None: (x - 1).pow(4).sum(-1) + x.sum(-1).square(), 5),
    "bad scales": (lambda x, _=None: (torch.logspace(0, 3, 8, dtype=x.dtype) * x.square()).sum(-1), 8),
    "many hollows": (lambda x, _=None: (x.square() + 3 * (3 * x).sin()).sum(-1), 3),
}


@pytest.mark.processor
@pytest.mark.parametrize("name", FUNCTIONS)
def test_minima_and_price_are_those_of_scipy(name):
    """As deep as SciPy from each of ten starts (hollows apart: on average), for at most a tenth more evaluations."""
    function, size = FUNCTIONS[name]
    start = 2 * normals(torch.Generator().manual_seed(1), 10, size)
    count, differentiated = torch.zeros(10), with_gradient(function)

    def counted(points, problems):
        count[problems] += 1
        return differentiated(points, problems)

    def one(x):
        value, gradient = differentiated(torch.from_numpy(x)[None], None)
        return float(value), gradient[0].numpy()

    tight = {"gradient_tolerance": 1e-6, "loss_tolerance": 1e-13}
    found = minimize(counted, start, max_iterations=500, **tight)
    early = minimize(differentiated, start, max_iterations=7, **tight)
    late = minimize(differentiated, early.point, max_iterations=493, pairs=early.pairs, **tight)
    torch.testing.assert_close(late.point, found.point)  # a search that goes on takes the steps of one that never late
    settings = {"jac": True, "method": "L-BFGS-B", "options": {"ftol": 1e-13, "gtol": 1e-6}}
    theirs = [optimize.minimize(one, x.numpy(), **settings) for x in start]
    assert bool(found.converged.all())
    assert found.num_evaluations == int(count.max())
    torch.testing.assert_close(torch.stack(differentiated(found.point, None)[:1])[0], found.value)
    torch.testing.assert_close(differentiated(found.point, None)[1], found.gradient)
    best = np.array([result.fun for result in theirs])
    if name == "many hollows":
        assert float(found.value.mean()) < best.mean() + 1.0
    else:
        np.testing.assert_allclose(found.value.numpy(), best, atol=1e-7)
    assert int(count.sum()) <= 1.1 * sum(result.nfev for result in theirs)


@pytest.mark.parametrize("outside", [torch.inf, torch.nan, -torch.inf])
def test_points_without_a_value_are_walls_and_at_the_start_refused(outside):
    def function(points, _):  # nothing beyond zero
        value = points[:, 0] - points[:, 0].clamp_min(1e-300).log()
        return torch.where(points[:, 0] > 0, value, outside)

    start = torch.tensor([[30.0], [1e-3], [5.0]], dtype=torch.float64)
    found = minimize(with_gradient(function), start)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.point, torch.ones_like(start), atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="problem 1"):
        minimize(with_gradient(function), torch.tensor([[1.0], [-1.0]], dtype=torch.float64))


def test_a_wall_close_by_does_not_end_a_search():
    """Where the first steps lead into a wall, the way along it is found all the same."""

    def function(points, _):  # the least value lies at (0, 100), along the wall
        inside = points[:, 0] > 0
        value = points[:, 0] - 1e-3 * points[:, 0].clamp_min(1e-300).log() + (0.01 * points[:, 1] - 1).square()
        return torch.where(inside, value, torch.nan)

    found = minimize(with_gradient(function), torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(found.point, torch.tensor([[1e-3, 100.0]], dtype=torch.float64), rtol=0.05, atol=0)


def test_where_a_search_stops():
    square = with_gradient(lambda points, _: points.square().sum(-1))
    start = torch.tensor([[1e-6, 0.0], [3.0, 4.0]], dtype=torch.float64)
    found = minimize(square, start, gradient_tolerance=1e-5)
    assert found.num_iterations[0] == 0
    assert torch.equal(found.point[0], start[0])
    assert float(found.gradient.abs().max()) <= 1e-5
    few = minimize(with_gradient(valley), start, max_iterations=3, gradient_tolerance=0.0, loss_tolerance=0.0)
    assert few.num_iterations.tolist() == [3, 3]
    assert not bool(few.converged.any())
    assert bool((few.value < valley(start)).all())
    none = minimize(with_gradient(valley), start, max_iterations=0)
    assert torch.equal(none.point, start)
    assert none.num_evaluations == 1
    # The relative change of 1e6 + x^2 falls below the tolerance long before the gradient does.
    flat = minimize(lambda x, _: (1e6 + x.square().sum(-1), 2 * x), start[1:], gradient_tolerance=0.0)
    assert bool(flat.converged)


def test_a_search_without_a_way_down_stays_and_says_so():
    start = torch.tensor([[1.0, -2.0], [3.0, 0.0]], dtype=torch.float64)

    def function(points, problems):  # the first has no value but where it starts
        alone = (points == start[problems]).all(-1) | (problems == 1)
        return torch.where(alone, points.square().sum(-1), torch.inf), 2 * points

    found = minimize(function, start)
    assert found.converged.tolist() == [False, True]
    assert torch.equal(found.point[0], start[0])
    assert int(found.num_iterations[0]) == 0
