"""Which columns of a table are inputs, with their scales, as the warm-up rows tell."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.forecasts import forecast_places
from gp_ensembles.streaming.scales import Standardizer, constant_columns


class Columns(NamedTuple):
    """What becomes of the columns of a table.

    Attributes:
        kept: Places of the inputs.
        forecasts: Places of the forecasts, which only their experts see.
        scales: Shifts and scales of the inputs and of the target.
    """

    kept: list[int]
    forecasts: list[int]
    scales: Standardizer

    @classmethod
    def of(cls, config: StreamConfig, X: Tensor, y: Tensor, names: Sequence[str]) -> "Columns":
        """From warm-up rows.

        Args:
            config: The config of the model.
            X: Warm-up inputs, shape (N, D); NaN where missing.
            y: Warm-up targets, shape (N,), or (N, O) for several outputs; NaN where missing.
            names: Names of the columns.

        Raises:
            ValueError: If all inputs are constant, one is that is not to be left out, or targets are not of their kind.

        Example:
            >>> import torch
            >>> X = torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]], dtype=torch.float64)
            >>> Columns.of(StreamConfig(drop_constant=True), X, X[:, 1], ["one", "two"]).kept
            [1]
        """
        constant = set(constant_columns(X)) if config.drop_constant else set()
        forecasts = forecast_places(config.ensemble, names)
        kept = [j for j in range(X.shape[1]) if j not in constant and j not in forecasts]
        if not kept:
            raise ValueError(f"all inputs are constant in the {X.shape[0]} warm-up rows; use a longer warm-up")
        target = config.ensemble.target
        if not target.is_real:
            target.check(y)
        fit = Standardizer.fit if target.is_real else Standardizer.fit_inputs
        scales = fit(X[:, kept].cpu(), y.cpu(), [names[j] for j in kept])  # the same on every device
        return cls(kept, forecasts, Standardizer(*(part.to(config.torch_device) for part in scales)))
