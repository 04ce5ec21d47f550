"""Warm-ups of series: their rows, units, and the ensemble that all series share."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
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
from gp_ensembles.fleet.notes import path_of
from gp_ensembles.numerics.lag_selection import find_lags
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.warm_up_outliers import limit_warm_up, outliers_in_warm_up, warn_of_outliers

LEAST_TARGETS = 10  # of a warm-up
_MOST_SERIES, _MOST_ROWS = 50, 500  # to which hyperparameters are fitted
_AT_ONCE = 256  # series whose rows are standardized together


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


def without_outliers(warm: Sequence[WarmUpRows]) -> list[WarmUpRows]:
    """Warm-ups with outliers of the inputs moved to the edge of the other values, and those of the targets missing."""
    outliers = [outliers_in_warm_up(rows.y) for rows in warm]
    warn_of_outliers(sum(int(mask.sum()) for mask in outliers), 0)
    return [
        WarmUpRows(limit_warm_up(rows.X)[0], torch.where(mask, torch.nan, rows.y))
        for rows, mask in zip(warm, outliers, strict=True)
    ]


def columns_of(warm: Sequence[WarmUpRows]) -> Tensor:
    """The columns of S series from their warm-ups, packed, (S, ...)."""
    return torch.stack([Columns.of_series(*rows).packed() for rows in warm])


def standardized(config: StreamConfig, warm: Sequence[WarmUpRows], columns: Tensor) -> list[WarmUpRows]:
    """Warm-ups of S series with such columns, in units of their own and without gaps in the inputs."""
    found = list(warm)
    for group, X in _alike(warm):
        path = path_of(config, columns[group])
        inputs, targets = path.warm_up(X).scaled, torch.stack([warm[number].y for number in group])
        scales = path.columns.scales
        y = (targets - scales.y_mean.unsqueeze(-1)) / scales.y_scale.unsqueeze(-1)
        for number, *rows in zip(group, inputs, y, strict=True):
            found[number] = WarmUpRows(*rows)
    return found


def states_after(
    config: StreamConfig, warm: Sequence[WarmUpRows], columns: Tensor, series: EnsembleFleet, names: Sequence[Hashable]
) -> Tensor:
    """States of the inputs of S series after their warm-ups, which they have learned, packed, (S, ...)."""
    states = columns.new_zeros(len(warm), InputState.packed_size(warm[0].X.shape[1]))
    for group, X in _alike(warm):

        def predict(rows: Tensor, group: list[int] = group) -> Tensor:
            own = [names[number] for number in group for _ in range(rows.shape[1])]
            mean = series.predict(own, rows.flatten(0, 1)).mean.reshape(rows.shape[:-1])
            return mean.nan_to_num(0.0)  # of a series that is set aside

        path = path_of(config, columns[group])
        states[group] = path.with_effects(path.warm_up(X), predict).packed()
    return states


def _alike(warm: Sequence[WarmUpRows]) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of a few series at a time with warm-ups of one length, and their rows (S, N, D)."""
    lengths: dict[int, list[int]] = {}
    for number, rows in enumerate(warm):
        lengths.setdefault(len(rows.y), []).append(number)
    for numbers in lengths.values():
        for start in range(0, len(numbers), _AT_ONCE):
            group = numbers[start : start + _AT_ONCE]
            yield group, torch.stack([warm[number].X for number in group])


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


def shared_ensemble(spec: EnsembleSpec, template: WarmUpRows, seed: int, *, is_fitted: bool = False) -> Ensemble:
    """The ensemble of a record, made for standardized rows and fitted to them, or with initial hyperparameters."""
    spec = replace(spec, fit_settings=replace(spec.fit_settings, num_samples=1))
    if spec.lags is not None and spec.lags.lags is None:
        season = find_season(template.y)
        found = find_lags(template.y, spec.lags.most, spec.lags.longest)
        lags = tuple(sorted({*found, *([] if season is None else [season])}))
        spec = replace(spec, lags=replace(spec.lags, lags=lags) if lags else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        return (spec.fit if is_fitted else spec.unfitted)(template.X, template.y, generator=generator).ensemble


def own_variances_of(
    series: EnsembleFleet, settings: FitSettings, standard: Sequence[WarmUpRows]
) -> Sequence[Variances | None]:
    """Variances of new series, from their standardized warm-ups; none where all share the experts'."""
    if not series.has_own_variances or settings.method is None:
        return ()
    X, y, may_move = _for_fit(series.ensemble, standard)
    return fit_own_variances(series.ensemble, X, y, settings, may_move)


def with_own_length_scales(
    ensemble: Ensemble, settings: FitSettings, standard: Sequence[WarmUpRows], columns: Tensor
) -> Tensor:
    """Columns of S series, packed, with inputs on the length scales of each, see :func:`fit_factors`."""
    if settings.method is None:
        return columns
    X, y, may_move = _for_fit(ensemble, standard)
    known = Columns.unpacked(columns)
    factors = fit_factors(ensemble, X, y, settings, may_move).to(columns)
    scales = known.scales._replace(X_scale=known.scales.X_scale * torch.where(known.inactive, 1.0, factors))
    return known._replace(scales=scales).packed()


def _for_fit(ensemble: Ensemble, standard: Sequence[WarmUpRows]) -> tuple[Tensor, Tensor, Tensor]:
    """Warm-ups side by side, X (S, N, D) and y (S, N), in the ensemble's dtype, and which series vary, (S,)."""
    like = ensemble.experts[0].features.prior_variance
    X, y = (part.to(like.dtype) for part in stacked(standard))
    return X, y, torch.tensor([moves(rows) for rows in standard], dtype=torch.bool, device=y.device)


def moves(rows: WarmUpRows) -> bool:
    """Whether the targets of a series, of which there is one at least, differ."""
    seen = rows.y[~rows.y.isnan()]
    return bool((seen != seen[0]).any())
