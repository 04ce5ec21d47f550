"""The Gram matrix: values and derivatives of all kinds."""

import torch

from gp_ensembles.numerics.autograd import gram


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
