"""Adaptive levels against a plain loop, and the bound, which holds against anything."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from gp_ensembles.calibration import IntervalLevels

NAN = math.nan


def by_hand(pits, coverage):
    """Probabilities at the ends before each PIT value and whether it was covered, from the equations."""
    alpha = 1 - coverage
    low = stats.norm.ppf(alpha / 2)
    high = -low
    predicted, hits = [], []
    for u in pits:
        ends = (low, high) if high - low > 0.1 * alpha else ((low + high) / 2,) * 2
        predicted.append([0.0 if end < -5 else 1.0 if end > 5 else float(stats.norm.cdf(end)) for end in ends])
        if math.isnan(u):
            hits.append(NAN)
            continue
        z = min(max(stats.norm.ppf(u), -5.0), 5.0)
        below = z <= ends[0]
        above = not below and z >= ends[1]
        hits.append(float(not below and not above))
        low += 0.1 * (alpha / 2 - below)
        high += 0.1 * (above - alpha / 2)
    return np.array(predicted).T, np.array(hits)


def run(pits, levels, cuts=()):
    u = torch.as_tensor(pits, dtype=torch.float64)
    state, outputs = levels.init(u), []
    for block in torch.tensor_split(u, list(cuts)):
        state, output = levels.update_block(state, block)
        outputs.append(output)
    return state, torch.cat([o.levels for o in outputs], -1), torch.cat([o.covered for o in outputs], -1)


def test_it_is_the_recursion_written_plainly():
    rng = np.random.default_rng(0)
    pits = stats.norm.cdf(0.2 + 0.7 * rng.standard_t(3, size=400))
    pits[[5, 100]] = NAN
    pits[[30, 31, 200]] = 0.0, 1.0, 1e-14
    levels = IntervalLevels((0.9, 0.5, 0.99))
    _, ends, covered = run(pits, levels)
    for place, coverage in enumerate(levels.coverages):
        want, hits = by_hand(pits, coverage)
        np.testing.assert_allclose(ends[:, place], want, rtol=1e-9, atol=1e-14)
        np.testing.assert_array_equal(covered[place], hits)


@pytest.mark.parametrize(
    ("adversary", "coverage"),
    [("inside", 0.9), ("outside", 0.3), ("turns", 0.9), ("far", 0.99), ("walk", 0.3), ("atoms", 0.99)],
)
def test_the_bound_holds_whatever_comes(adversary, coverage):
    levels = IntervalLevels((coverage,))
    state = levels.init(torch.zeros(1))
    rng = np.random.default_rng(3)
    misses, width_is_legal = [], True
    for t in range(700):
        low, high = (float(end) for end in levels.probabilities(state)[:, 0])
        inside = 0.5 * (low + high)
        outside = high + 0.5 * (1 - high) if rng.random() < 0.5 or low == 0 else 0.5 * low
        u = {
            "inside": inside,
            "outside": outside,
            "turns": inside if t // 50 % 2 else outside,
            "far": 1.0 if t // 150 % 2 else 0.0,
            "walk": stats.norm.cdf(6 * math.sin(t / 90)),
            "atoms": [0.5, 0.5, 0.02, 0.98][rng.integers(4)],
        }[adversary]
        state, output = levels.update_block(state, torch.tensor([u], dtype=torch.float64))
        misses.append(1 - float(output.covered))
        width_is_legal &= 0 < float(state.upper - state.lower) <= 10.2
        if t + 1 in (100, 300, 500, 700):
            assert abs(np.mean(misses) - (1 - coverage)) <= levels.bound(coverage, t + 1) + 1e-12
    assert width_is_legal
    assert levels.bound(coverage, 700) < 0.15


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.0, 0.5), (0.5, 1.5), (-0.3, 0.7)])
def test_coverage_is_met_on_both_sides(shift, scale):
    rng = np.random.default_rng(4)
    pits = stats.norm.cdf(shift + scale * rng.normal(size=4000))
    _, ends, covered = run(pits, IntervalLevels((0.9, 0.5)))
    np.testing.assert_allclose(covered.mean(-1), [0.9, 0.5], atol=0.01)
    assert abs(np.mean(pits <= ends[0, 0].numpy()) - 0.05) < 0.01
    windows = np.convolve(covered[0], np.ones(500) / 500, "valid")
    assert bool((np.abs(windows - 0.9) < 0.05).all())


def test_an_end_at_infinity():
    state, ends, covered = run([1.0] * 400 + [0.5], IntervalLevels((0.9,)))
    assert float(ends[1, 0].max()) == 1.0  # the interval reaches to infinity, and covers what lies there
    assert float(covered[0, -200:].mean()) > 0.5
    assert bool(torch.isfinite(state.upper).all())


def test_bad_arguments():
    for wrong in (0.0, 1.0, -0.1, 1.5, NAN, 90):
        with pytest.raises(ValueError, match="must be above 0 and below 1"):
            IntervalLevels((0.9, wrong))
    with pytest.raises(ValueError, match="occurs twice"):
        IntervalLevels((0.9, 0.9))
    with pytest.raises(ValueError, match="at most 0\\.999999"):
        IntervalLevels((1 - 1e-9,))
    levels = IntervalLevels()
    with pytest.raises(ValueError, match=r"pit must have shape \(B,\)"):
        levels.update_block(levels.init(torch.zeros(1)), torch.zeros(2, 2))


def test_a_block_is_one_row_after_another_of_one_series_or_of_several(generator):
    levels = IntervalLevels((0.9, 0.05, 0.5))
    pit = torch.rand(300, 5, generator=generator, dtype=torch.float64)
    pit[7::11, 2], pit[:, 4] = torch.nan, 0.5 + 0.001 * (pit[:, 4] - 0.5)  # one whose interval becomes empty
    pit[3:7, 0] = torch.tensor([0.0, 1.0, 1e-9, 1 - 1e-9], dtype=torch.float64)
    one = levels.init(pit)
    one = one._replace(lower=torch.tensor([-0.001, -4.99, -0.5], dtype=torch.float64))
    together, batches = type(one)(*(part.expand(5, 3) for part in one)), []
    for row in pit:
        together, batch = levels.update(together, row)
        batches.append(batch)
    close = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}
    for s in range(5):
        state, output = levels.update_block(one, pit[:, s])
        alone, rows = one, []
        for value in pit[:, s].tolist():
            alone, row = levels.update_row(alone, value)
            rows.append(row)
        for name, wanted in output._asdict().items():
            assert_close(torch.stack([getattr(part, name)[..., s] for part in batches], -1), wanted, **close)
            assert_close(torch.cat([getattr(row, name) for row in rows], -1), wanted, **close)
        assert_close(alone, state, **close)
        assert_close(type(one)(*(ends[s] for ends in together)), state, **close)
        assert_close(levels.probabilities(together)[..., s], levels.probabilities(state), **close)
