"""Columns of a table that are forecasts of the target: their places and their standardization."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.ensembles.external_models import ForecastColumns
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.adapters import moments_of
from gp_ensembles.streaming.scales import Standardizer

_LEAST_ROWS = 10  # with a forecast and a target, to say that forecasts are poor


def forecast_places(spec: EnsembleSpec, names: Sequence[str]) -> list[int]:
    """Places of the columns of forecasts among all columns of a table.

    Raises:
        ValueError: If a name is not among them, or there is no other column.
    """
    known = list(names)
    for name in spec.forecast_columns:
        if name not in known:
            hint = "" if known[:1] != ["column 0"] else "; name them by feature_names, or by the columns of a frame"
            raise ValueError(f"there is no column {name!r} of forecasts; the columns are {', '.join(known)}{hint}")
    if len(spec.forecast_columns) == len(known):
        raise ValueError(f"the columns are forecasts only, {', '.join(known)}; at least one input is needed as well")
    return [known.index(name) for name in spec.forecast_columns]


def standard_forecasts(spec: EnsembleSpec, forecasts: Tensor, scales: Standardizer) -> Tensor:
    """Forecasts (N, F) in the units of the standardized target."""
    spreads = {record.deviation for record in spec.extra_experts if isinstance(record, ForecastColumns)}
    shifts = forecasts.new_tensor([name not in spreads for name in spec.forecast_columns]) * scales.y_mean
    return (forecasts - shifts) / scales.y_scale


def warn_of_poor_forecasts(spec: EnsembleSpec, forecasts: Tensor, y: Tensor) -> None:
    """A ``UserWarning`` for each record whose forecasts are further from the warm-up targets than their mean is."""
    places = {name: place for place, name in enumerate(spec.forecast_columns)}
    for record in spec.extra_experts:
        if not isinstance(record, ForecastColumns) or not places:
            continue
        predicted, _ = moments_of(forecasts[:, [places[name] for name in record.columns]], record.levels)
        known = ~(predicted.isnan() | y.isnan())
        if int(known.sum()) < _LEAST_ROWS:
            continue
        forecast, seen = predicted[known], y[known]
        off, spread = _size(forecast - seen), _size(seen - seen.mean())
        if off > spread:
            centered = forecast - forecast.mean()
            slope = (centered * seen).sum() / centered.square().sum().clamp_min(torch.finfo(seen.dtype).tiny)
            line = _size(seen - seen.mean() - slope * centered)
            names = ", ".join(map(repr, record.columns))
            warnings.warn(
                f"the forecasts {names} were off by {off:.4g} in the warm-up rows (root mean square), where the mean "
                f"of the targets is off by {spread:.4g} and the best line through the forecasts by {line:.4g}: are "
                f"they in the units of the target, and in the row that they predict?",
                UserWarning,
                stacklevel=5,
            )


def _size(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())
