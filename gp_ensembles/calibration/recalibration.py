r"""Recalibration: a monotone map of a distribution function onto a better calibrated one, learned online.

The probability integral transform :math:`u_t = F_t(y_t)` is uniform where predictions are calibrated. Its normal score
is then standard normal; candidates say that it is :math:`N(m, s^2)` instead (the prediction is off by m of its own
deviations, and s times too narrow), on a grid of m and s. Two rules weigh the candidates, each by

.. math:: w_{t+1} = w_t \circ (1 - \eta + \eta\, g(u_t) / r_t) (1 - \delta) + \delta / K, \qquad r_t = w_t^\top g(u_t)

which is Bayes' rule with a fixed share for :math:`\eta = 1` (Herbster and Warmuth 1998: follows what changes) and
Soft-Bayes for a smaller one (Orseau et al. 2017: finds the best mixture of candidates); their two mixtures and the
identity, which changes nothing, are weighed by a fixed share that is partial to the identity. Where predictions are
calibrated that costs at most :math:`\log(1/0.8)` once and 0.0004 nats per row.
"""

import math
from collections.abc import Iterable
from itertools import product
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.numerics.compiled import IS_COMPILED, compiled
from gp_ensembles.numerics.normal_scores import (
    TAIL,
    component_log_densities,
    log_density,
    maps_at,
    normal_score_of,
    transform,
)

Numbers = NDArray[np.float64]
_SHIFTS = (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5)
_SCALES = (0.2, 0.4, 0.6, 0.75, 0.88, 1.0, 1.15, 1.4, 1.8)
_CANDIDATES = tuple((m, s) for s, m in product(_SCALES, _SHIFTS) if (m, s) != (0.0, 1.0))
_RULES = ((1.0, 0.1), (0.1, 0.002))  # learning rate and share of each rule
_SHARE = 0.002  # between the identity and the mixtures of the rules
_IDENTITY = 0.8  # prior weight of the identity, and its part of the share
_PRIOR = (_IDENTITY, *[(1 - _IDENTITY) / len(_RULES)] * len(_RULES))
_GIVEN_OUT = tuple(_SHARE * prior for prior in _PRIOR)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device="cpu").unsqueeze(-1)


# Per rule: factor of a weight, factor of its density, and the share of each candidate.
_KEPT = _column((1 - rate) * (1 - share) for rate, share in _RULES)
_GAINED = _column(rate * (1 - share) for rate, share in _RULES)
_GIVEN = _column(share / len(_CANDIDATES) for _, share in _RULES)
_SHIFT = _column([0.0, *(m for m, _ in _CANDIDATES)]).squeeze(-1)
_SCALE = _column([1.0, *(s for _, s in _CANDIDATES)]).squeeze(-1)


_SHIFTS_AND_SCALES = _SHIFT.numpy(), _SCALE.numpy()
_ROW = (
    np.array([((1 - rate) * (1 - share), rate * (1 - share), share / len(_CANDIDATES)) for rate, share in _RULES]),
    np.array(_GIVEN_OUT),
)


class MapComponents(NamedTuple):
    """The normal distributions of the normal score of which every map is a mixture; the first is the identity.

    Attributes:
        shift: Shifts, shape (K,).
        scale: Scales, shape (K,).
    """

    shift: Tensor
    scale: Tensor


class RecalibrationState(NamedTuple):
    """State of recalibration between two targets.

    Attributes:
        candidates: Weights of the K - 1 candidates under each of the R rules, shape (R, K - 1), float64.
        shares: Weights of the identity and of each rule's mixture, shape (1 + R,), float64.
    """

    candidates: Tensor
    shares: Tensor


class RecalibratedBlock(NamedTuple):
    """Recalibrated predictions of a block.

    Attributes:
        log_weights: Log weights of the components of the map before each target, shape (K, B).
        gain: What the map adds to the log density of each target, shape (B,); NaN where there is none.
        pit: The transforms of the targets after the map, shape (B,).
    """

    log_weights: Tensor
    gain: Tensor
    pit: Tensor


def map_components(like: Tensor) -> MapComponents:
    """The components of all maps, in float64 on the device of ``like``."""
    return MapComponents(_SHIFT.to(like.device), _SCALE.to(like.device))


def init_recalibration(like: Tensor) -> RecalibrationState:
    """The state before any target, on the device of ``like``."""
    num_rules, num = len(_RULES), len(_CANDIDATES)
    candidates = like.new_full((num_rules, num), 1 / num, dtype=torch.float64)
    return RecalibrationState(candidates, like.new_tensor(_PRIOR, dtype=torch.float64))


def map_log_weights(state: RecalibrationState) -> Tensor:
    """Log weights (K,) of the components of the map for the next target."""
    return _log_weights(state.candidates.unsqueeze(0), state.shares.unsqueeze(0)).squeeze(-1)


def recalibrate_block(state: RecalibrationState, pit: Tensor) -> tuple[RecalibrationState, RecalibratedBlock]:
    """Predict a block of targets by the maps before each, and learn them.

    Shapes: ``pit`` (B,).

    Raises:
        ValueError: If pit has another shape.
    """
    if pit.shape == (1,) and pit.device.type == "cpu" and pit.dtype == torch.float64:
        u = float(pit)
        if u == u:
            learned, row, gain, transformed = recalibrate_row(state, u)
            parts = row[:, None], np.array([gain]), np.array([transformed])
            return learned, RecalibratedBlock(*map(torch.from_numpy, parts))
    after, log_weights = update_recalibration(state, pit.cpu())
    maps = (log_weights.to(pit.device), *map_components(pit))
    return after, RecalibratedBlock(maps[0], log_density(pit, *maps), transform(pit, *maps))


