"""Gamma quantiles and their derivatives in the shape, against SciPy and finite differences."""

import pytest
import torch
from scipy.special import gammaincinv
from torch.autograd import gradcheck, gradgradcheck

from gp_ensembles.spectral.frequencies import log_gamma_quantile

U = torch.tensor([1e-6, 1e-3, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999], dtype=torch.float64)


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 2.5, 10.0, 100.0, 1e4])
def test_values(shape: float) -> None:
    expected = torch.as_tensor(gammaincinv(shape, U.numpy())).log()
    result = log_gamma_quantile(U.new_tensor(shape), U)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", [0.2, 0.5, 2.0, 30.0])
def test_first_and_second_derivatives(shape: float) -> None:
    value = U.new_tensor(shape).requires_grad_()
    assert gradcheck(lambda a: log_gamma_quantile(a, U), value)
    assert gradgradcheck(lambda a: log_gamma_quantile(a, U), value)


def test_first_derivative_is_that_of_the_quantile() -> None:
    """Independent of this library: SciPy's quantiles at neighboring shapes."""
    a, step = torch.tensor(1.7, dtype=torch.float64, requires_grad=True), 1e-5
    (gradient,) = torch.autograd.grad(log_gamma_quantile(a, U[3]), a)
    above, below = (torch.as_tensor(gammaincinv(1.7 + sign * step, U[3].numpy())) for sign in (1, -1))
    expected = (above.log() - below.log()) / (2 * step)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


def test_second_derivative_is_that_of_the_quantile() -> None:
    hessian = torch.func.hessian(lambda a: log_gamma_quantile(a, U).exp().sum())(U.new_tensor(1.7))
    step = 1e-3
    q = [torch.as_tensor(gammaincinv(1.7 + k * step, U.numpy())).sum() for k in (-1, 0, 1)]
    torch.testing.assert_close(hessian, (q[0] - 2 * q[1] + q[2]) / step**2, rtol=1e-4, atol=1e-5)
