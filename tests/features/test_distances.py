"""Derivatives of covariances in the rows, on knots, next to them and far away, against 50 digits."""

import itertools

import mpmath
import pytest
import torch
from gpytorch import kernels
from torch.func import hessian, jacrev

from gp_ensembles.features.covariance import bind_covariance, with_differences

pytestmark = pytest.mark.processor

D, LENGTH, PERIOD, ALPHA, OFFSET = 2, 0.75, 1.125, 1.25, 0.5  # exact in single precision, too


class OwnRBF(kernels.RBFKernel):
    """A subclass may compute another kernel, so it has no plain form here."""


class OwnMatern(kernels.MaternKernel):
    """Likewise, of the distance itself."""


def rbf(s, _):
    return mpmath.exp(-s / 2)


def matern_3(s, _):
    r = mpmath.sqrt(3 * s)
    return (1 + r) * mpmath.exp(-r)


def matern_5(s, _):
    r = mpmath.sqrt(5 * s)
    return (1 + r + r * r / 3) * mpmath.exp(-r)


def rational(s, _):
    return (1 + s / (2 * mpmath.mpf(ALPHA))) ** -mpmath.mpf(ALPHA)


def cosine(s, _):
    return mpmath.cos(mpmath.pi * mpmath.sqrt(s) * mpmath.mpf(LENGTH) / mpmath.mpf(PERIOD))


def piecewise_1(s, _):
    r = mpmath.sqrt(s)
    return (1 - r) ** 4 * (4 * r + 1) if r < 1 else mpmath.mpf(0)


def piecewise_3(s, _):
    r, j = mpmath.sqrt(s), 5
    terms = 1, j + 3, mpmath.mpf(6 * j**2 + 36 * j + 45) / 15, mpmath.mpf(j**3 + 9 * j**2 + 23 * j + 15) / 15
    return (1 - r) ** (j + 3) * sum(c * r**k for k, c in enumerate(terms)) if r < 1 else mpmath.mpf(0)


def periodic(_, x, z):
    waves = (mpmath.sin(mpmath.pi * (a - b) / mpmath.mpf(PERIOD)) ** 2 for a, b in zip(x, z, strict=True))
    return mpmath.exp(-2 * sum(waves) / mpmath.mpf(LENGTH))


def inner(x, z):
    return sum(a * b for a, b in zip(x, z, strict=True))


def polynomial(_, x, z):
    return (inner(x, z) + mpmath.mpf(OFFSET)) ** 3


def kernel(cls, *arguments, **settings):
    return cls(*arguments).double().initialize(**settings)


LONG = {"lengthscale": LENGTH}
CASES = {
    "rbf": (lambda: kernel(kernels.RBFKernel, **LONG), rbf),
    "rbf-subclass": (lambda: kernel(OwnRBF, **LONG), rbf),
    "matern-3/2": (lambda: kernel(kernels.MaternKernel, 1.5, **LONG), matern_3),
    "matern-3/2-subclass": (lambda: kernel(OwnMatern, 1.5, **LONG), matern_3),
    "matern-5/2": (lambda: kernel(kernels.MaternKernel, 2.5, **LONG), matern_5),
    "matern-5/2-subclass": (lambda: kernel(OwnMatern, 2.5, **LONG), matern_5),
    "rational": (lambda: kernel(kernels.RQKernel, **LONG, alpha=ALPHA), rational),
    "cosine": (lambda: kernel(kernels.CosineKernel, period_length=PERIOD), cosine),
    "piecewise-1": (lambda: kernel(kernels.PiecewisePolynomialKernel, 1, **LONG), piecewise_1),
    "piecewise-3": (lambda: kernel(kernels.PiecewisePolynomialKernel, 3, **LONG), piecewise_3),
    "periodic": (
        lambda: kernel(kernels.PeriodicKernel, **LONG, period_length=PERIOD),
        lambda s, x, z: periodic(s, x, z),
    ),
    "linear": (lambda: kernel(kernels.LinearKernel, variance=2.0), lambda _, x, z: 2 * inner(x, z)),
    "polynomial": (lambda: kernel(kernels.PolynomialKernel, 3, offset=OFFSET), polynomial),
    "product": (
        lambda: kernels.ScaleKernel(
            kernel(kernels.PolynomialKernel, 3, offset=OFFSET) * kernel(kernels.RBFKernel, **LONG)
        ).initialize(outputscale=2.0),
        lambda s, x, z: 2 * polynomial(s, x, z) * rbf(s, None),
    ),
}


