"""Hilbert-space features: golden numbers, convergence, boxes, multi-indices, errors."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.features import HilbertAdditiveFeatures, HilbertTensorFeatures
from gp_ensembles.features.hilbert import Box, box_from_data


def kernel_of(nu: float, *lengthscale: float, active_dims: list[int] | None = None) -> Kernel:
    D = len(lengthscale)
    settings = {"ard_num_dims": D, "active_dims": active_dims}
    kernel = (RBFKernel(**settings) if nu == float("inf") else MaternKernel(nu=nu, **settings)).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def rows(num_rows: int, num_inputs: int) -> Tensor:
    seeded = torch.Generator().manual_seed(5)
    return 3.0 + 2 * torch.rand(num_rows, num_inputs, dtype=torch.float64, generator=seeded)


@pytest.mark.parametrize(("name", "nu"), [("hsgp_se", float("inf")), ("hsgp_matern32", 1.5)])
def test_golden(golden, name: str, nu: float) -> None:
    data, X = np.load(golden / f"expert_{name}.npz"), torch.as_tensor(np.load(golden / "data_synth.npz")["X"])
    half_width = torch.as_tensor(data["L"])
    kernel = kernel_of(nu, *data["lengthscale"].tolist())
    features = HilbertAdditiveFeatures(kernel, Box(torch.zeros_like(half_width), half_width), int(data["M_per_dim"]))
    torch.testing.assert_close(features(X).detach(), torch.as_tensor(data["phi"]), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("nu", "tolerance"), [(float("inf"), 1e-4), (2.5, 1e-3), (1.5, 5e-3), (0.5, 0.06)])
def test_additive_gram_matrix_is_the_sum_of_kernels(nu: float, tolerance: float) -> None:
    kernel, X = ScaleKernel(kernel_of(nu, 0.3, 0.5)).double(), rows(20, 2)
    features = HilbertAdditiveFeatures(kernel, box_from_data(kernel, X, 2.0, 6.0), 60)
    exact = sum(kernel_of(nu, s)(X[:, [j]]).to_dense() for j, s in enumerate((0.3, 0.5)))
    Phi = features(X)
    assert float((Phi @ Phi.mT - exact).abs().max().detach()) < 2 * tolerance
    torch.testing.assert_close(features.prior_variance, kernel.outputscale)


def test_converges_fast_on_a_smooth_kernel_and_algebraically_on_a_rough_one() -> None:
    X = rows(20, 1)

    def error(nu: float, K: int) -> float:
        kernel = kernel_of(nu, 0.5)
        features = HilbertAdditiveFeatures(kernel, Box(X.new_full((1,), 4.0), X.new_full((1,), 5.0)), K)
        Phi = features(X)
        return float((Phi @ Phi.mT - kernel(X).to_dense()).abs().max().detach())

    smooth, rough = [error(float("inf"), K) for K in (8, 16, 32)], [error(1.5, K) for K in (32, 64, 128)]
    assert smooth[1] < 0.3 * smooth[0]
    assert smooth[2] < 1e-4 * smooth[1]
    ratios = [rough[0] / rough[1], rough[1] / rough[2]]  # the tail of S falls like k^-4: its sum like K^-3
    assert all(5 < ratio < 11 for ratio in ratios)


@pytest.mark.parametrize(("nu", "tolerance"), [(float("inf"), 1e-3), (2.5, 5e-3), (1.5, 0.03)])
def test_tensor_gram_matrix_is_the_kernel(nu: float, tolerance: float) -> None:
    kernel, X = kernel_of(nu, 0.7, 1.2), rows(20, 2)
    features = HilbertTensorFeatures.from_data(kernel, X, 600, box=box_from_data(kernel, X, 1.5, 4.5))
    Phi = features(X)
    assert float((Phi @ Phi.mT - kernel(X).to_dense()).abs().max().detach()) < tolerance


def test_the_largest_weights_are_chosen() -> None:
    X = rows(10, 3)
    features = HilbertTensorFeatures.from_data(kernel_of(1.5, 0.3, 0.6, 2.0), X, 30)
    grid = torch.cartesian_prod(*[torch.arange(1, 31)] * 3)
    rate = features.kernel.lengthscale.detach() / features.half_width
    sizes = (grid * rate).square().sum(-1).sort().values[:30]
    torch.testing.assert_close((features.indices * rate).square().sum(-1), sizes)
    assert len({tuple(index) for index in features.indices.tolist()}) == 30


def test_experts_have_their_own_boxes_and_share_the_domain() -> None:
    X = rows(30, 2)
    kernel = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([[[0.1, 0.1]], [[5.0, 0.1]]], dtype=torch.float64)
    for kind, size in ((HilbertAdditiveFeatures, 4), (HilbertTensorFeatures, 6)):
        features = kind.from_data(kernel, X, size)
        assert float(features.half_width[0, 0]) < 2 < 15 < float(features.half_width[1, 0])
        lower, upper = features.domain
        torch.testing.assert_close(upper - lower, 2 * features.half_width[0])
        Phi = features(X)
        for expert in range(2):
            single = kernel_of(float("inf"), *kernel.lengthscale[expert, 0].tolist())
            alone = kind.from_data(single, X, size)
            torch.testing.assert_close(Phi[expert], alone(X), rtol=1e-10, atol=1e-12)


def test_active_dims() -> None:
    X = rows(12, 3)
    features = HilbertAdditiveFeatures.from_data(ScaleKernel(kernel_of(1.5, 0.4, 0.9, active_dims=[2, 0])), X, 7)
    plain = HilbertAdditiveFeatures.from_data(kernel_of(1.5, 0.4, 0.9), X[:, [2, 0]], 7)
    torch.testing.assert_close(features(X), plain(X[:, [2, 0]]), rtol=1e-12, atol=1e-13)
    far = X.clone()
    far[:, 1] = 1e6
    torch.testing.assert_close(features(far), features(X))
    with pytest.raises(ValueError, match="use SelectColumns"):
        HilbertTensorFeatures.from_data(kernel_of(1.5, 0.4, active_dims=[0]), X, 7)


def test_clear_errors() -> None:
    X, kernel = rows(5, 2), kernel_of(1.5, 1.0, 1.0)
    build = HilbertAdditiveFeatures.from_data
    for error, words, call in (
        (TypeError, "no registered spectral density", lambda: build(PeriodicKernel(), X, 3)),
        (TypeError, r"X is torch.float32 and the kernel is torch.float64", lambda: build(kernel, X.float(), 3)),
        (ValueError, "num_frequencies must be at least 1", lambda: build(kernel, X, 0)),
        (ValueError, "has 2 length scales but sees 1", lambda: build(kernel, X[:, :1], 3)),
        (ValueError, "num_features must be at least 1", lambda: HilbertTensorFeatures.from_data(kernel, X, 0)),
    ):
        with pytest.raises(error, match=words):
            call()
    box = box_from_data(kernel, X)
    with pytest.raises(ValueError, match="1 or more, the least is 0"):
        HilbertTensorFeatures(kernel, box, torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="must be integers"):
        HilbertTensorFeatures(kernel, box, torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"must have shape \(3, 2\)"):
        HilbertAdditiveFeatures(RBFKernel(batch_shape=torch.Size([3])).double(), box, 3)
    with pytest.raises(ValueError, match="half_width must be positive"):
        HilbertAdditiveFeatures(kernel, box._replace(half_width=-box.half_width), 3)
