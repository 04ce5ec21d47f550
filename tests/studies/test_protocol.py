"""The stream protocol: statistics of the warm-up rows alone, there and back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.data import Table
from gp_ensembles.streaming.columns import Standardizer, constant_columns
from studies.harness.protocol import split_stream

NAN = math.nan


def made(num_rows=30, num_columns=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = 5 + 3 * torch.randn(num_rows, num_columns, dtype=torch.float64, generator=generator)
    y = -7 + 0.1 * torch.randn(num_rows, dtype=torch.float64, generator=generator)
    return Table(X, y, tuple("abcdefgh"[:num_columns]), "y", "made")


def test_exact_statistics():
    X = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]], dtype=torch.float64)
    standardizer = Standardizer.fit(X, torch.tensor([1.0, NAN, 5.0], dtype=torch.float64))
    assert standardizer.X_mean.tolist() == [2.0, 2.0]
    torch.testing.assert_close(standardizer.X_scale.square(), torch.tensor([8 / 3, 2.0], dtype=torch.float64))
    assert (float(standardizer.y_mean), float(standardizer.y_scale)) == (3.0, 2.0)
    X_std, y_std = standardizer.transform(X, torch.tensor([1.0, NAN, 9.0], dtype=torch.float64))
    assert y_std[[0, 2]].tolist() == [-1.0, 3.0]
    assert math.isnan(y_std[1])
    torch.testing.assert_close(X_std.square().mean(0), torch.ones(2, dtype=torch.float64))


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(1e-3, 1e3), mean=st.floats(-9, 9), variance=st.floats(1e-3, 9))
def test_there_and_back(shift, scale, mean, variance):
    y = shift + scale * torch.tensor([-1.0, 0.5, 0.5], dtype=torch.float64)
    standardizer = Standardizer.fit(torch.arange(3, dtype=torch.float64)[:, None], y)
    mean, variance = y.new_tensor(mean), y.new_tensor(variance)
    _, there = standardizer.transform(y[:, None], y)
    torch.testing.assert_close(standardizer.inverse_mean(there), y, rtol=1e-9, atol=1e-9)
    # A density in the target's units integrates as that of the standardized target does: compare the two Gaussians.
    standard = torch.distributions.Normal(mean, variance.sqrt()).log_prob(there)
    back = standardizer.inverse_std(variance.sqrt()).square()
    own = torch.distributions.Normal(standardizer.inverse_mean(mean), back.sqrt()).log_prob(y)
    torch.testing.assert_close(standard - standardizer.log_scale(there), own, rtol=1e-6, atol=1e-6)


def test_constant_columns_are_named_or_dropped():
    for value in [0.0, 1.0, 0.1, -1e9]:
        table = made()
        X = table.X.clone()
        X[:20, 1] = value
        constant = table._replace(X=X)
        assert constant_columns(X[:20]) == [1]
        with pytest.raises(ValueError, match="constant in the 20 warm-up rows: b;"):
            split_stream(constant, 20)
        stream = split_stream(constant, 20, drop_constant=True)
        assert stream.feature_names == ("a", "c")
        assert stream.dropped == ("b",)
        assert split_stream(table, 20).dropped == ()
        torch.testing.assert_close(stream.X, split_stream(table, 20).X[:, [0, 2]])


def with_targets(table, num_missing):
    y = table.y.clone()
    y[:num_missing] = NAN
    return table._replace(y=y)


REFUSED = [
    (lambda t: split_stream(with_targets(t, 30), 20), "no target is observed in the warm-up rows"),
    (lambda t: split_stream(with_targets(t, 11), 20), "only 9 of the 20 warm-up rows have a target; at least 10"),
    (lambda t: split_stream(t, 9), "9 warm-up rows are too few; at least 10"),
    (lambda t: split_stream(t, 30), "made has 30 rows, not more than the 30 warm-up rows"),
    (lambda t: split_stream(t._replace(X=torch.ones_like(t.X)), 20, drop_constant=True), "all columns are constant"),
    *((lambda t, y=y: split_stream(t._replace(y=0 * t.y + y), 20), "target is constant") for y in (0.0, 0.1, 3.0)),
    *((lambda t, c=c: split_stream(t, 20, clip=c), "it must be positive") for c in (0.0, -1.0, NAN)),
    (lambda t: split_stream(t._replace(X=t.X * 1e300), 20), "spread overflows"),
    (lambda t: split_stream(t._replace(y=t.y * 1e307), 20), "spread overflows"),
    (lambda t: split_stream(t, 20).blocks(0), "blocks of 0 rows"),
]


def test_what_cannot_be_split_is_refused():
    for split, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            split(made())
    assert split_stream(made(), 29).X.shape == (1, 3)
    assert split_stream(with_targets(made(), 11), 21).warm_X.shape == (21, 3)
