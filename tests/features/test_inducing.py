"""Features of knots against dense algebra, and kernels as plain functions against GPyTorch."""

from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gp_ensembles.features import InducingPointFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.numerics.cholesky import NumericalError

SINGLE, BATCH = torch.Size(), torch.Size([2])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype)


class Halved(RBFKernel):
    """A subclass that computes another kernel than its base."""

    def forward(self, x1, x2, diag=False, **params):
        return 0.5 * super().forward(x1, x2, diag=diag, **params)


def ard(kind: type[Kernel], batch: torch.Size, **arguments: float) -> Kernel:
    return kind(ard_num_dims=3, batch_shape=batch, **arguments)


KERNELS: dict[str, Callable[[torch.Size], Kernel]] = {
    "rbf": lambda b: RBFKernel(batch_shape=b),
    "rbf ard": lambda b: ard(RBFKernel, b),
    "matern 1/2": lambda b: ard(MaternKernel, b, nu=0.5),
    "matern 3/2": lambda b: ard(MaternKernel, b, nu=1.5),
    "matern 5/2": lambda b: MaternKernel(nu=2.5, batch_shape=b),
    "rational quadratic": lambda b: ard(RQKernel, b),
    "periodic": lambda b: PeriodicKernel(batch_shape=b),
    "periodic ard": lambda b: ard(PeriodicKernel, b),
    "linear": lambda b: LinearKernel(batch_shape=b),
    "linear ard": lambda b: ard(LinearKernel, b),
    "polynomial": lambda b: PolynomialKernel(2, batch_shape=b),
    "piecewise": lambda b: PiecewisePolynomialKernel(batch_shape=b),
    "halved": lambda b: Halved(batch_shape=b),
    "scaled": lambda b: ScaleKernel(ard(RBFKernel, b), batch_shape=b),
    "scaled piecewise": lambda b: ScaleKernel(PiecewisePolynomialKernel(batch_shape=b), batch_shape=b),
    "some columns": lambda b: MaternKernel(batch_shape=b, active_dims=[2, 0]),
    "some columns, scaled": lambda b: ScaleKernel(RBFKernel(batch_shape=b, active_dims=[2, 0]), batch_shape=b),
    "some columns, twice scaled": lambda b: ScaleKernel(
        ScaleKernel(PiecewisePolynomialKernel(batch_shape=b, active_dims=[2]), batch_shape=b), batch_shape=b
    ),
    "scale with columns": lambda b: ScaleKernel(RBFKernel(batch_shape=b), batch_shape=b, active_dims=[1, 2]),
    "sum and product": lambda b: (
        ScaleKernel(PeriodicKernel(batch_shape=b, active_dims=[1]) * RBFKernel(batch_shape=b), batch_shape=b)
        + LinearKernel(batch_shape=b, active_dims=[0])
        + PiecewisePolynomialKernel(batch_shape=b)
    ),
}


def build(name: str, batch: torch.Size = SINGLE) -> Kernel:
    """The kernel with its hyperparameters moved, so that the experts of a batch differ."""
    kernel = KERNELS[name](batch).double()
    with torch.no_grad():
        for number, parameter in enumerate(kernel.parameters()):
            parameter.add_(0.3 * randn(*parameter.shape, seed=number))
    return kernel


