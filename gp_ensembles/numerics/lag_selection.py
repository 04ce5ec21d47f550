"""Which past values of a series help to predict the next one."""

import math

import torch
from torch import Tensor


def carried_forward(y: Tensor) -> Tensor:
    """A series (N,) with gaps (NaN) at the last value before them, float64; at zero before the first.

    Example:
        >>> carried_forward(torch.tensor([torch.nan, 2.0, torch.nan]))
        tensor([0., 2., 2.], dtype=torch.float64)
    """
    rows = torch.arange(1, y.shape[0] + 1, device=y.device)
    newest = torch.where(torch.isnan(y), 0, rows).cummax(0).values
    return torch.cat([y.new_zeros(1), y])[newest].double()


def select_lags(y: Tensor, most: int, longest: int) -> tuple[int, ...]:
    r"""Lags that help to predict the next value, by forward selection on the partial correlation.

    The lag whose column has the largest partial correlation with the value, given those chosen so far and a constant,
    is taken as long as it lowers the Bayesian information criterion twice over,
    :math:`n \log(RSS / RSS') > 2 \log n` on n rows. With any lag goes the lag of one row.

    Args:
        y: Values, shape (N,), NaN where missing.
        most: Most lags to choose.
        longest: Longest lag to look at, below N.

    Returns:
        The lags, ascending; none where the past says nothing.

    Example:
        >>> y = torch.sin(torch.arange(200, dtype=torch.float64) * torch.pi / 6)
        >>> select_lags(y + 0.1 * torch.cos(37.0 * y + torch.arange(200) ** 2), most=2, longest=24)[0]
        1
    """
    filled = carried_forward(y)
    num_rows = y.shape[0] - longest
    if longest < 1 or num_rows < 3:
        return ()
    residual = filled[longest:] - filled[longest:].mean()
    lagged = torch.stack([filled[longest - lag : filled.shape[0] - lag] for lag in range(1, longest + 1)], dim=-1)
    lagged = lagged - lagged.mean(0)
    smallest = 1e-8 * lagged.square().sum(0)
    chosen: list[int] = []
    for _ in range(most):
        squares = lagged.square().sum(0)
        free = squares > smallest
        gain = torch.where(free, (residual @ lagged).square() / torch.where(free, squares, 1.0), 0.0)
        best, rest = int(gain.argmax()), float(residual.square().sum())
        left = rest - float(gain[best])
        if left < 1e-12 * rest or num_rows * math.log(rest / left) <= 2 * math.log(num_rows):
            if left < 1e-12 * rest and rest > 0:
                chosen.append(best + 1)
            break
        chosen.append(best + 1)
        direction = lagged[:, best] / squares[best].sqrt()
        residual = residual - direction * (direction @ residual)
        lagged = lagged - torch.outer(direction, direction @ lagged)
    return tuple(sorted({1, *chosen})) if chosen else ()
