"""Discrepancies of mixtures and the kernel over kernels: golden values, loops, invariances, definiteness."""

from itertools import pairwise, product
from typing import NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature import hyperkernel
from gp_ensembles.papers.quadrature.hyperkernel import AtomCoordinates, EnergyDistance, MaximumMeanDiscrepancy
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, Normal
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from tests.papers.quadrature.cases import process_of, random_mixtures, single_precision, tensor


class GaussianDistance(NamedTuple):
    """Minus a Gaussian kernel: the dissimilarity of a user's own."""

    bandwidth: float = 1.0

    def __call__(self, distance):
        return -(-0.5 * (distance / self.bandwidth).square()).exp()


DISSIMILARITIES = {
    "energy": EnergyDistance(),
    "energy 0.7": EnergyDistance(0.7),
    "energy 1.5": EnergyDistance(1.5),
    "gaussian": GaussianDistance(),
    "gaussian 0.5": GaussianDistance(0.5),
    "matern": hyperkernel.MaternDistance(),
    "matern 2": hyperkernel.MaternDistance(2.0),
}
each_dimension = pytest.mark.parametrize("num_inputs", [1, 3])
SMOOTH = {name: DISSIMILARITIES[name] for name in ("energy 1.5", "gaussian", "gaussian 0.5", "matern", "matern 2")}


def function_of(dissimilarity, r):
    """The functions of the distance, written out with numpy."""
    if isinstance(dissimilarity, EnergyDistance):
        return r**dissimilarity.power
    r = r / dissimilarity.bandwidth
    if isinstance(dissimilarity, GaussianDistance):
        return -np.exp(-0.5 * r**2)
    return -(1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)


def components(mixture):
    return list(zip(*(np.asarray(part) for part in tuple(mixture)), strict=True))


def energy_by_loops(dissimilarity, first, second, reflected=False):
    total, signs = 0.0, (1, -1) if reflected else (1,)
    for (w, m, s), (v, n, t), sign in product(components(first), components(second), signs):
        r = np.sqrt(np.sum((m - sign * n) ** 2) + np.sum((s - t) ** 2))
        total += w * v * function_of(dissimilarity, r) / len(signs)
    return total


def by_loops(dissimilarity, first, second, reflected=False):
    pairs = (first, second), (first, first), (second, second)
    cross, own1, own2 = (energy_by_loops(dissimilarity, *pair, reflected) for pair in pairs)
    return cross - 0.5 * own1 - 0.5 * own2


def pairs_of(data, num_inputs):
    return (SpectralMixtures.unflatten(data[key], num_inputs) for key in ("theta1", "theta2"))


def kernel_of(num_inputs, dissimilarity, *, root=False, reflected=False):
    discrepancy = MaximumMeanDiscrepancy(dissimilarity, AtomCoordinates(reflected=reflected))
    return hyperkernel.MMDHyperKernel(num_inputs, discrepancy, root=root).double()


@each_dimension
def test_golden_discrepancies_of_pairs(archive, num_inputs):
    data = archive(f"maskerade_mmd_D{num_inputs}")
    first, second = pairs_of(data, num_inputs)
    discrepancy = MaximumMeanDiscrepancy(EnergyDistance())
    np.testing.assert_allclose(discrepancy.prepare(first).self_term, data["self1"], rtol=1e-13)
    np.testing.assert_allclose(discrepancy.prepare(second).self_term, data["self2"], rtol=1e-13)
    np.testing.assert_allclose(discrepancy.between(first, second).diagonal(), data["mmd2"], rtol=0, atol=1e-14)
    for root, expected in ((False, data["kernel"]), (True, data["kernel_root"])):
        kernel = kernel_of(num_inputs, EnergyDistance(), root=root)
        kernel.lengthscale = data["ell"]
        found = data["lam2"] * kernel(first.flatten(), second.flatten(), diag=True).detach()
        exact = 1e-12 if not root else 1e-7  # a square root of rounding errors at equal mixtures
        torch.testing.assert_close(found, expected, rtol=0, atol=exact)
        torch.testing.assert_close(found[:10], expected[:10], rtol=0, atol=1e-13)


