"""Discrepancies of mixtures and the kernel over kernels: golden values, loops, invariances, definiteness."""

import functools
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature import surrogate
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, Normal
from gp_ensembles.papers.quadrature.surrogate import (
    Distances,
    KernelDistance,
    SurrogateParameters,
    energy_distance,
    log_correlations,
    matern_distance,
)
from tests.papers.quadrature.cases import (
    AsTheyAre,
    MixturesAsRows,
    flatten,
    powered,
    random_mixtures,
    tensor,
    unflatten,
)

DISSIMILARITIES = {
    "energy": energy_distance,
    "energy 1.5": functools.partial(powered, power=1.5),
    "matern": matern_distance,
    "matern 2": functools.partial(matern_distance, bandwidth=2.0),
}
each_dimension = pytest.mark.parametrize("num_inputs", [1, 3])
# The functions of the distance, written out with numpy.
WRITTEN_OUT = {
    "energy": lambda r: r,
    "energy 1.5": lambda r: r**1.5,
    "matern": lambda r: -(1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
    "matern 2": lambda r: -(1 + np.sqrt(5) * r / 2 + 5 * r**2 / 12) * np.exp(-np.sqrt(5) * r / 2),
}


def distance_of(num_inputs, dissimilarity=energy_distance, reflected=False, means=None, scales=None):
    """Distances of rows that are mixtures, standardized by priors or, without any, in units of frequency."""
    one = torch.ones(num_inputs).double()
    means = (Normal if reflected else HalfNormal)(one if means is None else means)
    return KernelDistance(MixturesAsRows(means, AsTheyAre(one) if scales is None else scales, 12), dissimilarity)


def between(first, second, distance=None):
    """Discrepancies of mixtures."""
    distance = distance_of(first.num_inputs) if distance is None else distance
    return distance.between(*(distance.prepare(flatten(some)) for some in (first, second))).mixtures


def correlations_of(discrepancies, lengthscale):
    one = torch.ones(()).double()
    parameters = SurrogateParameters(one, lengthscale, one, one)
    return log_correlations(Distances(discrepancies, torch.zeros_like(discrepancies)), parameters).exp()


def components(mixture):
    return list(zip(*(np.asarray(part) for part in tuple(mixture)), strict=True))


def energy_by_loops(function, first, second, reflected=False):
    total, signs = 0.0, (1, -1) if reflected else (1,)
    for (w, m, s), (v, n, t), sign in product(components(first), components(second), signs):
        total += w * v * function(np.sqrt(np.sum((m - sign * n) ** 2) + np.sum((s - t) ** 2))) / len(signs)
    return total


def by_loops(function, first, second, reflected=False):
    pairs = (first, second), (first, first), (second, second)
    cross, own1, own2 = (energy_by_loops(function, *pair, reflected) for pair in pairs)
    return cross - 0.5 * own1 - 0.5 * own2


def pairs_of(data, num_inputs):
    return (unflatten(data[key], num_inputs) for key in ("theta1", "theta2"))


@each_dimension
def test_golden_discrepancies_of_pairs(archive, num_inputs):
    data, distance = archive(f"maskerade_mmd_D{num_inputs}"), distance_of(num_inputs)
    np.testing.assert_allclose(distance.prepare(data["theta1"]).self_term, data["self1"], rtol=1e-13)
    np.testing.assert_allclose(distance.prepare(data["theta2"]).self_term, data["self2"], rtol=1e-13)
    squared = between(*pairs_of(data, num_inputs)).diagonal()
    np.testing.assert_allclose(squared, data["mmd2"], rtol=0, atol=1e-14)
    found = data["lam2"] * correlations_of(squared, data["ell"])
    torch.testing.assert_close(found, data["kernel"], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:10], data["kernel"][:10], rtol=0, atol=1e-13)


@each_dimension
def test_golden_derivatives(archive, num_inputs):
    data = {key: value[:10] for key, value in archive(f"maskerade_mmd_D{num_inputs}").items() if value.ndim}
    theta, expected = data["theta1"].requires_grad_(), data["grad_mmd2_theta1"]
    value = between(*pairs_of(data, num_inputs)).diagonal()
    (slope,) = torch.autograd.grad(value.sum(), theta)
    used = ~expected.isnan()
    torch.testing.assert_close(slope[used], expected[used], rtol=0, atol=1e-9)


@each_dimension
def test_golden_gram_matrices(archive, num_inputs):
    data = archive(f"maskerade_mmd_D{num_inputs}")
    mixtures = unflatten(data["gram_theta"], num_inputs)
    squared = between(mixtures, mixtures)
    torch.testing.assert_close(squared, data["gram_mmd2"], rtol=0, atol=1e-13)
    found = data["lam2"] * correlations_of(squared, data["ell"])
    torch.testing.assert_close(found, data["gram_kernel"], rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(found)[0].item() == pytest.approx(float(data["gram_min_eig"]), abs=1e-11)


@each_dimension
def test_golden_other_dissimilarities(archive, num_inputs):
    first, second = pairs_of(archive(f"maskerade_mmd_D{num_inputs}"), num_inputs)
    names = {"energy 1.5": "energy_beta1.5", "matern": "matern52_bandwidth1"}
    for name, file in names.items():
        value = between(first, second, distance_of(num_inputs, DISSIMILARITIES[name])).diagonal()
        expected = archive("maskerade_library_extras")[f"mmd_D{num_inputs}_{file}"]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-13)


