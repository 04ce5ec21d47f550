"""Warm-ups of series: their rows, units, and the ensemble that all series share."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.memory import find_season
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.base import Variances
from gp_ensembles.fleet.arrivals import numbered
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.fitting import fit_own_variances
from gp_ensembles.fleet.length_scales import fit_factors
from gp_ensembles.fleet.scales import SeriesScales, fill
from gp_ensembles.numerics.lag_selection import find_lags

LEAST_TARGETS = 10  # of a warm-up
_MOST_SERIES, _MOST_ROWS = 50, 500  # to which hyperparameters are fitted


class WarmUpRows(NamedTuple):
    """WarmUpRows of the warm-up of one series, in the order of time.

    Attributes:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,); NaN where missing.
    """

    X: Tensor
    y: Tensor

    def to(self, device: torch.device) -> "WarmUpRows":
        """The same on a device."""
        return WarmUpRows(self.X.to(device), self.y.to(device))


def joined(
    waiting: Mapping[Hashable, WarmUpRows], names: Sequence[Hashable], X: Tensor, y: Tensor
) -> dict[Hashable, WarmUpRows]:
    """The rows of each series, with N further ones appended."""
    found = dict(waiting)
    codes, distinct = numbered(names, y)
    counts = codes.bincount(minlength=len(distinct)).tolist()
    for name, rows in zip(distinct, codes.argsort(stable=True).split(counts), strict=True):
        parts = [*([found[name]] if name in found else []), (X[rows], y[rows])]
        found[name] = WarmUpRows(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return found


def rows_of_warm_ups(
    names: Sequence[Hashable], came: Mapping[Hashable, int], prepared: Mapping[Hashable, int]
) -> list[bool]:
    """Whether each row of a call belongs to the warm-up of its series."""
    num, found = dict(came), []
    for name in names:
        place = num.get(name, 0)
        num[name] = place + 1
        found.append(name not in prepared or place < prepared[name])
    return found


def length_of_warm_up(y: Tensor, warmup: int) -> int | None:
    """How many of the first rows of a series are its warm-up; ``None`` while there are too few rows or targets."""
    num_seen = (~y.isnan()).cumsum(0)
    least = max(warmup, int((num_seen < LEAST_TARGETS).sum()) + 1)
    return least if least <= len(y) else None


def standardized(warm: Sequence[WarmUpRows]) -> tuple[list[WarmUpRows], SeriesScales, Tensor]:
    """Warm-ups of S series in units of their own, without gaps in the inputs; these units; the last inputs (S, D)."""
    scales = [SeriesScales.fit(*rows) for rows in warm]
    filled = [
        fill(rows.X, torch.zeros_like(rows.y, dtype=torch.int64), one.X_mean.expand_as(rows.X))
        for rows, one in zip(warm, scales, strict=True)
    ]
    standard = [
        WarmUpRows(one.inputs(X), one.targets(rows.y)) for X, rows, one in zip(filled, warm, scales, strict=True)
    ]
    together = SeriesScales(*(torch.cat(part) for part in zip(*scales, strict=True)))
    return standard, together, torch.stack([X[-1] for X in filled])


def template_of(series: Sequence[WarmUpRows]) -> WarmUpRows:
    """The first rows of the series that has the most targets: the ensemble is made for it, with its lags and season.

    Raises:
        ValueError: If the targets of all series are constant.
    """
    moving = [rows for rows in series if moves(rows)]
    if not moving:
        raise ValueError(
            f"the targets of all {len(series)} series whose warm-up is over are constant; there is nothing to fit to"
        )
    longest = max(moving, key=lambda rows: int((~rows.y.isnan()).sum()))
    return WarmUpRows(longest.X[:_MOST_ROWS], longest.y[:_MOST_ROWS])


def some_of(series: Sequence[WarmUpRows]) -> list[WarmUpRows]:
    """Some of the series that vary, evenly chosen."""
    moving = [rows for rows in series if moves(rows)]
    num = min(len(moving), _MOST_SERIES)
    return [moving[number * len(moving) // num] for number in range(num)]


def stacked(series: Sequence[WarmUpRows]) -> tuple[Tensor, Tensor]:
    """Inputs (S, N, D) and targets (S, N) of the first rows of series; NaN where one is shorter."""
    longest, like = min(_MOST_ROWS, max(len(rows.y) for rows in series)), series[0].X
    X, y = like.new_zeros(len(series), longest, like.shape[1]), like.new_full((len(series), longest), torch.nan)
    for number, rows in enumerate(series):
        X[number, : len(rows.y)], y[number, : len(rows.y)] = rows.X[:longest], rows.y[:longest]
    return X, y


def shared_ensemble(spec: EnsembleSpec, template: WarmUpRows, seed: int) -> Ensemble:
    """The ensemble of a record, made for standardized rows, with initial hyperparameters."""
    spec = replace(spec, fit_settings=replace(spec.fit_settings, num_samples=1))
    if spec.lags is not None and spec.lags.lags is None:
        season = find_season(template.y)
        found = find_lags(template.y, spec.lags.most, spec.lags.longest)
        lags = tuple(sorted({*found, *([] if season is None else [season])}))
        spec = replace(spec, lags=replace(spec.lags, lags=lags) if lags else None)
    generator = torch.Generator().manual_seed(seed)
    return spec.unfitted(template.X, template.y, generator=generator).ensemble


def own_variances_of(
    series: EnsembleFleet, settings: FitSettings, standard: Sequence[WarmUpRows]
) -> Sequence[Variances | None]:
    """Variances of new series, from their standardized warm-ups; none where all share the experts'."""
    if not series.has_own_variances or settings.method is None:
        return ()
    X, y, may_move = _for_fit(series.ensemble, standard)
    return fit_own_variances(series.ensemble, X, y, settings, may_move)


def with_own_length_scales(
    ensemble: Ensemble, settings: FitSettings, standard: Sequence[WarmUpRows], scales: SeriesScales
) -> tuple[list[WarmUpRows], SeriesScales]:
    """Warm-ups of S series and their scales, with inputs on the length scales of each, see :func:`fit_factors`."""
    if settings.method is None:
        return list(standard), scales
    X, y, may_move = _for_fit(ensemble, standard)
    factors = fit_factors(ensemble, X, y, settings, may_move).to(scales.X_scale)
    inputs = [WarmUpRows(rows.X / factor, rows.y) for rows, factor in zip(standard, factors, strict=True)]
    return inputs, scales._replace(X_scale=scales.X_scale * factors)


def _for_fit(ensemble: Ensemble, standard: Sequence[WarmUpRows]) -> tuple[Tensor, Tensor, Tensor]:
    """Warm-ups side by side, X (S, N, D) and y (S, N), in the ensemble's dtype, and which series vary, (S,)."""
    like = ensemble.experts[0].features.prior_variance
    X, y = (part.to(like.dtype) for part in stacked(standard))
    return X, y, torch.tensor([moves(rows) for rows in standard], dtype=torch.bool, device=y.device)


def moves(rows: WarmUpRows) -> bool:
    """Whether the targets of a series, of which there is one at least, differ."""
    seen = rows.y[~rows.y.isnan()]
    return bool((seen != seen[0]).any())
