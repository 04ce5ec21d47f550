"""Refits, trainings and drops: which row they fall into, and doing them before it."""

import copy
from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.filters.states import WindowState
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARM_UP, NUM_ROWS = 200, 900


@pytest.fixture(scope="module")
def started():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(NUM_ROWS, 2, generator=g, dtype=torch.float64)
    y = X[:, 0].sin() + 0.1 * torch.randn(NUM_ROWS, generator=g, dtype=torch.float64)
    model = OnlineModel(StreamConfig(auto, warmup=WARM_UP))
    model.observe(X[:WARM_UP], y[:WARM_UP])
    return model, X, y


def test_work_falls_into_the_row_that_was_named(started):
    """Of a model that is one row before it, that row leaves none of the work that it names; no row before does."""
    model, X, y = copy.deepcopy(started[0]), *started[1:]
    first = model.upkeep[0]
    assert first.rows > 1
    named = {(work.name, work.what) for work in model.upkeep if work.rows == first.rows}
    row = model.num_rows
    model.observe(X[row : row + first.rows - 1], y[row : row + first.rows - 1])
    assert {(work.name, work.what) for work in model.upkeep if work.rows == 1} == named
    row = model.num_rows
    model.observe(X[row : row + 1], y[row : row + 1])
    assert all(work.rows > 1 for work in model.upkeep if (work.name, work.what) in named)


def test_rows_after_it_was_done_have_no_work(started):
    """And the rows are predicted about as well as with the work at its usual rows."""
    model, X, y = copy.deepcopy(started[0]), *started[1:]
    usual, scores = copy.deepcopy(model), []
    for row in range(WARM_UP, NUM_ROWS, 100):
        done = model.maintain(100)
        assert all(work.rows <= 100 for work in done)
        assert all(work.rows > 100 for work in model.upkeep if work.what != "drop of its oldest rows")
        here = slice(row, row + 100)
        scores.append(model.observe(X[here], y[here]).log_prob - usual.observe(X[here], y[here]).log_prob)
    assert torch.cat(scores).mean().abs() < 0.02


def test_models_whose_rows_all_take_the_same_have_none(started):
    model = OnlineModel(StreamConfig(light, warmup=WARM_UP))
    assert model.upkeep == model.maintain() == ()
    model.observe(started[1][:WARM_UP], started[2][:WARM_UP])
    assert model.upkeep == model.maintain() == ()


def test_a_window_keeps_the_rows_that_it_promises(started):
    """Whatever number of rows is asked for: a drop comes early only where there are more."""
    _, X, y = started
    spec = replace(light, extra_experts=(WindowGP(num_rows=100),))
    model = OnlineModel(StreamConfig(spec, warmup=100))
    for stop in range(150, 500, 50):
        model.observe(X[stop - 50 : stop] if stop > 150 else X[:150], y[stop - 50 : stop] if stop > 150 else y[:150])
        model.maintain(10_000)
        (window,) = [state for state in model.online.state.experts if isinstance(state, WindowState)]
        assert int(window.num_used) >= min(100, model.num_rows)
    for rows in (0, -5, 1.5):
        with pytest.raises(ValueError, match="rows must be a whole number"):
            model.maintain(rows)
