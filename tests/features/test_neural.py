"""Neural feature extractors: what the module says, alone and stacked, and what is refused."""

import copy

import pytest
import torch
from torch import Tensor, nn

from gp_ensembles.features import NeuralFeatures
from gp_ensembles.features.batch import take_experts


def network(seed: int, num_features: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    body = nn.Sequential(nn.Linear(2, 5, dtype=dtype), nn.SiLU(), nn.Linear(5, num_features, dtype=dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return body


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


class Waves(nn.Module):
    """A module without parameters."""

    def forward(self, X: Tensor) -> Tensor:
        return torch.cat([X.sin(), X.cos()], dim=-1)


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, dtype=torch.float64)
        self.second = self.first

    def forward(self, X: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(X)))


def test_stacked_modules_are_the_modules() -> None:
    bodies, X = [network(seed) for seed in range(3)], randn(6, 2)
    features = NeuralFeatures(bodies, 2, 4, torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(features(X), torch.stack([body(X) for body in bodies]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(features.prior_variance, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))


def test_the_module_is_copied() -> None:
    body, X = network(0), randn(6, 2)
    features = NeuralFeatures(body, 2, 4)
    before = features(X).clone()
    with torch.no_grad():
        body[0].weight.zero_()
    assert torch.equal(features(X), before)


def test_frozen_parameters_stay_frozen() -> None:
    body = network(0)
    body[0].weight.requires_grad_(False)
    features = NeuralFeatures([body, copy.deepcopy(body)], 2, 4)
    assert not features.body__0__weight.requires_grad
    assert features.body__2__weight.requires_grad


def test_tied_parameters_stay_tied() -> None:
    body, X = Tied(), randn(6, 2)
    features = NeuralFeatures([body, Tied()], 2, 2)
    torch.testing.assert_close(features(X)[0], body(X), rtol=1e-12, atol=1e-13)
    with torch.no_grad():
        features.body__first__weight.zero_()
    assert bool((features(X).std(1) < 1e-12).all())


def test_modules_without_parameters() -> None:
    X = randn(6, 2)
    single = NeuralFeatures(Waves(), 2, 4, dtype=torch.float64)
    assert torch.equal(single(X), Waves()(X))
    several = take_experts(single, single.batch_shape, torch.zeros(3, dtype=torch.long))
    assert (several(X).shape, several(X.expand(5, 6, 2)).shape) == ((3, 6, 4), (5, 3, 6, 4))


def test_two_batch_axes() -> None:
    bodies, X = [network(seed) for seed in range(3)], randn(6, 2)
    features = NeuralFeatures(bodies, 2, 4)
    expected = features(X)
    for name, value in list(features.named_parameters(recurse=False)):
        setattr(features, name, nn.Parameter(value.detach().expand(2, *value.shape).clone()))
    features.batch_shape = torch.Size([2, 3])
    torch.testing.assert_close(features(X), expected.expand(2, 3, 6, 4))


def test_batch_normalization_and_dropout_only_in_evaluation_mode() -> None:
    for part in (nn.BatchNorm1d(5, dtype=torch.float64), nn.Dropout(0.5)):
        body = network(0)
        body.insert(1, part)
        with pytest.raises(ValueError, match=r"part '1' of module 0 .* is in training mode"):
            NeuralFeatures(body, 2, 4)
        features, X = NeuralFeatures([body.eval(), copy.deepcopy(body)], 2, 4), randn(6, 2)
        torch.testing.assert_close(features(X)[1], body(X), rtol=1e-12, atol=1e-13)
        features.train()  # the copies keep their mode
        torch.testing.assert_close(features(X)[1], body(X), rtol=1e-12, atol=1e-13)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"returned shape .* expected 7 features"):
        NeuralFeatures(network(0), 2, 7)
    with pytest.raises(ValueError, match="returned shape"):
        NeuralFeatures(nn.Flatten(0), 2, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="module 1 differs in structure"):
        NeuralFeatures([network(0), network(1, num_features=3)], 2, 4)
    other = network(1)
    other[1] = nn.ReLU()  # the same parameters, another function
    with pytest.raises(ValueError, match="module 1 differs in structure"):
        NeuralFeatures([network(0), other], 2, 4)
    with pytest.raises(ValueError, match="module 1 differs in structure, dtype"):
        NeuralFeatures([network(0), network(1, dtype=torch.float32)], 2, 4)
    with pytest.raises(ValueError, match="at least one module"):
        NeuralFeatures([], 2, 4)
    with pytest.raises(ValueError, match=r"have shape \(2,\) for 2 module"):
        NeuralFeatures([network(0), network(1)], 2, 4, torch.ones(3))
    with pytest.raises(ValueError, match="prior_variance must be positive"):
        NeuralFeatures(network(0), 2, 4, -1.0)
