"""The columns of a table: scales and imputation of inputs, and forecasts of the target, found from the warm-up rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.external_models import ForecastColumns
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.adapters import moments_of
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.streaming.checks import columns_of
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.input_states import Imputation, missing_indicators


@prints_fields
class Standardizer(NamedTuple):
    """Shifts and scales taken from the warm-up rows, for inputs and target; of many series with an axis in front.

    Attributes:
        X_mean: Means of the inputs, shape (D,).
        X_scale: Population standard deviations of the inputs, shape (D,).
        y_mean: Mean of the observed targets, a scalar; of several outputs (O,).
        y_scale: Population standard deviation of the observed targets, of the same shape.

    Example:
        >>> import torch
        >>> X = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> standardizer = Standardizer.fit(X, torch.tensor([1.0, 5.0], dtype=torch.float64))
        >>> standardizer.inverse_mean(torch.tensor(1.0, dtype=torch.float64))
        tensor(5., dtype=torch.float64)
    """

    X_mean: Tensor
    X_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    @classmethod
    def fit(
        cls,
        X: Tensor,
        y: Tensor,
        feature_names: Sequence[str] | None = None,
        *,
        inactive: Sequence[int] = (),
        may_be_constant: bool = False,
    ) -> "Standardizer":
        """Take means and population standard deviations of warm-up rows; missing values are left out.

        Args:
            X: Warm-up inputs, shape (N, D); NaN where missing.
            y: Warm-up targets, shape (N,), or (N, O) for several outputs; NaN where missing.
            feature_names: Names for messages; column numbers by default.
            inactive: Columns that may be constant; their scale is one.
            may_be_constant: Whether the targets may be; their scale is then their absolute value, or one.

        Raises:
            ValueError: If another column or a target is constant or too large to square, or no target is observed.
        """
        scales = cls.fit_inputs(X, y, feature_names, inactive=inactive)
        columns = (y.unsqueeze(-1) if y.ndim == 1 else y).unbind(-1)
        outputs = [_moments_of_target(column, may_be_constant) for column in columns]
        y_mean, y_scale = (torch.stack(part) for part in zip(*outputs, strict=True))
        return scales._replace(y_mean=y_mean.reshape(y.shape[1:]), y_scale=y_scale.reshape(y.shape[1:]))

    @classmethod
    def fit_inputs(
        cls, X: Tensor, y: Tensor, feature_names: Sequence[str] | None = None, *, inactive: Sequence[int] = ()
    ) -> "Standardizer":
        """As :meth:`fit` for the inputs; targets, such as classes and counts, stay as they are."""
        constant = [j for j in constant_columns(X) if j not in inactive]
        if constant:
            names = [feature_names[j] if feature_names else f"column {j}" for j in constant]
            raise ValueError(
                f"constant in the {X.shape[0]} warm-up rows: {', '.join(names)}; leave them out, "
                f"or use a longer warm-up"
            )
        mean, scale = column_moments(X)
        if inactive:
            seen = X[:, list(inactive)].isnan().logical_not().int().argmax(0)
            mean[list(inactive)] = X[seen, list(inactive)].nan_to_num(0.0)  # the value itself, no mean of it
            scale[list(inactive)] = 1.0
        zero = y.new_zeros(())
        _check_finite(mean, scale)
        return cls(mean, scale, zero, zero + 1)

    def transform(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (..., D) and targets in standardized units."""
        return self.transform_inputs(X), (y - self.y_mean) / self.y_scale

    def transform_inputs(self, X: Tensor) -> Tensor:
        """Inputs (..., D) in standardized units."""
        return (X - self.X_mean) / self.X_scale

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Means, quantiles or targets back in the target's units."""
        return mean * self.y_scale + self.y_mean

    def inverse_std(self, std: Tensor) -> Tensor:
        """Standard deviations back in the target's units."""
        return std * self.y_scale

    def log_scale(self, targets: Tensor) -> Tensor:
        """What log densities of targets (N,) lose in their units; of several outputs (N, O), of those observed."""
        log_scale = self.y_scale.log()
        return log_scale if targets.ndim == 1 else torch.where(targets.isnan(), 0.0, log_scale).sum(-1)


