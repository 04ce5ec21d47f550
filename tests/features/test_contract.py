"""What every feature map promises, over one table of instances.

To add a map, add a line to ``CASES``: a name and a function that builds the map for inputs (N, 3) with entries
in [-1, 1], given a batch shape and a dtype. Random parts come from a generator with a fixed seed, so that two
calls build the same map.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, hessian

from gp_ensembles.features import (
    AdditivePolynomialFeatures,
    AdditiveSplineFeatures,
    Clamp,
    Concatenate,
    ConstantFeatures,
    FeatureMap,
    HilbertAdditiveFeatures,
    HilbertTensorFeatures,
    InducingPointFeatures,
    LinearFeatures,
    NeuralFeatures,
    OptimizedFourierFeatures,
    RadialBasisFeatures,
    RandomFourierFeatures,
    SelectColumns,
    Standardize,
)
from gp_ensembles.features.rebatch import take_experts
from gp_ensembles.features.spline import quantile_breakpoints

D = 3  # inputs of every map in the table

Build = Callable[[torch.Size, torch.dtype], FeatureMap]


class Case(NamedTuple):
    name: str
    build: Build


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows in [-1, 1], shape (*shape, D)."""
    return (2 * torch.rand(*shape, D, dtype=torch.float64, generator=seeded()) - 1).to(dtype)


