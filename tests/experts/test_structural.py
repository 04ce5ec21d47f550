"""Level, trend and season: against a Kalman filter written out, row by row."""

import math

import pytest
import torch

from gp_ensembles.experts.structural import StructuralExpert, fit_structural
from gp_ensembles.filters.transitions import RandomWalk


def series(num_rows, season=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(num_rows, dtype=torch.float64)
    level = 0.02 * torch.randn(num_rows, generator=generator, dtype=torch.float64).cumsum(0)
    noise = 0.05 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return rows / 100 - 1 + level + 0.8 * (2 * math.pi * rows / season).sin() + noise


def test_single_precision_rows_lose_no_digits_of_the_state():
    y = series(400)
    expert = StructuralExpert(torch.tensor([[0.01, 0.003, 1e-5]], dtype=torch.float64), 12, 1, 100)
    X = torch.zeros(400, 1, dtype=torch.float64)
    exact = expert.update(expert.init(), X, y)[1].mean
    single = expert.float()
    state, steps = single.update(single.init(), X.float(), y.float())
    assert (steps.mean.dtype, state.moments.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(steps.mean.double(), exact, rtol=0, atol=1e-5)


def test_waves_keep_their_phase_after_billions_of_rows():
    expert = StructuralExpert(torch.tensor([[0.01, 0.003, 1e-5]], dtype=torch.float64), 7, 1, 100)
    start = expert.init()
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    level = start.moments.index_fill(-2, torch.tensor([1]), 0.0).index_fill(-1, torch.tensor([1]), 0.0)  # no trend
    late = start._replace(moments=level, num_rows=torch.tensor(7 * 10**9 + 3))
    soon = start._replace(moments=level, num_rows=torch.tensor(3))
    y = torch.tensor([1.3], dtype=torch.float64)
    for state in (late, soon):
        assert int(state.num_rows) % 7 == 3
    after = [expert.bind().update_block(state, one, y)[0].moments for state in (late, soon)]
    waves = torch.tensor([0, 2, 3, 4, 5, 6, 7])
    assert torch.equal(*(moments[0, waves, -1] for moments in after))


def test_the_fit_finds_the_variances_that_made_a_series():
    generator = torch.Generator().manual_seed(1)
    noise, steps = (torch.randn(1000, generator=generator, dtype=torch.float64) for _ in range(2))
    rows = torch.arange(1000, dtype=torch.float64)
    y = (2 * math.pi * rows / 24).cos() + 0.1 * steps.cumsum(0) + 0.3 * noise
    found = fit_structural(y, 24, 3).variances[0]
    assert 0.7 < float(found[0]) / 0.09 < 1.4
    assert 0.5 < float(found[1]) / 0.01 < 2.0
    assert fit_structural(y, 24, 3).num_experts == 1


def test_no_set_of_variances_nearby_has_more_evidence():
    y = series(300)
    X = torch.zeros(300, 1, dtype=torch.float64)
    best = fit_structural(y, 12, 1)
    evidence = float(best.log_evidence(X, y))
    for factor in (0.5, 2.0):
        for place in (0, 1):
            other = best.variances.clone()
            other[:, place] *= factor
            assert float(StructuralExpert(other, 12, 1, 300).log_evidence(X, y)) <= evidence


def test_illegal_numbers_are_refused():
    good = torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="at least two rows"):
        StructuralExpert(good, 1, 1, 10)
    with pytest.raises(ValueError, match="two positive"):
        StructuralExpert(-good, 12, 1, 10)
    with pytest.raises(ValueError, match="takes no transition"):
        StructuralExpert(good, 12, 1, 10).with_transition(RandomWalk(0.1))
