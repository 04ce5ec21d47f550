"""From the first rows of some series to the ensemble that all of them have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.memory import find_season
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.numerics.lag_selection import find_lags

_MOST_SERIES, _MOST_ROWS = 50, 500  # to which hyperparameters are fitted


class Rows(NamedTuple):
    """Rows of one series, in the order of time.

    Attributes:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,); NaN where missing.
    """

    X: Tensor
    y: Tensor

    def to(self, device: torch.device) -> "Rows":
        """The same on a device."""
        return Rows(self.X.to(device), self.y.to(device))


def template_of(series: Sequence[Rows]) -> Rows:
    """The first rows of the series that has the most targets: the ensemble is made for it, with its lags and season.

    Raises:
        ValueError: If the targets of all series stand still.
    """
    moving = [rows for rows in series if moves(rows)]
    if not moving:
        raise ValueError(
            f"the targets of all {len(series)} series whose warm-up is over stand still; there is nothing to fit to"
        )
    longest = max(moving, key=lambda rows: int((~rows.y.isnan()).sum()))
    return Rows(longest.X[:_MOST_ROWS], longest.y[:_MOST_ROWS])


def some_of(series: Sequence[Rows]) -> list[Rows]:
    """Some of the series that move, evenly chosen."""
    moving = [rows for rows in series if moves(rows)]
    num = min(len(moving), _MOST_SERIES)
    return [moving[number * len(moving) // num] for number in range(num)]


def stacked(series: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Inputs (S, N, D) and targets (S, N) of the first rows of series; NaN where one is shorter.

    Example:
        >>> short = Rows(torch.ones(2, 1), torch.tensor([1.0, 2.0]))
        >>> X, y = stacked([short, Rows(torch.ones(3, 1), torch.tensor([3.0, 4.0, 5.0]))])
        >>> y
        tensor([[1., 2., nan],
                [3., 4., 5.]])
    """
    longest, like = min(_MOST_ROWS, max(len(rows.y) for rows in series)), series[0].X
    X, y = like.new_zeros(len(series), longest, like.shape[1]), like.new_full((len(series), longest), torch.nan)
    for number, rows in enumerate(series):
        X[number, : len(rows.y)], y[number, : len(rows.y)] = rows.X[:longest], rows.y[:longest]
    return X, y


def shared_ensemble(spec: EnsembleSpec, template: Rows, seed: int) -> Ensemble:
    """The ensemble of a record, made for standardized rows, with hyperparameters as they start.

    Lags that are to be found are found in these rows, and a season is one of them.
    """
    spec = replace(spec, fit_settings=replace(spec.fit_settings, num_samples=1))
    if spec.lags is not None and spec.lags.lags is None:
        season = find_season(template.y)
        found = find_lags(template.y, spec.lags.most, spec.lags.longest)
        lags = tuple(sorted({*found, *([] if season is None else [season])}))
        spec = replace(spec, lags=replace(spec.lags, lags=lags) if lags else None)
    generator = torch.Generator().manual_seed(seed)
    return spec.unfitted(template.X, template.y, generator=generator).ensemble


def moves(rows: Rows) -> bool:
    """Whether the targets of a series, of which there is one at least, differ.

    Example:
        >>> moves(Rows(torch.ones(3, 1), torch.tensor([1.0, torch.nan, 1.0])))
        False
    """
    seen = rows.y[~rows.y.isnan()]
    return bool((seen != seen[0]).any())