def ones(batch: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.ones(batch, dtype=dtype)


def linear(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return LinearFeatures(D, ones(batch, dtype))


def polynomial(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return AdditivePolynomialFeatures.from_data(inputs(20, dtype=dtype), 3, ones(batch, dtype))


def radial(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    X = inputs(20, dtype=dtype)
    return RadialBasisFeatures.from_data(X, 4, 1.5 * ones(batch + (D,), dtype), generator=seeded())


def radial_trained(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    centers = nn.Parameter(inputs(4, dtype=dtype))
    return RadialBasisFeatures(centers, 1.5 * ones(batch + (D,), dtype))


def spline(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    breakpoints = quantile_breakpoints(inputs(20, dtype=dtype), 3, 0.2)
    return AdditiveSplineFeatures(breakpoints, ones(batch, dtype))


def network(seed: int, dtype: torch.dtype) -> nn.Module:
    body = nn.Sequential(nn.Linear(D, 4, dtype=dtype), nn.Tanh(), nn.Linear(4, 2, dtype=dtype), nn.Tanh())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return body


def neural(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    modules = [network(seed, dtype) for seed in range(batch.numel())]
    return NeuralFeatures(modules if batch else modules[0], D, 2)


def concatenation(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    constant = ConstantFeatures(D, 3 * ones(batch, dtype))
    return Concatenate([radial(batch, dtype), linear(batch, dtype), spline(batch, dtype), constant])


def selection(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    X = inputs(20, dtype=dtype)[:, [2, 0]]
    inner = RadialBasisFeatures.from_data(X, 3, ones(batch + (1,), dtype), generator=seeded())
    return SelectColumns(inner, [2, 0], D)


def standardized(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    X = inputs(20, dtype=dtype)
    unit = (X - X.mean(0)) / X.std(0, correction=0)
    return Standardize.from_data(AdditiveSplineFeatures.from_data(unit, 3, prior_variance=ones(batch, dtype)), X)


def clamped(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    half = torch.full((D,), 0.5, dtype=dtype)
    return Clamp(radial(batch, dtype), -half, half)


def matern(batch: torch.Size, dtype: torch.dtype) -> Kernel:
    base = MaternKernel(nu=1.5, ard_num_dims=D, batch_shape=batch)
    return ScaleKernel(base, batch_shape=batch).to(dtype)


def summed(batch: torch.Size, dtype: torch.dtype) -> Kernel:
    first = ScaleKernel(RBFKernel(batch_shape=batch), batch_shape=batch)
    return (first + ScaleKernel(RQKernel(batch_shape=batch), batch_shape=batch)).to(dtype)


def fourier(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return RandomFourierFeatures.from_kernel(matern(batch, dtype), D, 8, generator=seeded())


def fourier_sum(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return RandomFourierFeatures.from_kernel(summed(batch, dtype), D, 6, generator=seeded())


def fourier_optimized(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return OptimizedFourierFeatures.from_kernel(matern(batch, dtype), D, 6, generator=seeded())


def hilbert_additive(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return HilbertAdditiveFeatures.from_data(matern(batch, dtype), inputs(20, dtype=dtype), 3)


def hilbert_tensor(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return HilbertTensorFeatures.from_data(matern(batch, dtype), inputs(20, dtype=dtype), 5)


def inducing(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return InducingPointFeatures(matern(batch, dtype), inputs(5, dtype=dtype))


def inducing_trained(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    return InducingPointFeatures(summed(batch, dtype), nn.Parameter(2 * inputs(4, dtype=dtype)), 0.01)


def inducing_composed(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    periodic = PeriodicKernel(ard_num_dims=D, batch_shape=batch) * RBFKernel(batch_shape=batch, active_dims=[2, 0])
    kernel = ScaleKernel(periodic, batch_shape=batch) + LinearKernel(batch_shape=batch)
    return InducingPointFeatures(kernel.to(dtype), inputs(5, dtype=dtype))


def inducing_any(batch: torch.Size, dtype: torch.dtype) -> FeatureMap:
    kernel = PolynomialKernel(3, batch_shape=batch) * RBFKernel(batch_shape=batch)  # the first has no plain form here
    return InducingPointFeatures(ScaleKernel(kernel, batch_shape=batch).to(dtype), inputs(5, dtype=dtype))


CASES = [
    Case("constant", lambda batch, dtype: ConstantFeatures(D, ones(batch, dtype))),
    Case("linear", linear),
    Case("linear-no-bias", lambda batch, dtype: LinearFeatures(D, ones(batch, dtype), bias=False)),
    Case("polynomial", polynomial),
    Case("radial", radial),
    Case("radial-trained-centers", radial_trained),
    Case("spline", spline),
    Case("neural", neural),
    Case("concatenate", concatenation),
    Case("select-columns", selection),
    Case("standardize", standardized),
    Case("clamp", clamped),
    Case("fourier", fourier),
    Case("fourier-sum", fourier_sum),
    Case("fourier-optimized", fourier_optimized),
    Case("hilbert-additive", hilbert_additive),
    Case("hilbert-tensor", hilbert_tensor),
    Case("inducing-points", inducing),
    Case("inducing-points-composed-kernel", inducing_composed),
    Case("inducing-points-any-kernel", inducing_any),
    Case("inducing-points-trained-knots", inducing_trained),
]

SINGLE, THREE = torch.Size(), torch.Size([3])
each_map = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
each_batch = pytest.mark.parametrize("batch", [SINGLE, THREE], ids=["single", "batch"])


def varied(features: FeatureMap) -> FeatureMap:
    """The map with its parameters moved, so that the experts of a batch differ."""
    generator = seeded()
    with torch.no_grad():
        for parameter in features.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.add_(0.2 * noise.to(parameter.dtype))
    return features


@each_map
@each_batch
def test_shapes(case: Case, batch: torch.Size) -> None:
    features = case.build(batch, torch.float64)
    F = features.num_features
    assert features.num_inputs == D
    assert features.batch_shape == batch
    assert features.prior_variance.shape == batch
    assert bool((features.prior_variance > 0).all())
    assert features(inputs(6)).shape == (*batch, 6, F)
    assert features(inputs(1)).shape == (*batch, 1, F)
    assert features(inputs(5, 4, 6)).shape == (5, 4, *batch, 6, F)


@each_map
@each_batch
def test_t_batch_is_one_by_one(case: Case, batch: torch.Size) -> None:
    features, X = varied(case.build(batch, torch.float64)), inputs(2, 6)
    together = features(X)
    for t in range(2):
        torch.testing.assert_close(together[t], features(X[t]), rtol=1e-12, atol=1e-13)


@each_map
def test_batch_is_one_by_one(case: Case) -> None:
    batched, single = varied(case.build(THREE, torch.float64)), case.build(SINGLE, torch.float64)
    X = inputs(6)
    together = batched(X)
    for expert in range(3):
        state = {
            name: value if value.shape == single.state_dict()[name].shape else value[expert]
            for name, value in batched.state_dict().items()
        }
        single.load_state_dict(state)
        torch.testing.assert_close(together[expert], single(X), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(batched.prior_variance[expert], single.prior_variance)


@each_map
def test_experts_train_on_their_own(case: Case) -> None:
    """Every trainable parameter starts with the batch shape, and expert s depends on its own part only."""
    features = varied(case.build(THREE, torch.float64))
    parameters = [p for p in features.parameters() if p.requires_grad]
    assert parameters
    value = features(inputs(4))[1].square().sum() + features.prior_variance[1]
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(value, parameters, materialize_grads=True), strict=True
    ):
        assert parameter.shape[:1] == THREE
        assert bool((gradient[[0, 2]] == 0).all())


@each_map
def test_tensors_carry_the_batch_or_are_declared_shared(case: Case) -> None:
    """What is not declared in ``shared_tensors`` has the batch axis in front (experts are copied by it)."""
    features = case.build(THREE, torch.float64)
    for part in features.modules():
        if isinstance(part, FeatureMap):
            own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
            for name, value in own:
                assert name in part.shared_tensors or value.shape[:1] == THREE, name


@each_map
def test_experts_can_be_taken(case: Case) -> None:
    """Copies of chosen experts, from a batch and from a single one, as sampled hyperparameters need them."""
    features, single, X = varied(case.build(THREE, torch.float64)), case.build(SINGLE, torch.float64), inputs(6)
    index = torch.tensor([2, 0, 0, 1])
    taken = take_experts(features, THREE, index)
    assert taken.batch_shape == (4,)
    torch.testing.assert_close(taken(X), features(X)[index], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(taken.prior_variance, features.prior_variance[index])
    repeated = varied(take_experts(single, SINGLE, torch.zeros(2, dtype=torch.long)))
    assert repeated(X).shape == (2, 6, features.num_features)
    assert float(repeated.prior_variance[0].detach()) != float(repeated.prior_variance[1].detach())


@each_map
@each_batch
def test_bind_is_forward(case: Case, batch: torch.Size) -> None:
    features, X = varied(case.build(batch, torch.float64)), inputs(6)
    assert torch.equal(features.bind()(X), features(X))


@each_map
def test_rowwise(case: Case) -> None:
    """Row n of the features depends on row n of the inputs only: what comes later changes nothing."""
    features, X = varied(case.build(THREE, torch.float64)), inputs(6)
    torch.testing.assert_close(features(X)[..., 2:4, :], features(X[2:4]), rtol=1e-12, atol=1e-13)


@each_map
@each_batch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(case: Case, batch: torch.Size, dtype: torch.dtype, wrong_default_dtype: None) -> None:
    features = case.build(batch, dtype)
    assert features(inputs(6, dtype=dtype)).dtype == dtype
    assert features.prior_variance.dtype == dtype
    assert {p.dtype for p in features.parameters()} == {dtype}


@each_map
@each_batch
def test_float32_agrees_with_float64(case: Case, batch: torch.Size) -> None:
    precise = varied(case.build(batch, torch.float64))
    features = copy.deepcopy(precise).float()
    X = inputs(6)
    torch.testing.assert_close(features(X.float()).double(), precise(X), rtol=1e-4, atol=1e-5)


@each_map
def test_meta_device(case: Case) -> None:
    features = case.build(THREE, torch.float64).to("meta")
    Phi = features.bind()(inputs(6).to("meta"))
    assert Phi.device.type == "meta"
    assert Phi.shape == (3, 6, features.num_features)
    assert features.prior_variance.device.type == "meta"


def as_function(features: FeatureMap, X: Tensor) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Features and prior variances, flattened, as a function of the trainable hyperparameters."""
    named = {name: p for name, p in features.named_parameters() if p.requires_grad}

    def function(*values: Tensor) -> Tensor:
        state = dict(zip(named, values, strict=True))
        parts = functional_call(_Outputs(features), {f"features.{k}": v for k, v in state.items()}, (X,))
        return torch.cat([part.reshape(-1) for part in parts])

    return function, tuple(p.detach().clone().requires_grad_() for p in named.values())


class _Outputs(nn.Module):
    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        Phi: Tensor = self.features(X)
        return Phi, self.features.prior_variance


@pytest.mark.processor
@each_map
def test_gradients_in_hyperparameters(case: Case) -> None:
    function, values = as_function(varied(case.build(torch.Size([2]), torch.float64)), inputs(2))
    assert gradcheck(function, values)
    assert gradgradcheck(function, values)


@pytest.mark.processor
@each_map
def test_gradient_in_inputs(case: Case) -> None:
    features = varied(case.build(SINGLE, torch.float64))
    X = inputs(2).requires_grad_()

    def function(X: Tensor) -> Tensor:  # the sum keeps constant and linear features in the graph
        return features(X) + X.square().sum()

    assert gradcheck(function, (X,))
    assert gradgradcheck(function, (X,))


@pytest.mark.processor
@each_map
def test_torch_func_hessian(case: Case) -> None:
    function, values = as_function(varied(case.build(SINGLE, torch.float64)), inputs(3))
    blocks = hessian(lambda parameter: function(parameter, *values[1:]).square().sum())(values[0])
    assert blocks.shape == (*values[0].shape, *values[0].shape)
    assert bool(torch.isfinite(blocks).all())


@each_map
@each_batch
def test_state_dict_loads_into_a_fresh_object(case: Case, batch: torch.Size) -> None:
    trained, fresh, X = varied(case.build(batch, torch.float64)), case.build(batch, torch.float64), inputs(6)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh(X), trained(X))
    assert torch.equal(fresh.prior_variance, trained.prior_variance)


@each_map
def test_deepcopy_is_independent(case: Case) -> None:
    features, X = case.build(THREE, torch.float64), inputs(6)
    before, prior_before = features(X).clone(), features.prior_variance.clone()
    other = varied(copy.deepcopy(features))
    assert torch.equal(features(X), before)
    assert torch.equal(features.prior_variance, prior_before)
    assert not torch.equal(other.prior_variance, prior_before)


@each_map
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_input_is_named(case: Case, bad: float) -> None:
    X = inputs(6)
    X[4, 1] = bad
    with pytest.raises(ValueError, match="row 4, column 1"):
        case.build(SINGLE, torch.float64)(X)


@each_map
def test_wrong_inputs_are_refused(case: Case) -> None:
    features = case.build(SINGLE, torch.float64)
    with pytest.raises(ValueError, match=r"\(\.\.\., N, 3\), got \(6, 2\)"):
        features(inputs(6)[:, :2])
    with pytest.raises(ValueError, match="shape"):
        features(inputs(6)[0])
    with pytest.raises(TypeError, match="floating point"):
        features(inputs(6).long())
    with pytest.raises(TypeError, match="floating point"):
        features(inputs(6).numpy())


@each_map
def test_domain(case: Case) -> None:
    """A map with a domain accepts its ends and names the column and distance beyond them."""
    features = case.build(SINGLE, torch.float64)
    if features.domain is None:
        assert bool(torch.isfinite(features(1e3 * inputs(6))).all())
        return
    lower, upper = features.domain
    bounded = torch.isfinite(features.domain).all(0).nonzero().flatten().tolist()
    column = bounded[-1]
    edge = inputs(2)
    edge[0, column], edge[1, column] = lower[column], upper[column]
    assert bool(torch.isfinite(features(edge)).all())
    edge[1, column] = upper[column] + 0.25
    with pytest.raises(ValueError, match=rf"column {column} .* by 0\.25 in row 1"):
        features(edge)
