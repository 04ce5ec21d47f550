"""The columns of a table: inputs with scales and imputation, and forecasts, found from the warm-up rows."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.streaming.checks import columns_of
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.forecasts import forecast_places
from gp_ensembles.streaming.gaps import Imputation
from gp_ensembles.streaming.scales import Standardizer, constant_columns


class Columns(NamedTuple):
    """The use of the columns of a table.

    Attributes:
        kept: Places of the K inputs.
        forecasts: Places of the forecasts, which only their experts see.
        scales: Shifts and scales of the inputs and of the target; scale one of inputs that are constant in the warm-up.
        inactive: Places of these among the inputs, see :mod:`~gp_ensembles.streaming.inactive_columns`.
        is_known: Whether each input has a value in the warm-up, shape (K,).
        imputation: How gaps are filled.
        gap_share: Shares of gaps in the warm-up, of the columns with an indicator, shape (I,).
        gap_scale: Standard deviations of their indicators, shape (I,).
    """

    kept: list[int]
    forecasts: list[int]
    scales: Standardizer
    inactive: tuple[int, ...]
    is_known: Tensor
    imputation: Imputation
    gap_share: Tensor
    gap_scale: Tensor

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
        imputation = Imputation.of(inputs, targets, scales.X_mean, config.impute)
        share = inputs[:, list(imputation.indicators)].isnan().double().mean(0)
        device = config.torch_device
        return cls(
            kept,
            forecasts,
            Standardizer(*(part.to(device) for part in scales)),
            tuple(inactive),
            (~inputs.isnan()).any(0).to(device),
            imputation.with_last_values(inactive).to(device),
            share.to(device),
            (share * (1 - share)).sqrt().to(device),
        )

    def of_table(self, X: Tensor) -> Tensor:
        """The inputs among the columns of rows X (N, D), shape (N, K)."""
        return columns_of(X, self.kept)
