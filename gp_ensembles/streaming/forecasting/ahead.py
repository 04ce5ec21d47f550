"""Forecasts of an ensemble on a stream in the units of the target, with recalibrated margins."""

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Recalibrated
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.numerics import normal, normal_scores
from gp_ensembles.streaming.forecasting.forecast import Forecast
from gp_ensembles.streaming.forecasting.paths import FutureRows, sample_paths
from gp_ensembles.streaming.predictions import StreamDistribution
from gp_ensembles.streaming.scales import Standardizer

_MOST_PATHS = 1_000_000


def future_rows(X: Tensor | int, num_inputs: int) -> Tensor:
    """Rows (H, D): those given, or H rows without a known input.

    Raises:
        TypeError: If it is neither a tensor nor a whole number.
        ValueError: If there is no row.
    """
    if isinstance(X, bool) or not isinstance(X, int | Tensor):
        raise TypeError(f"give future rows, (H, D), or their number, got {X!r}")
    num_steps = X.shape[0] if isinstance(X, Tensor) and X.ndim else X
    if isinstance(num_steps, int) and num_steps < 1:
        raise ValueError(f"a forecast needs at least one future row, got {num_steps}")
    return X if isinstance(X, Tensor) else torch.full((X, num_inputs), torch.nan, dtype=torch.float64, device="cpu")


def check_forecast(target: Target, num_steps: int, num_rows: int, num_paths: int) -> None:
    """Raise unless the numbers of rows and paths are legal for a forecast.

    Raises:
        TypeError: If targets are not one real number.
        ValueError: If there are more rows than were learned, or the number of paths is out of range.
    """
    if not target.is_real or target.num_outputs is not None:
        raise TypeError(f"there are forecasts of one real number only, not of {target}; predict the next row instead")
    if num_steps > num_rows:
        raise ValueError(
            f"{num_steps} rows ahead are more than the {num_rows} that were learned; ask for no more than that"
        )
    if not 2 <= num_paths <= _MOST_PATHS:
        raise ValueError(f"num_paths must be between 2 and {_MOST_PATHS}, got {num_paths}")


@torch.no_grad()
def forecast_rows(
    online: OnlineEnsemble,
    future: FutureRows,
    scales: Standardizer,
    first: StreamDistribution,
    num_paths: int,
    generator: torch.Generator | None,
) -> Forecast:
    """Forecast future rows; no argument is changed."""
    mixture = first.base if isinstance(first, Recalibrated) else first
    assert not isinstance(mixture, LatentMixture)
    log_weights = mixture.log_weights if mixture.log_weights.ndim == 1 else mixture.log_weights[:, 0]
    paths = sample_paths(online, future, log_weights, num_paths, generator=generator)
    return Forecast(recalibrated_paths(scales.inverse_mean(paths), first), first)


_TABLE_END, _TABLE_SIZE = 4.9, 393  # of the map that is inverted, in normal scores


def recalibrated_paths(paths: Tensor, first: StreamDistribution) -> Tensor:
    """Paths (S, H) whose margins are recalibrated by the map G of the first step's distribution."""
    if not isinstance(first, Recalibrated):
        return paths
    levels = (torch.arange(paths.shape[0], dtype=torch.float64, device=paths.device) + 0.5) / paths.shape[0]
    knots = normal_scores.normal_score(levels)
    table = torch.linspace(-_TABLE_END, _TABLE_END, _TABLE_SIZE, dtype=torch.float64, device=paths.device)
    after = normal_scores.transform(
        normal.cdf(table), first.map_log_weights.reshape(-1, 1), first.map_shift, first.map_scale
    )
    left, share = _between(normal_scores.normal_score(after), knots)
    wanted = torch.lerp(table[left], table[left + 1], share)
    ordered, places = paths.sort(dim=0)
    left, share = _between(knots, wanted)
    inside = torch.lerp(ordered[left], ordered[left + 1], share.unsqueeze(-1))
    # Beyond the last targets: as far from the middle as normal scores are.
    beyond = (wanted.abs() / knots[-1]).clamp_min(1.0).unsqueeze(-1)
    middle = ordered[len(knots) // 2]
    moved = torch.where(beyond > 1, middle + beyond * (inside - middle), inside)
    return torch.empty_like(paths).scatter_(0, places, moved)


def _between(knots: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The knot to the left of each x, and its share of the way to the next one, from 0 to 1."""
    left = torch.searchsorted(knots, x).clamp(1, len(knots) - 1) - 1
    return left, ((x - knots[left]) / (knots[left + 1] - knots[left])).clamp(0, 1)
