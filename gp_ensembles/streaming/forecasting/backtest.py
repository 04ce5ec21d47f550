"""Backtests of forecasts: scores by horizon over many origins, each with only what was known there."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.display import ends, rows_text
from gp_ensembles.streaming.model import OnlineModel

LEVELS = tuple(k / 20 for k in range(1, 20))


class Backtest(NamedTuple):
    """Quantiles of the next H targets predicted at O origins, and the targets.

    Attributes:
        origins: Rows that were known at each origin, integers, shape (O,).
        levels: Probabilities of the quantiles, ascending, K of them.
        quantiles: In units of the target, shape (O, H, K).
        targets: Shape (O, H); NaN where missing.
    """

    origins: Tensor
    levels: tuple[float, ...]
    quantiles: Tensor
    targets: Tensor

    @property
    def pinball(self) -> Tensor:
        """Mean loss of each level's quantiles at each horizon, shape (K, H); see Gneiting (2011)."""
        return self._losses().nanmean(0).mT

    @property
    def crps(self) -> Tensor:
        """Continuous ranked probability score at each horizon, shape (H,)."""
        return self.crps_by_origin.nanmean(0)

    @property
    def crps_by_origin(self) -> Tensor:
        """The same at each origin, shape (O, H); NaN where the target is missing."""
        edges = self.quantiles.new_tensor([0.0, *self.levels, 1.0])
        return self._losses() @ (edges[2:] - edges[:-2])

    def coverage(self, coverage: float) -> Tensor:
        """Share of the targets inside central intervals at each horizon, shape (H,).

        Raises:
            ValueError: If their ends are not among the levels.
        """
        ends = [round(0.5 * (1 - coverage), 9), round(0.5 * (1 + coverage), 9)]
        known = [round(level, 9) for level in self.levels]
        if not all(end in known for end in ends):
            raise ValueError(f"intervals of coverage {coverage:g} end at levels {ends}, which are not among {known}")
        lower, upper = (self.quantiles[..., known.index(end)] for end in ends)
        inside = ((self.targets >= lower) & (self.targets <= upper)).to(self.targets)
        return torch.where(self.targets.isnan(), torch.nan, inside).nanmean(0)

    def __repr__(self) -> str:
        origins, steps = self.targets.shape
        rows = ends(steps)
        head = f"Backtest of {origins} origins, {steps} steps each, {len(self.levels)} quantiles"
        return rows_text(head, rows, {"CRPS": [self.crps[rows]]})

    def _losses(self) -> Tensor:
        """Pinball losses, shape (O, H, K)."""
        level = self.quantiles.new_tensor(self.levels)
        error = self.targets.unsqueeze(-1) - self.quantiles
        return torch.maximum(level * error, (level - 1) * error)


def backtest(
    model: OnlineModel,
    X: Tensor,
    y: Tensor,
    horizon: int,
    *,
    known: Sequence[int] | None = None,
    origins: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Backtest:
    """Let a model learn rows X (N, D) and y (N,) in order, and forecast at origins on the way.

    Raises:
        ValueError: If an origin is inside the warm-up, or has fewer than H rows behind it.
    """
    warm_up, num_rows = 0 if model.is_fitted else model.config.warmup, y.shape[0]
    chosen = range(warm_up, num_rows - horizon + 1) if origins is None else list(origins)
    if not chosen:
        raise ValueError(
            f"a backtest needs {warm_up} rows for the warm-up and {horizon} behind the first origin, got {num_rows}"
        )
    if chosen[0] < warm_up or chosen[-1] + horizon > num_rows:
        raise ValueError(
            f"origins must lie between {warm_up}, the end of the warm-up, and {num_rows - horizon}, which has "
            f"{horizon} rows behind it; got {chosen[0]} to {chosen[-1]}"
        )
    future = X.clone()
    if known is not None:
        future[:, [j for j in range(X.shape[1]) if j not in known]] = torch.nan
    learned, quantiles = 0, []
    for origin in chosen:
        if learned < origin:
            model.observe(X[learned:origin], y[learned:origin])
            learned = origin
        forecast = model.forecast(future[origin : origin + horizon], generator=generator)
        quantiles.append(forecast.quantile(LEVELS).mT)
    return scored(y, chosen, horizon, quantiles)


def scored(y: Tensor, origins: Sequence[int], horizon: int, quantiles: list[Tensor]) -> Backtest:
    """Quantiles (H, K) of each origin with the observed targets."""
    targets = torch.stack([y[origin : origin + horizon] for origin in origins]).double()
    numbers = torch.tensor(list(origins), dtype=torch.int64, device=y.device)
    return Backtest(numbers, LEVELS, torch.stack(quantiles).to(targets), targets)