@each_dimension
def test_golden_derivatives(archive, num_inputs):
    data = {key: value[:10] for key, value in archive(f"maskerade_mmd_D{num_inputs}").items() if value.ndim}
    theta, expected = data["theta1"].requires_grad_(), data["grad_mmd2_theta1"]
    value = MaximumMeanDiscrepancy(EnergyDistance()).between(*pairs_of(data, num_inputs)).diagonal()
    (slope,) = torch.autograd.grad(value.sum(), theta)
    used = ~expected.isnan()
    torch.testing.assert_close(slope[used], expected[used], rtol=0, atol=1e-9)


@each_dimension
def test_golden_gram_matrices(archive, num_inputs):
    data = archive(f"maskerade_mmd_D{num_inputs}")
    mixtures = SpectralMixtures.unflatten(data["gram_theta"], num_inputs)
    squared = MaximumMeanDiscrepancy(EnergyDistance()).between(mixtures, mixtures)
    torch.testing.assert_close(squared, data["gram_mmd2"], rtol=0, atol=1e-13)
    for root, expected in ((False, data["gram_kernel"]), (True, data["gram_kernel_root"])):
        base = kernel_of(num_inputs, EnergyDistance(), root=root)
        kernel = gpytorch.kernels.ScaleKernel(base).double()
        kernel.outputscale, base.lengthscale = data["lam2"], data["ell"]
        found = kernel(data["gram_theta"]).to_dense().detach()
        off_diagonal = ~torch.eye(len(found), dtype=torch.bool)
        torch.testing.assert_close(found[off_diagonal], expected[off_diagonal], rtol=0, atol=1e-12)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if not root else 1e-7)
        if not root:
            assert torch.linalg.eigvalsh(found)[0].item() == pytest.approx(float(data["gram_min_eig"]), abs=1e-11)


@each_dimension
def test_golden_other_dissimilarities(archive, num_inputs):
    first, second = pairs_of(archive(f"maskerade_mmd_D{num_inputs}"), num_inputs)
    for name, dissimilarity in [
        ("energy_beta1.5", EnergyDistance(1.5)),
        ("rbf_bandwidth1", GaussianDistance(1.0)),
        ("matern52_bandwidth1", hyperkernel.MaternDistance(1.0)),
    ]:
        value = MaximumMeanDiscrepancy(dissimilarity).between(first, second).diagonal()
        expected = archive("maskerade_library_extras")[f"mmd_D{num_inputs}_{name}"]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-13)


@each_dimension
def test_golden_reflected_mixtures(archive, num_inputs):
    data = archive("maskerade_library_extras")
    mixtures = SpectralMixtures.unflatten(data[f"signed_theta_D{num_inputs}"], num_inputs)
    value = MaximumMeanDiscrepancy(EnergyDistance(), AtomCoordinates(reflected=True)).between(mixtures, mixtures)
    torch.testing.assert_close(value, data[f"signed_mmd2_D{num_inputs}"], rtol=0, atol=1e-13)


def test_discrepancies_are_the_sums_written_out():
    for dissimilarity, reflected in product(DISSIMILARITIES.values(), [False, True]):
        first, second = random_mixtures(0, 2, (5,), signed=True), random_mixtures(1, 2, (4,), size=3, signed=True)
        discrepancy = MaximumMeanDiscrepancy(dissimilarity, AtomCoordinates(reflected=reflected))
        value = discrepancy.between(first, second)
        assert value.shape == (5, 4)
        for i, j in product(range(5), range(4)):
            expected = by_loops(dissimilarity, first.take(i), second.take(j), reflected)
            assert value[i, j].item() == pytest.approx(expected, abs=1e-13)
            own = energy_by_loops(dissimilarity, first.take(i), first.take(i), reflected)
            assert discrepancy.prepare(first).self_term[i].item() == pytest.approx(own, abs=1e-13)


