"""Which past values help: against least squares by plain loops, and on series whose lags are known."""

import math

import numpy as np
import pytest
import torch

from gp_ensembles.numerics.lag_selection import find_lags, select_lags


def autoregression(coefficients, num_rows, seed=0):
    """Each value a sum of past ones times coefficients by lag, and noise."""
    noise = torch.randn(num_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = noise.clone()
    for t in range(max(coefficients), num_rows):
        y[t] = sum(coefficient * y[t - lag] for lag, coefficient in coefficients.items()) + 0.5 * noise[t]
    return y


def by_least_squares(y, most, longest, given=()):
    """Every lag not chosen yet is tried in a regression with a constant; the best stays if it lowers the sum enough."""
    y, chosen = np.asarray(y), list(given)
    target, num_rows = y[longest:], len(y) - longest

    def left(lags):
        design = np.stack([np.ones(num_rows), *(y[longest - lag : len(y) - lag] for lag in lags)], -1)
        residual = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
        return residual @ residual

    while len(chosen) < most:
        rest = left(chosen)
        trials = {lag: left([*chosen, lag]) for lag in range(1, longest + 1) if lag not in chosen}
        best = min(trials, key=trials.get)
        if num_rows * math.log(rest / trials[best]) <= 2 * math.log(max(num_rows, 4 * longest)):
            break
        chosen.append(best)
    return tuple(sorted({1, *chosen})) if chosen else ()


@pytest.mark.parametrize("longest", [10, 45])
@pytest.mark.parametrize("seed", range(4))
def test_lags_are_those_of_regressions_one_by_one(seed, longest):
    y = autoregression({1: 0.5, 4: -0.3, 9: 0.2}, 100, seed)
    assert select_lags(y, 3, longest) == by_least_squares(y, 3, longest)


@pytest.mark.parametrize("given", [(7,), (1, 4), (2, 3, 30)])
@pytest.mark.parametrize("seed", range(3))
def test_lags_that_are_given_stay_and_others_join_them(seed, given):
    y = autoregression({1: 0.5, 4: -0.3, 9: 0.2}, 200, seed)
    found = select_lags(y, 4, 45, given)
    assert set(given) <= set(found)
    assert found == by_least_squares(y, 4, 45, given)


def test_far_lags_join_near_ones():
    """Half of the rows alone would have taken the near one of them for chance."""
    y = autoregression({1: 0.5, 80: 0.45}, 1200)[-200:]
    for most in (1, 6):
        near = find_lags(y, most=most, longest=40)
        assert set(near) <= set(find_lags(y, most=most, longest=200))


def test_a_season_is_found_through_gaps():
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(600, dtype=torch.float64)
    pattern = torch.randn(24, generator=generator, dtype=torch.float64)
    y = pattern.repeat(25) + 0.2 * torch.randn(600, generator=generator, dtype=torch.float64)
    y[(rows % 37) == 5] = torch.nan
    assert {24, 48, 72, 96} & set(find_lags(y, most=6, longest=100))


@pytest.mark.parametrize("longest", [40, 100])
def test_noise_has_lags_one_time_in_twenty(longest):
    """So many of 200 series as a binomial number of probability .05 exceeds once in ten thousand times."""
    noise = torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sum(bool(select_lags(y, 1, longest)) for y in noise)
    assert 0 < found <= 24


def test_a_lag_longer_than_a_fifth_of_the_rows_is_found_behind_shorter_ones():
    y = autoregression({1: 0.5, 80: 0.45}, 1200)[-200:]
    assert 80 in find_lags(y, most=4, longest=200)
    assert find_lags(y, most=4, longest=40) == select_lags(y, 4, 40)


@pytest.mark.parametrize("num_rows", [1, 4, 12])
def test_few_rows_have_no_lags(num_rows):
    y = torch.randn(num_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert find_lags(y, most=6, longest=100) == ()
