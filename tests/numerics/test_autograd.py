"""The Gram matrix and the Gaussian log density: values, derivatives of all kinds, failures."""

import pytest
import torch

from gp_ensembles.numerics.autograd import gram
from gp_ensembles.numerics.exact_gp import log_marginal


def test_gram_and_its_derivatives():
    Phi = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.equal(gram(Phi), Phi.mT @ Phi)
    assert torch.autograd.gradcheck(gram, Phi, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(gram, Phi)


def test_gram_under_vmap_and_hessian():
    Phi = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(gram)(Phi), Phi.mT @ Phi)

    def total(x, function):
        return function(x).pow(2).sum()

    got = torch.func.hessian(lambda x: total(x, gram))(Phi[0])
    want = torch.func.hessian(lambda x: total(x, lambda v: v.mT @ v))(Phi[0])
    torch.testing.assert_close(got, want)


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
