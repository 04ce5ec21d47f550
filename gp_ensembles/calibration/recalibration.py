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

from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.calibration import maps
from gp_ensembles.numerics import normal
from gp_ensembles.numerics.backends import arrays_of, rows_of
from gp_ensembles.numerics.normal_scores import LIMIT, normal_score

_SHIFTS = (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5)
_SCALES = (0.2, 0.4, 0.6, 0.75, 0.88, 1.0, 1.15, 1.4, 1.8)
_CANDIDATES = tuple((m, s) for s, m in product(_SCALES, _SHIFTS) if (m, s) != (0.0, 1.0))
_RULES = ((1.0, 0.1), (0.1, 0.002))  # learning rate and share of each rule
_SHARE = 0.002  # between the identity and the mixtures of the rules
_IDENTITY = 0.8  # prior weight of the identity, and its part of the share
_PRIOR = (_IDENTITY, *[(1 - _IDENTITY) / len(_RULES)] * len(_RULES))


def _vector(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device="cpu")


_SHIFT, _SCALE = _vector([0.0, *(m for m, _ in _CANDIDATES)]), _vector([1.0, *(s for _, s in _CANDIDATES)])


class RecalibrationState(NamedTuple):
    """State of recalibration between two targets, of one stream or of a batch of series."""

    candidates: Tensor  # weights of the K - 1 candidates under each of the R rules, shape (*batch, R, K - 1), float64
    shares: Tensor  # weights of the identity and of each rule's mixture, shape (*batch, 1 + R), float64


# Of a block, or of one row of each of B series: log weights (K, B) of the components of the map before each target, the
# gain (B,) of the log density of each, NaN where there is none, and the transforms (B,) of the targets after the map.
Recalibrations = tuple[Tensor, Tensor, Tensor]


def map_components(like: Tensor) -> tuple[Tensor, Tensor]:
    """Shifts and scales (K,) of the normal distributions of the normal score of which every map is a mixture.

    The first is the identity. They are in float64 on the device of ``like``.
    """
    return _SHIFT.to(like.device), _SCALE.to(like.device)


def init_recalibration(like: Tensor) -> RecalibrationState:
    """The state before any target, on the device of ``like``."""
    num_rules, num = len(_RULES), len(_CANDIDATES)
    candidates = like.new_full((num_rules, num), 1 / num, dtype=torch.float64)
    return RecalibrationState(candidates, like.new_tensor(_PRIOR, dtype=torch.float64))


def map_log_weights(state: RecalibrationState) -> Tensor:
    r"""Log weights (K, \*batch) of the components of the maps for the next targets."""
    weights: Tensor
    if state.shares.is_cpu:
        formulas = (ROW if state.shares.ndim == 1 else _constants(state.shares.device))[0]
        weights = torch.from_numpy(formulas.in_force(state.candidates.numpy(), state.shares.numpy()))
    else:
        weights = maps.in_force(*state)
    return weights.log().movedim(-1, 0)


@torch.no_grad()
def recalibrate(state: RecalibrationState, pit: Tensor) -> tuple[RecalibrationState, Recalibrations]:
    """Predict the next target of each of S series by its map, and learn it.

    Shapes: those of the state with an axis (S,) in front; ``pit``, the probability integral transforms of the targets,
    (S,), NaN where missing. Returns the states after them, and one row of each series.
    """
    u = pit.to(state.shares).unsqueeze(-1)
    formulas, grid, rules = _constants(u.device)
    given = (*state, u, normal_score(u))
    candidates, shares, probability, z = given if formulas is maps else (part.numpy() for part in given)
    p, value = formulas.at(grid, probability, z)
    learned, shared, *read = map(torch.as_tensor, formulas.step(rules, candidates, shares, p, value, probability))
    seen = u == u
    after = torch.where(seen[..., None], learned, state.candidates), torch.where(seen, shared, state.shares)
    return RecalibrationState(*after), _as_block(*read)


@torch.no_grad()
def recalibrate_block(state: RecalibrationState, pit: Tensor) -> tuple[RecalibrationState, Recalibrations]:
    """Predict a block of targets of one stream by the maps before each, and learn them.

    Shapes: ``pit`` (B,).
    """
    if pit.ndim != 1:
        raise ValueError(f"pit must have shape (B,), got {tuple(pit.shape)}")
    scores = pit.double().cpu().unsqueeze(-1)
    u, (formulas, grid, rules) = scores.numpy(), _constants(scores.device)
    p, value = formulas.at(grid, u, normal_score(scores).numpy())
    now = [part.cpu().numpy() for part in state]
    weights, density, moved = np.empty((len(u), len(_SHIFT))), np.empty_like(u), np.empty_like(u)
    for row, is_missing in enumerate(np.isnan(u[:, 0]).tolist()):
        *after, weights[row], density[row], moved[row] = ROW[0].step(rules, *now, p[row], value[row], u[row])
        now = now if is_missing else after
    learned = RecalibrationState(*(torch.from_numpy(part).to(state.shares.device) for part in now))
    return learned, _as_block(*(torch.from_numpy(part).to(pit.device) for part in (weights, density, moved)))


def _as_block(weights: Tensor, density: Tensor, moved: Tensor) -> Recalibrations:
    """From weights (B, K), densities and transforms (B, 1)."""
    return weights.log().mT, density.squeeze(-1).log(), moved.squeeze(-1)


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[ModuleType, maps.Maps, maps.Rules]:
    """Formulas for a device with their numbers; those of arrays for the processor."""
    shift, scale = _SHIFT[1:], _SCALE[1:]
    grid = maps.Maps(shift, scale, normal.cdf((-LIMIT - shift) / scale), normal.cdf((shift - LIMIT) / scale))
    of_rules = [((1 - rate) * (1 - share), rate * (1 - share), share / len(_CANDIDATES)) for rate, share in _RULES]
    kept, gained, given = (_vector(values).unsqueeze(-1) for values in zip(*of_rules, strict=True))
    rules = maps.Rules(kept, gained, given, _vector([1 - _SHARE]), _vector(_SHARE * prior for prior in _PRIOR))
    if device.type != "cpu":
        return maps, maps.Maps(*(part.to(device) for part in grid)), maps.Rules(*(part.to(device) for part in rules))
    numbers = maps.Maps(*(part.numpy() for part in grid)), maps.Rules(*(part.numpy() for part in rules))
    return arrays_of(maps), *numbers


ROW: tuple[Any, maps.Maps, maps.Rules] = rows_of(maps), *_constants(_SHIFT.device)[1:]  # of one stream
