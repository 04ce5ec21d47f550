"""Rows given one at a time take plain numbers and numpy: the same as a block, also in the tails and through gaps."""

import torch

from gp_ensembles.calibration import recalibration
from gp_ensembles.calibration.levels import IntervalLevels
from gp_ensembles.numerics.normal_scores import (
    TAIL,
    component_log_densities,
    log_density,
    maps_at,
    normal_score,
    normal_score_of,
    transform,
)


def transforms() -> torch.Tensor:
    u = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[50:] = 0.5 + 0.3 * (u[50:] - 0.5)
    u[3:11] = torch.tensor([0.0, 1.0, 1e-9, 1 - 1e-9, torch.nan, TAIL, 1 - TAIL, torch.nan], dtype=torch.float64)
    return u


def test_recalibration_row_by_row_is_the_block() -> None:
    u = transforms()
    after, block = recalibration.recalibrate_block(recalibration.init_recalibration(u), u)
    same, log_weights = recalibration.update_recalibration(recalibration.init_recalibration(u), u)
    maps = (log_weights, *recalibration.map_components(u))
    torch.testing.assert_close(block.log_weights, log_weights, rtol=0, atol=0)
    torch.testing.assert_close(block.gain, log_density(u, *maps), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(block.pit, transform(u, *maps), rtol=0, atol=0, equal_nan=True)

    state, parts = recalibration.init_recalibration(u), []
    for row in u.split(1):
        state, part = recalibration.recalibrate_block(state, row)
        parts.append(part)
    for name, value in block._asdict().items():
        rows = torch.cat([getattr(part, name) for part in parts], -1)
        torch.testing.assert_close(rows, value, rtol=1e-12, atol=1e-12, equal_nan=True)
    for one, two, three in zip(state, after, same, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
        assert torch.equal(two, three)


def test_a_state_is_not_touched() -> None:
    u = transforms()[:1]
    state = recalibration.init_recalibration(u)
    before = [part.clone() for part in state]
    first, second = recalibration.recalibrate_block(state, u), recalibration.recalibrate_block(state, u)
    assert all(torch.equal(one, two) for one, two in zip(state, before, strict=True))
    assert torch.equal(first[0].candidates, second[0].candidates)


def test_levels_row_by_row_are_the_block() -> None:
    u, levels = transforms(), IntervalLevels((0.05, 0.5, 0.9))
    start = levels.init(u)._replace(lower=torch.tensor([-0.001, -0.5, -4.99], dtype=torch.float64))
    after, block = levels.update_block(start, u)
    state, parts = start, []
    for row in u.split(1):
        state, part = levels.update_block(state, row)
        parts.append(part)
    for name, value in block._asdict().items():
        rows = torch.cat([getattr(part, name) for part in parts], -1)
        torch.testing.assert_close(rows, value, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(state, after, rtol=1e-12, atol=1e-12)


def test_one_probability_in_plain_numbers() -> None:
    shift, scale = recalibration.map_components(torch.zeros(1))
    for u in transforms()[:12]:
        score = normal_score_of(float(u))
        torch.testing.assert_close(u.new_tensor(score), normal_score(u), equal_nan=True)
        if not torch.isnan(u):
            densities, values = maps_at(float(u), shift.numpy(), scale.numpy())
            torch.testing.assert_close(torch.from_numpy(densities), component_log_densities(u, shift, scale).exp())
            maps = zip(shift, scale, strict=True)
            own = torch.stack([transform(u[None], u.new_zeros(1, 1), m[None], s[None])[0] for m, s in maps])
            torch.testing.assert_close(torch.from_numpy(values), own)
