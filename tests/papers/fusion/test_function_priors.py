"""Priors of functions: golden features, kernels met by random features, exact processes, sums of sines and cosines."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel, SpectralMixtureKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.fusion.function_priors import FourierPrior, fourier_basis, fourier_sum
from gp_ensembles.spectral import SobolDraws
from tests.papers.fusion.cases import inputs, rbf, seeded

PRIORS = {
    "fourier": FourierPrior(inputs(4, 2, seed=1) * 3, 0.3, 1.7, prior_stddev=0.5),
    "ard": FourierPrior(inputs(3, 2, seed=2) * 3, torch.tensor([0.3, 0.9]).double(), 0.4, prior_stddev=0.2),
}


def test_golden_features_in_one_and_three_dimensions(archive):
    features = archive("fusion_features")
    for name, X in (("1d", features["x_1d"].unsqueeze(-1)), ("3d", features["X_3d"])):
        frequencies = features[f"omega_{name}"].reshape(-1, X.shape[-1])
        basis = FourierPrior(frequencies, features[f"lengthscale_{name}"]).basis(X)
        expected = features[f"phi_{name}"]
        torch.testing.assert_close(basis.mT * math.sqrt(len(frequencies)), expected, rtol=1e-12, atol=1e-13)
        if name == "1d":
            torch.testing.assert_close(basis.mT @ basis, features["gram_1d_over_M"], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", PRIORS)
def test_bases_have_right_derivatives(name):
    prior, X = PRIORS[name], inputs(4, 2)
    logs = (prior.log_hyperparameters + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: prior.basis(X, values), (logs,))
    assert torch.autograd.gradgradcheck(lambda values: prior.basis(X, values), (logs,))


def test_many_frequencies_meet_the_kernel(generator):
    for kernel in [
        rbf(0.6, 1.5),
        ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double(),
        RQKernel().double(),
        SpectralMixtureKernel(num_mixtures=1, ard_num_dims=2).double(),
        rbf(0.6, 1.5) + ScaleKernel(MaternKernel(nu=1.5)).double(),
    ]:
        X = inputs(6, 2)
        prior = FourierPrior.from_kernel(kernel, 2, 4096, draws=SobolDraws(), generator=generator)
        with torch.no_grad():
            expected = kernel(X).to_dense()
        gram = prior.basis(X).mT @ prior.basis(X)
        torch.testing.assert_close(gram.diagonal(), expected.diagonal(), rtol=1e-10, atol=0)
        torch.testing.assert_close(gram, expected, rtol=0, atol=0.03 * float(expected.max()))


def test_what_makes_no_prior_is_refused():
    for make, error, message in [
        (lambda: FourierPrior(torch.ones(3, 1, dtype=torch.int64)), TypeError, "floating point"),
        (lambda: FourierPrior(torch.ones(3)), ValueError, r"\(M, D\)"),
        (lambda: FourierPrior(torch.full((3, 1), math.nan)), ValueError, "finite"),
        (lambda: FourierPrior(torch.ones(3, 1), 0.0), ValueError, "lengthscale must be positive"),
        (lambda: FourierPrior(torch.ones(3, 1), torch.ones(2)), ValueError, "lengthscale"),
        (lambda: FourierPrior(torch.ones(3, 1), 1.0, -1.0), ValueError, "amplitude must be positive"),
        (lambda: FourierPrior(torch.ones(3, 1), 1.0, torch.ones(2)), ValueError, "one number"),
        (lambda: FourierPrior(torch.ones(3, 1), prior_stddev=0.0), ValueError, "None to keep"),
        (lambda: FourierPrior(torch.ones(3, 1), frequency_weights=torch.ones(2)), ValueError, r"shape \(3,\)"),
        (lambda: FourierPrior.from_kernel(PeriodicKernel(), 1, 5), TypeError, "no registered spectral form"),
        (lambda: FourierPrior.from_kernel(RBFKernel(batch_shape=torch.Size([2])), 1, 5), ValueError, "batch"),
    ]:
        with pytest.raises(error, match=message):
            make()


def fourier_problem(batch=(2,), num_inputs=2, seed=0):
    generator, shapes = seeded(seed), ((*batch, 3, 8), (*batch, 4, num_inputs), (5, num_inputs))
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]


def product(coefficients, frequencies, X):
    return coefficients @ fourier_basis(frequencies, X)


@given(seed=st.integers(0, 10**6), batch=st.sampled_from([(), (3,), (2, 3)]), num_inputs=st.integers(1, 3))
@settings(max_examples=25)
def test_values_and_gradients_are_those_of_the_product(seed, batch, num_inputs):
    coefficients, frequencies, X = fourier_problem(batch, num_inputs, seed)
    coefficients.requires_grad_()
    frequencies.requires_grad_()
    one, other = fourier_sum(coefficients, frequencies, X), product(coefficients, frequencies, X)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    weight = torch.linspace(-1, 2, one.numel(), dtype=torch.float64).reshape(one.shape)
    mine, theirs = (torch.autograd.grad(value, (coefficients, frequencies), weight) for value in (one, other))
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_derivatives_of_every_kind():
    """Reverse and twice reverse, in both arguments and in one alone."""
    coefficients, frequencies, X = fourier_problem()
    for needs in ((True, True), (True, False), (False, True)):
        arguments = [coefficients.clone().requires_grad_(needs[0]), frequencies.clone().requires_grad_(needs[1]), X]
        assert torch.autograd.gradcheck(fourier_sum, arguments)
        assert not all(needs) or torch.autograd.gradgradcheck(fourier_sum, arguments)
