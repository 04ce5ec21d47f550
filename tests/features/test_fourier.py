"""Fourier features: kernels, rates, sums, stacking, errors."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Positive
from gpytorch.kernels import (
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.priors import GammaPrior
from torch import Tensor

from gp_ensembles.features import OptimizedFourierFeatures, RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.spectral import IIDDraws, OrthogonalDraws, SobolDraws
from gp_ensembles.spectral.frequencies import BaseDraws
from tests.refusals import refused


def mixture() -> Kernel:
    kernel = SpectralMixtureKernel(num_mixtures=3, ard_num_dims=1)
    kernel.mixture_weights = torch.tensor([0.2, 0.5, 1.3])
    kernel.mixture_means = torch.tensor([0.05, 0.4, 1.0]).reshape(3, 1, 1)
    kernel.mixture_scales = torch.tensor([0.3, 0.1, 0.2]).reshape(3, 1, 1)
    return kernel


def mixture_product() -> Kernel:
    """Three columns, two components: GPyTorch adds inside a column and multiplies the columns."""
    kernel = SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3)
    kernel.mixture_weights = torch.tensor([0.3, 0.9])
    kernel.mixture_means = torch.tensor([[[0.05, 0.3, 0.01]], [[0.4, 0.1, 0.2]]])
    kernel.mixture_scales = torch.tensor([[[0.1, 0.05, 0.2]], [[0.1, 0.15, 0.05]]])
    return kernel


def with_lengthscale(kernel: Kernel, *values: float) -> Kernel:
    kernel.lengthscale = torch.tensor(values)
    return kernel


def scaled(kernel: Kernel, outputscale: float) -> Kernel:
    result = ScaleKernel(kernel)
    result.outputscale = outputscale
    return result


def rational(alpha: float) -> Kernel:
    kernel = with_lengthscale(RQKernel(ard_num_dims=3), 0.5, 1.0, 2.0)
    kernel.alpha = alpha
    return kernel


KERNELS: dict[str, tuple[int, Callable[[], Kernel]]] = {
    "rbf": (3, RBFKernel),
    "rbf-ard": (3, lambda: with_lengthscale(RBFKernel(ard_num_dims=3), 0.5, 1.0, 2.0)),
    "m12": (3, lambda: with_lengthscale(MaternKernel(nu=0.5, ard_num_dims=3), 1.5, 1.0, 2.0)),
    "m32": (3, lambda: with_lengthscale(MaternKernel(nu=1.5, ard_num_dims=3), 0.5, 1.0, 2.0)),
    "m52": (3, lambda: with_lengthscale(MaternKernel(nu=2.5, ard_num_dims=3), 0.5, 1.0, 2.0)),
    "rq-heavy": (3, lambda: rational(0.3)),
    "rq": (3, lambda: rational(4.0)),
    "mixture": (1, mixture),
    "mixture-column": (3, lambda: scaled(_with_columns(mixture(), 1), 2.0)),
    "mixture-product": (3, mixture_product),
    "mixture-product-columns": (4, lambda: scaled(_with_columns(mixture_product(), 3, 0, 2), 2.0)),
    "mixture-product-sum": (3, lambda: scaled(mixture_product(), 0.5) + RBFKernel()),
    "scaled": (3, lambda: scaled(RBFKernel(), 2.5)),
    "scaled-twice": (3, lambda: scaled(scaled(RBFKernel(), 2.5), 0.5)),
    "active": (3, lambda: with_lengthscale(MaternKernel(nu=1.5, ard_num_dims=2, active_dims=[2, 0]), 0.5, 3.0)),
    "scaled-active": (3, lambda: scaled(RBFKernel(active_dims=[1]), 3.0)),
    "sum": (3, lambda: scaled(RBFKernel(), 2.0) + scaled(MaternKernel(nu=2.5, active_dims=[0, 2]), 0.5) + RQKernel()),
    "scaled-sum": (3, lambda: scaled(RBFKernel(active_dims=[1]) + scaled(RQKernel(), 3.0), 0.3)),
    "nested-active": (3, lambda: _with_columns(RBFKernel(active_dims=[1]) + RBFKernel(), 2, 0)),
}


def _with_columns(kernel: Kernel, *columns: int) -> Kernel:
    kernel.active_dims = torch.tensor(columns)
    return kernel


def rows(num_rows: int, num_inputs: int) -> Tensor:
    return torch.randn(num_rows, num_inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def gram(features: RandomFourierFeatures, X: Tensor) -> Tensor:
    Phi = features(X)
    return features.prior_variance[..., None, None] * (Phi @ Phi.mT)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_gram_matrix_is_the_kernel(name: str, generator: torch.Generator) -> None:
    num_inputs, build = KERNELS[name]
    kernel, X = build().double(), rows(8, num_inputs)
    size = 2 ** (15 if name in {"m12", "scaled-sum"} else 13)
    features = RandomFourierFeatures.from_kernel(kernel, num_inputs, size, draws=SobolDraws(), generator=generator)
    assert features.kernel is kernel
    with torch.no_grad():
        exact = kernel(X).to_dense()
        torch.testing.assert_close(gram(features, X) / exact[0, 0], exact / exact[0, 0], rtol=0, atol=0.01)
        torch.testing.assert_close(features.prior_variance, exact[0, 0])
        Phi = features(X)
        torch.testing.assert_close(Phi.square().sum(-1), torch.ones(8, dtype=torch.float64), rtol=1e-12, atol=0)


DRAWS = [IIDDraws(), OrthogonalDraws(), SobolDraws()]


@pytest.mark.slow
@pytest.mark.parametrize("draws", DRAWS, ids=lambda draws: type(draws).__name__)
def test_a_product_of_mixtures_converges_to_gpytorchs_kernel(draws: IIDDraws | OrthogonalDraws | SobolDraws) -> None:
    kernel, X = mixture_product().double(), rows(10, 3)
    exact = kernel(X).to_dense().detach()
    errors = []
    for num_features in (2**6, 2**8, 2**10):
        settings = {"draws": draws, "generator": torch.Generator().manual_seed(num_features)}
        maps = (RandomFourierFeatures.from_kernel(kernel, 3, num_features, **settings) for _ in range(40))
        with torch.no_grad():
            grams = torch.stack([gram(features, X) for features in maps]) / exact[0, 0]
        errors.append(float((grams - exact / exact[0, 0]).square().mean().sqrt()))
        spread = grams.std(0) / math.sqrt(40)  # without bias
        assert bool(((grams.mean(0) - exact / exact[0, 0]).abs() <= 5 * spread + 1e-9).all())
    rate = float(np.polyfit(np.log([2**6, 2**8, 2**10]), np.log(errors), 1)[0])
    assert rate < -0.6 if isinstance(draws, SobolDraws) else rate == pytest.approx(-0.5, abs=0.07)


def mean_square_error(draws: IIDDraws | OrthogonalDraws | SobolDraws, num_features: int, num_inputs: int) -> float:
    kernel, X = RBFKernel(batch_shape=torch.Size([40])).double(), rows(10, num_inputs)
    kernel.lengthscale = 2.0
    seeded = torch.Generator().manual_seed(num_features)
    features = RandomFourierFeatures.from_kernel(kernel, num_inputs, num_features, draws=draws, generator=seeded)
    with torch.no_grad():
        return float((gram(features, X) - kernel(X).to_dense()).square().mean())


def slope(draws: IIDDraws | OrthogonalDraws | SobolDraws, num_inputs: int) -> float:
    sizes = [32, 128, 512, 2048]
    errors = [0.5 * math.log(mean_square_error(draws, size, num_inputs)) for size in sizes]
    return float(np.polyfit(np.log(sizes), errors, 1)[0])


def test_rates() -> None:
    assert slope(IIDDraws(), 2) == pytest.approx(-0.5, abs=0.06)
    assert slope(SobolDraws(), 2) < -0.7
    assert slope(OrthogonalDraws(), 4) == pytest.approx(-0.5, abs=0.08)
    assert mean_square_error(OrthogonalDraws(), 512, 4) < 0.8 * mean_square_error(IIDDraws(), 512, 4)


def test_golden(golden) -> None:
    data, X = np.load(golden / "expert_rff_se.npz"), torch.as_tensor(np.load(golden / "data_synth.npz")["X"])
    normals = torch.as_tensor(data["freqs"])
    kernel = RBFKernel(ard_num_dims=5).double()
    kernel.lengthscale = torch.as_tensor(data["lengthscale"])
    features = RandomFourierFeatures(kernel, 5, BaseDraws(normals, normals.new_full((20,), 0.5)))
    expected = torch.as_tensor(data["phi"]).roll(20, -1)  # stored as cosines, sines
    torch.testing.assert_close(features(X).detach(), expected, rtol=1e-8, atol=1e-11)
    fixed = OptimizedFourierFeatures(normals / torch.as_tensor(data["lengthscale"]))
    torch.testing.assert_close(fixed(X).detach(), expected, rtol=1e-8, atol=1e-11)


def test_stacked_kernels_are_the_kernels_one_by_one(generator: torch.Generator) -> None:
    kernels = [scaled(with_lengthscale(RBFKernel(active_dims=[1]), s), s) + rational(s) for s in (0.5, 1.0, 2.0)]
    kernels = [kernel.double() for kernel in kernels]
    features = RandomFourierFeatures.from_kernel(stack_kernels(kernels), 3, 11 * 2, generator=generator)
    X = rows(5, 3)
    torch.testing.assert_close(features.kernel(X).to_dense(), torch.stack([k(X).to_dense() for k in kernels]))
    Phi = features(X)
    for expert, kernel in enumerate(kernels):
        alone = RandomFourierFeatures(kernel, 3, BaseDraws(features.normals[expert], features.uniforms[expert]))
        torch.testing.assert_close(Phi[expert], alone(X), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(features.prior_variance[expert], alone.prior_variance)


def test_stacking_keeps_constraints_and_priors_and_copies() -> None:
    def build() -> Kernel:
        return RBFKernel(lengthscale_constraint=GreaterThan(0.3), lengthscale_prior=GammaPrior(3.0, 6.0))

    kernels = [build(), build()]
    stacked = stack_kernels(kernels)
    assert stacked.batch_shape == (2,)
    assert float(stacked.raw_lengthscale_constraint.lower_bound) == pytest.approx(0.3)
    assert [name for name, *_ in stacked.named_priors()] == ["lengthscale_prior"]
    with torch.no_grad():
        stacked.raw_lengthscale.add_(1.0)
    assert float(kernels[0].raw_lengthscale.detach()) == 0.0


def test_stacking_refuses_what_differs() -> None:
    for other in (MaternKernel(), ScaleKernel(RBFKernel()), RBFKernel(ard_num_dims=2), RBFKernel().double()):
        with pytest.raises(ValueError, match="kernel 1 differs in structure from kernel 0"):
            stack_kernels([RBFKernel(), other])
    with pytest.raises(ValueError, match=r"nu=0.5 against MaternKernel with nu=1.5"):
        stack_kernels([MaternKernel(nu=1.5), MaternKernel(nu=0.5)])
    refused(ValueError, "active_dims", lambda: stack_kernels([RBFKernel(active_dims=[0]), RBFKernel(active_dims=[1])]))
    exponential = RBFKernel(lengthscale_constraint=Positive(transform=torch.exp, inv_transform=torch.log))
    with pytest.raises(ValueError, match=r"raw_lengthscale_constraint.*transform exp against .*Softplus"):
        stack_kernels([RBFKernel(), exponential])
    refused(ValueError, "no kernel", lambda: stack_kernels([]))
    with pytest.raises(ValueError, match=r"kernel 0 has batch shape \(2,\)"):
        stack_kernels([RBFKernel(batch_shape=torch.Size([2]))])


def test_unknown_kernels_are_named() -> None:
    class Mine(RBFKernel):
        pass

    for kernel in (PeriodicKernel(), Mine(), ScaleKernel(Mine()), ProductKernel(RBFKernel()), RBFKernel() + Mine()):
        with pytest.raises(TypeError, match=r"no registered spectral form; supported are AdditiveKernel, .*Matern"):
            RandomFourierFeatures.from_kernel(kernel, 1, 4)


def test_clear_errors() -> None:
    build = RandomFourierFeatures.from_kernel
    refused(ValueError, "must be even, got 5", lambda: build(RBFKernel(), 1, 5))
    with pytest.raises(ValueError, match="1 frequencies are too few for a kernel of 2 summands"):
        build(RBFKernel() + RBFKernel(), 1, 2)
    for columns in (1, 3):
        with pytest.raises(ValueError, match=rf"has means for 2 column\(s\) but sees {columns} input"):
            build(SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2), columns, 8)
    refused(ValueError, "RBFKernel has 2 length scales but sees 3", lambda: build(RBFKernel(ard_num_dims=2), 3, 8))
    with pytest.raises(ValueError, match=r"active_dims \[3\] of RBFKernel are not among the 2 input columns"):
        build(RBFKernel(active_dims=[3]), 2, 8)
    with pytest.raises(ValueError, match="the kernel is a sum of 2"):
        OptimizedFourierFeatures.from_kernel(RBFKernel() + RBFKernel(), 1, 8)
    refused(ValueError, "must be finite", lambda: OptimizedFourierFeatures(torch.full((1, 1), torch.nan)))
    refused(TypeError, "floating point", lambda: OptimizedFourierFeatures(torch.ones(1, 1, dtype=torch.long)))
