"""Additive B-splines against SciPy and their known properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline
from torch import Tensor

from gp_ensembles.features import AdditiveSplineFeatures
from gp_ensembles.features.additive import uniform_breakpoints
from tests.refusals import refused


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def breakpoints_of(num_inputs: int, num_intervals: int, seed: int) -> Tensor:
    """Uneven breakpoints."""
    return (rand(num_inputs, num_intervals + 1, seed=seed) + 0.1).cumsum(-1)


def blocks(features: AdditiveSplineFeatures, X: Tensor) -> Tensor:
    """The spline part, shape (N, D, splines per column)."""
    return features(X)[..., :-1].unflatten(-1, (features.num_inputs, -1))


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 4), st.integers(0, 2**31))
def test_scipy(num_inputs: int, num_intervals: int, degree: int, seed: int) -> None:
    breakpoints = breakpoints_of(num_inputs, num_intervals, seed)
    features = AdditiveSplineFeatures(breakpoints, degree=degree)
    lower, upper = breakpoints[:, 0], breakpoints[:, -1]
    X = torch.cat([lower + rand(15, num_inputs, seed=seed + 1) * (upper - lower), breakpoints.T])
    found = blocks(features, X)
    assert bool((features(X)[:, -1] == 1).all())
    for column in range(num_inputs):
        t = breakpoints[column].numpy()
        knots = np.concatenate([[t[0]] * degree, t, [t[-1]] * degree])
        expected = BSpline.design_matrix(X[:, column].numpy(), knots, degree).toarray()
        torch.testing.assert_close(found[:, column], torch.as_tensor(expected), rtol=1e-10, atol=1e-12)


def test_end_pieces_go_on_beyond_the_domain() -> None:
    """A point beyond the end by round-off alone (units converted twice) is not at the bottom of a cliff."""
    breakpoints = breakpoints_of(1, 4, 0)
    function = AdditiveSplineFeatures(breakpoints).bind()
    ends = breakpoints[:, [0, -1]].T
    beyond = ends + torch.tensor([[-1e-13], [1e-13]], dtype=torch.float64)
    torch.testing.assert_close(function(beyond), function(ends), rtol=1e-9, atol=1e-9)


def test_uniform_breakpoints() -> None:
    X = torch.tensor([[0.0, -1.0], [4.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[-2.0, 2.0, 6.0], [-2.0, 0.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(uniform_breakpoints(X, 2, 0.5), expected)


def test_wrong_arguments() -> None:
    X = rand(10, 3)
    constant = X.clone()
    constant[:, 1] = 2.0
    refused(ValueError, r"column\(s\) \[1\] of X are constant", lambda: AdditiveSplineFeatures.from_data(constant, 4))
    refused(ValueError, "at least one interval", lambda: uniform_breakpoints(X, 0, 0.1))
    refused(ValueError, "margin must not be negative", lambda: uniform_breakpoints(X, 3, -0.1))
    refused(ValueError, "at least two rows", lambda: uniform_breakpoints(X[:1], 3, 0.1))
    with pytest.raises(ValueError, match=r"breakpoints of column\(s\) \[1\]"):
        AdditiveSplineFeatures(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(ValueError, match="degree of a spline must not be negative"):
        AdditiveSplineFeatures(torch.tensor([[0.0, 1.0]]), degree=-1)
    refused(ValueError, r"shape \(D, I \+ 1\)", lambda: AdditiveSplineFeatures(torch.tensor([0.0, 1.0])))
    with pytest.raises(TypeError, match="breakpoints must be a floating point tensor"):
        AdditiveSplineFeatures(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="column 0 of X leaves the domain"):
        AdditiveSplineFeatures.from_data(X, 4, margin=0.1)(X + torch.tensor([2.0, 0, 0]))
