"""What every feature map promises, over one table of instances.

To add a map, add a line to ``CASES``: a name and a function that builds the map for inputs (N, 3) with entries
in [-1, 1], given a batch shape and a dtype. Random parts come from a generator with a fixed seed, so that two
calls build the same map.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from gpytorch import kernels
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, hessian

from gp_ensembles import features as maps
from gp_ensembles.features.additive import uniform_breakpoints
from gp_ensembles.features.batch import take_experts
from gp_ensembles.features.compose import Clamp, Concatenate, SelectColumns
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.numerics.kmeans import kmeans
from tests.refusals import refused

D = 3  # inputs of every map in the table

Build = Callable[[torch.Size, torch.dtype], maps.FeatureMap]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows in [-1, 1], shape (*shape, D)."""
    return (2 * torch.rand(*shape, D, dtype=torch.float64, generator=seeded()) - 1).to(dtype)


def ones(batch: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.ones(batch, dtype=dtype)


def radial(batch: torch.Size, dtype: torch.dtype) -> maps.FeatureMap:
    X = inputs(20, dtype=dtype)
    return maps.RadialBasisFeatures(kmeans(X, 4, generator=seeded()), 1.5 * ones(batch + (D,), dtype))


def spline(batch: torch.Size, dtype: torch.dtype) -> maps.FeatureMap:
    breakpoints = uniform_breakpoints(inputs(20, dtype=dtype), 3, 0.2)
    return maps.AdditiveSplineFeatures(breakpoints, ones(batch, dtype))


def concatenation(batch: torch.Size, dtype: torch.dtype) -> maps.FeatureMap:
    linear, constant = maps.LinearFeatures(D, ones(batch, dtype)), ConstantFeatures(D, 3 * ones(batch, dtype))
    return Concatenate([radial(batch, dtype), linear, spline(batch, dtype), constant])


def selection(batch: torch.Size, dtype: torch.dtype) -> maps.FeatureMap:
    X = inputs(20, dtype=dtype)[:, [2, 0]]
    inner = maps.RadialBasisFeatures(kmeans(X, 3, generator=seeded()), ones(batch + (1,), dtype))
    return SelectColumns(inner, [2, 0], D)


def scaled(kernel: kernels.Kernel) -> kernels.Kernel:
    return kernels.ScaleKernel(kernel, batch_shape=kernel.batch_shape)


def matern(batch: torch.Size, dtype: torch.dtype) -> kernels.Kernel:
    return scaled(kernels.MaternKernel(nu=1.5, ard_num_dims=D, batch_shape=batch)).to(dtype)


def summed(batch: torch.Size, dtype: torch.dtype) -> kernels.Kernel:
    return (scaled(kernels.RBFKernel(batch_shape=batch)) + scaled(kernels.RQKernel(batch_shape=batch))).to(dtype)


def composed(batch: torch.Size, dtype: torch.dtype) -> kernels.Kernel:
    periodic = kernels.PeriodicKernel(ard_num_dims=D, batch_shape=batch)
    product = periodic * kernels.RBFKernel(batch_shape=batch, active_dims=[2, 0])
    return (scaled(product) + kernels.LinearKernel(batch_shape=batch)).to(dtype)


def without_plain_form(batch: torch.Size, dtype: torch.dtype) -> kernels.Kernel:
    return scaled(kernels.PolynomialKernel(3, batch_shape=batch) * kernels.RBFKernel(batch_shape=batch)).to(dtype)


fourier, optimized = maps.RandomFourierFeatures.from_kernel, maps.OptimizedFourierFeatures.from_kernel
hilbert_additive, hilbert_tensor = maps.HilbertAdditiveFeatures.from_data, maps.HilbertTensorFeatures.from_data
polynomial, inducing = maps.AdditivePolynomialFeatures.from_data, maps.InducingPointFeatures
CASES: dict[str, Build] = {
    "constant": lambda b, dtype: ConstantFeatures(D, ones(b, dtype)),
    "linear": lambda b, dtype: maps.LinearFeatures(D, ones(b, dtype)),
    "linear-no-bias": lambda b, dtype: maps.LinearFeatures(D, ones(b, dtype), bias=False),
    "polynomial": lambda b, dtype: polynomial(inputs(20, dtype=dtype), 3, ones(b, dtype)),
    "radial": radial,
    "radial-trained-centers": lambda b, dtype: maps.RadialBasisFeatures(
        nn.Parameter(inputs(4, dtype=dtype)), 1.5 * ones(b + (D,), dtype)
    ),
    "spline": spline,
    "concatenate": concatenation,
    "select-columns": selection,
    "clamp": lambda b, dtype: Clamp(radial(b, dtype), *(side * ones((D,), dtype) for side in (-0.5, 0.5))),
    "fourier": lambda b, dtype: fourier(matern(b, dtype), D, 4, generator=seeded()),
    "fourier-sum": lambda b, dtype: fourier(summed(b, dtype), D, 4, generator=seeded()),
    "fourier-optimized": lambda b, dtype: optimized(matern(b, dtype), D, 4, generator=seeded()),
    "hilbert-additive": lambda b, dtype: hilbert_additive(matern(b, dtype), inputs(20, dtype=dtype), 3),
    "hilbert-tensor": lambda b, dtype: hilbert_tensor(matern(b, dtype), inputs(20, dtype=dtype), 5),
    "inducing-points": lambda b, dtype: inducing(matern(b, dtype), inputs(3, dtype=dtype)),
    "inducing-points-composed-kernel": lambda b, dtype: inducing(composed(b, dtype), inputs(3, dtype=dtype)),
    "inducing-points-any-kernel": lambda b, dtype: inducing(without_plain_form(b, dtype), inputs(3, dtype=dtype)),
    "inducing-points-trained-knots": lambda b, dtype: inducing(
        summed(b, dtype), nn.Parameter(2 * inputs(3, dtype=dtype)), 0.01
    ),
}
SINGLE, THREE = torch.Size(), torch.Size([3])
each_map = pytest.mark.parametrize("build", CASES.values(), ids=CASES)


def varied(features: maps.FeatureMap) -> maps.FeatureMap:
    """The map with its parameters moved, so that the experts of a batch differ."""
    generator = seeded()
    with torch.no_grad():
        for parameter in features.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.add_(0.2 * noise.to(parameter.dtype))
    return features


@each_map
def test_rows(build: Build) -> None:
    """Rows alone, in t-batches and of the bound map are those of a block: what comes later changes nothing."""
    for batch in (SINGLE, THREE):
        features = build(batch, torch.float64)
        F, X = features.num_features, inputs(5, 4, 6)
        assert features.num_inputs == D
        assert features.batch_shape == features.prior_variance.shape == batch
        assert bool((features.prior_variance > 0).all())
        assert features(inputs(1)).shape == (*batch, 1, F)
        together = varied(features)(X)
        assert together.shape == (5, 4, *batch, 6, F)
        alone = features(X[2, 1])
        torch.testing.assert_close(together[2, 1], alone, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(features(X[2, 1, 2:4]), alone[..., 2:4, :], rtol=1e-12, atol=1e-13)
        assert torch.equal(features.bind()(X[2, 1]), alone)


@each_map
def test_experts(build: Build) -> None:
    """The experts of a batch are those one by one, are trained separately and can be taken from it."""
    batched, single, X = varied(build(THREE, torch.float64)), build(SINGLE, torch.float64), inputs(6)
    together = batched(X)
    repeated = varied(take_experts(single, SINGLE, torch.zeros(2, dtype=torch.long)))
    assert repeated(X).shape == (2, 6, batched.num_features)
    assert float(repeated.prior_variance[0].detach()) != float(repeated.prior_variance[1].detach())
    for expert in range(3):
        state = {
            name: value if value.shape == single.state_dict()[name].shape else value[expert]
            for name, value in batched.state_dict().items()
        }
        single.load_state_dict(state)
        torch.testing.assert_close(together[expert], single(X), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(batched.prior_variance[expert], single.prior_variance)
    index = torch.tensor([2, 0, 0, 1])
    taken = take_experts(batched, THREE, index)
    assert taken.batch_shape == (4,)
    torch.testing.assert_close(taken(X), together[index], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(taken.prior_variance, batched.prior_variance[index])
    parameters = [p for p in batched.parameters() if p.requires_grad]
    value = together[1].square().sum() + batched.prior_variance[1]
    gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.shape[:1] == THREE
        assert bool((gradient[[0, 2]] == 0).all())
    for part in batched.modules():  # what is not declared in shared_tensors has the batch axis in front
        if isinstance(part, maps.FeatureMap):
            own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
            for name, tensor in own:
                assert name in part.shared_tensors or tensor.shape[:1] == THREE, name


@each_map
def test_precision_states_and_device(build: Build, wrong_default_dtype: None) -> None:
    for batch in (SINGLE, THREE):
        precise, fresh, X = build(batch, torch.float64), build(batch, torch.float64), inputs(6)
        for features in (precise, build(batch, torch.float32)):
            dtype = features.prior_variance.dtype
            assert features(X.to(dtype)).dtype == dtype
            assert {p.dtype for p in features.parameters()} == {dtype}
        before, prior_before = precise(X).clone(), precise.prior_variance.clone()
        trained = varied(copy.deepcopy(precise))
        assert torch.equal(precise(X), before)
        assert torch.equal(precise.prior_variance, prior_before)
        assert not torch.equal(trained.prior_variance, prior_before)
        fresh.load_state_dict(trained.state_dict())
        assert torch.equal(fresh(X), trained(X))
        assert torch.equal(fresh.prior_variance, trained.prior_variance)
        torch.testing.assert_close(trained.float()(X.float()).double(), fresh(X), rtol=1e-4, atol=1e-5)
    features = precise.to("meta")
    Phi = features.bind()(X.to("meta"))
    assert Phi.device.type == features.prior_variance.device.type == "meta"
    assert Phi.shape == (3, 6, features.num_features)


def as_function(features: maps.FeatureMap, X: Tensor) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Features and prior variances, flattened, as a function of the trainable hyperparameters."""
    named = {name: p for name, p in features.named_parameters() if p.requires_grad}

    def function(*values: Tensor) -> Tensor:
        state = dict(zip(named, values, strict=True))
        parts = functional_call(_Outputs(features), {f"features.{k}": v for k, v in state.items()}, (X,))
        return torch.cat([part.reshape(-1) for part in parts])

    return function, tuple(p.detach().clone().requires_grad_() for p in named.values())


class _Outputs(nn.Module):
    def __init__(self, features: maps.FeatureMap) -> None:
        super().__init__()
        self.features = features

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        Phi: Tensor = self.features(X)
        return Phi, self.features.prior_variance


@pytest.mark.processor
@each_map
def test_gradients(build: Build) -> None:
    """Of both orders, in the hyperparameters and in the inputs, and a Hessian by torch.func."""
    function, values = as_function(varied(build(torch.Size([2]), torch.float64)), inputs(1))
    assert values
    assert gradcheck(function, values)
    assert gradgradcheck(function, values)
    features = varied(build(SINGLE, torch.float64))
    X = inputs(2).requires_grad_()

    def in_inputs(X: Tensor) -> Tensor:  # the sum keeps constant and linear features in the graph
        return features(X) + X.square().sum()

    assert gradcheck(in_inputs, (X,))
    assert gradgradcheck(in_inputs, (X,))
    function, values = as_function(features, inputs(3))
    blocks = hessian(lambda parameter: function(parameter, *values[1:]).square().sum())(values[0])
    assert blocks.shape == (*values[0].shape, *values[0].shape)
    assert bool(torch.isfinite(blocks).all())


@each_map
def test_refusals(build: Build) -> None:
    """Inputs that are no matrix of finite numbers; of a map with a domain, the column and distance beyond its ends."""
    features = build(SINGLE, torch.float64)
    for bad in (float("nan"), float("inf")):
        X = inputs(6)
        X[4, 1] = bad
        with pytest.raises(ValueError, match="row 4, column 1"):
            features(X)
    refused(ValueError, r"\(\.\.\., N, 3\), got \(6, 2\)", lambda: features(inputs(6)[:, :2]))
    refused(ValueError, "shape", lambda: features(inputs(6)[0]))
    refused(TypeError, "floating point", lambda: features(inputs(6).long()))
    refused(TypeError, "floating point", lambda: features(inputs(6).numpy()))
    if features.domain is None:
        assert bool(torch.isfinite(features(1e3 * inputs(6))).all())
        return
    lower, upper = features.domain
    column = torch.isfinite(features.domain).all(0).nonzero().flatten().tolist()[-1]
    edge = inputs(2)
    edge[0, column], edge[1, column] = lower[column], upper[column]
    assert bool(torch.isfinite(features(edge)).all())
    edge[1, column] = upper[column] + 0.25
    refused(ValueError, rf"column {column} .* by 0\.25 in row 1", lambda: features(edge))