def test_batches_of_mixtures():
    first, second = random_mixtures(0, 2, (2, 3, 5)), random_mixtures(1, 2, (2, 3, 4), size=3)
    discrepancy = MaximumMeanDiscrepancy(EnergyDistance())
    value = discrepancy.between(first, second)
    assert value.shape == (2, 3, 5, 4)
    for index in product(range(2), range(3)):
        alone = discrepancy.between(first.take(index), second.take(index))
        torch.testing.assert_close(value[index], alone, rtol=0, atol=1e-14)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(list(DISSIMILARITIES)),
    st.booleans(),
    st.booleans(),
)
def test_order_splitting_padding_and_mirrors_change_nothing(seed, num_inputs, name, reflected, standardized):
    rng = np.random.default_rng(seed)
    one = torch.ones(num_inputs).double()
    priors = (Normal(0.3 * (not reflected) * one, 2.0 * one), LogNormal(-one, 0.35 * one)) if standardized else ()
    discrepancy = MaximumMeanDiscrepancy(DISSIMILARITIES[name], AtomCoordinates(*priors, reflected=reflected))
    mixtures = random_mixtures(seed, num_inputs, (3,), signed=True)
    others = random_mixtures(seed + 1, num_inputs, (2,), signed=True)
    value = discrepancy.between(mixtures, others)
    order = torch.tensor(rng.permutation(4))
    shuffled = SpectralMixtures(*(part[:, order] for part in tuple(mixtures)))
    share = rng.uniform(0.1, 0.9)
    weights = torch.cat([share * mixtures.weights, (1 - share) * mixtures.weights], -1)
    split = SpectralMixtures(weights, mixtures.means.repeat(1, 2, 1), mixtures.scales.repeat(1, 2, 1))
    weights, padding = torch.nn.functional.pad(mixtures.weights, (0, 2)), rng.choice([0.0, 1.0, 7.0])
    places = (torch.nn.functional.pad(part, (0, 0, 0, 2), value=padding) for part in tuple(mixtures)[1:])
    padded = SpectralMixtures(weights, *places)
    equals = [shuffled, split, padded]
    if reflected:
        signs = torch.tensor(rng.choice([-1.0, 1.0], (3, 4, 1)))  # every component by itself
        equals.append(mixtures._replace(means=signs * mixtures.means))
    for other in equals:
        torch.testing.assert_close(discrepancy.between(other, others), value, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(discrepancy.between(others, other), value.mT, rtol=1e-11, atol=1e-12)
        assert float(discrepancy.between(other, mixtures).diagonal().max()) < 1e-12
    assert bool((value >= 0).all())


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.sampled_from(list(DISSIMILARITIES)),
    st.booleans(),
    st.booleans(),
    st.floats(0.05, 20.0),
)
def test_gram_matrices_are_positive_definite(seed, num_inputs, name, root, reflected, lengthscale):
    kernel = kernel_of(num_inputs, DISSIMILARITIES[name], root=root, reflected=reflected)
    kernel.lengthscale = lengthscale
    rows = random_mixtures(seed, num_inputs, (25,), size=5, signed=reflected).flatten()
    gram = kernel(rows).to_dense().detach()
    torch.testing.assert_close(gram, gram.mT, rtol=0, atol=1e-12)
    # a root of rounding errors on the diagonal moves eigenvalues by 1e-8 over the length scale
    assert torch.linalg.eigvalsh(gram)[0] > (-1e-6 if root else -1e-12)
    assert bool((gram > -1e-300).all())
    torch.testing.assert_close(gram.diagonal(), torch.ones(25).double(), rtol=0, atol=1e-12 if not root else 1e-5)


def test_the_square_of_equation_six_is_not_positive_definite():
    """Why the exponent has the discrepancy and not its square: mixtures on a line of weights say no."""
    kernel = kernel_of(1, EnergyDistance())
    rows = random_mixtures(0, 1, (60,), size=5).flatten()
    mixtures = SpectralMixtures.unflatten(rows, 1)
    squared = MaximumMeanDiscrepancy(EnergyDistance()).between(mixtures, mixtures).square()
    smallest = [torch.linalg.eigvalsh((-squared / scale).exp())[0].item() for scale in (0.01, 0.1, 1.0, 5.0)]
    kernel.lengthscale = 1.0
    assert min(smallest) < -1e-3 < 0 < torch.linalg.eigvalsh(kernel(rows).to_dense().detach())[0].item() + 1e-12


@pytest.mark.parametrize(
    ("name", "reflected"), [("energy 0.7", False), ("energy 1.5", True), ("gaussian 0.5", True), ("matern 2", False)]
)
def test_derivatives(name, reflected):
    dissimilarity = DISSIMILARITIES[name]
    one = torch.ones(2).double()
    atoms = AtomCoordinates(HalfNormal(2.0 * one), LogNormal(-one, 0.5 * one), reflected=reflected)
    discrepancy = MaximumMeanDiscrepancy(dissimilarity, atoms)
    first = random_mixtures(3, 2, (2,), size=2, signed=True)._replace(weights=torch.rand(2, 2).double())
    first = first._replace(scales=first.scales.clamp_min(0.2))
    second = first._replace(means=first.means + 1.0)

    def function(theta1, theta2):
        return discrepancy.between(SpectralMixtures.unflatten(theta1, 2), SpectralMixtures.unflatten(theta2, 2))

    assert torch.autograd.gradcheck(function, (first.flatten().requires_grad_(), second.flatten().requires_grad_()))