def column_moments(X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and population standard deviations of the observed values of X (N, D), (D,) each."""
    if not bool(X.isnan().any()):
        return X.mean(0), X.std(0, correction=0)
    seen = (~X.isnan()).sum(0).clamp_min(1)
    mean = X.nansum(0) / seen
    return mean, ((X - mean).square().nansum(0) / seen).sqrt()


def constant_columns(X: Tensor) -> list[int]:
    """Columns of X (N, D) that do not vary beyond round-off, or have no observed value.

    Example:
        >>> import torch
        >>> constant_columns(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
        [0]
    """
    spread = column_moments(X)[1]
    round_off = 10 * torch.finfo(X.dtype).eps * X.nan_to_num(0.0).abs().amax(0)
    return [int(j) for j in (spread <= round_off).nonzero().flatten()]


def _moments_of_target(y: Tensor, may_be_constant: bool) -> tuple[Tensor, Tensor]:
    seen = y[~torch.isnan(y)]
    if seen.numel() == 0:
        raise ValueError("no target is observed in the warm-up rows")
    mean, scale = seen.mean(), seen.std(correction=0)
    _check_finite(mean, scale)
    if may_be_constant and constant_columns(seen.unsqueeze(-1)):
        return mean, torch.where(mean == 0, 1.0, mean.abs())
    if not bool(scale > 0) or bool((seen == seen[0]).all()):
        raise ValueError(f"the target is constant ({float(seen[0]):g}) in the warm-up rows; use a longer warm-up")
    return mean, scale


def _check_finite(*moments: Tensor) -> None:
    if not all(bool(moment.isfinite().all()) for moment in moments):
        raise ValueError("a column's or the target's spread overflows; rescale the values of the warm-up rows")


_LEAST_ROWS = 10  # with a forecast and a target, to say that forecasts are poor


def names_of(feature_names: Sequence[str] | None, columns: Iterable[int]) -> tuple[str, ...]:
    """The names of some columns; ``column 0`` and so on where none are given."""
    return tuple(f"column {j}" if feature_names is None else feature_names[j] for j in columns)


def forecast_places(spec: EnsembleSpec, names: Sequence[str]) -> list[int]:
    """Places of the columns of forecasts among all columns of a table."""
    known = list(names)
    for name in spec.forecast_columns:
        if name not in known:
            hint = "" if known[:1] != ["column 0"] else "; name them by feature_names, or by the columns of a frame"
            raise ValueError(f"there is no column {name!r} of forecasts; the columns are {', '.join(known)}{hint}")
    if len(spec.forecast_columns) == len(known):
        raise ValueError(f"the columns are forecasts only, {', '.join(known)}; at least one input is needed as well")
    return [known.index(name) for name in spec.forecast_columns]


def settings_for(config: StreamConfig, names: Sequence[str]) -> StreamConfig:
    """The settings for a table of these columns, with sizes in place of prices; itself where there are no prices.

    Raises:
        ValueError: If a price cannot be met, naming the least one, or columns of forecasts are not those of the table.
    """
    forecast_places(config.ensemble, names)
    row = torch.zeros(1, len(names), dtype=config.torch_dtype, device=config.torch_device)
    spec = config.ensemble.resolved(row)
    return config if spec is config.ensemble else replace(config, ensemble=spec)


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
            warn_caller(
                f"the forecasts {names} were off by {off:.4g} in the warm-up rows (root mean square), where the mean "
                f"of the targets is off by {spread:.4g} and the best line through the forecasts by {line:.4g}: are "
                f"they in the units of the target, and in the row that they predict?"
            )


def _size(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


class Columns(NamedTuple):
    """The use of the columns of a table; what belongs to a series has an axis in front where there are many."""

    kept: list[int]  # places of the K inputs
    forecasts: list[int]  # places of the forecasts, which only their experts see
    # Shifts and scales of the inputs and of the target; scale one of inputs that are constant in the warm-up
    scales: Standardizer
    inactive: Tensor  # which inputs these are, (..., K), see InactiveColumns
    imputation: Imputation  # how gaps are filled
    indicators: tuple[int, ...]  # inputs that have an indicator, 1 where missing
    gap_share: Tensor  # shares of gaps in the warm-up, of these I inputs, shape (I,)
    gap_scale: Tensor  # standard deviations of their indicators, shape (I,)

    @classmethod
    def of(cls, config: StreamConfig, X: Tensor, y: Tensor, names: Sequence[str]) -> "Columns":
        """From warm-up rows X (N, D) and y (N,) or (N, O).

        Raises:
            ValueError: If all inputs are constant, or targets are not of their kind.
        """
        forecasts = forecast_places(config.ensemble, names)
        kept = [j for j in range(X.shape[1]) if j not in forecasts]
        inputs, targets = X[:, kept].cpu(), y.cpu()  # the same on every device
        inactive = constant_columns(inputs)
        if len(inactive) == len(kept):
            raise ValueError(f"all inputs are constant in the {X.shape[0]} warm-up rows; use a longer warm-up")
        target = config.ensemble.target
        if not target.is_real:
            target.check(y)
        scales = (Standardizer.fit if target.is_real else Standardizer.fit_inputs)(inputs, targets, inactive=inactive)
        imputation = Imputation.of(inputs, scales.X_mean, config.impute)
        indicators = missing_indicators(inputs, targets, imputation)
        share = inputs[:, list(indicators)].isnan().double().mean(0)
        found = cls._with(scales, inactive, imputation)
        return found._replace(
            kept=kept,
            forecasts=forecasts,
            indicators=indicators,
            gap_share=share,
            gap_scale=(share * (1 - share)).sqrt(),
        ).to(config.torch_device)

    @classmethod
    def of_series(cls, X: Tensor, y: Tensor) -> "Columns":
        """Those of one of many series, from its warm-up rows X (N, D) and y (N,), which may all be constant.

        There are no indicators, as series share the columns that their experts see.
        """
        inputs, targets = X.cpu(), y.cpu()
        inactive = constant_columns(inputs)
        scales = Standardizer.fit(inputs, targets, inactive=inactive, may_be_constant=True)
        return cls._with(scales, inactive, Imputation.of(inputs, scales.X_mean, "found")).to(X.device)

    @classmethod
    def _with(cls, scales: Standardizer, inactive: Sequence[int], imputation: Imputation) -> "Columns":
        """Inputs without forecasts and indicators; those that were constant are imputed by their last value."""
        mask = torch.zeros_like(scales.X_mean, dtype=torch.bool)
        mask[list(inactive)] = True
        none = scales.X_mean.new_zeros(0)
        known = imputation._replace(
            persistence=torch.where(mask, 1.0, imputation.persistence), used=torch.where(mask, 1.0, imputation.used)
        )
        return cls(list(range(len(mask))), [], scales, mask, known, (), none, none)

    def to(self, device: torch.device) -> "Columns":
        """The same on a device."""
        scales = Standardizer(*(value.to(device) for value in self.scales))
        imputation = Imputation(*(value.to(device) for value in self.imputation))
        inactive, share, scale = (part.to(device) for part in (self.inactive, self.gap_share, self.gap_scale))
        return self._replace(scales=scales, inactive=inactive, imputation=imputation, gap_share=share, gap_scale=scale)

    def of_table(self, X: Tensor) -> Tensor:
        """The inputs among the columns of rows X (..., N, D), shape (..., N, K)."""
        return columns_of(X, self.kept)

    def packed(self) -> Tensor:
        """What belongs to a series side by side, (..., 4 K + 2), where there are neither forecasts nor indicators."""
        scales = self.scales
        parts = scales.X_mean, scales.X_scale, self.imputation.persistence, self.inactive.to(scales.X_mean)
        return torch.cat([*parts, scales.y_mean.unsqueeze(-1), scales.y_scale.unsqueeze(-1)], dim=-1)

    @staticmethod
    def packed_size(num_inputs: int) -> int:
        """How many numbers these are."""
        return 4 * num_inputs + 2

    @classmethod
    def unpacked(cls, numbers: Tensor) -> "Columns":
        """What :meth:`packed` made of series whose gaps are filled by what was found."""
        K = (numbers.shape[-1] - 2) // 4
        mean, scale, persistence, inactive, y = numbers.split([K, K, K, K, 2], dim=-1)
        scales = Standardizer(mean, scale, *y.unbind(-1))
        imputation = Imputation(mean, persistence, persistence)
        none = mean.new_zeros(0)
        return cls(list(range(K)), [], scales, inactive > 0, imputation, (), none, none)
