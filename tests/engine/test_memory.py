"""Past targets as inputs, against plain loops."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.engine.memory import TargetMemory, find_season
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.meta_learners import ReferenceAveraging

LAGS = (1, 3, 7)


def series(seed=0, num_rows=80):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y = noise.clone()
    for t in range(3, num_rows):
        y[t] = 0.6 * y[t - 1] - 0.3 * y[t - 3] + 0.5 * noise[t]
    return y


def oracle(memory, y):
    """Columns row by row, with plain lists: what is missing is what the autoregression said of it."""
    shift, slopes = float(memory.coefficients[-1]), memory.coefficients[:-1].tolist()
    lower, upper = memory.bounds.tolist()
    past = [0.0] * memory.lags[-1]
    rows = []
    for value in y.tolist():
        row = [past[-lag] for lag in memory.lags]
        rows.append(row)
        if value != value:
            guess = shift + sum(slope * entry for slope, entry in zip(slopes, row, strict=True))
            value = min(max(guess, lower), upper)
        past.append(value)
    return torch.tensor(rows, dtype=torch.float64)


def with_gaps(y, gaps):
    y = y.clone()
    y[list(gaps)] = torch.nan
    return y


@pytest.mark.parametrize("gaps", [(), (0, 1), (10, 11, 12, 40)])
def test_columns_are_past_targets_with_gaps_predicted(gaps):
    memory = TargetMemory(LAGS, series())
    y = with_gaps(series(1), gaps)
    history, columns = memory.columns(memory.init(y), y)
    torch.testing.assert_close(columns, oracle(memory, y))
    assert history.shape == (7,)
    assert not bool(history.isnan().any())


def test_the_autoregression_is_that_of_least_squares():
    y = series(num_rows=4000)
    memory = TargetMemory((1, 3), y)
    torch.testing.assert_close(
        memory.coefficients, torch.tensor([0.6, -0.3, 0.0], dtype=torch.float64), atol=0.04, rtol=0
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.sets(st.integers(0, 60)))
def test_any_blocking_gives_the_same_columns(sizes, gaps):
    num_rows = sum(sizes)
    memory = TargetMemory(LAGS, series())
    y = with_gaps(series(2)[:num_rows], [gap for gap in gaps if gap < num_rows])
    whole, columns = memory.columns(memory.init(y), y)
    history, parts = memory.init(y), []
    for block in y.split(sizes):
        history, part = memory.columns(history, block)
        parts.append(part)
    assert torch.equal(torch.cat(parts), columns)
    assert torch.equal(history, whole)


def test_rows_that_come_next_have_the_columns_that_they_will_meet():
    memory = TargetMemory(LAGS, series())
    history, _ = memory.columns(memory.init(series(4)), series(4))
    _, columns = memory.columns(history, series(5)[:1])
    assert torch.equal(memory.next_columns(history), columns[0])


def test_what_bridges_a_gap_stays_in_the_range_of_the_warm_up():
    growing = torch.linspace(0, 1, 60, dtype=torch.float64) ** 3
    memory = TargetMemory((1, 2), growing)
    y = torch.full((200,), torch.nan, dtype=torch.float64)
    _, columns = memory.columns(growing[-2:], y)
    assert float(columns.max()) <= 1.0
    assert float(columns.min()) >= 0.0


@pytest.mark.parametrize("lags", [(), (0,), (2, 1), (1, 1)])
def test_illegal_lags_are_refused(lags):
    with pytest.raises(ValueError, match="lags must be distinct positive"):
        TargetMemory(lags, series())


def test_a_lag_longer_than_the_warm_up_is_refused():
    with pytest.raises(ValueError, match="a lag of 80 rows needs a longer warm-up than 80 rows"):
        TargetMemory((80,), series())


def test_the_season_is_the_highest_peak_of_the_autocorrelation():
    g = torch.Generator().manual_seed(0)
    rows = torch.arange(400, dtype=torch.float64)
    y = torch.randn(7, generator=g, dtype=torch.float64)[rows.long() % 7] + 0.1 * torch.randn(400, generator=g).double()
    y = y + 0.01 * rows
    y[[3, 50, 51]] = torch.nan
    season = find_season(y)
    assert season is not None
    assert season % 7 == 0
    assert find_season(torch.randn(400, generator=g, dtype=torch.float64)) is None
    assert find_season(torch.randn(60, generator=g, dtype=torch.float64)) is None
    for slope in (1.0, 0.1, 0.7, 1.1):  # round-off around a line has peaks
        assert find_season(slope * rows) is None
    assert find_season(rows[:5]) is None
    assert find_season(torch.tensor([1.0, 5.0, 2.0, 7.0], dtype=torch.float64)) is None
    assert find_season(torch.sin(2 * torch.pi * rows / (0.4 * len(rows)))) is None  # not seen three times


def test_the_value_a_season_ago_is_an_expert_and_a_reference_though_no_lag_is_so_long():
    g = torch.Generator().manual_seed(0)
    pattern = torch.randn(150, generator=g, dtype=torch.float64).cumsum(0)
    y = pattern[torch.arange(700) % 150]
    y = (y - y.mean()) / y.std()
    X = torch.randn(700, 1, generator=g, dtype=torch.float64)
    spec = replace(auto, bases=(LinearBasis(),), random_walk_variances=(), static=True, extra_experts=())
    spec = replace(spec, fit_settings=FitSettings(method=None, num_samples=1))
    online = spec.fit(X[:500], y[:500], generator=g)
    memory, rule = online.ensemble.memory, online.ensemble.meta_learner
    assert memory is not None
    assert isinstance(rule, ReferenceAveraging)
    assert 150 in memory.lags
    referred = {online.names[place].split("/")[0] for place in rule.references}
    assert referred == {"previous value", "value a season ago", "trend and season"}
    found = online.observe(X[500:], y[500:])
    assert float((found.mean - y[500:]).abs().mean()) < 0.001
    place = online.names.index("value a season ago/0")  # it does not hold 150 rows without a season before against it
    assert float(found.experts.variance[place].max()) < 1e-5
