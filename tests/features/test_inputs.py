"""Messages about inputs that are no matrix of finite floating point numbers."""

import numpy as np
import pytest
import torch

from gp_ensembles import features as maps
from gp_ensembles.features.base import check_matrix
from gp_ensembles.features.hilbert import box_from_data

MAP = maps.LinearFeatures(2, dtype=torch.float64)
WAYS = {
    "forward": lambda X: MAP(X),
    "linear": maps.LinearFeatures.from_data,
    "polynomial": lambda X: maps.AdditivePolynomialFeatures.from_data(X, 2),
    "spline": lambda X: maps.AdditiveSplineFeatures.from_data(X, 3),
    "radial": lambda X: maps.RadialBasisFeatures(X, torch.ones(1, dtype=torch.float64)),
    "box": lambda X: box_from_data(torch.nn.Identity(), X),
}


@pytest.mark.parametrize("way", WAYS)
def test_other_types_are_converted_as_the_error_says(way) -> None:
    for X in ([[0.0, 1.0], [2.0, 3.0]], np.arange(4.0).reshape(2, 2)):
        words = rf"X must be a floating point tensor, got {type(X).__name__}; convert it with torch\.as_tensor\(X, dtyp"
        with pytest.raises(TypeError, match=words):
            WAYS[way](X)
        check_matrix(torch.as_tensor(X, dtype=torch.float64), 2)
    X = torch.arange(4).reshape(2, 2)
    with pytest.raises(TypeError, match=r"got torch\.int64; convert it with X\.double\(\)"):
        WAYS[way](X)
    check_matrix(X.double(), 2)


def test_shapes() -> None:
    for shape in ((), (3,)):
        with pytest.raises(ValueError, match=r"X must have shape \(..., N, D\), got"):
            check_matrix(torch.zeros(shape))
        with pytest.raises(ValueError, match=r"X must have shape \(..., N, 2\), got"):
            check_matrix(torch.zeros(*shape, 3), 2)


def test_the_first_number_that_is_not_finite_is_named() -> None:
    X = torch.zeros(2, 4, 3)
    X[1, 2, 1] = torch.inf
    for columns in (None, 3):
        with pytest.raises(ValueError, match="X is inf in row 6, column 1"):
            check_matrix(X, columns)
