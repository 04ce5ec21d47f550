"""The spectral mixture kernel in GPyTorch: golden values, batches, training, random frequencies, misuse."""

import math
import re
from itertools import product

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtureKernel, covariance
from gp_ensembles.spectral import SobolDraws
from gp_ensembles.spectral.frequencies import BaseDraws, components_of
from tests.papers.quadrature import cases
from tests.papers.quadrature.cases import process_of, seeded, unflatten, uniform


def random_mixtures(seed, num_inputs, shape=(), size=3):
    """Wider spectra, and signs of the means."""
    mixtures = cases.random_mixtures(seed, num_inputs, shape, size, signed=True, ragged=False)
    return mixtures._replace(means=0.5 * mixtures.means, scales=0.6 * mixtures.scales)


def inputs(seed, *shape):
    return uniform(*shape, seed=seed, low=-1.0)


def scaled(kernel, outputscale):
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = outputscale
    return kernel


def total_log_likelihood(model, X, y):
    return gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model.train()(X), y).item() * len(y)


def test_golden_processes(archive):
    """Gram matrix, log marginal likelihood and prediction of a Gaussian process, all through GPyTorch."""
    data = archive("maskerade_sm_kernel")
    for case in ["D1_n1", "D1_n3", "D3_n1", "D3_n3"]:
        X, Xs, y = (data[f"{key}_{case[:2]}"] for key in ("X", "Xs", "y"))
        gram, log_prob, mean, predicted = (data[f"{key}_{case}_paper"] for key in ("K", "loglik", "mean", "cov"))
        mixture = unflatten(data[f"theta_{case}"], X.shape[1])
        kernel = SpectralMixtureKernel(mixture)
        model = process_of(X, y, kernel, data["noise"])
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            torch.testing.assert_close(kernel(X).to_dense(), gram, rtol=0, atol=1e-13)
            assert total_log_likelihood(model, X, y) == pytest.approx(float(log_prob), abs=1e-9)
            posterior = model.likelihood(model.eval()(Xs))
            torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=1e-9)
            torch.testing.assert_close(posterior.covariance_matrix, predicted, rtol=0, atol=1e-9)


def test_values_of_one_mixture_and_of_batches():
    for shape, num_inputs in product([(), (4,), (2, 3)], (1, 3)):
        mixtures = random_mixtures(0, num_inputs, shape)
        kernel = SpectralMixtureKernel(mixtures)
        assert kernel.batch_shape == shape
        assert kernel.dtype == torch.float64
        x1, x2 = inputs(1, 5, num_inputs), inputs(2, 7, num_inputs)
        expected = covariance(mixtures, x1, x2)
        with torch.no_grad():
            torch.testing.assert_close(kernel(x1, x2).to_dense(), expected, rtol=0, atol=1e-14)
            lazy = kernel(x1, x2)
            assert lazy.shape == expected.shape
            torch.testing.assert_close(lazy[..., 1:3, :2].to_dense(), expected[..., 1:3, :2], rtol=0, atol=1e-13)
            diagonal = kernel(x1, x2[:5], diag=True)
            torch.testing.assert_close(diagonal, expected.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-13)
            own = kernel(x1, diag=True)
            torch.testing.assert_close(own, mixtures.weights.sum(-1, keepdim=True).expand_as(own), rtol=0, atol=1e-15)
            stacked = inputs(3, *shape, 5, num_inputs)
            direct = covariance(mixtures, stacked, x2)
            torch.testing.assert_close(kernel(stacked, x2).to_dense(), direct, rtol=0, atol=1e-14)
            own = kernel(stacked, diag=True)
            assert own.shape == (*shape, 5)
            for index in range(shape[0] if shape else 0):
                torch.testing.assert_close(kernel[index](x1, x2).to_dense(), expected[index], rtol=0, atol=1e-14)
                torch.testing.assert_close(lazy[index].to_dense(), expected[index], rtol=0, atol=1e-14)
            if len(shape) == 1:
                repeated = kernel.expand_batch(torch.Size([2, *shape]))(x1, x2).to_dense()
                torch.testing.assert_close(repeated, expected.expand(2, *expected.shape), rtol=0, atol=1e-14)


