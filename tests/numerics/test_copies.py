"""Exact copies of rows: left out of tables, kept where rows recur naturally."""

import warnings

import numpy as np
import pytest
import torch

import gp_ensembles as gpe
from gp_ensembles.numerics.copies import without_copies

X = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
y = X.sin().sum(-1).index_put((torch.tensor([3]),), torch.tensor(float("nan"), dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.* are exact copies")
def test_a_bootstrap_is_its_distinct_rows_and_so_are_many_readings():
    drawn = torch.randint(4, 60, (60,), generator=torch.Generator().manual_seed(1))
    assert drawn[without_copies(X[drawn], y[drawn])].tolist() == list(dict.fromkeys(drawn.tolist()))
    assert without_copies(X.repeat(12, 1), y.repeat(12)).tolist() == [*range(60), *range(63, 720, 60)]


@pytest.mark.filterwarnings("error")
def test_rows_that_recur_naturally_stay():
    at_rest, few = torch.arange(60).clamp_max(45), torch.arange(60).clamp_max(58)  # one row often; one copy in 60
    several = X[torch.arange(60) // 3], (torch.arange(60) % 3 // 2).double()  # equal inputs with several targets
    levels = X[:, :1].sign() * (torch.arange(60).unsqueeze(-1) % 7), torch.ones(60)
    for rows in ((X[at_rest], y[at_rest]), (X[few], y[few]), several, levels):
        assert len(without_copies(*rows)) == 60


@pytest.mark.parametrize("estimator", [gpe.OnlineRegressor, gpe.OnlineClassifier])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_table_read_twice_is_learned_once(estimator, is_sorted):
    order = y[4:].argsort().numpy() + 4 if is_sorted else np.arange(4, 60)
    values, found = y.numpy() if estimator is gpe.OnlineRegressor else (y > 0).numpy(), []
    for places in (order, np.tile(order, 2)):
        with warnings.catch_warnings(record=True, action="always") as caught:
            model = estimator(random_state=0).fit(X.numpy()[places], values[places])
        assert ["copies" in str(one.message) for one in caught] == [True] * (len(places) > 56) + [False] * is_sorted
        found.append(model.predict(X.numpy()))
    np.testing.assert_array_equal(*found)


def test_knots_of_a_table_read_twice():
    once = gpe.select_knots(X[4:], y[4:], generator=torch.Generator().manual_seed(0)).predict(X)
    with pytest.warns(UserWarning, match="exact copies"):
        twice = gpe.select_knots(X[4:].repeat(2, 1), y[4:].repeat(2), generator=torch.Generator().manual_seed(0))
    assert torch.equal(twice.predict(X).mean, once.mean)