@pytest.mark.parametrize("dissimilarity", SMOOTH.values(), ids=SMOOTH)
def test_derivatives_at_coincident_atoms(dissimilarity):
    """Two components of a mixture at one place, and one that another mixture shares: no kink, no infinity."""
    theta = tensor([0.4, 0.6, 0.5, 0.5, 0.3, 0.3], [0.3, 0.7, 0.5, 2.0, 0.3, 1.0]).requires_grad_()
    other = SpectralMixtures.unflatten(theta[1:].detach().clone(), 1)

    def function(theta):
        return MaximumMeanDiscrepancy(dissimilarity).between(SpectralMixtures.unflatten(theta, 1), other)[:1]

    tolerance = 1e-3 if dissimilarity == EnergyDistance(1.5) else 1e-6  # a power of 1.5 has a root for a slope
    assert torch.autograd.gradcheck(function, (theta,), atol=5 * tolerance)


def test_derivatives_of_a_gram_matrix_are_finite():
    """Every mixture meets itself on the diagonal, and one is there twice; padding is at one place."""
    for root, dissimilarity, reflected in product([False, True], DISSIMILARITIES.values(), [False, True]):
        mixtures = random_mixtures(5, 2, (6,), signed=True)
        rows = torch.cat([mixtures.flatten(), mixtures.take(slice(None, 1)).flatten()]).requires_grad_()
        kernel = kernel_of(2, dissimilarity, root=root, reflected=reflected)
        for value in (kernel(rows).to_dense(), kernel(rows, diag=True)):
            slopes = torch.autograd.grad(value.sum(), (rows, kernel.raw_lengthscale), allow_unused=True)
            assert all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)


def test_kernel_derivatives():
    for root in [False, True]:
        kernel = kernel_of(1, EnergyDistance(1.5), root=root)
        mixtures = random_mixtures(5, 1, (3,), size=2)
        present = mixtures.weights != 0
        others = random_mixtures(6, 1, (2,), size=2).flatten()

        def function(weights, means, scales, raw, kernel=kernel, present=present, others=others):
            rows = SpectralMixtures(weights.where(present, 0.0), means, scales).flatten()
            with gpytorch.settings.lazily_evaluate_kernels(False):
                return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (rows, others)).to_dense()

        arguments = [part.requires_grad_() for part in tuple(mixtures)]
        assert torch.autograd.gradcheck(function, (*arguments, kernel.raw_lengthscale.detach().requires_grad_()))


def test_diagonals_rows_and_batches_of_the_kernel():
    for root in [False, True]:
        kernel = kernel_of(2, EnergyDistance(1.5), root=root)
        rows, others = (random_mixtures(seed, 2, (2, 5)).flatten() for seed in (0, 1))
        dense = kernel(rows, others).to_dense()
        assert dense.shape == (2, 5, 5)
        diagonal = kernel(rows, others, diag=True)
        torch.testing.assert_close(diagonal, dense.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-12)
        torch.testing.assert_close(kernel(rows[0], others[0]).to_dense(), dense[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(kernel(rows, others)[1, 2:4].to_dense(), dense[1, 2:4], rtol=0, atol=1e-12)
        own = kernel(rows[0], rows[0], diag=True)
        assert own.shape == (5,)
        torch.testing.assert_close(own, torch.ones(5).double(), rtol=0, atol=1e-12 if not root else 1e-5)


def test_a_batch_of_kernels():
    kernel = kernel_of(1, EnergyDistance()).expand_batch(torch.Size([3]))
    kernel.raw_lengthscale.data = kernel.raw_lengthscale.data.clone()  # expanded: three views of one number
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0]).double().reshape(3, 1, 1)
    rows = random_mixtures(0, 1, (4,)).flatten()
    value, diagonal = kernel(rows).to_dense(), kernel(rows, rows.flip(0), diag=True)
    assert value.shape == (3, 4, 4)
    assert diagonal.shape == (3, 4)
    torch.testing.assert_close(value[0].log(), 4.0 * value[2].log())
    torch.testing.assert_close(kernel(rows, rows.flip(0)).to_dense().diagonal(dim1=-2, dim2=-1), diagonal)


