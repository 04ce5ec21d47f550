"""Covariances whose derivatives are taken backward only, and prior means that are bound."""

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel

from gp_ensembles.features.covariance import bind_covariance


def problem(nu):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(6, 2, generator=g, dtype=torch.float64)
    X[3] = X[2]  # rows that coincide
    kernel = ScaleKernel(MaternKernel(nu=nu, ard_num_dims=2, batch_shape=torch.Size([2])), batch_shape=torch.Size([2]))
    return X, (kernel + LinearKernel(batch_shape=torch.Size([2]))).double()


@pytest.mark.processor
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_backward_only_is_the_same(nu):
    X, kernel = problem(nu)
    parameters = list(kernel.parameters())
    weights = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for backward_only in (True, False):
        value = bind_covariance(kernel, backward_only=backward_only).between(X, X)
        first = torch.autograd.grad((weights * value).sum(), parameters, create_graph=True)
        second = torch.autograd.grad(sum(part.square().sum() for part in first), parameters)
        found.append([value, *first, *second])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    alone = torch.autograd.grad((weights * bind_covariance(kernel, backward_only=True).between(X, X)).sum(), parameters)
    torch.testing.assert_close(alone, found[1][1 : 1 + len(alone)], rtol=1e-9, atol=1e-9)
