"""Lagged targets as input columns of the experts, and the season of a series."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from gp_ensembles.numerics.lag_selection import carried_forward
from gp_ensembles.numerics.reductions import readable_flags

_FAR = 100.0  # in widths of the range of the warm-up targets
_LEAST_CORRELATION = 0.2  # of a season
_RIDGE = 1e-6  # of the autoregression that fills gaps, relative to the number of rows


@final
class TargetMemory(nn.Module):
    """Past targets as input columns: column j of row t is :math:`y_{t - l_j}`.

    Args:
        lags: The lags :math:`l_j`, distinct positive whole numbers, ascending.
        y: Targets to which the autoregression is fitted, shape (N,), standardized; NaN where missing.

    Raises:
        ValueError: If lags are not distinct, positive and ascending, or as long as the targets.
    """

    coefficients: Tensor
    bounds: Tensor

    def __init__(self, lags: Sequence[int], y: Tensor) -> None:
        super().__init__()
        if not lags or list(lags) != sorted(set(lags)) or lags[0] < 1:
            raise ValueError(f"lags must be distinct positive whole numbers, ascending, got {list(lags)}")
        if lags[-1] >= y.shape[0]:
            raise ValueError(f"a lag of {lags[-1]} rows needs a longer warm-up than {y.shape[0]} rows")
        self.lags: tuple[int, ...] = tuple(int(lag) for lag in lags)
        coefficients, bounds = _autoregression(self.lags, y)
        self.register_buffer("coefficients", coefficients)
        self.register_buffer("bounds", bounds)

    @property
    def num_columns(self) -> int:
        """Number of columns P."""
        return len(self.lags)

    def init(self, like: Tensor) -> Tensor:
        """The history before any target, shape (L,) for the longest lag L."""
        return like.new_zeros(self.lags[-1])

    def columns(self, history: Tensor, y: Tensor, *, is_complete: bool = False) -> tuple[Tensor, Tensor]:
        """History after a block of targets, (B,) or (S, B), and the lagged targets of its rows, (B, P) or (S, B, P)."""
        longest = self.lags[-1]
        y = y.clamp(*self.reach())
        if is_complete:
            known = torch.cat([history, y], dim=-1)
        else:
            known = self._filled(history, y) if y.ndim == 1 else self._filled_each(history, y)
        columns = [known[..., longest - lag : known.shape[-1] - lag] for lag in self.lags]
        return known[..., -longest:], torch.stack(columns, dim=-1)

    def next_columns(self, history: Tensor) -> Tensor:
        """Lagged targets (..., P) of the row after a history (..., L)."""
        return torch.stack([history[..., -lag] for lag in self.lags], dim=-1)

    def reach(self) -> tuple[Tensor, Tensor]:
        """The limits to which more distant targets are clamped."""
        reach = _FAR * (self.bounds[1] - self.bounds[0])
        return self.bounds[0] - reach, self.bounds[1] + reach

    def is_usual(self, targets: Tensor) -> Tensor:
        """Which targets, of any shape, are no farther from the range of the warm-up targets than its width."""
        lower, upper = self.bounds.unbind()
        return (targets >= lower - (upper - lower)) & (targets <= upper + (upper - lower))

    def _filled(self, history: Tensor, y: Tensor) -> Tensor:
        known, gaps = torch.cat([history, y]), readable_flags(torch.isnan(y))
        if gaps is None or known.requires_grad:  # an outlier is remembered as what its prediction says
            return self._filled_each(history.unsqueeze(0), y.unsqueeze(0)).squeeze(0)
        if not any(gaps):
            return known
        # A gap may be filled from another one: in order, and in plain numbers.
        values, shift, slopes = known.tolist(), float(self.coefficients[-1]), self.coefficients[:-1].tolist()
        lower, upper = self.bounds.tolist()
        for place in (history.shape[0] + number for number, is_gap in enumerate(gaps) if is_gap):
            value = shift + sum(slope * values[place - lag] for slope, lag in zip(slopes, self.lags, strict=True))
            values[place] = min(max(value, lower), upper)
        return known.new_tensor(values)

    def _filled_each(self, history: Tensor, y: Tensor) -> Tensor:
        """Known targets of S series, history (S, L) and block (S, B), with gaps filled."""
        known, longest = torch.cat([history, y], dim=-1), history.shape[-1]
        lower, upper = self.bounds.unbind()
        for place in range(longest, known.shape[-1]):
            gaps = known[:, place].isnan()
            flags = readable_flags(gaps)
            if flags is None or any(flags):
                lagged = torch.stack([known[:, place - lag] for lag in self.lags], dim=-1)
                value = self.coefficients[-1] + lagged @ self.coefficients[:-1]
                known[:, place] = torch.where(gaps, value.clamp(lower, upper), known[:, place])
        return known


def _autoregression(lags: tuple[int, ...], y: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of a linear autoregression by least squares, the constant last, and the range of the targets."""
    filled = carried_forward(y)
    seen = filled[lags[-1] :]
    design = torch.stack([*(filled[lags[-1] - lag : filled.shape[0] - lag] for lag in lags), torch.ones_like(seen)], -1)
    ridge = _RIDGE * design.shape[0] * torch.diag_embed(torch.ones_like(design[0]))
    coefficients = torch.linalg.solve(design.mT @ design + ridge, design.mT @ seen)
    return coefficients.to(y), torch.stack([filled.amin(), filled.amax()]).to(y)


def find_season(y: Tensor) -> int | None:
    """The lag of the highest peak of the autocorrelation of y (N,) around a straight line; ``None`` without a peak."""
    rows = torch.arange(y.shape[0], dtype=torch.float64, device=y.device)
    seen = ~torch.isnan(y)
    line = torch.stack([rows, torch.ones_like(rows)], dim=-1)
    fitted = line @ torch.linalg.lstsq(line[seen], y[seen].double().unsqueeze(-1)).solution
    rest = torch.where(seen, y.double() - fitted.squeeze(-1), 0.0)
    power, most = float(rest @ rest), y.shape[0] // 3
    if most < 2 or power <= 1e-12 * y.shape[0]:
        return None
    correlation = torch.stack([rest[lag:] @ rest[: y.shape[0] - lag] for lag in range(most + 2)]) / power
    middle, around = correlation[2:-1], torch.maximum(correlation[1:-2], correlation[3:])
    least = max(_LEAST_CORRELATION, 4 / math.sqrt(y.shape[0]))
    peaks = torch.where((middle > around) & (middle > least), middle, -torch.inf)
    best = int(peaks.argmax())
    return None if torch.isneginf(peaks[best]) else best + 2
