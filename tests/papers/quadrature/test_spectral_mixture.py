"""Spectral mixtures and their covariances: golden Gram matrices, loops, invariances, derivatives."""

from itertools import product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures, covariance
from tests.papers.quadrature.cases import flatten, one_input_and_two, random_mixtures, unflatten, uniform


def inputs(seed, num_rows, num_inputs):
    return uniform(num_rows, num_inputs, seed=seed, low=-1.0)


def by_loops(mixture, x1, x2):
    """The sum over components written out, for one mixture."""
    weights, means, scales = (np.asarray(value) for value in mixture)
    result = np.zeros((len(x1), len(x2)))
    for i, j in product(range(len(x1)), range(len(x2))):
        tau = (x1[i] - x2[j]).numpy()
        for w, m, s in zip(weights, means, scales, strict=True):
            result[i, j] += w * np.exp(-2 * np.pi**2 * np.sum((s * tau) ** 2)) * np.cos(2 * np.pi * np.sum(m * tau))
    return result


def test_covariances_are_the_sums_written_out():
    for num_inputs in [1, 2, 5]:
        mixtures = random_mixtures(num_inputs, num_inputs, (2, 3), signed=True)
        x1, x2 = inputs(1, 5, num_inputs), inputs(2, 4, num_inputs)
        value = covariance(mixtures, x1, x2)
        assert value.shape == (2, 3, 5, 4)
        for index in product(range(2), range(3)):
            expected = by_loops(mixtures.take(index), x1, x2)
            np.testing.assert_allclose(value[index], expected, rtol=0, atol=1e-13)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]))
def test_order_splitting_and_padding_change_nothing(seed, num_inputs):
    rng = np.random.default_rng(seed)
    mixture = random_mixtures(seed, num_inputs, signed=True)
    x1, x2 = inputs(seed, 4, num_inputs), inputs(seed + 1, 3, num_inputs)
    value = covariance(mixture, x1, x2)
    order = torch.tensor(rng.permutation(4))
    shuffled = SpectralMixtures(*(part[order] for part in tuple(mixture)))
    share = rng.uniform(0.1, 0.9)
    weights = torch.cat([share * mixture.weights, (1 - share) * mixture.weights])
    split = SpectralMixtures(weights, mixture.means.repeat(2, 1), mixture.scales.repeat(2, 1))
    padded = SpectralMixtures(*(torch.cat([part, torch.zeros_like(part)]) for part in tuple(mixture)))
    for other in (shuffled, split, padded, padded.trim()):
        torch.testing.assert_close(covariance(other, x1, x2), value, rtol=0, atol=1e-13)


@one_input_and_two
def test_derivatives(num_inputs):
    mixtures = random_mixtures(1, num_inputs, (2,), size=2, signed=True)
    theta = flatten(mixtures).requires_grad_()
    x = torch.cat([inputs(0, 3, num_inputs), inputs(0, 1, num_inputs)]).requires_grad_()  # the last row is the first

    def function(theta, x1, x2):
        return covariance(unflatten(theta, num_inputs), x1, x2)

    x2 = inputs(7, 3, num_inputs).requires_grad_()
    assert torch.autograd.gradcheck(function, (theta, x, x2))
    assert torch.autograd.gradcheck(lambda theta: function(theta, x.detach(), x.detach()), (theta,))
