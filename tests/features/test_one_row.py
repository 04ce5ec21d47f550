"""Feature maps at one row on plain arrays are what the maps themselves say."""

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles.experts.linear_rows import RowFeatures
from gp_ensembles.features import (
    AdditivePolynomialFeatures,
    FeatureMap,
    HilbertAdditiveFeatures,
    LinearFeatures,
    RadialBasisFeatures,
    RandomFourierFeatures,
)
from gp_ensembles.features.compose import Clamp, SelectColumns
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.numerics.kmeans import kmeans

D = 4
X = torch.randn(30, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def scaled(num_inputs: int, batch: tuple[int, ...] = (), nu: float | None = None, **settings: object) -> ScaleKernel:
    shape = torch.Size(batch)
    kind = RBFKernel if nu is None else MaternKernel
    settings = settings if nu is None else settings | {"nu": nu}
    kernel = ScaleKernel(kind(ard_num_dims=num_inputs, batch_shape=shape, **settings), batch_shape=shape).double()
    kernel.base_kernel.lengthscale = torch.linspace(0.5, 2.0, num_inputs, dtype=torch.float64)
    kernel.outputscale = torch.linspace(0.5, 2.0, max(1, sum(batch)), dtype=torch.float64).reshape(shape)
    return kernel


def fourier(batch: tuple[int, ...], num_inputs: int = D) -> FeatureMap:
    generator = torch.Generator().manual_seed(1)
    return RandomFourierFeatures.from_kernel(scaled(num_inputs, batch), num_inputs, 12, generator=generator)


def hilbert(kernel: ScaleKernel, rows: torch.Tensor) -> FeatureMap:
    return HilbertAdditiveFeatures.from_data(kernel, rows, 5)


def radial() -> FeatureMap:
    return RadialBasisFeatures(kmeans(X, 6), torch.tensor([[0.5], [1.0]], dtype=torch.float64))


one = torch.ones((), dtype=torch.float64)
MAPS = {
    "fourier": lambda: fourier(()),
    "three fourier": lambda: fourier((3,)),
    "fourier of some columns": lambda: SelectColumns(fourier((2,), 2), [3, 1], D),
    "hilbert": lambda: hilbert(scaled(D), X),
    "two hilbert": lambda: hilbert(scaled(D, (2,), 1.5), X),
    "hilbert of active columns": lambda: hilbert(scaled(2, active_dims=[2, 0]), X),
    "hilbert of some columns": lambda: SelectColumns(hilbert(scaled(2, (2,)), X[:, [1, 3]]), [1, 3], D),
    "hilbert within its box": lambda: Clamp.to_domain(hilbert(scaled(D), X[:10])),
    "hilbert of some columns within their box": lambda: SelectColumns(
        Clamp.to_domain(hilbert(scaled(2), X[:10, [1, 3]])), [1, 3], D
    ),
    "linear within a box": lambda: Clamp(LinearFeatures(D, one), -0.5 * torch.ones(D).double(), torch.ones(D).double()),
    "fourier within a box": lambda: Clamp(fourier(()), -torch.ones(D).double(), torch.ones(D).double()),
    "radial within a box": lambda: Clamp(radial(), -torch.ones(D).double(), torch.ones(D).double()),
    "linear": lambda: LinearFeatures(D, one),
    "linear without bias": lambda: LinearFeatures(D, one, bias=False),
    "constant": lambda: ConstantFeatures(D, one),
    "radial": radial,
    "polynomial of some columns": lambda: SelectColumns(AdditivePolynomialFeatures(2, 3, one), [0, 2], D),
}


@torch.no_grad()
def check(maps: list[FeatureMap]) -> None:
    row = RowFeatures(maps)
    for x in X:  # some outside of boxes
        row.fill(x.numpy())
        assert len(row.designs) == len(maps)
        for design, features in zip(row.designs, maps, strict=True):
            predicted = features(x.unsqueeze(0)).squeeze(-2).reshape(-1, features.num_features).numpy()
            np.testing.assert_allclose(design, predicted, rtol=1e-10, atol=1e-12)


def test_maps_alone_and_all_at_once_in_their_order() -> None:
    names = list(MAPS)
    for name in names:
        check([MAPS[name]()])
    check([MAPS[name]() for name in names])
    check([MAPS[name]() for name in reversed(names)])