# --- kernels as plain functions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_are_those_of_gpytorch(name: str) -> None:
    """Of one expert and of a batch; at rows that coincide with knots too, where first derivatives stay finite."""
    for batch in (SINGLE, BATCH):
        kernel, Z, X = build(name, batch), randn(4, 3), randn(6, 3, seed=1)
        bound = bind_covariance(kernel)
        Z, X = Z.expand(*batch, 4, 3), X.expand(*batch, 6, 3)
        torch.testing.assert_close(bound.between(Z, X), kernel(Z, X).to_dense(), rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(bound.diagonal(X), kernel(X, diag=True), rtol=1e-12, atol=1e-14)
    kernel, X = build(name), randn(3, 3)
    bound, rows = bind_covariance(kernel), X.clone().requires_grad_()
    assert torch.allclose(bound.between(X, X).diagonal(), bound.diagonal(X), rtol=1e-9)
    value = (randn(3, 3, seed=5) * bound.between(X, rows)).sum()
    gradients = torch.autograd.grad(value, [rows, *kernel.parameters()])
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    before = bound.between(X, X + 0.1).detach().clone(), bound.diagonal(X).detach().clone()
    for parameter in kernel.parameters():
        parameter.data.add_(0.5)
    assert torch.equal(bound.between(X, X + 0.1), before[0])
    assert torch.equal(bound.diagonal(X), before[1])
    assert not torch.equal(bind_covariance(kernel).between(X, X + 0.1), before[0])


def test_matern_is_smooth_where_its_parabola_ends() -> None:
    zero = torch.zeros(1, 1, dtype=torch.float64)
    gap = torch.tensor([[1e-5 * (1 - 1e-3)], [1e-5 * (1 + 1e-3)], [1e-3]], dtype=torch.float64)
    for nu in (1.5, 2.5):
        kernel = MaternKernel(nu=nu).double()
        kernel.lengthscale = 1.0
        distance = (2.0 * nu) ** 0.5 * gap.T
        polynomial = 1 + distance + (distance.square() / 3 if nu == 2.5 else 0.0)
        found = bind_covariance(kernel).between(zero, gap)
        torch.testing.assert_close(found, polynomial * (-distance).exp(), rtol=1e-14, atol=0.0)


# --- features --------------------------------------------------------------------------------------------------------


def test_features_are_the_nystroem_approximation() -> None:
    for name in KERNELS:
        kernel, Z, X = build(name, BATCH), randn(4, 3), randn(6, 3, seed=1)
        features = InducingPointFeatures(kernel, Z, nugget=1e-3)
        with torch.no_grad():
            own, cross = kernel(Z, Z).to_dense(), kernel(X, Z).to_dense()
            variance = own.diagonal(dim1=-2, dim2=-1).mean(-1)
            inverse = torch.linalg.inv(own + 1e-3 * variance[:, None, None] * eye(own))
            Phi = features(X)
            torch.testing.assert_close(features.prior_variance, variance, msg=name)
            approximation = variance[:, None, None] * Phi @ Phi.mT
            torch.testing.assert_close(approximation, cross @ inverse @ cross.mT, rtol=1e-9, atol=1e-11, msg=name)
            left = (kernel(X.expand(2, 6, 3), diag=True) - approximation.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0)
            torch.testing.assert_close(features.unexplained(X), left, rtol=1e-9, atol=1e-10, msg=name)
            assert features.unexplained(randn(5, 7, 3)).shape == (5, 2, 7)


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 6), st.floats(-50, 50), st.integers(0, 2**31))
def test_knots_explain_themselves_and_nothing_more(num_inputs: int, num_knots: int, shift: float, seed: int) -> None:
    """At the knots all but the nugget is explained; anywhere between nothing and all; far away nothing."""
    knots = randn(num_knots, num_inputs, seed=seed) + shift
    kernel = ScaleKernel(RBFKernel()).double()
    features = InducingPointFeatures(kernel, knots, nugget=1e-6)
    with torch.no_grad():
        variance = float(features.prior_variance)
        assert bool((features.unexplained(knots) <= 2e-6 * variance).all())
        anywhere = features.unexplained(randn(9, num_inputs, seed=seed + 1) + shift)
        assert bool((anywhere >= 0.0).all())
        assert bool((anywhere <= variance * (1 + 1e-12)).all())
        torch.testing.assert_close(features.unexplained(knots + 1e3), torch.full_like(knots[:, 0], variance))


def test_kernels_and_knots_of_each_expert() -> None:
    kernels = [build("scaled") for _ in range(3)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 1.0 + number
    knots, X = randn(3, 4, 3), randn(6, 3, seed=1)
    together = InducingPointFeatures(stack_kernels(kernels), knots, nugget=knots.new_tensor([1e-6, 1e-4, 1e-2]))
    assert together.batch_shape == (3,)
    for number, kernel in enumerate(kernels):
        single = InducingPointFeatures(kernel, knots[number], nugget=(1e-6, 1e-4, 1e-2)[number])
        torch.testing.assert_close(together(X)[number], single(X), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together.unexplained(X)[number], single.unexplained(X))


def test_coinciding_knots_need_a_nugget() -> None:
    knots = torch.zeros(3, 1, dtype=torch.float64)
    kernel = RBFKernel().double()
    assert bool(torch.isfinite(InducingPointFeatures(kernel, knots)(knots)).all())
    with pytest.raises(NumericalError, match=r"covariance of the knots .*; use float64, a larger nugget"):
        InducingPointFeatures(kernel, knots, nugget=0.0).bind()


def test_bad_arguments() -> None:
    for change, message in [
        ({"knots": torch.zeros(3, dtype=torch.float64)}, "shape"),
        ({"knots": torch.full((3, 2), torch.nan, dtype=torch.float64)}, "row 0, column 0"),
        ({"knots": randn(2, 3, 2)}, r"batch shape \(\)"),
        ({"nugget": -1.0}, "nugget .* at least 0"),
        ({"nugget": float("nan")}, "nugget"),
        ({"nugget": torch.full((3,), 1e-6)}, r"nugget must be a number or have shape \(\), got \(3,\)"),
        ({"kernel": RBFKernel(ard_num_dims=3).double()}, "does not take the knots' 2 columns"),
        ({"kernel": RBFKernel(active_dims=[4]).double()}, "does not take the knots' 2 columns"),
        ({"kernel": MultitaskKernel(RBFKernel(), 2).double()}, r"\(6, 6\) instead of \(3, 3\)"),
        ({"kernel": LinearKernel().double(), "knots": torch.zeros(3, 2, dtype=torch.float64)}, "positive variance"),
    ]:
        arguments = {"kernel": RBFKernel().double(), "knots": randn(3, 2), **change}
        with pytest.raises(ValueError, match=message):
            InducingPointFeatures(**arguments)
    with pytest.raises(TypeError, match=r"\.to\("):
        InducingPointFeatures(RBFKernel(), randn(3, 2))
    with pytest.raises(TypeError, match="floating point"):
        InducingPointFeatures(RBFKernel(), torch.zeros(3, 2, dtype=torch.long))
