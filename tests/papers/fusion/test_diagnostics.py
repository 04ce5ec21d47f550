"""Rank R-hat and effective sample sizes: numbers of ArviZ, closed forms, invariances, empty draws."""

import pytest
import torch

from gp_ensembles.papers.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat
from tests.papers.fusion.cases import F64, normal

ALL = (rank_rhat, bulk_ess, mean_ess)


def test_numbers_of_arviz(archive):
    """Autoregressions (0, 0.9, -0.6, 0.5), a Cauchy variable, a shifted and a widened chain, ties.

    The numbers are dyadic, so that medians are exact.
    """
    data = archive("fusion_diagnostics")
    for statistic in ALL:
        found = statistic(data["draws"])
        torch.testing.assert_close(found, data[statistic.__name__], rtol=1e-9, atol=0.0)
        assert statistic(data["draws"].float()).dtype == torch.float32


def test_draws_that_say_nothing_give_nan():
    for draws in (normal(4, 3), torch.ones(4, 50, dtype=F64), normal(4, 50).log()):
        for statistic in ALL:
            assert statistic(draws).isnan()


def test_axes_are_needed():
    for statistic in ALL:
        with pytest.raises(ValueError, match="axes of draws must be chains and draws"):
            statistic(normal(10))
