"""Warm-ups of series: their rows, their units, and the ensemble that all series share."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.memory import find_season
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts.base import Variances
from gp_ensembles.fleet.arrivals import numbered
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.fitting import fit_bases, fit_factors, fit_own_variances
from gp_ensembles.fleet.notes import path_of
from gp_ensembles.fleet.point_mass import point_of
from gp_ensembles.numerics.lag_selection import find_lags
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import MIN_WARM_UP, StreamConfig
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.missed_structure import missed_share
from gp_ensembles.streaming.warm_up_rows import clean_warm_up, extended_warm_up

T = TypeVar("T")

_MOST_CHECKED, _ROWS_CHECKED = 10, 300  # series and rows checked for structure missed by the fit
_MOST_SERIES, _MOST_ROWS = 50, 500  # used to fit hyperparameters
_AT_ONCE = 256  # series whose rows are standardized together


class WarmUpRows(NamedTuple):
    """Warm-up rows of one series, in time order."""

    X: Tensor  # inputs, shape (N, D)
    y: Tensor  # targets, shape (N,); NaN where missing

    def to(self, like: torch.device | torch.dtype) -> "WarmUpRows":
        """The same rows on another device or in another precision."""
        return WarmUpRows(self.X.to(like), self.y.to(like))


class WarmUps(NamedTuple):
    """Warm-ups of S series."""

    names: list[Hashable]  # their names
    rows: list[WarmUpRows]  # their rows in original units, without targets at a point mass
    points: Tensor  # their point masses, packed, shape (S, 12)
    columns: Tensor  # their columns, packed, shape (S, ...)
    standard: list[WarmUpRows]  # their rows, standardized per series, with imputed inputs


def joined(
    waiting: Mapping[Hashable, WarmUpRows], names: Sequence[Hashable], X: Tensor, y: Tensor
) -> dict[Hashable, WarmUpRows]:
    """The rows of each series, with N new ones appended."""
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
    """Number of warm-up rows of a series; ``None`` while there are too few rows or targets."""
    num_seen = (~y.isnan()).cumsum(0)
    least = max(warmup, int((num_seen < MIN_WARM_UP).sum()) + 1)
    return extended_warm_up(y, least) if least <= len(y) else None


def without_outliers(
    config: StreamConfig, warm: Mapping[Hashable, WarmUpRows]
) -> tuple[dict[Hashable, WarmUpRows], Counter[Hashable], int]:
    """Warm-ups without outliers, the number of rows of each with unusable numbers, and of targets left out."""
    found, bad, num_left_out = dict[Hashable, WarmUpRows](), Counter[Hashable](), 0
    for name, rows in warm.items():
        clean, _, num = clean_warm_up(*rows, config)
        found[name], bad[name], num_left_out = WarmUpRows(clean.X, clean.y), len(clean.bad), num_left_out + num
    return found, +bad, num_left_out


def warm_ups(config: StreamConfig, warm: Mapping[Hashable, WarmUpRows]) -> WarmUps:
    """Warm-ups of some series, standardized per series, with their columns."""
    points, targets = zip(*(point_of(rows.y, config) for rows in warm.values()), strict=True)
    others = [WarmUpRows(rows.X, y) for rows, y in zip(warm.values(), targets, strict=True)]
    columns = torch.stack([Columns.of_series(*rows).packed() for rows in others])
    return _standardized(config, WarmUps(list(warm), others, torch.stack(points), columns, []))


def _standardized(config: StreamConfig, ups: WarmUps) -> WarmUps:
    found = list(ups.rows)
    for group, X in _alike(ups.rows):
        path = path_of(config, ups.columns[group])
        inputs, scales = path.warm_up(X).scaled, path.columns.scales
        targets = torch.stack([ups.rows[number].y for number in group])
        y = (targets - scales.y_mean.unsqueeze(-1)) / scales.y_scale.unsqueeze(-1)
        for number, *rows in zip(group, inputs, y, strict=True):
            found[number] = WarmUpRows(*rows)
    return ups._replace(standard=found)


def start_series(
    series: EnsembleFleet, config: StreamConfig, ups: WarmUps, own_variances: bool, own_length_scales: bool
) -> dict[Hashable, tuple[WarmUpRows, Tensor]]:
    """Add series and learn their warm-ups; returns rows and one-step means of those whose targets vary."""
    settings = config.ensemble.fit_settings
    if own_length_scales:
        ups = _standardized(config, ups._replace(columns=_own_length_scales(series.ensemble, settings, ups)))
    variances = _own_variances(series.ensemble, settings, ups.standard) if own_variances else ()
    series.add(ups.names, variances=variances)
    each = [name for name, rows in zip(ups.names, ups.standard, strict=True) for _ in range(len(rows.y))]
    X, y = (torch.cat(part).to(config.torch_dtype) for part in zip(*ups.standard, strict=True))
    predicted = series.observe(each, X, y).mixture.mean.to(y).split([len(rows.y) for rows in ups.standard])
    series.write_note("columns", ups.names, ups.columns)
    series.write_note("inputs", ups.names, _states_after(series, config, ups))
    series.write_note("point", ups.names, ups.points)
    warm = dict(zip(ups.names, zip(ups.standard, predicted, strict=True), strict=True))
    return {name: (rows, mean) for name, (rows, mean) in warm.items() if moves(rows)}


def missed_shares(warm: Mapping[Hashable, tuple[WarmUpRows, Tensor]]) -> dict[Hashable, float]:
    """Share of the variance that a fit misses in the last rows of at most ten series, from rows and one-step means."""
    last = slice(-_ROWS_CHECKED, None)
    some = ((name, *warm[name]) for name in evenly(list(warm), _MOST_CHECKED))
    return {name: missed_share(rows.X[last], rows.y[last], mean[last]) for name, rows, mean in some}


def _states_after(series: EnsembleFleet, config: StreamConfig, ups: WarmUps) -> Tensor:
    """Packed input states (S, ...) of series that have learned their warm-ups."""
    states = ups.columns.new_zeros(len(ups.rows), InputState.packed_size(ups.rows[0].X.shape[1]))
    for group, X in _alike(ups.rows):

        def predict(rows: Tensor, group: list[int] = group) -> Tensor:
            own = [ups.names[number] for number in group for _ in range(rows.shape[1])]
            mean = series.predict(own, rows.flatten(0, 1)).mean.reshape(rows.shape[:-1])
            return mean.nan_to_num(0.0)  # NaN for a series that is set aside

        path = path_of(config, ups.columns[group])
        states[group] = path.with_effects(path.warm_up(X), predict).packed()
    return states


def _alike(warm: Sequence[WarmUpRows]) -> Iterator[tuple[list[int], Tensor]]:
    """Groups of series with warm-ups of equal length: their numbers and inputs (S, N, D)."""
    lengths: dict[int, list[int]] = {}
    for number, rows in enumerate(warm):
        lengths.setdefault(len(rows.y), []).append(number)
    for numbers in lengths.values():
        for start in range(0, len(numbers), _AT_ONCE):
            group = numbers[start : start + _AT_ONCE]
            yield group, torch.stack([warm[number].X for number in group])


def template_of(series: Sequence[WarmUpRows]) -> WarmUpRows:
    """The first rows of the series with the most targets; the ensemble is built for it, with its lags and season.

    Series whose inputs vary are preferred.
    """
    moving = [rows for rows in series if moves(rows)]
    if not moving:
        raise ValueError(
            f"the targets of all {len(series)} series with a complete warm-up are constant; nothing can be fitted"
        )
    longest = max(moving, key=lambda rows: (bool((rows.X[0] != rows.X).any()), int((~rows.y.isnan()).sum())))
    return WarmUpRows(longest.X[:_MOST_ROWS], longest.y[:_MOST_ROWS])


def some_of(series: Sequence[WarmUpRows]) -> list[WarmUpRows]:
    """Some of the series that vary, evenly spaced."""
    return evenly([rows for rows in series if moves(rows)], _MOST_SERIES)


def evenly(things: Sequence[T], most: int) -> list[T]:
    """At most this many, evenly spaced."""
    num = min(len(things), most)
    return [things[number * len(things) // num] for number in range(num)]


def stacked(series: Sequence[WarmUpRows]) -> tuple[Tensor, Tensor]:
    """Inputs (S, N, D) and targets (S, N) of the first rows of series; targets are NaN beyond the end of one."""
    longest, like = min(_MOST_ROWS, max(len(rows.y) for rows in series)), series[0].X
    X, y = like.new_zeros(len(series), longest, like.shape[1]), like.new_full((len(series), longest), torch.nan)
    for number, rows in enumerate(series):
        X[number, : len(rows.y)], y[number, : len(rows.y)] = rows.X[:longest], rows.y[:longest]
    return X, y


def fitted_ensemble(config: StreamConfig, standard: Sequence[WarmUpRows], progress: bool) -> tuple[Ensemble, Tensor]:
    """The shared ensemble, fitted to some series (like a stream's if only one varies), and its template rows (N, D)."""
    template, some, spec = template_of(standard), some_of(standard), config.ensemble
    rows, settings = template.to(config.torch_dtype), replace(spec.fit_settings, num_samples=1)
    is_several = settings.method is not None and len(some) > 1
    spec = replace(spec, fit_settings=replace(settings, method=None) if is_several else settings)
    if spec.lags is not None and spec.lags.lags is None:
        season = find_season(rows.y)
        found = find_lags(rows.y, spec.lags.most, spec.lags.longest)
        lags = tuple(sorted({*found, *([] if season is None else [season])}))
        spec = replace(spec, lags=replace(spec.lags, lags=lags) if lags else None)
    generator = torch.Generator().manual_seed(config.seed)
    with torch.enable_grad():
        ensemble = spec.fit(*rows, generator=generator).ensemble
        if is_several:
            X, y = (part.to(config.torch_dtype) for part in stacked(some))
            fit_bases(ensemble, X, y, config.ensemble.fit_settings, progress=progress)
    return ensemble, template.X


def _own_variances(
    ensemble: Ensemble, settings: FitSettings, standard: Sequence[WarmUpRows]
) -> Sequence[Variances | None]:
    """Variances of new series, from their standardized warm-ups; empty if nothing is fitted."""
    if settings.method is None:
        return ()
    X, y, may_move = _for_fit(ensemble, standard)
    return fit_own_variances(ensemble, X, y, settings, may_move)


def _own_length_scales(ensemble: Ensemble, settings: FitSettings, ups: WarmUps) -> Tensor:
    """Packed columns of S series, with inputs scaled by each one's length scales, see :func:`fit_factors`."""
    if settings.method is None:
        return ups.columns
    X, y, may_move = _for_fit(ensemble, ups.standard)
    known = Columns.unpacked(ups.columns)
    factors = fit_factors(ensemble, X, y, settings, may_move).to(ups.columns)
    scales = known.scales._replace(X_scale=known.scales.X_scale * torch.where(known.inactive, 1.0, factors))
    return known._replace(scales=scales).packed()


def _for_fit(ensemble: Ensemble, standard: Sequence[WarmUpRows]) -> tuple[Tensor, Tensor, Tensor]:
    """Stacked warm-ups, X (S, N, D) and y (S, N), in the ensemble's dtype, and a mask (S,) of series that vary."""
    like = ensemble.experts[0].features.prior_variance
    X, y = (part.to(like.dtype) for part in stacked(standard))
    return X, y, torch.tensor([moves(rows) for rows in standard], dtype=torch.bool, device=y.device)


def moves(rows: WarmUpRows) -> bool:
    """Whether the targets of a series, at least one, differ."""
    seen = rows.y[~rows.y.isnan()]
    return bool((seen != seen[0]).any())