def test_scaling_and_active_columns():
    mixture, X = random_mixtures(0, 2), inputs(1, 6, 4)
    kernel = SpectralMixtureKernel(mixture, active_dims=(3, 1))
    expected, larger = covariance(mixture, X[:, [3, 1]], X[:, [3, 1]]), scaled(kernel, 2.5)
    with torch.no_grad():
        torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(larger(X).to_dense(), 2.5 * expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(larger(X, diag=True), 2.5 * torch.ones(6).double(), rtol=0, atol=1e-13)
        total = (larger + RBFKernel().double())(X).to_dense()
        torch.testing.assert_close(total, 2.5 * expected + RBFKernel().double()(X).to_dense())
    assert larger.is_stationary


@cases.one_input_and_two
def test_derivatives(num_inputs):
    kernel = SpectralMixtureKernel(random_mixtures(0, num_inputs, (2,), 2))
    names = [name for name, _ in kernel.named_parameters()]
    x1, x2 = inputs(1, 3, num_inputs), inputs(2, 2, num_inputs)

    def function(diag):
        def value(x1, x2, *parameters):
            given = dict(zip(names, parameters, strict=True))
            with gpytorch.settings.lazily_evaluate_kernels(False):
                result = torch.func.functional_call(kernel, given, (x1, x2), {"diag": diag})
            return result if diag else result.to_dense()

        return value

    values = [parameter.detach().clone().requires_grad_() for parameter in kernel.parameters()]
    assert torch.autograd.gradcheck(function(False), (x1.requires_grad_(), x2.requires_grad_(), *values))
    assert torch.autograd.gradcheck(function(True), (x1[:2].detach().requires_grad_(), x2, *values))
    assert torch.autograd.gradcheck(lambda *v: function(False)(x1.detach(), x1.detach(), *v), tuple(values))


def test_the_gram_matrix_of_random_features_is_the_kernel(generator):
    kernels = [
        (num_inputs, scaled(SpectralMixtureKernel(random_mixtures(1, num_inputs)), 2.5)) for num_inputs in (1, 3)
    ]
    kernels.append((3, SpectralMixtureKernel(random_mixtures(0, 1), active_dims=(1,)) + RBFKernel().double()))
    for num_inputs, kernel in kernels:
        X = inputs(0, 8, num_inputs)
        features = RandomFourierFeatures.from_kernel(kernel, num_inputs, 2**15, draws=SobolDraws(), generator=generator)
        with torch.no_grad():
            Phi, exact = features(X), kernel(X).to_dense()
            torch.testing.assert_close(features.prior_variance * Phi @ Phi.mT, exact, rtol=0, atol=0.02)
            torch.testing.assert_close(features.prior_variance, exact[0, 0])


def test_frequencies_are_normal_around_the_means():
    mixture = random_mixtures(2, 2)
    parts = components_of(SpectralMixtureKernel(mixture), 2)
    assert len(parts) == 3
    normals = torch.randn(20, 2, dtype=torch.float64, generator=seeded())
    for q, part in enumerate(parts):
        assert part.weight.item() == pytest.approx(mixture.weights[q].item(), rel=1e-12)
        frequencies = part.frequencies(BaseDraws(normals, normals[:, 0])).detach() / (2 * math.pi)
        expected = mixture.means[q] + mixture.scales[q] * normals
        torch.testing.assert_close(frequencies, expected, rtol=1e-12, atol=1e-12)


def test_frequencies_of_another_number_of_columns_are_refused():
    with pytest.raises(ValueError, match="means for 2 column"):
        components_of(SpectralMixtureKernel(random_mixtures(1, 2)), 3)


GOOD, ONE = random_mixtures(0, 2, (4,)), torch.ones(4, 3).double()
BAD_MIXTURES = {
    "several sizes": (cases.random_mixtures(1, 2, (6,)), "mixture weights must be positive and finite"),
    "no component": (GOOD._replace(weights=0 * ONE), "a mixture has no component"),
    "negative weight": (GOOD._replace(weights=-ONE), "mixture weights must be positive"),
    "missing weight": (GOOD._replace(weights=torch.nan * ONE), "mixture weights must be positive"),
    "zero scale": (GOOD._replace(scales=0 * GOOD.scales), "mixture scales must be positive and finite"),
    "infinite scale": (GOOD._replace(scales=torch.inf * GOOD.scales), "mixture scales must be positive"),
    "missing mean": (GOOD._replace(means=torch.nan * GOOD.means), "mean frequencies must be finite"),
    "shapes": (GOOD._replace(scales=GOOD.scales[..., :1]), "do not match: (4, 3), (4, 3, 2) and (4, 3, 1)"),
}


def test_bad_mixtures_are_refused():
    for mixtures, message in BAD_MIXTURES.values():
        with pytest.raises(ValueError, match=re.escape(message)):
            SpectralMixtureKernel(mixtures)


def test_inputs_of_another_number_of_columns_are_refused():
    kernel = SpectralMixtureKernel(random_mixtures(0, 1))
    X = inputs(0, 4, 2)
    for call in (lambda: ScaleKernel(kernel).double()(X).to_dense(), lambda: kernel.forward(X, X)):
        with pytest.raises(ValueError, match=re.escape("has means for 1 column(s) but got 2 input column(s)")):
            call()
    with pytest.raises(ValueError, match="last_dim_is_batch"):
        kernel.forward(X[:, :1], X[:, :1], last_dim_is_batch=True)
