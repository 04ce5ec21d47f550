"""The columns of a table: inputs with scales and imputation, and forecasts, found from the warm-up rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.checks import columns_of
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.forecasts import forecast_places
from gp_ensembles.streaming.gaps import Imputation, missing_indicators
from gp_ensembles.streaming.scales import Standardizer, constant_columns


class Columns(NamedTuple):
    """The use of the columns of a table; what belongs to a series has an axis in front where there are many."""

    kept: list[int]  # places of the K inputs
    forecasts: list[int]  # places of the forecasts, which only their experts see
    # Shifts and scales of the inputs and of the target; scale one of inputs that are constant in the warm-up
    scales: Standardizer
    inactive: Tensor  # which inputs these are, (..., K), see inactive_columns
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
