"""Sums of waves with their own derivatives, against the plain product with a basis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.fusion.waves import sum_of_waves, waves


def problem(batch=(2,), num_inputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    return normal(*batch, 3, 8), normal(*batch, 4, num_inputs), normal(5, num_inputs)


def plain(coefficients, rates, X):
    return coefficients @ waves(rates, X)


def test_waves_alternate_cosine_and_sine():
    _, rates, X = problem(())
    basis = waves(rates, X)
    for m in range(4):
        angles = X @ rates[m]
        torch.testing.assert_close(basis[2 * m], angles.cos())
        torch.testing.assert_close(basis[2 * m + 1], angles.sin())


@given(seed=st.integers(0, 10**6), batch=st.sampled_from([(), (3,), (2, 3)]), num_inputs=st.integers(1, 3))
@settings(max_examples=25)
def test_values_and_gradients_are_those_of_the_product(seed, batch, num_inputs):
    coefficients, rates, X = problem(batch, num_inputs, seed)
    coefficients.requires_grad_()
    rates.requires_grad_()
    one, other = sum_of_waves(coefficients, rates, X), plain(coefficients, rates, X)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    weight = torch.linspace(-1, 2, one.numel(), dtype=torch.float64).reshape(one.shape)
    for mine, theirs in zip(
        torch.autograd.grad((weight * one).sum(), (coefficients, rates)),
        torch.autograd.grad((weight * other).sum(), (coefficients, rates)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_derivatives_of_every_kind():
    """Reverse, twice reverse, forward, in both arguments and in one alone."""
    coefficients, rates, X = problem()
    for needs in ((True, True), (True, False), (False, True)):
        arguments = [part.clone().requires_grad_(need) for part, need in zip((coefficients, rates), needs, strict=True)]
        call = lambda *parts: sum_of_waves(*parts, X)  # noqa: E731
        assert torch.autograd.gradcheck(call, arguments, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, arguments)


@pytest.mark.parametrize("transform", ["hessian", "vmap of grad", "grad of vmap"])
def test_function_transforms(transform):
    coefficients, rates, X = problem()

    def of(what):
        def call(rate, coefficient):
            return what(coefficient, rate, X).square().sum().cos()

        if transform == "hessian":
            return torch.func.hessian(call)(rates[0], coefficients[0])
        if transform == "vmap of grad":
            return torch.func.vmap(torch.func.grad(call))(rates, coefficients)
        return torch.func.grad(lambda rates: torch.func.vmap(call)(rates, coefficients).sum())(rates)

    torch.testing.assert_close(of(sum_of_waves), of(plain), rtol=1e-10, atol=1e-10)
