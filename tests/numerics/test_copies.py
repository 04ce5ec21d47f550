"""Exact copies of rows: left out of tables, kept where rows recur by themselves."""

import warnings

import numpy as np
import pytest
import torch

import gp_ensembles as gpe
from gp_ensembles.numerics.copies import without_copies

X = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
y = X.sin().sum(-1).index_put((torch.tensor([3]),), torch.tensor(float("nan"), dtype=torch.float64))


def test_a_bootstrap_is_its_distinct_rows():
    drawn = torch.randint(60, (60,), generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="exact copies"):
        kept = without_copies(X[drawn], y[drawn])
    assert drawn[kept].tolist() == list(dict.fromkeys(drawn.tolist()))


def test_rows_that_recur_by_themselves_stay():
    at_rest, few = torch.arange(60).clamp_max(45), torch.arange(60).clamp_max(58)  # one row often; one copy in 60
    categories = X[:, :1].sign(), (torch.arange(60) % 3).double()  # equal inputs with several targets
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in ((X[at_rest], y[at_rest]), (X[few], y[few]), categories):
            assert len(without_copies(*rows)) == 60


@pytest.mark.parametrize("estimator", [gpe.OnlineRegressor, gpe.OnlineClassifier])
def test_a_table_read_twice_is_learned_once(estimator):
    rows, values = X[4:].numpy(), y[4:].numpy() if estimator is gpe.OnlineRegressor else (y[4:] > 0).numpy()
    once = estimator(random_state=0).fit(rows, values)
    with pytest.warns(UserWarning, match="56 of the 112 rows are exact copies"):
        twice = estimator(random_state=0).fit(np.tile(rows, (2, 1)), np.tile(values, 2))
    np.testing.assert_array_equal(twice.predict(X.numpy()), once.predict(X.numpy()))


def test_knots_of_a_table_read_twice():
    once = gpe.select_knots(X[4:], y[4:], generator=torch.Generator().manual_seed(0)).predict(X)
    with pytest.warns(UserWarning, match="exact copies"):
        twice = gpe.select_knots(X[4:].repeat(2, 1), y[4:].repeat(2), generator=torch.Generator().manual_seed(0))
    assert torch.equal(twice.predict(X).mean, once.mean)
