"""Lag selection: the past values of a series that help to predict the next one."""

import math

import torch
from torch import Tensor

_CANDIDATES = 4  # the best of p standard normal squares is above 2 log(4 p) with a probability of .05
_NEAR, _FAR = 5, 2  # lags of up to a fifth of the rows, and where there are such, of up to a half


def carried_forward(y: Tensor) -> Tensor:
    """A series (N,) with gaps (NaN) at the last value before them, float64; at zero before the first."""
    rows = torch.arange(1, y.shape[0] + 1, device=y.device)
    newest = torch.where(torch.isnan(y), 0, rows).cummax(0).values
    return torch.cat([y.new_zeros(1), y])[newest].double()


def select_lags(y: Tensor, most: int, longest: int, given: tuple[int, ...] = ()) -> tuple[int, ...]:
    r"""Lags that help to predict the next value, by forward selection on the partial correlation.

    .. math:: n \log(RSS / RSS') > 2 \log \max(n, 4 L)

    Shapes: ``y`` (N,).
    """
    filled = carried_forward(y)
    num_rows = y.shape[0] - longest
    if longest < 1 or num_rows < 3:
        return ()
    residual = filled[longest:] - filled[longest:].mean()
    lagged = torch.stack([filled[longest - lag : filled.shape[0] - lag] for lag in range(1, longest + 1)], dim=-1)
    lagged = lagged - lagged.mean(0)
    smallest = 1e-8 * lagged.square().sum(0)
    least = 2 * math.log(max(num_rows, _CANDIDATES * longest))
    chosen: list[int] = []
    while len(chosen) < max(most, len(given)):
        squares = lagged.square().sum(0)
        free = squares > smallest
        gain = torch.where(free, (residual @ lagged).square() / torch.where(free, squares, 1.0), 0.0)
        if len(chosen) < len(given):
            best = given[len(chosen)] - 1
        else:
            best, rest = int(gain.argmax()), float(residual.square().sum())
            left = rest - float(gain[best])
            is_exact = left <= 1e-12 * rest
            if is_exact or num_rows * math.log(rest / left) <= least:
                if is_exact and rest > 0:
                    chosen.append(best + 1)
                break
        chosen.append(best + 1)
        direction = lagged[:, best] / squares[best].sqrt().clamp_min(torch.finfo(y.dtype).tiny)
        residual = residual - direction * (direction @ residual)
        lagged = lagged - torch.outer(direction, direction @ lagged)
    return tuple(sorted({1, *chosen})) if chosen else ()


def find_lags(y: Tensor, most: int, longest: int) -> tuple[int, ...]:
    """Lags that help to predict the next value, no longer than the rows support; see :func:`select_lags`.

    Shapes: ``y`` (N,).
    """
    num_rows = y.shape[0]
    near = select_lags(y, most, min(longest, num_rows // _NEAR))
    if not near or longest <= num_rows // _NEAR:
        return near
    return select_lags(y, most, min(longest, num_rows // _FAR), near)
