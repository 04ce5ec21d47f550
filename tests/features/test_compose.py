"""Maps made of maps: sums of models, selected columns, clamped inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gp_ensembles.features import AdditiveSplineFeatures, FeatureMap, LinearFeatures, RadialBasisFeatures
from gp_ensembles.features.compose import Clamp, Concatenate, SelectColumns
from gp_ensembles.features.linear import ConstantFeatures
from tests.refusals import refused


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spline(lower: float, upper: float, num_inputs: int = 2) -> AdditiveSplineFeatures:
    ends = torch.tensor([[lower, upper]], dtype=torch.float64)
    breakpoints = torch.lerp(ends[:, :1], ends[:, 1:], torch.linspace(0, 1, 4, dtype=torch.float64))
    return AdditiveSplineFeatures(breakpoints.expand(num_inputs, 4))


def covariance(features: FeatureMap, X: Tensor) -> Tensor:
    Phi = features(X)
    return features.prior_variance[..., None, None] * Phi @ Phi.mT


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3), st.integers(0, 2**31))
def test_concatenation_is_the_sum_of_the_models(variances: list[float], seed: int) -> None:
    X = rand(5, 2, seed=seed)
    prior = torch.tensor(variances, dtype=torch.float64)
    bumps = RadialBasisFeatures(rand(3, 2, seed=seed + 1), 0.5, 2 * prior)
    parts = [LinearFeatures(2, prior), bumps, ConstantFeatures(2, prior.flip(0))]
    whole = Concatenate(parts)
    total = sum(covariance(part, X) for part in parts)
    torch.testing.assert_close(covariance(whole, X), total, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(whole.prior_variance, 3 * prior + prior.flip(0))
    assert whole.num_features == 3 + 3 + 1


def test_concatenation_intersects_domains() -> None:
    whole = Concatenate([spline(-1, 2), LinearFeatures(2, dtype=torch.float64), spline(0, 3)])
    assert whole.domain.tolist() == [[0.0, 0.0], [2.0, 2.0]]
    assert Concatenate([LinearFeatures(2)]).domain is None
    refused(ValueError, r"column\(s\) \[0, 1\] have no value", lambda: Concatenate([spline(-1, 0), spline(1, 2)]))


def test_concatenation_refuses_parts_that_do_not_fit() -> None:
    one = LinearFeatures(2, torch.ones(3))
    refused(ValueError, "at least one feature map", lambda: Concatenate([]))
    with pytest.raises(ValueError, match=r"part 1 has 3 inputs and batch shape \(3,\), part 0 has 2"):
        Concatenate([one, LinearFeatures(3, torch.ones(3))])
    with pytest.raises(ValueError, match=r"part 1 has 2 inputs and batch shape \(\), part 0"):
        Concatenate([one, LinearFeatures(2)])


def test_selected_columns_embed_the_domain() -> None:
    features = SelectColumns(spline(0, 1), [2, 0], 3)
    infinity = float("inf")
    assert features.domain.tolist() == [[0.0, -infinity, 0.0], [1.0, infinity, 1.0]]
    X = torch.tensor([[0.5, 1e6, 0.5], [0.5, -1e6, 1.5]], dtype=torch.float64)
    features(X[:1])
    refused(ValueError, r"column 2 of X leaves the domain \[0, 1\] .* by 0\.5 in row 1", lambda: features(X))


def test_selected_columns_are_checked() -> None:
    inner = LinearFeatures(2)
    with pytest.raises(ValueError, match=r"column\(s\) \[4, -1\] are not among the columns 0\.\.3"):
        SelectColumns(inner, [4, -1], 4)
    refused(ValueError, r"column\(s\) \[1\] are selected twice", lambda: SelectColumns(inner, [1, 1], 4))
    refused(ValueError, "takes 2 inputs, but 1 columns", lambda: SelectColumns(inner, [1], 4))


def test_clamp_holds_inputs_at_the_edge() -> None:
    inner = spline(0, 1)
    features = Clamp.to_domain(inner)
    X = torch.tensor([[0.5, 0.5], [-3.0, 0.5], [2.0, 9.0], [0.0, 1.0]], dtype=torch.float64)
    assert torch.equal(features(X), inner(X.clamp(0, 1)))
    assert features.domain is None


def test_clamp_is_checked() -> None:
    zero, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"column\(s\) \[1\] have a box that leaves the domain"):
        Clamp(spline(0, 1), zero, torch.tensor([1.0, 1.5], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"column\(s\) \[0, 1\] have a lower end that is not below"):
        Clamp(LinearFeatures(2), one, zero)
    refused(ValueError, r"must have shape \(2,\)", lambda: Clamp(LinearFeatures(2), one[:1], one))
    refused(ValueError, "LinearFeatures is valid everywhere", lambda: Clamp.to_domain(LinearFeatures(2)))
