"""Joint forecasts of the next rows, in the units of the target, with recalibrated margins."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Recalibrated, WithPointMass
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.numerics import normal, normal_scores
from gp_ensembles.numerics.display import ends, rows_text
from gp_ensembles.numerics.draws import generator_device, uniform_draws
from gp_ensembles.streaming.columns import Standardizer
from gp_ensembles.streaming.forecasting.paths import sample_paths
from gp_ensembles.streaming.predictions import StreamDistribution

_MOST_PATHS = 1_000_000
_TABLE_END, _TABLE_SIZE = 4.9, 393  # of the map that is inverted, in normal scores


class Forecast(NamedTuple):
    """Joint sample paths of the targets of the next H rows, in their units.

    Attributes:
        paths: S sample paths, each as likely as any other, shape (S, H).
        first: Distribution of the first row, of N = 1 rows.
    """

    paths: Tensor
    first: StreamDistribution

    @property
    def num_steps(self) -> int:
        """Number of rows H."""
        return self.paths.shape[1]

    @property
    def mean(self) -> Tensor:
        """Means, shape (H,)."""
        if self.num_steps == 1:
            return self.first.mean.to(self.paths)
        return torch.cat([self.first.mean.to(self.paths), self.paths[:, 1:].mean(0)])

    @property
    def variance(self) -> Tensor:
        """Variances, shape (H,)."""
        if self.num_steps == 1:
            return self.first.variance.to(self.paths)
        return torch.cat([self.first.variance.to(self.paths), self.paths[:, 1:].var(0)])

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, shape (H,)."""
        return self.variance.sqrt()

    def quantile(self, p: float | Sequence[float]) -> Tensor:
        """Marginal quantiles of each row, shape (H,), or (K, H) for several.

        Raises:
            ValueError: If a probability is not between 0 and 1.
        """
        levels = torch.as_tensor(p, dtype=self.paths.dtype, device=self.paths.device)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(f"probabilities must lie between 0 and 1, got {levels.tolist()}")
        flat = levels.reshape(-1)
        later = self.paths.new_empty(flat.shape[0], 0)
        if self.num_steps > 1:
            later = torch.quantile(self.paths[:, 1:], flat, dim=0)
        values = torch.cat([self.first.quantile(flat.unsqueeze(-1)).to(later), later], dim=-1)
        return values[0] if levels.ndim == 0 else values

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, (H,) each, of central marginal intervals of each row.

        Raises:
            ValueError: If the coverage is not between 0 and 1.
        """
        lower, upper = self.quantile([(1 - coverage) / 2, (1 + coverage) / 2])
        return lower, upper

    def __repr__(self) -> str:
        rows = ends(self.num_steps)
        columns = {"mean": [self.mean], "stddev": [self.stddev], "90% interval": self.interval()}
        shown = {name: [values[rows] for values in tensors] for name, tensors in columns.items()}
        return rows_text(f"Forecast of {self.num_steps} rows by {self.paths.shape[0]} paths", rows, shown)

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Paths drawn with replacement from the sample paths, shape (num, H)."""
        if num < 1:
            raise ValueError(f"the number of draws must be at least one, got {num}")
        place = torch.randint(self.paths.shape[0], (num,), generator=generator, device=generator_device(generator))
        return self.paths[place.to(self.paths.device)]


def with_point(forecast: Forecast, log_share: Tensor, generator: torch.Generator | None) -> Forecast:
    """A forecast whose paths are at the point with these log probabilities, (H,), each row by itself."""
    assert isinstance(forecast.first, WithPointMass)
    is_at = uniform_draws(tuple(forecast.paths.shape), forecast.paths, generator) < log_share.exp()
    return forecast._replace(paths=torch.where(is_at, forecast.first.at.to(forecast.paths), forecast.paths))


def future_rows(X: Tensor | int, num_inputs: int) -> Tensor:
    """Rows (H, D): those given, or H rows without a known input."""
    if isinstance(X, bool) or not isinstance(X, int | Tensor):
        kind = type(X).__name__
        raise TypeError(f"give future rows as a tensor (H, D), or their number, got {kind}; of a frame X.to_numpy()")
    num_steps = X.shape[0] if isinstance(X, Tensor) and X.ndim else X
    if isinstance(num_steps, int) and num_steps < 1:
        raise ValueError(f"a forecast needs at least one future row, got {num_steps}")
    return X if isinstance(X, Tensor) else torch.full((X, num_inputs), torch.nan, dtype=torch.float64, device="cpu")


def check_forecast(target: Target, num_steps: int, num_rows: int, num_paths: int) -> None:
    """Raise unless the numbers of rows and paths are legal for a forecast."""
    if not target.is_real or target.num_outputs is not None:
        kind = type(target).__name__ if target.num_outputs is None else f"{target.num_outputs} outputs"
        raise TypeError(f"forecasts support a single real target, not {kind}; predict the next row instead")
    if num_steps > num_rows:
        raise ValueError(f"{num_steps} rows ahead are more than the {num_rows} rows learned; use at most that many")
    if not 2 <= num_paths <= _MOST_PATHS:
        raise ValueError(f"num_paths must be between 2 and {_MOST_PATHS}, got {num_paths}")


@torch.no_grad()
def forecast_rows(
    online: OnlineEnsemble,
    inputs: Tensor,
    extra: Tensor | None,
    scales: Standardizer,
    first: StreamDistribution,
    num_paths: int,
    generator: torch.Generator | None,
) -> Forecast:
    """Forecast future rows as an ensemble takes them, inputs (H, D) and ``extra`` noise (H,); changes no argument."""
    whole, first = first, first.base if isinstance(first, WithPointMass) else first
    mixture = first.base if isinstance(first, Recalibrated) else first
    assert not isinstance(mixture, LatentMixture | WithPointMass)
    log_weights = mixture.log_weights if mixture.log_weights.ndim == 1 else mixture.log_weights[:, 0]
    paths = sample_paths(online, inputs, log_weights, num_paths, extra=extra, generator=generator)
    return Forecast(recalibrated_paths(scales.inverse_mean(paths), first), whole)


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
