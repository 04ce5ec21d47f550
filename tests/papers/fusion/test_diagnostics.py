"""Rank R-hat and effective sample sizes: numbers of ArviZ, closed forms, invariances, empty draws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(8, 41))
def test_ranks_do_not_see_monotone_transformations(seed, chains, count):
    draws = normal(chains, count, seed=seed)
    torch.testing.assert_close(bulk_ess(draws), bulk_ess(draws.exp()))
    torch.testing.assert_close(rank_rhat(draws), rank_rhat(5.0 * draws - 3.0))


def test_quantities_are_independent_of_one_another():
    for statistic in ALL:
        draws = torch.stack([autoregressive(3, 40, 0.3, seed=7), normal(3, 40, seed=8)], dim=-1)
        alone = torch.stack([statistic(draws[..., 0]), statistic(draws[..., 1])])
        torch.testing.assert_close(statistic(draws), alone)
        torch.testing.assert_close(statistic(draws.unsqueeze(2)), alone.unsqueeze(0))
        draws[0, 3, 1] = math.nan
        found = statistic(draws)
        torch.testing.assert_close(found[0], alone[0])
        assert found[1].isnan()


def test_draws_that_say_nothing_give_nan():
    for draws in (normal(4, 3), torch.ones(4, 50, dtype=F64), normal(4, 50).log()):
        for statistic in ALL:
            assert statistic(draws).isnan()


def test_axes_are_needed():
    for statistic in ALL:
        with pytest.raises(ValueError, match="axes of chains and of draws"):
            statistic(normal(10))
