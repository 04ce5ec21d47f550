"""Columns of a table that are forecasts of the target: where they stand, and in which units the ensemble takes them."""

from collections.abc import Sequence

from torch import Tensor

from gp_ensembles.ensembles.guests import ForecastColumns
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.streaming.scales import Standardizer


def forecast_places(spec: EnsembleSpec, names: Sequence[str]) -> list[int]:
    """Places of the columns of forecasts among all columns of a table.

    Raises:
        ValueError: If a name is not among them, or there is no other column.

    Example:
        >>> forecast_places(EnsembleSpec(further=(ForecastColumns("nwp"),)), ["wind", "nwp"])
        [1]
    """
    known = list(names)
    for name in spec.forecast_columns:
        if name not in known:
            raise ValueError(f"there is no column {name!r} of forecasts; the columns are {', '.join(known)}")
    if len(spec.forecast_columns) == len(known):
        raise ValueError(
            f"the columns are forecasts only, {', '.join(known)}; at least one input is needed beside them"
        )
    return [known.index(name) for name in spec.forecast_columns]


def standard_forecasts(spec: EnsembleSpec, forecasts: Tensor, scales: Standardizer) -> Tensor:
    """Forecasts in the units of the standardized target.

    Args:
        spec: The ensemble.
        forecasts: ``spec.forecast_columns`` in the target's units, shape (N, F); NaN where there is none.
        scales: Shift and scale of the target; deviations are not shifted.

    Example:
        >>> spec = EnsembleSpec(further=(ForecastColumns("nwp", deviation="spread"),))
        >>> import torch
        >>> one = torch.ones((), dtype=torch.float64)
        >>> scales = Standardizer(one, one, 10 * one, 2 * one)
        >>> standard_forecasts(spec, torch.tensor([[14.0, 4.0]], dtype=torch.float64), scales)
        tensor([[2., 2.]], dtype=torch.float64)
    """
    spreads = {record.deviation for record in spec.further if isinstance(record, ForecastColumns)}
    shifts = forecasts.new_tensor([name not in spreads for name in spec.forecast_columns]) * scales.y_mean
    return (forecasts - shifts) / scales.y_scale
