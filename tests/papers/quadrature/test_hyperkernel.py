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
from gp_ensembles.papers.quadrature.hyperkernel import (
    AtomCoordinates,
    EnergyDistance,
    MaternDistance,
    MaximumMeanDiscrepancy,
    MMDHyperKernel,
)
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, Normal
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures


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
    "matern": MaternDistance(),
    "matern 2": MaternDistance(2.0),
}
SMOOTH = {name: DISSIMILARITIES[name] for name in ("energy 1.5", "gaussian", "gaussian 0.5", "matern", "matern 2")}


def random_mixtures(seed, num_inputs, shape, size=4, signed=False):
    """Mixtures of 1 to ``size`` components, padded as elsewhere: means zero and scales one (or zero)."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(size), shape)
    weights[..., 1:] *= np.arange(1, size) < rng.integers(1, size + 1, (*shape, 1))
    weights /= weights.sum(-1, keepdims=True)
    present = (weights != 0)[..., None]
    means = np.abs(rng.normal(size=(*shape, size, num_inputs))) * present
    if signed:
        means = means * rng.choice([-1.0, 1.0], means.shape)
    scales = rng.lognormal(-1.0, 0.5, (*shape, size, num_inputs)) * present + (1.0 - present) * rng.integers(0, 2)
    return SpectralMixtures(*(torch.tensor(value) for value in (weights, means, scales)))


def function_of(dissimilarity, r):
    """The functions of the distance, written out with numpy."""
    if isinstance(dissimilarity, EnergyDistance):
        return r**dissimilarity.power
    r = r / dissimilarity.bandwidth
    if isinstance(dissimilarity, GaussianDistance):
        return -np.exp(-0.5 * r**2)
    return -(1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)


def energy_by_loops(dissimilarity, first, second, reflected=False):
    (w1, m1, s1), (w2, m2, s2) = ([np.asarray(part) for part in tuple(mixture)] for mixture in (first, second))
    total = 0.0
    for i, j in product(range(len(w1)), range(len(w2))):
        for sign in (1, -1) if reflected else (1,):
            r = np.sqrt(np.sum((m1[i] - sign * m2[j]) ** 2) + np.sum((s1[i] - s2[j]) ** 2))
            total += w1[i] * w2[j] * function_of(dissimilarity, r) / (2 if reflected else 1)
    return total


def by_loops(dissimilarity, first, second, reflected=False):
    cross, own1, own2 = (
        energy_by_loops(dissimilarity, *pair, reflected) for pair in ((first, second), (first, first), (second, second))
    )
    return cross - 0.5 * own1 - 0.5 * own2


def test_golden_discrepancies_of_pairs(golden):
    for num_inputs in [1, 3]:
        with np.load(golden / f"maskerade_mmd_D{num_inputs}.npz") as data:
            first, second = (
                SpectralMixtures.unflatten(torch.tensor(data[k]), num_inputs) for k in ("theta1", "theta2")
            )
            own1, own2, squared = (data[key] for key in ("self1", "self2", "mmd2"))
            lam2, ell = torch.tensor(data["lam2"]), torch.tensor(data["ell"])
            kernels = {root: data[key] for root, key in ((False, "kernel"), (True, "kernel_root"))}
        discrepancy = MaximumMeanDiscrepancy(EnergyDistance())
        np.testing.assert_allclose(discrepancy.prepare(first).self_term, own1, rtol=1e-13)
        np.testing.assert_allclose(discrepancy.prepare(second).self_term, own2, rtol=1e-13)
        value = discrepancy.between(first, second).diagonal()
        np.testing.assert_allclose(value, squared, rtol=0, atol=1e-14)
        for root, expected in kernels.items():
            kernel = MMDHyperKernel(num_inputs, discrepancy, root=root).double()
            kernel.lengthscale = ell
            found = lam2 * kernel(first.flatten(), second.flatten(), diag=True)
            exact = 1e-12 if not root else 1e-7  # a square root of rounding errors at equal mixtures
            np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=exact)
            np.testing.assert_allclose(found.detach()[:10], expected[:10], rtol=0, atol=1e-13)


def test_golden_derivatives(golden):
    for num_inputs in [1, 3]:
        with np.load(golden / f"maskerade_mmd_D{num_inputs}.npz") as data:
            theta1, theta2, expected = (
                torch.tensor(data[key][:10]) for key in ("theta1", "theta2", "grad_mmd2_theta1")
            )
        theta1.requires_grad_()
        first, second = (SpectralMixtures.unflatten(theta, num_inputs) for theta in (theta1, theta2))
        (slope,) = torch.autograd.grad(
            MaximumMeanDiscrepancy(EnergyDistance()).between(first, second).diagonal().sum(), theta1
        )
        used = ~expected.isnan()
        torch.testing.assert_close(slope[used], expected[used], rtol=0, atol=1e-9)


def test_golden_gram_matrices(golden):
    for num_inputs in [1, 3]:
        with np.load(golden / f"maskerade_mmd_D{num_inputs}.npz") as data:
            theta, ell, lam2 = (torch.tensor(data[key]) for key in ("gram_theta", "ell", "lam2"))
            grams = {False: data["gram_kernel"], True: data["gram_kernel_root"]}
            squared, smallest = data["gram_mmd2"], float(data["gram_min_eig"])
        mixtures = SpectralMixtures.unflatten(theta, num_inputs)
        np.testing.assert_allclose(
            MaximumMeanDiscrepancy(EnergyDistance()).between(mixtures, mixtures), squared, rtol=0, atol=1e-13
        )
        for root, expected in grams.items():
            base = MMDHyperKernel(num_inputs, MaximumMeanDiscrepancy(EnergyDistance()), root=root)
            kernel = gpytorch.kernels.ScaleKernel(base).double()
            kernel.outputscale, base.lengthscale = lam2, ell
            found = kernel(theta).to_dense().detach()
            off_diagonal = ~np.eye(len(theta), dtype=bool)
            np.testing.assert_allclose(found[off_diagonal], expected[off_diagonal], rtol=0, atol=1e-12)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if not root else 1e-7)
            if not root:
                assert torch.linalg.eigvalsh(found)[0].item() == pytest.approx(smallest, abs=1e-11)


def test_golden_other_dissimilarities(golden):
    for num_inputs, (name, dissimilarity) in product(
        [1, 3],
        [
            ("energy_beta1.5", EnergyDistance(1.5)),
            ("rbf_bandwidth1", GaussianDistance(1.0)),
            ("matern52_bandwidth1", MaternDistance(1.0)),
        ],
    ):
        with np.load(golden / f"maskerade_mmd_D{num_inputs}.npz") as data:
            first, second = (
                SpectralMixtures.unflatten(torch.tensor(data[k]), num_inputs) for k in ("theta1", "theta2")
            )
        with np.load(golden / "maskerade_library_extras.npz") as data:
            expected = data[f"mmd_D{num_inputs}_{name}"]
        value = MaximumMeanDiscrepancy(dissimilarity).between(first, second).diagonal()
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-13)


def test_golden_reflected_mixtures(golden):
    for num_inputs in [1, 3]:
        with np.load(golden / "maskerade_library_extras.npz") as data:
            theta, expected = torch.tensor(data[f"signed_theta_D{num_inputs}"]), data[f"signed_mmd2_D{num_inputs}"]
        mixtures = SpectralMixtures.unflatten(theta, num_inputs)
        value = MaximumMeanDiscrepancy(EnergyDistance(), AtomCoordinates(reflected=True)).between(mixtures, mixtures)
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-13)


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


def test_one_component_on_each_side():
    """The energy distance of two points is their distance to the power; the others are one less a kernel."""
    theta = torch.tensor([[1.0, 0.5, 2.0], [1.0, 3.5, 6.0]]).double()
    mixtures = SpectralMixtures.unflatten(theta, 1)
    for name, expected in {"energy": 5.0, "energy 1.5": 5.0**1.5, "gaussian": 1.0 - np.exp(-12.5)}.items():
        value = MaximumMeanDiscrepancy(DISSIMILARITIES[name]).between(mixtures, mixtures)
        np.testing.assert_allclose(value, [[0.0, expected], [expected, 0.0]], rtol=1e-15)


def test_batches_of_mixtures():
    first, second = random_mixtures(0, 2, (2, 3, 5)), random_mixtures(1, 2, (2, 3, 4), size=3)
    discrepancy = MaximumMeanDiscrepancy(EnergyDistance())
    value = discrepancy.between(first, second)
    assert value.shape == (2, 3, 5, 4)
    for index in product(range(2), range(3)):
        torch.testing.assert_close(
            value[index], discrepancy.between(first.take(index), second.take(index)), rtol=0, atol=1e-14
        )


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
    shuffled = SpectralMixtures(mixtures.weights[:, order], mixtures.means[:, order], mixtures.scales[:, order])
    share = rng.uniform(0.1, 0.9)
    split = SpectralMixtures(
        torch.cat([share * mixtures.weights, (1 - share) * mixtures.weights], -1),
        mixtures.means.repeat(1, 2, 1),
        mixtures.scales.repeat(1, 2, 1),
    )
    padding = rng.choice([0.0, 1.0, 7.0])
    padded = SpectralMixtures(
        torch.nn.functional.pad(mixtures.weights, (0, 2)),
        torch.nn.functional.pad(mixtures.means, (0, 0, 0, 2), value=padding),
        torch.nn.functional.pad(mixtures.scales, (0, 0, 0, 2), value=padding),
    )
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
    discrepancy = MaximumMeanDiscrepancy(DISSIMILARITIES[name], AtomCoordinates(reflected=reflected))
    kernel = MMDHyperKernel(num_inputs, discrepancy, root=root).double()
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
    kernel = MMDHyperKernel(1, MaximumMeanDiscrepancy(EnergyDistance())).double()
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
    means = torch.tensor([[[0.5], [0.5]], [[0.5], [2.0]]]).double()
    scales = torch.tensor([[[0.3], [0.3]], [[0.3], [1.0]]]).double()
    weights = torch.tensor([[0.4, 0.6], [0.3, 0.7]]).double()
    theta = SpectralMixtures(weights, means, scales).flatten().requires_grad_()
    other = theta[1:].detach().clone()

    def function(theta):
        mixtures = SpectralMixtures.unflatten(theta, 1)
        return MaximumMeanDiscrepancy(dissimilarity).between(mixtures, SpectralMixtures.unflatten(other, 1))[:1]

    tolerance = 1e-3 if dissimilarity == EnergyDistance(1.5) else 1e-6  # a power of 1.5 has a root for a slope
    assert torch.autograd.gradcheck(function, (theta,), atol=5 * tolerance)


def test_derivatives_of_a_gram_matrix_are_finite():
    """Every mixture meets itself on the diagonal, and one is there twice; padding is at one place."""
    for root, dissimilarity, reflected in product([False, True], DISSIMILARITIES.values(), [False, True]):
        mixtures = random_mixtures(5, 2, (6,), signed=True)
        rows = torch.cat([mixtures.flatten(), mixtures.take(slice(None, 1)).flatten()]).requires_grad_()
        kernel = MMDHyperKernel(
            2, MaximumMeanDiscrepancy(dissimilarity, AtomCoordinates(reflected=reflected)), root=root
        ).double()
        for value in (kernel(rows).to_dense(), kernel(rows, diag=True)):
            slopes = torch.autograd.grad(value.sum(), (rows, kernel.raw_lengthscale), allow_unused=True)
            assert all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)


def test_kernel_derivatives():
    for root in [False, True]:
        kernel = MMDHyperKernel(1, MaximumMeanDiscrepancy(EnergyDistance(1.5)), root=root).double()
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
        kernel = MMDHyperKernel(2, MaximumMeanDiscrepancy(EnergyDistance(1.5)), root=root).double()
        rows, others = (random_mixtures(seed, 2, (2, 5)).flatten() for seed in (0, 1))
        dense = kernel(rows, others).to_dense()
        assert dense.shape == (2, 5, 5)
        torch.testing.assert_close(
            kernel(rows, others, diag=True), dense.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(kernel(rows[0], others[0]).to_dense(), dense[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(kernel(rows, others)[1, 2:4].to_dense(), dense[1, 2:4], rtol=0, atol=1e-12)
        own = kernel(rows[0], rows[0], diag=True)
        assert own.shape == (5,)
        torch.testing.assert_close(own, torch.ones(5).double(), rtol=0, atol=1e-12 if not root else 1e-5)


def test_a_batch_of_kernels():
    kernel = MMDHyperKernel(1, MaximumMeanDiscrepancy(EnergyDistance())).double().expand_batch(torch.Size([3]))
    kernel.raw_lengthscale.data = kernel.raw_lengthscale.data.clone()  # expanded: three views of one number
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0]).double().reshape(3, 1, 1)
    rows = random_mixtures(0, 1, (4,)).flatten()
    value, diagonal = kernel(rows).to_dense(), kernel(rows, rows.flip(0), diag=True)
    assert value.shape == (3, 4, 4)
    assert diagonal.shape == (3, 4)
    torch.testing.assert_close(value[0].log(), 4.0 * value[2].log())
    torch.testing.assert_close(kernel(rows, rows.flip(0)).to_dense().diagonal(dim1=-2, dim2=-1), diagonal)


def test_the_kernel_in_a_gaussian_process():
    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                MMDHyperKernel(1, MaximumMeanDiscrepancy(EnergyDistance()))
            )

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    X, Xs = random_mixtures(0, 1, (12,)).flatten(), random_mixtures(1, 1, (5,)).flatten()
    y = torch.sin(3.0 * X[:, 4])
    model = Model(X, y, gpytorch.likelihoods.GaussianLikelihood()).double()
    model.likelihood.noise = 0.01
    model.train()
    loss = -gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(X), y)
    loss.backward()
    assert all(bool(parameter.grad.isfinite()) for parameter in model.parameters())
    model.eval()
    posterior = model(Xs)
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
    prior = (
        HalfNormal(torch.tensor([2.0, 4.0]).double()),
        LogNormal(*torch.tensor([[0.0, 1.0], [0.5, 0.1]], dtype=torch.float64)),
    )
    mixture = SpectralMixtures.unflatten(torch.tensor([1.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]).double(), 2)
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
    mixtures = SpectralMixtures(*(part.float() for part in tuple(random_mixtures(0, 2, (8,)))))
    for dissimilarity in DISSIMILARITIES.values():
        kernel = MMDHyperKernel(2, MaximumMeanDiscrepancy(dissimilarity))
        exact = MMDHyperKernel(2, MaximumMeanDiscrepancy(dissimilarity)).double()
        value = kernel(mixtures.flatten()).to_dense()
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact(mixtures.flatten().double()).to_dense(), rtol=0, atol=1e-5)


def test_what_the_kernel_refuses():
    kernel = MMDHyperKernel(2, MaximumMeanDiscrepancy(EnergyDistance()))
    with pytest.raises(ValueError, match="rows of 7 numbers are no mixtures over 2 input"):
        kernel(torch.zeros(3, 7)).to_dense()
    with pytest.raises((ValueError, NotImplementedError), match="last_dim_is_batch"):
        kernel.forward(torch.zeros(3, 5), torch.zeros(3, 5), last_dim_is_batch=True)
