"""Structural experts chosen from a warm-up: on series whose truth is known, and by brute force."""

import math

import pytest
import torch

from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto, forecaster, light
from gp_ensembles.experts.changing_trend import fit_trends
from gp_ensembles.experts.structural import StructuralExpert


def noise(num_rows, count, seed):
    return torch.randn(count, num_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def standardized(y):
    return (y - y.nanmean()) / (y - y.nanmean()).square().nanmean().sqrt()


def evidence(expert, y):
    return float(expert.log_evidence(torch.zeros(len(y), 1, dtype=torch.float64), y))


def test_a_slope_that_walks_is_found_with_its_variance():
    shocks = noise(300, 2, 0)
    y = (0.1 * shocks[0]).cumsum(0).cumsum(0) + shocks[1]
    scale = float(y.var())
    found = dict(fit_trends(standardized(y), None, 1))
    assert set(found) <= {"changing trend", "fast changing trend"}
    variances, slope = found["changing trend"].variances[0], found["changing trend"].slope[0]
    assert float(slope[1]) == 1.0
    assert 0.4 < float(slope[0]) * scale / 0.01 < 2.5
    assert 0.7 < float(variances[0]) * scale < 1.4


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, 4, 5))])
def test_no_less_evidence_is_found_than_the_truth_has_but_for_the_steps_of_the_search(seed):
    shocks = noise(200, 2, seed)
    y = (0.1 * shocks[0]).cumsum(0).cumsum(0) + shocks[1]
    scale, y = float((y - y.mean()).square().mean()), standardized(y)
    variances = torch.tensor([[1.0, 1e-6, 0.0]], dtype=torch.float64) / scale
    truth = StructuralExpert(variances, None, 1, 200, torch.tensor([[0.01 / scale, 1.0]], dtype=torch.float64))
    found = dict(fit_trends(y, None, 1))
    assert evidence(found["changing trend"], y) > evidence(truth, y) - 0.5


def test_a_slope_that_is_drawn_back_is_found():
    shocks, slopes = noise(300, 2, 1), [0.0]
    for one in shocks[0].tolist():
        slopes.append(0.8 * slopes[-1] + 0.5 * one)
    y = torch.tensor(slopes[1:]).double().cumsum(0) + shocks[1]
    found = dict(fit_trends(standardized(y), None, 1))
    assert 0.6 <= float(found["changing trend"].slope[0, 1]) <= 0.95


def test_a_straight_trend_stays_so_but_for_what_is_not_ruled_out():
    rows, shocks = torch.arange(200, dtype=torch.float64), noise(200, 1, 2)[0]
    y = standardized(0.02 * rows + 2 * (2 * math.pi * rows / 12).sin() + shocks)
    found = dict(fit_trends(y, 12, 1))
    assert list(found) == ["trend and season", "fast changing trend"]
    straight, fast = found["trend and season"], found["fast changing trend"]
    assert straight.slope is None
    assert float(fast.slope[0, 0]) > 0
    assert float(fast.variances[0, 2]) > float(straight.variances[0, 2])
    # Brute force: where the fast one's slope or season were faster by a decade, it would be ruled out.
    best = evidence(straight, y)
    assert evidence(fast, y) > best - 2.5  # a nat for each of the two
    for place, value in ((2, 10 * float(fast.variances[0, 2])), (3, 10 * float(fast.slope[0, 0]))):
        grid = []
        for factor in torch.logspace(-2, 1, 13, dtype=torch.float64).tolist():
            for other in torch.logspace(-4, 2, 13, dtype=torch.float64).tolist():
                point = [*straight.variances[0].tolist(), 0.0, 1.0]
                point[0], point[1], point[place] = point[0] * factor, max(point[1] * other, 1e-8), value
                grid.append(point)
        numbers = torch.tensor(grid, dtype=torch.float64)
        experts = StructuralExpert(numbers[:, :3], 12, 1, 200, numbers[:, 3:])
        assert float(experts.log_evidence(torch.zeros(200, 1, dtype=torch.float64), y).max()) < best - 1.0


@pytest.mark.parametrize("seed", [3, 7])
def test_chance_is_no_changing_trend(seed):
    """Both series have some more evidence with a slope that walks, but less than another number is worth."""
    y = standardized(0.05 * torch.arange(60, dtype=torch.float64) + noise(60, 1, seed)[0])
    assert [name for name, _ in fit_trends(y, None, 1)] == ["fast changing trend"]


def test_the_forecaster_has_them_with_a_season_or_without_and_others_do_not():
    rows, shocks = torch.arange(120, dtype=torch.float64), noise(120, 2, 3)
    plain = standardized((0.1 * shocks[0]).cumsum(0).cumsum(0) + shocks[1])
    seasonal = standardized(2 * (2 * math.pi * rows / 12).sin() + 0.3 * shocks[0])
    X = torch.zeros(120, 1, dtype=torch.float64)
    asked = [spec.lags is not None and spec.lags.changing_trend for spec in (forecaster, light, auto)]
    assert asked == [True, False, False]

    def names(y, **changing):
        return [name for name, _ in TargetLags(bases=(), **changing).build(X, y, []).plain]

    assert names(plain, changing_trend=True)[:2] == ["previous value", "changing trend"]
    with_season = ["previous value", "value a season ago", "trend and season"]
    assert names(seasonal, changing_trend=True) == [*with_season, "fast changing trend"]
    assert names(seasonal) == with_season
    assert names(plain) == ["previous value"]
