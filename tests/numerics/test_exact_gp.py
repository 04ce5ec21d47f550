"""Exact Gaussian processes: densities, their derivatives, conditioning and rows appended, against dense algebra."""

import pytest
import torch
from gpytorch.kernels import MaternKernel

from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.numerics import exact_gp
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.exact_gp import TARGETS, condition, log_marginal, log_marginal_slope


def problem(batch=(2,), rows=4, own_targets=True):
    g = torch.Generator().manual_seed(0)
    roots = torch.randn(*batch, rows, rows, generator=g, dtype=torch.float64)
    y = torch.randn(*(batch if own_targets else ()), rows, generator=g, dtype=torch.float64)
    return roots.requires_grad_(), y.requires_grad_()


def density(roots, y):
    return log_marginal(roots @ roots.mT + 0.5 * torch.eye(y.shape[-1], dtype=y.dtype), y)


@pytest.mark.processor
@pytest.mark.parametrize("own_targets", [True, False])
def test_log_marginal_and_its_derivatives(own_targets):
    roots, y = problem(own_targets=own_targets)
    matrix = roots @ roots.mT + 0.5 * torch.eye(4, dtype=torch.float64)
    want = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), matrix).log_prob(y)
    torch.testing.assert_close(density(roots, y), want)
    assert torch.autograd.gradcheck(density, (roots, y))
    assert torch.autograd.gradgradcheck(density, (roots, y))


@pytest.mark.processor
def test_a_matrix_that_is_not_positive_definite_leaves_the_others_alone():
    roots, y = problem()
    good = roots @ roots.mT + torch.eye(4, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    value = log_marginal(good * signs, y)
    assert value.isnan().tolist() == [False, True]
    first = torch.autograd.grad(value.nansum(), (roots, y), create_graph=True)
    assert all(bool(part.isfinite().all()) for part in first)
    alone = torch.autograd.grad(density(roots[:1], y[:1]).sum(), y)[0]
    assert bool((alone[1] == 0.0).all())
    second = torch.autograd.grad(first[1].sum(), (roots, y))
    assert all(bool(part.isfinite().all()) for part in second)


def normal_density(matrix, y):
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), matrix).log_prob(y)


@pytest.mark.parametrize(("batch", "by_weights"), [((2,), False), ((), False), ((), True)])
def test_noise_is_added_to_the_diagonal_and_has_a_derivative(batch, by_weights):
    roots, y = problem(batch)
    noise = (0.1 + torch.rand(*batch, 4, generator=torch.Generator().manual_seed(1), dtype=y.dtype)).requires_grad_()

    def noisy(roots, y, noise):
        return log_marginal(roots @ roots.mT, y, noise, by_weights=by_weights)

    want = normal_density(roots @ roots.mT + torch.diag_embed(noise), y)
    torch.testing.assert_close(noisy(roots, y, noise), want)
    assert torch.autograd.gradcheck(noisy, (roots, y, noise))
    assert torch.autograd.gradgradcheck(noisy, (roots, y, noise))


def test_a_matrix_with_a_name_is_refused_where_it_is_not_positive_definite():
    y = torch.ones(3, dtype=torch.float64)
    with pytest.raises(NumericalError, match="the covariance of the targets is not positive definite at step 1"):
        log_marginal(-torch.diag_embed(y), y, what=TARGETS)


def test_the_slopes_of_many_small_matrices_are_those_of_autograd():
    roots, y = problem((3,), own_targets=False)
    matrix = (roots @ roots.mT + torch.eye(4, dtype=torch.float64)).detach().requires_grad_()
    value, slope = log_marginal_slope(matrix.detach(), y.detach())
    want = normal_density(matrix, y.detach())
    torch.testing.assert_close(value, want.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(want.sum(), matrix)[0])
    bad, _ = log_marginal_slope(-matrix.detach(), y.detach())
    assert bool(bad.isnan().all())


@pytest.mark.processor
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("at_once", [512, 3])
def test_conditioning_by_any_way_is_that_of_dense_matrices(invert, at_once, monkeypatch):
    """Means, covariances, densities, weights and the rows that continue the factor; solves in blocks or at once."""
    monkeypatch.setattr(exact_gp, "SOLVED_AT_ONCE", at_once)
    monkeypatch.setattr(exact_gp, "COMPUTED_AT_ONCE", 8 * at_once)
    generator = torch.Generator().manual_seed(0)
    kernel = MaternKernel(nu=2.5, batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([[[0.3]], [[0.9]]], dtype=torch.float64)
    X, at = (torch.rand(n, 2, generator=generator, dtype=torch.float64).expand(2, n, 2) for n in (8, 3))
    y = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    noise, bound = torch.linspace(0.05, 0.4, 8, dtype=torch.float64).expand(2, 8), bind_covariance(kernel)
    with torch.no_grad():
        matrix = kernel(X).to_dense() + torch.diag_embed(noise)
        cross, own = kernel(X, at).to_dense(), kernel(at).to_dense()
        torch.testing.assert_close(bound.of_targets(X, noise), matrix)
        torch.testing.assert_close(bound.lower_half(X, noise).tril(), matrix.tril())
        torch.testing.assert_close(bound.in_blocks(X, at), cross)
        known = condition(cholesky(matrix, TARGETS), y, invert=invert)
        V = known.whiten(cross)
        gain = torch.linalg.solve(matrix, cross).mT
        torch.testing.assert_close(known.mean(V), (gain @ y.unsqueeze(-1)).squeeze(-1))
        torch.testing.assert_close(own - V.mT @ V, own - gain @ cross)
        torch.testing.assert_close(known.log_density, normal_density(matrix, y))
        room = torch.nn.functional.pad(known.factor, (0, 2, 0, 2))  # a window has room for more rows
        torch.testing.assert_close(exact_gp.whiten_rows(room, cross.mT), V.mT)
        torch.testing.assert_close(exact_gp.target_weights(room, known.white), torch.linalg.solve(matrix, y))
        both = torch.cat([X, at], dim=-2)
        whole = torch.linalg.cholesky(kernel(both).to_dense() + 0.1 * torch.eye(11, dtype=torch.float64))
        grown = condition(cholesky(kernel(X).to_dense() + 0.1 * torch.eye(8, dtype=torch.float64), TARGETS), y)
        rows = exact_gp.whiten_rows(grown.factor, cross.mT)
        rest = cholesky(own + 0.1 * torch.eye(3, dtype=torch.float64) - rows @ rows.mT, TARGETS)
        torch.testing.assert_close(whole[:, 8:], torch.cat([rows, rest], dim=-1))
