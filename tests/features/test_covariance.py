"""The evidence of exact processes, its derivatives taken by hand, and covariances that are constant."""

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles.features.covariance import bind_covariance, exact_log_evidence
from gp_ensembles.numerics.exact_gp import log_marginal


def problem(nu):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(6, 2, generator=g, dtype=torch.float64)
    X[3] = X[2]  # rows that coincide
    of_two = {"ard_num_dims": 2, "batch_shape": torch.Size([2])}
    inner = RBFKernel(**of_two) if nu is None else MaternKernel(nu=nu, **of_two)
    kernel = ScaleKernel(inner, batch_shape=torch.Size([2])).double()
    kernel.base_kernel.lengthscale = 0.5 + torch.rand(2, 1, 2, generator=g, dtype=torch.float64)
    kernel.outputscale = torch.tensor([0.7, 2.0], dtype=torch.float64)
    return X, kernel, torch.randn(2, 6, generator=g, dtype=torch.float64)


@pytest.mark.processor
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, None])
def test_constant_covariances_are_the_same(nu):
    X, kernel, _ = problem(nu)
    kernel = kernel + LinearKernel(batch_shape=torch.Size([2])).double()
    with torch.no_grad():
        fast, plain = (bind_covariance(kernel, is_constant=flag).between(X, X[:4]) for flag in (True, False))
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, None])
def test_evidence_and_its_first_and_second_derivatives_are_those_of_the_matrix(nu):
    X, kernel, y = problem(nu)
    noise, weights = torch.rand(2, 6, dtype=torch.float64).add_(0.1), torch.tensor([1.0, 3.0], dtype=torch.float64)
    rows = X.expand(2, 6, 2)
    inputs = [*kernel.parameters(), noise.requires_grad_(), y.requires_grad_()]
    found = []
    for value in (
        exact_log_evidence(kernel, rows, noise, y),
        log_marginal(bind_covariance(kernel).of_targets(rows, noise), y),
    ):
        first = torch.autograd.grad((weights * value).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(part.square().sum() for part in first), inputs)
        found.append([value, *first, *second])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    alone = torch.autograd.grad((weights * exact_log_evidence(kernel, rows, noise, y)).sum(), inputs)
    torch.testing.assert_close(alone, tuple(found[1][1 : 1 + len(alone)]), rtol=1e-9, atol=1e-9)


def test_evidence_is_nan_without_a_factor():
    X, kernel, y = problem(2.5)
    value = exact_log_evidence(
        kernel, X.expand(2, 6, 2), torch.tensor([[-5.0], [1.0]], dtype=torch.float64).expand(2, 6), y
    )
    assert value.isnan().tolist() == [True, False]
    value.nansum().backward()
    assert bool(kernel.raw_outputscale.grad.isfinite().all())
