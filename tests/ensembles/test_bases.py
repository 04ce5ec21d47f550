"""Recipes: what their experts are called, and how many features they have."""

import math

import pytest
import torch

from gp_ensembles.ensembles.bases import (
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    OptimizedFourierBasis,
    PolynomialBasis,
    RadialBasis,
    SplineBasis,
)

EVERY = [FourierBasis, OptimizedFourierBasis, HilbertBasis, RadialBasis, PolynomialBasis, LinearBasis, SplineBasis]


def rows(num_rows=60):
    return torch.randn(num_rows, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def names_of(*bases):
    return [name for basis in bases for name, _ in basis.build(rows())]


def test_default_recipes_have_short_names():
    expected = ["rff", "off", "hsgp", "rbf", "poly2", "poly3", "poly4", "linear", "spline"]
    assert names_of(*(kind() for kind in EVERY)) == expected


def test_names_tell_what_is_not_default():
    bases = FourierBasis(nu=1.5), FourierBasis(20, starts=(0.5, 2.0)), FourierBasis(nu=math.inf)
    assert names_of(*bases) == ["rff nu=1.5", "rff num_features=20 starts=0.5:2", "rff"]
    bases = HilbertBasis(4, 2.5), RadialBasis(7), SplineBasis(3)
    assert names_of(*bases) == ["hsgp num_frequencies=4 nu=2.5", "rbf num_centers=7", "spline num_intervals=3"]
    bases = HilbertBasis(name="my own"), PolynomialBasis((2, 3), name="power "), SplineBasis(name="s")
    assert names_of(*bases) == ["my own", "power 2", "power 3", "s"]


@pytest.mark.parametrize("num_columns", [200, 201, 1000, 2500])
def test_additive_bases_of_many_columns_have_a_bounded_size(num_columns):
    X = torch.randn(40, num_columns, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    bases = (HilbertBasis(starts=(0.7,)), PolynomialBasis(), SplineBasis())
    if num_columns == 200:  # warnings are errors here
        maps = [features for basis in bases for _, features in basis.build(X)]
        assert [features.num_features for features in maps] == [2000, 401, 601, 801, 2201]
        return
    with pytest.warns(UserWarning, match=f"each of {num_columns} columns has") as reported:
        maps = [features for basis in bases for _, features in basis.build(X)]
    assert len(reported) == (2 if num_columns == 201 else 3)
    assert all(features.num_features <= max(2000, 4 * num_columns) + 1 for features in maps)
    assert len(maps) == (5 if num_columns == 201 else 3)
    Phi = maps[0](X)
    assert Phi.shape[-1] == maps[0].num_features
    assert bool(torch.isfinite(Phi).all())
