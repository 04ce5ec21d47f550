"""Recalibration against a plain loop over rows, and what it promises: little lost where nothing is wrong."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.calibration.recalibration import (
    RecalibrationState,
    init_recalibration,
    map_components,
    map_log_weights,
    recalibrate,
    recalibrate_block,
)
from gp_ensembles.numerics.normal_scores import TAIL, log_density, transform
from gp_ensembles.streaming.one_row import recalibrate_row

SCALES = (0.2, 0.4, 0.6, 0.75, 0.88, 1.0, 1.15, 1.4, 1.8)
SHIFTS = (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5)
NAN = math.nan


def candidate_density(u, m, s):
    if stats.norm.cdf(-5) <= u <= stats.norm.sf(-5):
        z = stats.norm.ppf(u)
        return stats.norm.pdf(z, m, s) / stats.norm.pdf(z)
    mass = stats.norm.cdf(-5, m, s) if u < 0.5 else stats.norm.sf(5, m, s)
    return mass / stats.norm.cdf(-5)


def by_hand(pits):
    """Densities that the recalibrated model gives to PIT values, one after the other, from the equations."""
    candidates = [(m, s) for s in SCALES for m in SHIFTS if (m, s) != (0.0, 1.0)]
    num = len(candidates)
    follow, mix, shares = np.full(num, 1 / num), np.full(num, 1 / num), np.array([0.8, 0.1, 0.1])
    predicted = []
    for u in pits:
        if math.isnan(u):
            predicted.append(NAN)
            continue
        g = np.array([candidate_density(u, m, s) for m, s in candidates])
        parts = np.array([1.0, follow @ g, mix @ g])
        predicted.append(float(shares @ parts))
        follow = 0.9 * follow * g / parts[1] + 0.1 / num
        mix = 0.998 * mix * (0.9 + 0.1 * g / parts[2]) + 0.002 / num
        shares = 0.998 * shares * parts / (shares @ parts) + 0.002 * np.array([0.8, 0.1, 0.1])
    return np.array(predicted)


def gains(pits, cuts=()):
    """Log densities of PIT values under the maps in force before each, learned in blocks."""
    u = torch.as_tensor(pits, dtype=torch.float64)
    state, found = init_recalibration(u), []
    for block in torch.tensor_split(u, list(cuts)):
        state, (log_weights, *_) = recalibrate_block(state, block)
        found.append(log_density(block, log_weights, *map_components(u)))
    return torch.cat(found), state


def test_it_is_the_recursion_written_plainly():
    rng = np.random.default_rng(0)
    pits = stats.norm.cdf(0.3 + 0.5 * rng.normal(size=50))
    pits[[7, 30]] = NAN
    pits[[20, 21, 40]] = 0.0, 1.0, 1e-9
    got, state = gains(pits)
    np.testing.assert_allclose(got.exp(), by_hand(pits), rtol=1e-9)
    torch.testing.assert_close(state.candidates.sum(-1), torch.ones(2).double())
    torch.testing.assert_close(map_log_weights(state).exp().sum(), torch.tensor(1.0).double())


def transforms(num_series=3, num_rows=120):
    """Transforms (S, B) with gaps, both ends and the limits among them."""
    u = torch.rand(num_series, num_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = 0.5 + torch.linspace(0.2, 1.0, num_series, dtype=torch.float64)[:, None] * (u - 0.5)
    u[:, 3:11] = torch.tensor([0.0, 1.0, 1e-9, 1 - 1e-9, NAN, TAIL, 1 - TAIL, NAN], dtype=torch.float64)
    u[0, 20] = NAN
    return u


def test_a_block_is_one_row_after_another_of_one_series_or_of_several():
    u = transforms()
    start = init_recalibration(u)
    together, rows = RecalibrationState(*(part.expand(len(u), *part.shape) for part in start)), []
    for column in u.unbind(1):
        torch.testing.assert_close(
            map_log_weights(together)[:, 0], map_log_weights(RecalibrationState(*(p[0] for p in together)))
        )
        together, row = recalibrate(together, column)
        rows.append(row)
    for number, pit in enumerate(u):
        after, block = recalibrate_block(start, pit)
        torch.testing.assert_close(RecalibrationState(*(part[number] for part in together)), after)
        for value, each in zip(block, zip(*rows, strict=True), strict=True):
            same = torch.stack([row[..., number] for row in each], -1)
            torch.testing.assert_close(same, value, rtol=1e-12, atol=1e-12, equal_nan=True)
        weights, gains, moves = block
        components = weights, *map_components(u)
        torch.testing.assert_close(gains, log_density(pit, *components), rtol=1e-12, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(moves, transform(pit, *components), rtol=1e-12, atol=1e-12, equal_nan=True)
        state = start
        for at, value in enumerate(pit.tolist()):
            if not math.isnan(value):
                state, log_weights, gain, moved, spread = recalibrate_row(state, value)
                squares = sum(part.square() for part in map_components(u))
                assert spread**2 == pytest.approx(float(weights[:, at].exp() @ squares), rel=1e-9)
                torch.testing.assert_close(torch.from_numpy(log_weights), weights[:, at])
                assert (gain, moved) == pytest.approx((float(gains[at]), float(moves[at])))
        torch.testing.assert_close(state, after)
    assert all(torch.equal(part, fresh) for part, fresh in zip(start, init_recalibration(u), strict=True))


def test_single_precision_and_shapes():
    u = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state, _ = recalibrate_block(init_recalibration(u.float()), u.float())
    wide, _ = recalibrate_block(init_recalibration(u), u)
    assert state.candidates.dtype == torch.float64
    torch.testing.assert_close(state.candidates, wide.candidates, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match=r"pit must have shape \(B,\), got \(2, 20\)"):
        recalibrate_block(state, u.reshape(2, 20))


def test_where_nothing_is_wrong_it_costs_less_than_two_thousandths():
    for seed, num_rows in enumerate((600, 600, 600, 4000)):
        u = torch.rand(num_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert float(gains(u)[0].mean()) > -0.002


def test_it_never_costs_more_than_the_share_of_the_identity():
    # Two tenths of the weight once, and two tenths of a share of 0.002 a row; whatever the values.
    cycle = torch.tensor([0.5, 0.001, 0.999, 0.0, 1.0, 0.2], dtype=torch.float64).repeat(300)
    found = gains(cycle)[0]
    assert float(found.sum()) > math.log(0.8) + len(cycle) * math.log(1 - 0.0004)
    assert bool((found > math.log(0.0016) - 1e-9).all())
    assert bool(found.isfinite().all())