def exact(formula, x, z):
    """Gradient and Hessian in x of a covariance, by differences in 80 digits."""
    with mpmath.workdps(80):
        place, knot = ([mpmath.mpf(value) for value in row.tolist()] for row in (x, z))
        step = mpmath.mpf(10) ** -20

        def value(*moves):
            moved = [a + sum(sign * step for column, sign in moves if column == d) for d, a in enumerate(place)]
            squared = sum(((a - b) / mpmath.mpf(LENGTH)) ** 2 for a, b in zip(moved, knot, strict=True))
            arguments = (squared, moved, knot) if formula.__code__.co_argcount == 3 else (squared, None)
            return formula(*arguments)

        gradient = [(value((d, 1)) - value((d, -1))) / (2 * step) for d in range(D)]
        signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
        second = [
            [sum(a * b * value((d, a), (e, b)) for a, b in signs) / (4 * step**2) for e in range(D)] for d in range(D)
        ]
        return x.new_tensor([float(g) for g in gradient]), x.new_tensor([[float(v) for v in row] for row in second])


@pytest.fixture(scope="module")
def knots():
    return 0.4 * torch.randn(30, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# On a knot, so near that round-off hides the distance, and far enough to be seen.
AWAY = [0.0, 1e-12, 1e-9, 1e-3, 0.3]


@pytest.mark.parametrize("name", CASES)
def test_values_and_first_and_second_derivatives_are_exact(name, knots):
    build, formula = CASES[name]
    kernel = build()
    between = bind_covariance(kernel).between
    expected = kernel(knots, knots[:5]).to_dense()
    for dense in (between(knots, knots[:5]), with_differences(kernel)(knots, knots[:5]).to_dense()):
        # A squared distance of zero is off by 1e-16 as a product, the distance by the root of that.
        torch.testing.assert_close(dense, expected, rtol=1e-12, atol=1e-13)
    for number, away in itertools.product((0, 21), AWAY):
        x = knots[number] + away * knots.new_tensor([0.6, -0.8])

        def covariance(place, number=number):
            return between(knots, place.unsqueeze(0))[number, 0]

        gradient, second = exact(formula, x, knots[number])
        torch.testing.assert_close(jacrev(covariance)(x).detach(), gradient, rtol=0, atol=1e-11)
        # Second derivatives of functions of the distance itself are right to its shift, the root of the machine's
        # epsilon (1.5e-8), times their third derivative, which is 1e2 for the roughest, the piecewise polynomial.
        atol = 3e-6 if formula in (matern_3, matern_5, cosine, piecewise_1, piecewise_3) else 1e-9
        torch.testing.assert_close(hessian(covariance)(x).detach(), second, rtol=0, atol=atol)


@pytest.mark.parametrize("cls", [kernels.MaternKernel, OwnMatern])
def test_a_kernel_without_a_derivative_keeps_its_value_and_its_slope(cls, knots):
    between = bind_covariance(kernel(cls, 0.5, **LONG)).between
    x = knots[:1] + 1e-9 * knots.new_tensor([1.0, 0.0])
    assert between(knots[:1], knots[:1]).item() == 1.0
    slope = jacrev(lambda place: between(knots[:1], place).sum())(x).detach()
    torch.testing.assert_close(slope, slope.new_tensor([[-1 / LENGTH, 0.0]]), rtol=1e-6, atol=1e-6)
    assert bool((jacrev(lambda place: between(knots[:1], place).sum())(knots[:1]) == 0).all())
