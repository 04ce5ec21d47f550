"""From an ensemble on a stream to a forecast in the units of the target."""

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.streaming.after_mixture import CalibrationState, calibrate_next, in_units
from gp_ensembles.streaming.forecasting.forecast import Forecast
from gp_ensembles.streaming.forecasting.paths import sample_paths
from gp_ensembles.streaming.forecasting.recalibrating import recalibrated_paths
from gp_ensembles.streaming.scales import Standardizer

MOST_PATHS = 1_000_000


def check_horizon(num_steps: int, num_rows: int, num_paths: int) -> None:
    """Raise unless so many rows can be forecast, by so many paths.

    Raises:
        ValueError: If there is no row, more than were learned, or a number of paths that is out of range.

    Example:
        >>> check_horizon(30, 20, 100)
        Traceback (most recent call last):
        ValueError: 30 rows ahead are more than the 20 that were learned; ask for no more than that
    """
    if num_steps < 1:
        raise ValueError(f"a forecast needs at least one row to come, got {num_steps}")
    if num_steps > num_rows:
        raise ValueError(
            f"{num_steps} rows ahead are more than the {num_rows} that were learned; ask for no more than that"
        )
    if not 2 <= num_paths <= MOST_PATHS:
        raise ValueError(f"num_paths must be between 2 and {MOST_PATHS}, got {num_paths}")


@torch.no_grad()
def forecast_rows(
    online: OnlineEnsemble,
    inputs: Tensor,
    scales: Standardizer,
    calibration: CalibrationState,
    num_paths: int,
    generator: torch.Generator | None,
) -> Forecast:
    """Forecast rows to come; nothing that is given is changed.

    Args:
        online: The ensemble, for one real number.
        inputs: The rows as the ensemble takes them, shape (H, D).
        scales: Units of the target.
        calibration: How distributions are recalibrated.
        num_paths: Number of sample paths S.
        generator: Source of randomness, on the CPU.
    """
    mixture = online.predict(inputs[:1])
    assert not isinstance(mixture, LatentMixture)
    log_weights = mixture.log_weights if mixture.log_weights.ndim == 1 else mixture.log_weights[:, 0]
    paths = sample_paths(online, inputs, log_weights, num_paths, generator=generator)
    first = calibrate_next(calibration, in_units(mixture, scales))
    return Forecast(recalibrated_paths(scales.inverse_mean(paths), first), first)
