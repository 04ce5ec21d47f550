"""Linear and constant features against the frozen numbers of the reference and closed forms."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.linear import ConstantFeatures


def test_golden_design_matrix(golden: Path) -> None:
    data, expert = np.load(golden / "data_synth.npz"), np.load(golden / "expert_linear.npz")
    features = LinearFeatures(5, dtype=torch.float64)
    for inputs, design in (("X", "phi"), ("X_new", "phi_new")):
        Phi = features(torch.as_tensor(data[inputs]))
        assert torch.equal(Phi, torch.as_tensor(expert[design]))


@given(st.floats(1e-8, 1e8), st.integers(1, 4))
def test_prior_variance_starts_where_asked(value: float, num_experts: int) -> None:
    start = torch.full((num_experts,), value, dtype=torch.float64)
    for features in (LinearFeatures(2, start), ConstantFeatures(2, start)):
        torch.testing.assert_close(features.prior_variance, start, rtol=1e-12, atol=0.0)
        assert features.batch_shape == (num_experts,)


def test_prior_variance_must_be_positive() -> None:
    for kind, bad in itertools.product((LinearFeatures, ConstantFeatures), (0.0, -1.0, float("nan"), float("inf"))):
        with pytest.raises(ValueError, match="prior_variance must be positive and finite"):
            kind(2, torch.tensor([1.0, bad]))


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"prior_variance must be a floating point tensor, got torch\.int64"):
        LinearFeatures(2, torch.tensor(1))
    with pytest.raises(TypeError, match="requested dtype"):
        LinearFeatures(2, torch.ones(()), dtype=torch.float64)
    with pytest.raises(ValueError, match="at least one input"):
        LinearFeatures(0, dtype=torch.float64)
    with pytest.raises(ValueError, match="row 1, column 0"):
        LinearFeatures.from_data(torch.tensor([[0.0, 1.0], [float("nan"), 1.0]]))