@each_dimension
def test_golden_reflected_mixtures(archive, num_inputs):
    data = archive("maskerade_library_extras")
    mixtures = unflatten(data[f"signed_theta_D{num_inputs}"], num_inputs)
    value = between(mixtures, mixtures, distance_of(num_inputs, reflected=True))
    torch.testing.assert_close(value, data[f"signed_mmd2_D{num_inputs}"], rtol=0, atol=1e-13)


def test_discrepancies_are_the_sums_written_out():
    first, second = random_mixtures(0, 2, (5,), signed=True), random_mixtures(1, 2, (4,), size=3, signed=True)
    for (name, dissimilarity), reflected in product(DISSIMILARITIES.items(), [False, True]):
        distance = distance_of(2, dissimilarity, reflected)
        value, own = between(first, second, distance), distance.prepare(flatten(first)).self_term
        assert value.shape == (5, 4)
        for i, j in product(range(5), range(4)):
            expected = by_loops(WRITTEN_OUT[name], first.take(i), second.take(j), reflected)
            assert value[i, j].item() == pytest.approx(expected, abs=1e-13)
            expected = energy_by_loops(WRITTEN_OUT[name], first.take(i), first.take(i), reflected)
            assert own[i].item() == pytest.approx(expected, abs=1e-13)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.sampled_from(list(DISSIMILARITIES)),
    st.booleans(),
    st.floats(0.05, 20.0),
)
def test_gram_matrices_are_positive_definite(seed, num_inputs, name, reflected, lengthscale):
    mixtures = random_mixtures(seed, num_inputs, (25,), size=5, signed=reflected)
    gram = correlations_of(
        between(mixtures, mixtures, distance_of(num_inputs, DISSIMILARITIES[name], reflected)), lengthscale
    )
    torch.testing.assert_close(gram, gram.mT, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(gram)[0] > -1e-12
    torch.testing.assert_close(gram.diagonal(), torch.ones(25).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "reflected"), [("energy", False), ("energy 1.5", True), ("matern", True), ("matern 2", False)]
)
def test_derivatives(name, reflected):
    one = torch.ones(2).double()
    distance = distance_of(2, DISSIMILARITIES[name], reflected, 2.0 * one, LogNormal(-one, 0.5 * one))
    first = random_mixtures(3, 2, (2,), size=2, signed=True)._replace(weights=torch.rand(2, 2).double())
    first = first._replace(scales=first.scales.clamp_min(0.2))
    second = first._replace(means=first.means + 1.0)

    def function(theta1, theta2):
        return between(unflatten(theta1, 2), unflatten(theta2, 2), distance)

    assert torch.autograd.gradcheck(function, (flatten(first).requires_grad_(), flatten(second).requires_grad_()))


@pytest.mark.parametrize("name", ["energy 1.5", "matern", "matern 2"])
def test_derivatives_at_coincident_atoms(name):
    """Two components of a mixture at one place, and one that another mixture shares: no kink, no infinity."""
    theta = tensor([0.4, 0.6, 0.5, 0.5, 0.3, 0.3], [0.3, 0.7, 0.5, 2.0, 0.3, 1.0]).requires_grad_()
    other, distance = unflatten(theta[1:].detach().clone(), 1), distance_of(1, DISSIMILARITIES[name])

    def function(theta):
        return between(unflatten(theta, 1), other, distance)[:1]

    tolerance = 1e-3 if name == "energy 1.5" else 1e-6  # a power of 1.5 has a root for a slope
    assert torch.autograd.gradcheck(function, (theta,), atol=5 * tolerance)


def test_derivatives_of_a_gram_matrix_are_finite():
    """Every mixture meets itself on the diagonal, and one is there twice; padding is at one place."""
    for dissimilarity, reflected in product(DISSIMILARITIES.values(), [False, True]):
        mixtures = random_mixtures(5, 2, (6,), signed=True)
        rows = torch.cat([flatten(mixtures), flatten(mixtures.take(slice(None, 1)))]).requires_grad_()
        some = unflatten(rows, 2)
        value = between(some, some, distance_of(2, dissimilarity, reflected))
        (slope,) = torch.autograd.grad(correlations_of(value, 1.0).sum(), rows)
        assert bool(slope.isfinite().all())


def test_chunks_change_nothing(monkeypatch):
    first, second = random_mixtures(0, 2, (13,)), random_mixtures(1, 2, (7,))
    theta = flatten(first).requires_grad_()
    for reflected in (False, True):
        results = []
        for chunk in (1, 500, 2**21):
            monkeypatch.setattr(surrogate, "CHUNK", chunk)
            value = between(unflatten(theta, 2), second, distance_of(2, reflected=reflected))
            results.append((value, *torch.autograd.grad(value.square().sum(), theta)))
        for a, b in pairwise(results):
            for x, y in zip(a, b, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-14)


def test_atoms_are_standardized_by_their_priors():
    mixture = unflatten(tensor(1.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0), 2)
    scales = LogNormal(tensor(0.0, 1.0), tensor(0.5, 0.1))
    for reflected in (False, True):
        atoms = distance_of(2, reflected=reflected, means=tensor(2.0, 4.0), scales=scales).atoms(mixture)
        np.testing.assert_allclose(atoms[0], [1.5, 1.0, 0.0, (np.log(2.0) - 1.0) / 0.1], rtol=1e-13)
        assert not atoms[1].any()
    np.testing.assert_allclose(distance_of(2).atoms(mixture), [[3.0, 4.0, 1.0, 2.0], [0.0] * 4])
