"""Priors of functions: golden features, kernels met by random features, exact processes and their conditionals."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel, SpectralMixtureKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.fusion.gp_role import GPRole
from gp_ensembles.fusion.roles import FourierRole
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.spectral import SobolDraws


@pytest.fixture(scope="module")
def features(golden):
    return {name: torch.as_tensor(value) for name, value in np.load(golden / "fusion_features.npz").items()}


@pytest.fixture(scope="module")
def exact(golden):
    return {name: torch.as_tensor(value) for name, value in np.load(golden / "fusion_bhs_exact_gp.npz").items()}


def rbf(lengthscale=0.5, amplitude=1.0):
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = amplitude**2, lengthscale
    return kernel


def inputs(num_rows, num_inputs=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_rows, num_inputs, dtype=torch.float64, generator=generator) * 2 - 1


ROLES = {
    "fourier": FourierRole(inputs(4, 2, seed=1) * 3, 0.3, 1.7, prior_stddev=0.5),
    "ard": FourierRole(inputs(3, 2, seed=2) * 3, torch.tensor([0.3, 0.9]).double(), 0.4, prior_stddev=0.2),
    "shares": FourierRole(
        inputs(2, 2, seed=2), 2.0, 0.4, prior_stddev=0.2, frequency_weights=torch.tensor([1.0, 3.0]).double()
    ),
    "exact": GPRole(rbf(0.7, 1.3), jitter=1e-8, prior_stddev=0.5),
    "sum": GPRole(rbf(0.7, 1.3) + ScaleKernel(MaternKernel(nu=1.5)).double(), jitter=1e-8, prior_stddev=0.5),
}


def test_golden_features_in_one_and_three_dimensions(features):
    for name, X in (("1d", features["x_1d"].unsqueeze(-1)), ("3d", features["X_3d"])):
        frequencies = features[f"omega_{name}"].reshape(-1, X.shape[-1])
        num = frequencies.shape[0]
        basis = FourierRole(frequencies, features[f"lengthscale_{name}"]).basis(X)
        torch.testing.assert_close(basis.mT * math.sqrt(num), features[f"phi_{name}"], rtol=1e-12, atol=1e-13)
        if name == "1d":
            torch.testing.assert_close(basis.mT @ basis, features["gram_1d_over_M"], rtol=1e-12, atol=1e-13)


def test_golden_exact_process(exact):
    X, X_new = exact["x"].unsqueeze(-1), exact["x_star"].unsqueeze(-1)
    role = GPRole(rbf(float(exact["lengthscale"]), float(exact["amplitude"])), jitter=float(exact["jitter"]))
    # The jitter is 1e-6 of the largest eigenvalue or less: round-off of GPyTorch's distances grows that much.
    torch.testing.assert_close(exact["u"].mT @ role.basis(X), exact["w_tilde"][:, :2].mT, rtol=0, atol=1e-7)
    basis, residual = role.extend(X_new, X)
    mean = exact["w_tilde_star_conditional_mean"][:, :2].mT
    torch.testing.assert_close(exact["u"].mT @ basis, mean, rtol=1e-7, atol=1e-7)
    covariance = exact["w_tilde_star_conditional_cov"]
    torch.testing.assert_close(role.conditional_covariance(X_new, X), covariance, rtol=0, atol=1e-9)
    torch.testing.assert_close(residual, covariance.diagonal(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ROLES)
def test_prior_variance_is_the_squared_amplitude(name):
    role, X = ROLES[name], inputs(5, 2)
    amplitude = role.center[-1].exp() if isinstance(role, FourierRole) else role.kernel(X, diag=True).sqrt()
    expected = amplitude.square().expand(5) + (0 if isinstance(role, FourierRole) else role.jitter)
    torch.testing.assert_close(role.basis(X).square().sum(0), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ROLES)
def test_a_basis_follows_its_hyperparameters(name):
    """Each length scale divides its column, the amplitude multiplies, whatever the leading axes are."""
    role, X, X_new = ROLES[name], inputs(5, 2), inputs(3, 2, seed=5)
    logs = role.center + torch.linspace(-0.4, 0.5, 6 * role.center.shape[0], dtype=torch.float64).reshape(2, 3, -1)
    basis, extension = role.basis(X, logs), role.extend(X_new, X, logs)
    assert basis.shape == (2, 3, role.num_coefficients(5), 5)
    for i, j in ((0, 0), (1, 2)):
        fixed = role.fixed_at(logs[i, j])
        assert fixed.num_hyperparameters == 0
        torch.testing.assert_close(basis[i, j], fixed.basis(X), rtol=1e-9, atol=1e-9)
        one = fixed.extend(X_new, X)
        torch.testing.assert_close(extension.basis[i, j], one.basis, rtol=1e-8, atol=1e-8)
        if one.residual_variance is not None:
            torch.testing.assert_close(extension.residual_variance[i, j], one.residual_variance, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(role.basis(X, role.center), role.basis(X), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fourier", "ard", "exact"])
def test_bases_have_right_derivatives(name):
    role, X = ROLES[name], inputs(4, 2)
    logs = (role.center + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: role.basis(X, values), (logs,))
    assert torch.autograd.gradgradcheck(lambda values: role.basis(X, values), (logs,))


@pytest.mark.parametrize(
    "kernel",
    [
        rbf(0.6, 1.5),
        ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double(),
        RQKernel().double(),
        SpectralMixtureKernel(num_mixtures=1, ard_num_dims=2).double(),
        rbf(0.6, 1.5) + ScaleKernel(MaternKernel(nu=1.5)).double(),
    ],
    ids=["rbf", "matern", "rational quadratic", "spectral mixture", "sum"],
)
def test_many_frequencies_meet_the_kernel(kernel, generator):
    X = inputs(6, 2)
    role = FourierRole.from_kernel(kernel, 2, 4096, draws=SobolDraws(), generator=generator)
    with torch.no_grad():
        expected = kernel(X).to_dense()
    gram = role.basis(X).mT @ role.basis(X)
    torch.testing.assert_close(gram.diagonal(), expected.diagonal(), rtol=1e-10, atol=0)
    torch.testing.assert_close(gram, expected, rtol=0, atol=0.03 * float(expected.max()))


def test_summands_share_the_prior_variance(generator):
    """Three frequencies of two summands: two, one; each summand keeps its output scale."""
    kernel = rbf(0.6, 2.0) + rbf(0.6, 1.0)
    role = FourierRole.from_kernel(kernel, 1, 3, generator=generator)
    expected = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64) / 5
    torch.testing.assert_close(role.frequency_weights, expected)
    torch.testing.assert_close(role.center[-1].exp(), expected.new_tensor(math.sqrt(5)))


def test_the_length_scale_of_a_kernel_role_is_a_factor(generator):
    """Sampling the factor is sampling the kernel's own length scale."""
    X = inputs(4)
    role = FourierRole.from_kernel(rbf(0.6), 1, 5, prior_stddev=0.5, generator=generator)
    generator.manual_seed(20240502)
    longer = FourierRole.from_kernel(rbf(1.2), 1, 5, generator=generator)
    logs = torch.tensor([math.log(2), 0.0], dtype=torch.float64)
    torch.testing.assert_close(role.basis(X, logs), longer.basis(X))


