"""Mixtures, priors, likelihoods and surrogates that the tests share."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean

from gp_ensembles.papers.quadrature import Hyperprior
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, Normal
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.papers.quadrature.surrogate import Evaluations, KernelDistance, Surrogate, SurrogateParameters

F64 = torch.float64


def powered(distance, power):
    """The dissimilarity of the generalized energy distance."""
    return distance.pow(power)


SMOOTH_ENERGY = functools.partial(powered, power=1.5)
one_input_and_two = pytest.mark.parametrize("num_inputs", [1, 2])


def tensor(*values):
    return torch.tensor(values, dtype=F64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(*shape, seed=0, low=0.0, high=1.0):
    return torch.tensor(np.random.default_rng(seed).uniform(low, high, shape))


def random_mixtures(seed, num_inputs, shape=(), size=4, *, signed=False, ragged=True):
    """Mixtures of ``size`` components; ``ragged`` ones have 1 to ``size``, padded with zeros."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(size), shape)
    if ragged:
        weights[..., 1:] *= np.arange(1, size) < rng.integers(1, size + 1, (*shape, 1))
        weights /= weights.sum(-1, keepdims=True)
    present = (weights != 0)[..., None]
    means = np.abs(rng.normal(size=(*shape, size, num_inputs))) * present
    if signed:
        means = means * rng.choice([-1.0, 1.0], means.shape)
    scales = rng.lognormal(-1.0, 0.5, (*shape, size, num_inputs)) * present
    return SpectralMixtures(*(torch.tensor(value) for value in (weights, means, scales)))


def unflatten(theta, num_inputs):
    """Mixtures from rows (w, m, s), as the golden files have them, shape (*batch, Q (1 + 2 D))."""
    size = theta.shape[-1] // (1 + 2 * num_inputs)
    weights, means, scales = theta.split([size, size * num_inputs, size * num_inputs], -1)
    shape = (*theta.shape[:-1], size, num_inputs)
    return SpectralMixtures(weights, means.reshape(shape), scales.reshape(shape))


def flatten(mixtures):
    """Rows of mixtures."""
    return torch.cat([mixtures.weights, mixtures.means.flatten(-2), mixtures.scales.flatten(-2)], -1)


def single_precision(mixtures):
    return SpectralMixtures(*(part.float() for part in tuple(mixtures)))


def prior_of(max_components=3, num_inputs=1, *, signed=False, scale=0.6, location=-1.0, width=0.5, **choices):
    one = torch.ones(num_inputs, dtype=F64)
    means = (Normal if signed else HalfNormal)(scale * one)
    return Hyperprior(means, LogNormal(location * one, width * one), max_components, **choices)


class MixturesAsRows(Hyperprior):
    """A prior whose rows are padded mixtures (w, m, s) themselves, as the golden files have them."""

    def mixtures(self, cube):
        return unflatten(cube, self.num_inputs)

    def num_components(self, cube):
        return self.mixtures(cube).num_components


class AsTheyAre(NamedTuple):
    """A prior of numbers that are not standardized."""

    scale: torch.Tensor

    def standardize(self, value):
        return value


def draws_of_every_size(prior, each, generator):
    return torch.cat([prior.draw(each, n, generator=generator) for n in range(1, prior.max_components + 1)])


def surrogate_for(seed=0, each=4, nugget=1e-4, spread=2.0, **choices):
    """A surrogate of a smooth made-up log-likelihood at ``each`` draws of every number of components."""
    prior = prior_of(scale=2.0, **choices)
    cube = draws_of_every_size(prior, each, seeded(seed))
    values = -40.0 + spread * torch.sin(7.0 * cube[:, prior.max_components]) - cube[:, -1]
    parameters = SurrogateParameters(*tensor(1.3, 0.6, 1.2, nugget))
    return Surrogate(Evaluations(cube, values), KernelDistance(prior, SMOOTH_ENERGY), parameters)


class Failing(DenseLikelihood):
    """Likelihoods of kernels with at least so much noise cannot be computed."""

    def __init__(self, likelihoods, limit):
        super().__init__(likelihoods.X, likelihoods.y)
        self.limit = limit

    def __call__(self, mixtures, outputscale, noise):
        value = super().__call__(mixtures, outputscale, noise)
        return value.where(noise < self.limit, torch.nan)


def process_of(X, y, kernel, noise):
    """GPyTorch's exact Gaussian process of mean zero."""
    likelihood = GaussianLikelihood(noise_constraint=Positive()).to(X)
    likelihood.noise = noise
    return SingleTaskGP(X, y.unsqueeze(-1), None, likelihood, kernel, ZeroMean(), outcome_transform=None)
