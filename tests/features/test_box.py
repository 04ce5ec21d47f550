"""Boxes of Hilbert-space features: the rules, and how much prior variance the walls take."""

import math

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.features import HilbertAdditiveFeatures
from gp_ensembles.features.hilbert import Box, box_from_data

RBF = math.inf
EDGE_LOSS = {RBF: 4e-4, 2.5: 5e-3, 1.5: 8e-3, 0.5: 0.019}  # as documented: kappa(4 l)
ENDS = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)  # half the range is one
SHARES = [0.02, 0.1, 0.2, 0.3, 0.375, 0.5, 0.8, 1.0, 1.5, 3.0, 10.0]
each_kernel = pytest.mark.parametrize("nu", sorted(EDGE_LOSS))


def kernel_of(nu: float, *lengthscale: float) -> Kernel:
    D = len(lengthscale)
    kernel = (RBFKernel(ard_num_dims=D) if nu == RBF else MaternKernel(nu=nu, ard_num_dims=D)).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


@torch.no_grad()
def variance_with_walls(kernel: Kernel, half_width: float, X: Tensor) -> Tensor:
    """Prior variance of infinitely many features: the kernel minus its images in the walls at -L and L."""
    shifts = 4 * half_width * torch.arange(-60, 61, dtype=X.dtype)
    here = kernel(X.new_zeros(1, 1), shifts[:, None]).to_dense().sum()
    images = kernel(2 * X + 2 * half_width, shifts[:, None]).to_dense().sum(-1)
    return here - images


@pytest.mark.parametrize(("nu", "num_frequencies"), [(RBF, 60), (2.5, 400), (1.5, 3000)])
def test_many_features_are_the_kernel_with_images(nu: float, num_frequencies: int) -> None:
    kernel, X = kernel_of(nu, 0.5), torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    features = HilbertAdditiveFeatures(kernel, Box(X.new_zeros(1), X.new_full((1,), 1.2)), num_frequencies)
    variance = features(X).square().sum(-1).detach()
    torch.testing.assert_close(variance, variance_with_walls(kernel, 1.2, X), rtol=0, atol=1e-8)


@each_kernel
def test_the_edges_of_the_warm_up_keep_their_variance(nu: float) -> None:
    worst = 0.0
    for share in SHARES:
        kernel = kernel_of(nu, share)
        box = box_from_data(kernel, ENDS)
        lost = 1 - variance_with_walls(kernel, float(box.half_width), ENDS)
        assert float(lost.max() - lost.min()) < 1e-12
        worst = max(worst, float(lost.max()))
    assert worst < EDGE_LOSS[nu]
    assert worst > 0.5 * EDGE_LOSS[nu]  # the bound is not slack


def test_rules() -> None:
    for nu, factor in ((RBF, 3.2), (2.5, 4.1), (1.5, 4.5), (0.5, 4.5)):
        short, medium, long = (float(box_from_data(kernel_of(nu, s), ENDS).half_width) for s in (0.05, 0.3, 4.0))
        assert short == pytest.approx(1.2)
        assert medium == pytest.approx(1.0 + 2 * 0.3)
        assert long == pytest.approx(factor * 4.0)
        scaled = ScaleKernel(kernel_of(nu, 4.0)).double()
        assert float(box_from_data(scaled, ENDS).half_width) == pytest.approx(factor * 4.0)
        assert float(box_from_data(scaled, ENDS, lengthscale_factor=6.0).half_width) == pytest.approx(24.0)
        assert float(box_from_data(scaled, ENDS, 50.0).half_width) == pytest.approx(50.0)


def test_columns_have_their_own_width_and_unseen_ones_their_range() -> None:
    X = torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 9.0]], dtype=torch.float64)
    kernel = RBFKernel(ard_num_dims=2, active_dims=[2, 0]).double()
    kernel.lengthscale = torch.tensor([0.1, 1.0], dtype=torch.float64)
    box = box_from_data(kernel, X)
    torch.testing.assert_close(box.half_width, X.new_tensor([3.2, 1.0, 4.8]))
    torch.testing.assert_close(box.center, X.new_tensor([1.0, 5.0, 5.0]))


def test_factors_out_of_range() -> None:
    for factors, words in [
        ({"boundary_factor": 1.0}, "boundary_factor must be above 1, got 1"),
        ({"lengthscale_factor": 0.0}, "lengthscale_factor must be positive, got 0"),
        ({"edge_factor": -0.1}, "edge_factor must be zero or positive, got -0.1"),
        ({"edge_factor": math.nan}, "edge_factor must be zero or positive, got nan"),
    ]:
        with pytest.raises(ValueError, match=words):
            box_from_data(kernel_of(RBF, 1.0), ENDS, **factors)
