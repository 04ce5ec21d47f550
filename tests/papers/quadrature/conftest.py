"""The surrogate of the golden files, whose kernels are mixtures themselves and not points of a cube."""

import pytest
import torch

from gp_ensembles.papers.quadrature.prior import HalfNormal
from gp_ensembles.papers.quadrature.quadrature import QuadratureNodes
from gp_ensembles.papers.quadrature.surrogate import (
    Evaluations,
    KernelDistance,
    Surrogate,
    SurrogateParameters,
    energy_distance,
)
from tests.papers.quadrature.cases import AsTheyAre, MixturesAsRows


@pytest.fixture
def few_nodes(monkeypatch):
    """Small integrals, where how exact they are is not what is tested."""
    monkeypatch.setattr("gp_ensembles.papers.quadrature.search.COVARIANCE_NODES", 16)
    monkeypatch.setattr("gp_ensembles.papers.quadrature.search.FINAL_NODES_PER_SIZE", 64)


@pytest.fixture(scope="session")
def given_values(archive):
    """The arrays of the golden file of the surrogate."""
    return archive("maskerade_surrogate")


@pytest.fixture(scope="session")
def golden_surrogate(given_values):
    """The surrogate of the golden file, as a function of its noise."""
    values, one = given_values, torch.ones((), dtype=torch.float64)
    prior = MixturesAsRows(HalfNormal(one.reshape(1)), AsTheyAre(one.reshape(1)), 3)
    kernel_distance = KernelDistance(prior, energy_distance)

    def make(noise=0.0):
        parameters = SurrogateParameters(values["lam2"], values["ell"], one, noise * one)
        return Surrogate(Evaluations(values["theta"], values["loglik"]), kernel_distance, parameters)

    return make


@pytest.fixture(scope="session")
def golden_nodes(given_values):
    """The nodes of the golden file, draws of its prior."""
    count = len(given_values["samples"])
    weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
    return QuadratureNodes(given_values["samples"], weights, given_values["n_samples"])
