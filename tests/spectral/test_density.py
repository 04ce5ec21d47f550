"""Spectral densities against the kernels that GPyTorch evaluates."""

import math

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from gp_ensembles.spectral.density import log_spectral_density

KERNELS = {"rbf": RBFKernel, "m12": lambda **k: MaternKernel(nu=0.5, **k), "m32": lambda **k: MaternKernel(nu=1.5, **k)}
KERNELS["m52"] = lambda **k: MaternKernel(nu=2.5, **k)


def build(name: str, lengthscale: Tensor) -> Kernel:
    kernel = KERNELS[name](ard_num_dims=lengthscale.shape[-1]).double()
    kernel.lengthscale = lengthscale
    return kernel


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_is_the_fourier_transform_in_one_dimension(name: str) -> None:
    """S(omega) = 2 int_0^inf k(r) cos(omega r) dr by a fine Simpson-free trapezoidal rule."""
    kernel = build(name, torch.tensor([0.7], dtype=torch.float64))
    r = torch.linspace(0, 40, 400001, dtype=torch.float64)
    values = kernel(r.new_zeros(1, 1), r[:, None]).to_dense()[0].detach()
    omega = torch.tensor([0.0, 0.5, 2.0, 5.0], dtype=torch.float64)
    expected = 2 * torch.trapezoid(values * torch.cos(omega[:, None] * r), r)
    density = log_spectral_density(kernel, omega[:, None]).exp().detach()
    torch.testing.assert_close(density, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_integrates_to_one_in_three_dimensions(name: str) -> None:
    kernel = build(name, torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64))
    s = torch.linspace(-15, 30, 200001, dtype=torch.float64)
    radius = s.exp()
    omega = torch.zeros(len(s), 3, dtype=torch.float64)
    omega[:, 1] = radius
    density = log_spectral_density(kernel, omega).exp().detach()
    total = torch.trapezoid(density * 4 * math.pi * radius**3, s) / (2 * math.pi) ** 3
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_derivatives(name: str, generator: torch.Generator) -> None:
    kernel = build(name, torch.tensor([0.5, 2.0], dtype=torch.float64))
    omega = torch.randn(4, 2, dtype=torch.float64, generator=generator)

    def function(raw: Tensor) -> Tensor:
        return torch.func.functional_call(_Density(kernel), {"kernel.raw_lengthscale": raw}, (omega,))

    raw = kernel.raw_lengthscale.detach().clone().requires_grad_()
    assert gradcheck(function, raw)
    assert gradgradcheck(function, raw)


class _Density(torch.nn.Module):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, omega: Tensor) -> Tensor:
        return log_spectral_density(self.kernel, omega)


def test_unknown_kernels_are_refused() -> None:
    class Mine(RBFKernel):
        pass

    omega = torch.zeros(1, 1)
    for kernel in (PeriodicKernel(), Mine(), ScaleKernel(Mine())):
        with pytest.raises(TypeError, match=r"has no registered spectral density; supported are MaternKernel, RBFK"):
            log_spectral_density(kernel, omega)


def test_length_scales_must_fit() -> None:
    with pytest.raises(ValueError, match="RBFKernel has 2 length scales but sees 3"):
        log_spectral_density(RBFKernel(ard_num_dims=2), torch.zeros(1, 3))