@given(seed=st.integers(0, 10**6), num_new=st.integers(1, 4), lengthscale=st.floats(0.2, 2.0))
@settings(max_examples=25)
def test_conditionals_are_those_of_the_joint_normal(seed, num_new, lengthscale):
    """Law of total covariance: conditional covariance and that of the conditional mean make up the prior."""
    X, X_new = inputs(6, 2, seed), inputs(num_new, 2, seed + 1)
    kernel = rbf(lengthscale, 1.4)
    role = GPRole(kernel, jitter=1e-4)
    basis, residual = role.extend(X_new, X)
    with torch.no_grad():
        prior = kernel(X_new).to_dense()
        cross = kernel(X, X_new).to_dense()
    total = role.conditional_covariance(X_new, X) + basis.mT @ basis
    torch.testing.assert_close(total, prior, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(role.basis(X).mT @ basis, cross, rtol=1e-9, atol=1e-11)
    assert bool((residual >= 0).all())


def test_a_role_keeps_the_kernel_as_it_was(generator):
    kernel, X = rbf(), inputs(4)
    roles = [GPRole(kernel), FourierRole.from_kernel(kernel, 1, 5, generator=generator)]
    before = [role.basis(X) for role in roles]
    kernel.base_kernel.lengthscale = 5.0
    for role, basis in zip(roles, before, strict=True):
        assert torch.equal(role.basis(X), basis)
    assert kernel.raw_outputscale.requires_grad


def test_hyperparameters_without_a_factor_give_nan_for_their_chain_only():
    """A sampler has to reject one proposal, not to fall over with all chains."""
    role, X = GPRole(rbf(), jitter=1e-300, prior_stddev=0.5), inputs(30)
    logs = torch.tensor([[5.0, 0.0], [-9.0, 0.0]], dtype=torch.float64)
    basis = role.basis(X, logs)
    assert bool(basis[0].isnan().all())
    assert bool(basis[1].isfinite().all())
    with pytest.raises(NumericalError, match="larger jitter"):
        role.fixed_at(logs[0]).basis(X)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FourierRole(torch.ones(3, 1, dtype=torch.int64)), TypeError, "floating point"),
        (lambda: FourierRole(torch.ones(3)), ValueError, r"\(M, D\)"),
        (lambda: FourierRole(torch.full((3, 1), math.nan)), ValueError, "finite"),
        (lambda: FourierRole(torch.ones(3, 1), 0.0), ValueError, "lengthscale must be positive"),
        (lambda: FourierRole(torch.ones(3, 1), torch.ones(2)), ValueError, "lengthscale"),
        (lambda: FourierRole(torch.ones(3, 1), 1.0, -1.0), ValueError, "amplitude must be positive"),
        (lambda: FourierRole(torch.ones(3, 1), 1.0, torch.ones(2)), ValueError, "one number"),
        (lambda: FourierRole(torch.ones(3, 1), prior_stddev=0.0), ValueError, "None to keep"),
        (lambda: FourierRole(torch.ones(3, 1), frequency_weights=torch.ones(2)), ValueError, r"shape \(3,\)"),
        (lambda: FourierRole.from_kernel(PeriodicKernel(), 1, 5), TypeError, "no registered spectral form"),
        (lambda: FourierRole.from_kernel(RBFKernel(batch_shape=torch.Size([2])), 1, 5), ValueError, "batch"),
        (lambda: GPRole(RBFKernel(batch_shape=torch.Size([2]))), ValueError, "batch"),
        (lambda: GPRole(RBFKernel(), jitter=0.0), ValueError, "jitter"),
        (lambda: GPRole(RBFKernel(), prior_stddev=-1.0), ValueError, "prior_stddev"),
        (lambda: ROLES["fourier"].fixed_at(torch.zeros(3)), ValueError, "2 finite logarithms"),
        (lambda: ROLES["exact"].fixed_at(torch.full((2,), math.inf)), ValueError, "2 finite logarithms"),
    ],
)
def test_what_makes_no_role_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
