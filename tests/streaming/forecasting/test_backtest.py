"""Scores of forecasts by horizon, by hand; and nothing of the future in a forecast."""

from dataclasses import replace

import pytest
import torch

from benchmarks.backtest import seasonal_naive
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.forecasting.backtest import LEVELS, Backtest, backtest
from tests.refusals import refused

SPEC = replace(oebe, bases=(LinearBasis(),), fit_settings=replace(oebe.fit_settings, method=None))


def table() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    return X, X[:, 0] + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)


def model() -> OnlineModel:
    return OnlineModel(StreamConfig(SPEC, warmup=20))


def test_scores_by_hand() -> None:
    quantiles = torch.tensor([[[1.0, 2.0, 4.0]], [[0.0, 0.0, 0.0]], [[0.0, 1.0, 2.0]]], dtype=torch.float64)
    targets = torch.tensor([[3.0], [1.0], [torch.nan]], dtype=torch.float64)
    predicted = Backtest(torch.tensor([1, 2, 3]), (0.25, 0.5, 0.75), quantiles, targets)
    by_hand = [[0.25 * 2 + 0.25 * 1], [0.5 * 1 + 0.5 * 1], [0.25 * 1 + 0.75 * 1]]  # of the two targets that are there
    torch.testing.assert_close(predicted.pinball, torch.tensor(by_hand, dtype=torch.float64) / 2)
    torch.testing.assert_close(
        predicted.crps, 0.5 * predicted.pinball.sum(0)
    )  # twice a quarter of a unit for each level
    assert predicted.coverage(0.5).tolist() == [0.5]
    assert predicted.crps_by_origin.isnan().tolist() == [[False], [False], [True]]
    refused(ValueError, r"intervals of coverage 0\.9 end at levels", lambda: predicted.coverage(0.9))


def test_crps_is_that_of_a_normal_distribution() -> None:
    # Gneiting and Raftery (2007): at the mean of N(0, 1) it is 2 phi(0) - 1 / sqrt(pi) = (sqrt(2) - 1) / sqrt(pi).
    quantiles = torch.special.ndtri(torch.tensor(LEVELS, dtype=torch.float64)).reshape(1, 1, -1)
    predicted = Backtest(torch.tensor([1]), LEVELS, quantiles, torch.zeros(1, 1, dtype=torch.float64))
    assert float(predicted.crps) == pytest.approx((2**0.5 - 1) / torch.pi**0.5, rel=0.02)


def test_seasonal_naive_by_hand() -> None:
    y = torch.tensor([1.0, 5.0, 2.0, 7.0, 3.0, 8.0, 4.0, 9.0, 6.0], dtype=torch.float64)
    predicted = seasonal_naive(y, horizon=3, season=2, origins=[6])
    middle = predicted.quantiles[0, :, LEVELS.index(0.5)]
    # Two rows back the errors are 1, 2, 1, 1; four rows back 2 and 3.
    torch.testing.assert_close(middle, torch.tensor([3.0 + 1, 8.0 + 1, 3.0 + 2.5], dtype=torch.float64))
    assert predicted.targets.tolist() == [[4.0, 9.0, 6.0]]


def test_forecasts_know_nothing_of_what_comes() -> None:
    X, y = table()
    one = backtest(model(), X, y, 3, origins=[30, 40], generator=torch.Generator().manual_seed(0))
    other_y = y.clone()
    other_y[40:] += 100
    other = backtest(model(), X, other_y, 3, origins=[30, 40], generator=torch.Generator().manual_seed(0))
    assert torch.equal(one.quantiles, other.quantiles)
    hidden, other_X = [], X.clone()
    other_X[40:, 0] += 5
    for rows in (X, other_X):
        generator = torch.Generator().manual_seed(0)
        hidden.append(backtest(model(), rows, y, 3, known=[1], origins=[40], generator=generator).quantiles)
    assert torch.equal(*hidden)


def test_origins_by_default_and_wrong_ones() -> None:
    X, y = table()
    predicted = backtest(model(), X[:26], y[:26], 4)
    assert predicted.origins.tolist() == [20, 21, 22]
    assert torch.equal(predicted.targets[1], y[21:25])
    refused(ValueError, "origins must lie between 20", lambda: backtest(model(), X, y, 4, origins=[10, 30]))
    refused(ValueError, "needs 20 rows for the warm-up and 4 behind", lambda: backtest(model(), X[:22], y[:22], 4))
    refused(ValueError, "needs more than 12 rows", lambda: seasonal_naive(y, 3, 12, [12]))
