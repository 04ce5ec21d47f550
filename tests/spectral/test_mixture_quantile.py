"""Quantiles of symmetric mixtures and their derivatives, against SciPy's root finder and finite differences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from gp_ensembles.spectral.frequencies import mixture_quantile

Z = torch.tensor([-6.0, -2.5, -0.7, -1e-3, 0.0, 0.4, 1.3, 3.0, 8.0], dtype=torch.float64)
WEIGHTS = torch.tensor([0.1, 0.25, 0.65], dtype=torch.float64)
MEANS = torch.tensor([0.0, 0.8, 2.0], dtype=torch.float64)
SCALES = torch.tensor([0.3, 0.1, 0.5], dtype=torch.float64)


def root(p: list[float], m: list[float], s: list[float], z: float) -> float:
    """The quantile by Brent's method, on the tail that is the smaller one."""

    def excess(v: float) -> float:
        parts = zip(p, m, s, strict=True)
        return sum(0.5 * w * (norm.sf((v - a) / b) + norm.sf((v + a) / b)) for w, a, b in parts) - norm.sf(abs(z))

    end = max(abs(a) + b * (abs(z) + 1) for a, b in zip(m, s, strict=True))
    value = brentq(excess, -1e-9 * end, end, xtol=1e-300, rtol=1e-15)
    return value if z >= 0 else -value


def test_values() -> None:
    expected = [root(WEIGHTS.tolist(), MEANS.tolist(), SCALES.tolist(), float(z)) for z in Z]
    found = mixture_quantile(WEIGHTS, MEANS, SCALES, Z)
    torch.testing.assert_close(found, Z.new_tensor(expected), rtol=1e-9, atol=1e-9)


positive = st.floats(0.05, 5.0)


@settings(max_examples=40)
@given(
    components=st.lists(st.tuples(positive, st.floats(0.0, 20.0), positive), min_size=1, max_size=4),
    z=st.floats(-7.0, 7.0),
)
def test_the_tail_at_the_root_is_the_normals(components: list[tuple[float, float, float]], z: float) -> None:
    p, m, s = (Z.new_tensor(values) for values in zip(*components, strict=True))
    p = p / p.sum()
    value = mixture_quantile(p, m, s, Z.new_tensor(z)).abs()
    tail = 0.5 * float((p.numpy() * (norm.sf((value - m) / s) + norm.sf((value + m) / s))).sum())
    assert tail == pytest.approx(norm.sf(abs(z)), rel=1e-7)


def test_first_and_second_derivatives() -> None:
    inputs = tuple(value.clone().requires_grad_() for value in (WEIGHTS, MEANS + 0.1, SCALES))

    def function(p: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return mixture_quantile(p / p.sum(), m, s, Z[:-1])  # the farthest is beyond finite differences

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_third_derivative_in_forward_mode() -> None:
    def value(scale: Tensor) -> Tensor:
        return mixture_quantile(WEIGHTS, MEANS, scale * SCALES, Z[2:8]).sum()

    second = torch.func.jacfwd(torch.func.hessian(value))
    one, step = Z.new_tensor(1.0), 1e-4
    difference = (torch.func.hessian(value)(one + step) - torch.func.hessian(value)(one - step)) / (2 * step)
    torch.testing.assert_close(second(one), difference, rtol=1e-5, atol=1e-5)


def test_derivative_is_that_of_the_quantile() -> None:
    """Independent of this library: SciPy's roots at neighboring means."""
    means, step = MEANS.clone().requires_grad_(), 1e-5
    (gradient,) = torch.autograd.grad(mixture_quantile(WEIGHTS, means, SCALES, Z[6]), means)
    for q in range(1, 3):  # at a mean of zero the derivative is zero by symmetry
        above, below = MEANS.clone(), MEANS.clone()
        above[q] += step
        below[q] -= step
        ends = [root(WEIGHTS.tolist(), m.tolist(), SCALES.tolist(), float(Z[6])) for m in (above, below)]
        assert float(gradient[q]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)
    assert float(gradient[0]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("distance", [5.0, 1e3, 1e8])
def test_gaps_give_finite_derivatives(distance: float) -> None:
    """A draw exactly between two components: no probability there, and nothing that is not finite."""
    p, s = Z.new_tensor([0.5, 0.5]).requires_grad_(), Z.new_tensor([0.1, 0.1]).requires_grad_()
    m = Z.new_tensor([distance, 3 * distance]).requires_grad_()
    middle = torch.special.ndtri(Z.new_tensor([0.5, 0.75]))  # between -d and d, and between d and 3 d
    value = mixture_quantile(p, m, s, middle)
    first = torch.autograd.grad(value.sum(), (p, m, s), create_graph=True)
    second = torch.autograd.grad(sum(part.square().sum() for part in first), (p, m, s), allow_unused=True)
    assert all(bool(torch.isfinite(part).all()) for part in (value, *first, *second) if part is not None)
    assert float(value[0].detach()) == pytest.approx(0.0, abs=1e-6 * distance)