def test_the_kernel_in_a_gaussian_process():
    X, Xs = random_mixtures(0, 1, (12,)).flatten(), random_mixtures(1, 1, (5,)).flatten()
    y = torch.sin(3.0 * X[:, 4])
    model = process_of(X, y, gpytorch.kernels.ScaleKernel(kernel_of(1, EnergyDistance())).double(), 0.01)
    loss = -gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model.train()(X), y)
    loss.backward()
    assert all(bool(parameter.grad.isfinite()) for parameter in model.parameters())
    posterior = model.eval()(Xs)
    with torch.no_grad():
        K = model.covar_module(X).to_dense() + 0.01 * torch.eye(12).double()
        cross = model.covar_module(Xs, X).to_dense()
        torch.testing.assert_close(posterior.mean, cross @ torch.linalg.solve(K, y), rtol=1e-8, atol=1e-8)
        expected = model.covar_module(Xs).to_dense() - cross @ torch.linalg.solve(K, cross.mT)
        torch.testing.assert_close(posterior.variance, expected.diagonal(), rtol=1e-8, atol=1e-8)


def test_chunks_change_nothing(monkeypatch):
    first, second = random_mixtures(0, 2, (13,)), random_mixtures(1, 2, (7,))
    theta = first.flatten().requires_grad_()
    for reflected in (False, True):
        discrepancy = MaximumMeanDiscrepancy(EnergyDistance(), AtomCoordinates(reflected=reflected))
        results = []
        for chunk in (1, 500, 2**21):
            monkeypatch.setattr(hyperkernel, "CHUNK", chunk)
            value = discrepancy.between(SpectralMixtures.unflatten(theta, 2), second)
            results.append((value, *torch.autograd.grad(value.square().sum(), theta)))
        for a, b in pairwise(results):
            for x, y in zip(a, b, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-14)


def test_atoms_are_standardized_by_their_priors():
    prior = HalfNormal(tensor(2.0, 4.0)), LogNormal(tensor(0.0, 1.0), tensor(0.5, 0.1))
    mixture = SpectralMixtures.unflatten(tensor(1.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0), 2)
    atoms = AtomCoordinates(*prior)(mixture)
    np.testing.assert_allclose(atoms[0], [1.5, 1.0, 0.0, (np.log(2.0) - 1.0) / 0.1], rtol=1e-13)
    assert not atoms[1].any()
    np.testing.assert_allclose(AtomCoordinates()(mixture), [[3.0, 4.0, 1.0, 2.0], [0.0] * 4])


def test_standardized_discrepancies_do_not_depend_on_the_unit():
    one, mixtures = torch.ones(2).double(), random_mixtures(0, 2, (6,))
    values = []
    for unit in (1.0, 365.25):
        atoms = AtomCoordinates(HalfNormal(2.0 * unit * one), LogNormal(np.log(0.5 * unit) * one, 0.35 * one))
        scaled = mixtures._replace(means=unit * mixtures.means, scales=unit * mixtures.scales)
        values.append(MaximumMeanDiscrepancy(EnergyDistance(), atoms).between(scaled, scaled))
    torch.testing.assert_close(*values, rtol=1e-11, atol=1e-12)


def test_single_precision():
    rows = single_precision(random_mixtures(0, 2, (8,))).flatten()
    for dissimilarity in DISSIMILARITIES.values():
        value = kernel_of(2, dissimilarity).float()(rows).to_dense()
        assert value.dtype == torch.float32
        exact = kernel_of(2, dissimilarity)(rows.double()).to_dense()
        torch.testing.assert_close(value.double(), exact, rtol=0, atol=1e-5)


def test_what_the_kernel_refuses():
    kernel = kernel_of(2, EnergyDistance())
    with pytest.raises(ValueError, match="rows of 7 numbers are no mixtures over 2 input"):
        kernel(torch.zeros(3, 7)).to_dense()
    with pytest.raises((ValueError, NotImplementedError), match="last_dim_is_batch"):
        kernel.forward(torch.zeros(3, 5), torch.zeros(3, 5), last_dim_is_batch=True)
