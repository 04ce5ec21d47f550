"""Rank R-hat and effective sample sizes: numbers of ArviZ, closed forms, invariances, empty draws."""

import math

import pytest
import torch

from gp_ensembles.papers.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat
from tests.papers.fusion.cases import F64, normal

ALL = (rank_rhat, bulk_ess, mean_ess)


def autoregressive(chains, count, coefficient, seed=0):
    innovations = normal(chains, count, seed=seed) * math.sqrt(1.0 - coefficient**2)
    values = [normal(chains, seed=seed + 1)]
    for step in range(count - 1):
        values.append(coefficient * values[-1] + innovations[:, step])
    return torch.stack(values, dim=1)


def test_numbers_of_arviz(archive):
    """Autoregressions (0, 0.9, -0.6, 0.5), a Cauchy variable, a shifted and a widened chain, ties.

    The numbers are dyadic, so that medians are exact.
    """
    data = archive("fusion_diagnostics")
    for statistic in ALL:
        found = statistic(data["draws"])
        torch.testing.assert_close(found, data[statistic.__name__], rtol=1e-9, atol=0.0)
        assert statistic(data["draws"].float()).dtype == torch.float32


def test_the_closed_form_of_an_autoregression():
    for coefficient in (-0.5, 0.0, 0.5, 0.9):
        chains, count = 16, 4000
        expected = chains * count * (1.0 - coefficient) / (1.0 + coefficient)
        found = mean_ess(autoregressive(chains, count, coefficient))
        assert abs(float(found) / expected - 1.0) < 0.15


def test_draws_that_say_nothing_give_nan():
    for draws in (normal(4, 3), torch.ones(4, 50, dtype=F64), normal(4, 50).log()):
        for statistic in ALL:
            assert statistic(draws).isnan()


def test_axes_are_needed():
    for statistic in ALL:
        with pytest.raises(ValueError, match="axes of chains and of draws"):
            statistic(normal(10))
