"""Radial basis functions against the frozen numbers of the reference and closed forms."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gp_ensembles.features import RadialBasisFeatures
from tests.refusals import refused


def direct(X: Tensor, centers: Tensor, lengthscale: Tensor) -> Tensor:
    scaled = (X.unsqueeze(-2) - centers) / lengthscale
    return (-0.5 * scaled.square().sum(-1)).exp()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_golden_design_matrix(golden: Path) -> None:
    data, expert = np.load(golden / "data_synth.npz"), np.load(golden / "expert_rbf.npz")
    centers, lengthscale = torch.as_tensor(expert["centres"]), torch.as_tensor(expert["lengthscale"])
    features = RadialBasisFeatures(centers, lengthscale, torch.as_tensor(expert["var_theta"]))
    torch.testing.assert_close(features.lengthscale, lengthscale)
    for inputs, design in (("X", "phi"), ("X_new", "phi_new")):
        Phi = features(torch.as_tensor(data[inputs]))
        torch.testing.assert_close(Phi, torch.as_tensor(expert[design]), rtol=1e-11, atol=1e-14)


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 5), st.floats(-100, 100), st.integers(0, 2**31))
def test_matrix_product_is_the_direct_formula(num_inputs: int, num_centers: int, shift: float, seed: int) -> None:
    X, centers = randn(7, num_inputs, seed=seed) + shift, randn(num_centers, num_inputs, seed=seed + 1) + shift
    lengthscale = randn(num_inputs, seed=seed + 2).exp()
    features = RadialBasisFeatures(centers, lengthscale)
    torch.testing.assert_close(features(X), direct(X, centers, features.lengthscale), rtol=1e-9, atol=1e-12)


def test_wrong_arguments() -> None:
    X = randn(6, 2)
    refused(ValueError, r"lengthscale must have shape \(\*batch, 2\)", lambda: RadialBasisFeatures(X, torch.ones(3)))
    refused(ValueError, "lengthscale must be positive", lambda: RadialBasisFeatures(X, torch.tensor([1.0, 0.0])))
    refused(ValueError, "prior_variance must be positive", lambda: RadialBasisFeatures(X, 1.0, -1.0))
    refused(TypeError, "floating point", lambda: RadialBasisFeatures(X.long(), 1.0))
