"""From an ensemble on a stream to a forecast in the units of the target."""

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Recalibrated
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.streaming.forecasting.forecast import Forecast
from gp_ensembles.streaming.forecasting.paths import FutureRows, sample_paths
from gp_ensembles.streaming.forecasting.recalibrating import recalibrated_paths
from gp_ensembles.streaming.predictions import StreamDistribution
from gp_ensembles.streaming.scales import Standardizer

_MOST_PATHS = 1_000_000


def rows_to_come(X: Tensor | int, num_inputs: int) -> Tensor:
    """Rows (H, D): those that are given, or as many as are given with no input known.

    Raises:
        TypeError: If it is neither a tensor nor a whole number.
        ValueError: If there is no row.
    """
    if isinstance(X, bool) or not isinstance(X, int | Tensor):
        raise TypeError(f"give rows to come, (H, D), or how many there are, got {X!r}")
    num_steps = X.shape[0] if isinstance(X, Tensor) and X.ndim else X
    if isinstance(num_steps, int) and num_steps < 1:
        raise ValueError(f"a forecast needs at least one row to come, got {num_steps}")
    return X if isinstance(X, Tensor) else torch.full((X, num_inputs), torch.nan, dtype=torch.float64, device="cpu")


def check_forecast(target: Target, num_steps: int, num_rows: int, num_paths: int) -> None:
    """Raise unless so many rows can be forecast, by so many paths.

    Raises:
        TypeError: If targets are not one real number.
        ValueError: If there are more rows than were learned, or the number of paths is out of range.
    """
    if not target.is_real or target.num_outputs is not None:
        raise TypeError(f"there are forecasts of one real number only, not of {target}; predict the next row instead")
    if num_steps > num_rows:
        raise ValueError(
            f"{num_steps} rows ahead are more than the {num_rows} that were learned; ask for no more than that"
        )
    if not 2 <= num_paths <= _MOST_PATHS:
        raise ValueError(f"num_paths must be between 2 and {_MOST_PATHS}, got {num_paths}")


@torch.no_grad()
def forecast_rows(
    online: OnlineEnsemble,
    to_come: FutureRows,
    scales: Standardizer,
    first: StreamDistribution,
    num_paths: int,
    generator: torch.Generator | None,
) -> Forecast:
    """Forecast rows to come; nothing that is given is changed."""
    mixture = first.base if isinstance(first, Recalibrated) else first
    assert not isinstance(mixture, LatentMixture)
    log_weights = mixture.log_weights if mixture.log_weights.ndim == 1 else mixture.log_weights[:, 0]
    paths = sample_paths(online, to_come, log_weights, num_paths, generator=generator)
    return Forecast(recalibrated_paths(scales.inverse_mean(paths), first), first)
