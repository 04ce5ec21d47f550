"""Adaptive levels against a plain loop, the bound, which holds against anything, and intervals narrow and wide."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from gp_ensembles.calibration import IntervalLevels

NAN = math.nan


def by_hand(pits, widths, coverage):
    """Probabilities at the ends before each PIT value and whether it was covered, from the equations."""
    alpha, t = 1 - coverage, 1
    low = stats.norm.ppf(alpha / 2)
    high, wider, edges, parts = -low, np.zeros(5), None, np.array([0.2, 0.4, 0.6, 0.8])
    predicted, hits = [], []
    for u, w in zip(pits, np.log(widths), strict=True):
        step = max(0.05, 50 / (t + 99))
        if edges is None and not math.isnan(u):
            edges = w + (parts - 0.5) / 2
        k = 0 if edges is None else int((w > edges).sum())
        ends = low - wider[k], high + wider[k]
        ends = ends if ends[1] - ends[0] > step * alpha else (sum(ends) / 2,) * 2
        predicted.append([0.0 if end < -5 else 1.0 if end > 5 else float(stats.norm.cdf(end)) for end in ends])
        if math.isnan(u):
            hits.append(NAN)
            continue
        z = min(max(stats.norm.ppf(u), -5.0), 5.0)
        below = z <= ends[0]
        above = not below and z >= ends[1]
        hits.append(float(not below and not above))
        low += step * (alpha / 2 - below)
        high += step * (above - alpha / 2)
        wider[k] = min(max(wider[k] + 0.025 * (below + above - alpha), -1.0), 1.0)
        edges = edges + max(0.005, 1 / t) * (parts - (w <= edges))
        t += 1
    return np.array(predicted).T, np.array(hits)


def run(pits, levels, widths=None, cuts=()):
    u = torch.as_tensor(pits, dtype=torch.float64)
    width = torch.ones_like(u) if widths is None else torch.as_tensor(widths)
    state, outputs = levels.init(u), []
    for block in zip(*(torch.tensor_split(part, list(cuts)) for part in (u, width)), strict=True):
        state, output = levels.update_block(state, *block)
        outputs.append(output)
    return state, torch.cat([o.levels for o in outputs], -1), torch.cat([o.covered for o in outputs], -1)


def test_it_is_the_recursion_written_plainly():
    rng = np.random.default_rng(0)
    pits = stats.norm.cdf(0.2 + 0.7 * rng.standard_t(3, size=400))
    pits[[0, 5, 100]] = NAN
    pits[[30, 31, 200]] = 0.0, 1.0, 1e-14
    widths = np.exp(rng.normal(size=400) + 3)
    levels = IntervalLevels((0.9, 0.5, 0.99))
    _, ends, covered = run(pits, levels, widths, cuts=(1, 130))
    for place, coverage in enumerate(levels.coverages):
        want, hits = by_hand(pits, widths, coverage)
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
    misses = []
    for t in range(1500):
        width = torch.from_numpy(np.exp(rng.normal(size=1) * (1 + t % 3)))
        low, high = levels.probabilities(state, width).flatten().tolist()
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
        state, output = levels.update_block(state, torch.tensor([u], dtype=torch.float64), width)
        assert output.levels.flatten().tolist() == [low, high]
        misses.append(1 - float(output.covered))
        assert -2 <= float(state.ends[0, 1] - state.ends[0, 0]) <= 13.5
        if t + 1 in (100, 300, 700, 1500):
            assert abs(np.mean(misses) - (1 - coverage)) <= levels.bound(t + 1) + 1e-12
    assert levels.bound(1500) < 0.21


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.0, 0.5), (0.5, 1.5), (-0.3, 0.7)])
def test_coverage_is_met_on_both_sides(shift, scale):
    rng = np.random.default_rng(4)
    pits = stats.norm.cdf(shift + scale * rng.normal(size=4000))
    _, ends, covered = run(pits, IntervalLevels((0.9, 0.5)))
    np.testing.assert_allclose(covered.mean(-1), [0.9, 0.5], atol=0.01)
    assert abs(np.mean(pits <= ends[0, 0].numpy()) - 0.05) < 0.01
    windows = np.convolve(covered[0], np.ones(500) / 500, "valid")
    assert bool((np.abs(windows - 0.9) < 0.05).all())


def test_narrow_intervals_cover_as_much_as_wide_ones():
    rng = np.random.default_rng(5)
    width = np.exp(rng.normal(size=5000))
    pits = stats.norm.cdf(rng.normal(size=5000) * width**-0.2)
    fifths = np.argsort(np.argsort(width)) // 1000
    _, _, covered = run(pits, IntervalLevels(), 7 * width)
    alike = run(pits, IntervalLevels())[2]
    found, before = (np.array([part[0][fifths == k].mean() for k in range(5)]) for part in (covered, alike))
    np.testing.assert_allclose(found, 0.9, atol=0.025)
    assert before[0] < 0.83
    assert before[4] > 0.95
    # the unit of the widths is none of its business
    assert torch.equal(run(pits, IntervalLevels(), 1e-9 * width)[2], covered)


def test_an_end_at_infinity():
    state, ends, covered = run([1.0] * 400 + [0.5], IntervalLevels((0.9,)))
    assert float(ends[1, 0].max()) == 1.0  # the interval reaches to infinity, and covers what lies there
    assert float(covered[0, -200:].mean()) > 0.5
    assert bool(torch.isfinite(state.ends).all())


def test_bad_arguments():
    for wrong in (0.0, 1.0, -0.1, 1.5, NAN, 90):
        with pytest.raises(ValueError, match="must be above 0 and below 1"):
            IntervalLevels((0.9, wrong))
    with pytest.raises(ValueError, match="occurs twice"):
        IntervalLevels((0.9, 0.9))
    with pytest.raises(ValueError, match="at most 0\\.999999"):
        IntervalLevels((1 - 1e-9,))
    levels = IntervalLevels()
    for wrong in (torch.zeros(2, 2), torch.zeros(2)):
        with pytest.raises(ValueError, match=r"pit and width must have shape \(B,\)"):
            levels.update_block(levels.init(torch.zeros(1)), wrong, torch.ones(3))


def test_a_block_is_one_row_after_another_of_one_series_or_of_several(generator):
    levels = IntervalLevels((0.9, 0.05, 0.5))
    pit = torch.rand(300, 5, generator=generator, dtype=torch.float64)
    pit[7::11, 2], pit[:, 4] = torch.nan, 0.5 + 0.001 * (pit[:, 4] - 0.5)  # one whose interval becomes empty
    pit[3:7, 0], pit[0, 1] = torch.tensor([0.0, 1.0, 1e-9, 1 - 1e-9], dtype=torch.float64), torch.nan
    width = torch.rand(300, 5, generator=generator, dtype=torch.float64) + 0.1
    width[[0, 9], 3] = torch.tensor([torch.inf, torch.nan], dtype=torch.float64)
    one = levels.init(pit)
    one.ends[:, 0] = torch.tensor([-0.001, -4.99, -0.5], dtype=torch.float64)
    together, batches = type(one)(*(part.expand(5, *part.shape) for part in one)), []
    for row, wide in zip(pit, width, strict=True):
        ahead = levels.probabilities(together, wide)
        together, batch = levels.update(together, row, wide)
        assert_close(ahead, batch.levels, rtol=1e-12, atol=1e-12)
        batches.append(batch)
    close = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}
    for s in range(5):
        state, output = levels.update_block(one, pit[:, s], width[:, s])
        alone, rows = one, []
        for values in zip(pit[:, s].tolist(), width[:, s].tolist(), strict=True):
            alone, row = levels.update_row(alone, *values)
            rows.append(row)
        for name, wanted in output._asdict().items():
            assert_close(torch.stack([getattr(part, name)[..., s] for part in batches], -1), wanted, **close)
            assert_close(torch.cat([getattr(row, name) for row in rows], -1), wanted, **close)
        assert_close(alone, state, **close)
        assert_close(type(one)(*(part[s] for part in together)), state, **close)
        assert_close(levels.probabilities(together)[..., s], levels.probabilities(state), **close)
        assert_close(
            levels.probabilities(state, width[:3, s])[..., 0], levels.probabilities(state, width[:1, s])[..., 0]
        )