def recalibrate_row(state: RecalibrationState, u: float) -> tuple[RecalibrationState, Numbers, float, float]:
    """:func:`recalibrate_block` of one observed target: plain arrays are quicker than torch for so few numbers.

    Returns: the state after it, log weights (K,) of the map before it, gain and transform.
    """
    if IS_COMPILED and TAIL <= u <= 1 - TAIL:
        densities, values = _maps_inside(normal_score_of(u), *_SHIFTS_AND_SCALES)
    else:
        densities, values = maps_at(u, *_SHIFTS_AND_SCALES)
    candidates, shares, log_weights, gain, pit = _learn_row(
        *_ROW, state.candidates.numpy(), state.shares.numpy(), densities, values
    )
    return RecalibrationState(torch.from_numpy(candidates), torch.from_numpy(shares)), log_weights, gain, pit


def next_log_weights(state: RecalibrationState) -> Numbers:
    """:func:`map_log_weights` as an array, for one row."""
    shares = state.shares.numpy()
    log_weights: Numbers = np.log(np.concatenate([shares[:1], shares[1:].dot(state.candidates.numpy())]))
    return log_weights


@compiled
def _maps_inside(z: float, shift: Numbers, scale: Numbers) -> tuple[Numbers, Numbers]:
    """:func:`~gp_ensembles.numerics.normal_scores.maps_at` at a normal score inside the tails, as one loop."""
    densities, values = np.empty(len(shift)), np.empty(len(shift))
    for k in range(len(shift)):
        standard = (z - shift[k]) / scale[k]
        densities[k] = math.exp(0.5 * (z * z - standard * standard)) / scale[k]
        values[k] = 0.5 * math.erfc(-standard / math.sqrt(2.0))
    return densities, values


@compiled
def _learn_row(
    rules: Numbers, given_out: Numbers, candidates: Numbers, shares: Numbers, densities: Numbers, values: Numbers
) -> tuple[Numbers, Numbers, Numbers, float, float]:
    """Learn one target, from arrays.

    Shapes: ``rules`` (R, 3), ``given_out`` (1 + R,), ``densities`` (K,), ``values`` (K,).
    """
    after, weights = np.empty_like(candidates), np.empty(len(densities))
    weights[0], weights[1:] = shares[0], 0.0
    joint = shares.copy()
    for r in range(len(candidates)):
        weights[1:] += shares[1 + r] * candidates[r]
        density = (candidates[r] * densities[1:]).sum()
        joint[1 + r] *= density
        after[r] = candidates[r] * (rules[r, 0] + (rules[r, 1] / density) * densities[1:]) + rules[r, 2]
    learned = joint * ((1 - _SHARE) / joint.sum()) + given_out
    return after, learned, np.log(weights), np.log((weights * densities).sum()), (weights * values).sum()


def update_recalibration(state: RecalibrationState, pit: Tensor) -> tuple[RecalibrationState, Tensor]:
    """Learn a block of targets in order.

    Shapes: ``pit`` (B,); returns the state after the block and the log weights (K, B) before each target.
    """
    if pit.ndim != 1:
        raise ValueError(f"pit must have shape (B,), got {tuple(pit.shape)}")
    weights = state.candidates
    if pit.shape[0] == 0:
        return state, map_log_weights(state).unsqueeze(-1)[:, :0]
    pit = pit.detach().to(weights)
    seen = (~pit.isnan()).tolist()
    densities = component_log_densities(pit, *(part[1:] for part in map_components(weights))).exp().mT.contiguous()
    # numpy is quicker than torch for so few numbers.
    kept, gained, given = _KEPT.numpy(), _GAINED.squeeze(-1).numpy(), _GIVEN.numpy()
    now, shares = state.candidates.cpu().numpy(), state.shares.tolist()
    before, all_shares = [], []
    for row, is_seen in zip(densities.cpu().numpy(), seen, strict=True):
        before.append(now)
        all_shares.append(shares)
        if is_seen:
            density = now.dot(row)
            after = np.multiply.outer(gained / density, row)
            after += kept
            after *= now
            after += given
            now = after
            shares = _share_out(shares, [1.0, *density.tolist()])
    log_weights = _log_weights(weights.new_tensor(np.stack(before)), weights.new_tensor(all_shares))
    return RecalibrationState(weights.new_tensor(now), weights.new_tensor(shares)), log_weights


def _share_out(shares: list[float], densities: list[float]) -> list[float]:
    """Bayes' rule, and a fixed share by the prior."""
    joint = list(map(mul, shares, densities))
    keep = (1 - _SHARE) / sum(joint)
    return [keep * part + given for part, given in zip(joint, _GIVEN_OUT, strict=True)]


def _log_weights(candidates: Tensor, shares: Tensor) -> Tensor:
    """Log weights (K, B) of all components from those of candidates (B, R, K - 1) and of rules (B, 1 + R)."""
    mixture = (shares[:, 1:].unsqueeze(-1) * candidates).sum(1)
    return torch.cat([shares[:, :1], mixture], dim=1).log().mT
