"""Innovation models on one target of M experts on plain arrays, where a call of torch costs more than its numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.innovations.model import InnovationModel
from gp_ensembles.innovations.recursions import HIGHEST, LARGEST, LOWEST, MEMORY, NOISE, SMALLEST
from gp_ensembles.numerics.compiled import compiled

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_MOST = float(np.finfo(np.float64).max ** 0.5)  # of a squared error


class RowModels(NamedTuple):
    """K models and the V recursions of scales that they share, as columns of numbers.

    Attributes:
        rate: Share of the newest error of each recursion, shape (V, 1).
        scale_df: Degrees of freedom of the density whose score it follows, shape (V, 1).
        drifts: Whether it follows the residuals of the autoregression instead of the errors, 0 or 1, shape (V,).
        places: The recursion of each model, shape (K,).
        shifts: Whether each model is autoregressive, 0 or 1, shape (K,).
        width: Factor of a model's squared scale, shape (K, 1).
        factor: Variance of a model over its squared scale, widened, shape (K, 1).
        df: Degrees of freedom, shape (K, 1).
        constant: Logarithm of the density of the standard distribution at zero, shape (K, 1).
    """

    rate: Numbers
    scale_df: Numbers
    drifts: Places
    places: Places
    shifts: Places
    width: Numbers
    factor: Numbers
    df: Numbers
    constant: Numbers

    @classmethod
    def of(
        cls,
        models: Sequence[InnovationModel],
        followed: Sequence[tuple[float, float, bool]],
        places: Sequence[int],
        factors: Sequence[float],
    ) -> "RowModels":
        """From models, the rate, the degrees of freedom and the errors of each recursion, and the models' places."""
        return cls(
            np.array([[rate] for rate, _, _ in followed]),
            np.array([[df] for _, df, _ in followed]),
            np.array([int(drift) for _, _, drift in followed]),
            np.array(places),
            np.array([int(model.autoregressive) for model in models]),
            np.array([[model.width] for model in models]),
            np.array([[model.width * factor] for model, factor in zip(models, factors, strict=True)]),
            np.array([[model.degrees_of_freedom] for model in models]),
            np.array([[_peak(model.degrees_of_freedom)] for model in models]),
        )


class Row(NamedTuple):
    """One target.

    Attributes:
        scale: Sizes of errors after it, shape (V, M).
        products: Sums of the autoregression after it, shape (2, M).
        last_error: Its errors, shape (M,).
        mean: Means of all models, shape (M, K, 1).
        variance: Variances, shape (M, K, 1).
        log_prob: Log densities, shape (M, K, 1).
        degrees_of_freedom: Shape (M, K, 1).
    """

    scale: Tensor
    products: Tensor
    last_error: Tensor
    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    degrees_of_freedom: Tensor


def update_row(
    models: RowModels,
    scale: Tensor,
    products: Tensor,
    last_error: Tensor,
    age: Tensor,
    mean: Tensor,
    variance: Tensor,
    y: Tensor,
) -> Row | None:
    """Predict one target by all models, and learn it; see :class:`~gp_ensembles.innovations.bank.InnovationBank`.

    Shapes: ``scale`` (V, M), ``products`` (2, M), ``last_error`` (M,), ``mean`` (M, 1), ``variance`` (M, 1), ``y``
    (1,).
    """
    if mean.dtype != torch.float64 or mean.device.type != "cpu" or torch.is_grad_enabled():
        return None
    try:
        before, sums, last = scale.numpy(), products.numpy(), last_error.numpy()
        center, spread, target, rows_since = mean.numpy()[:, 0], variance.numpy()[:, 0], y.numpy()[0], float(age)
    except RuntimeError:  # inside vmap
        return None
    center, spread = np.ascontiguousarray(center), np.ascontiguousarray(spread)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        drift, means, variances = predict_models(
            models.places, models.shifts, models.factor, before, sums, last, rows_since, center, spread
        )
        log_prob, after, sums, errors = learn_models(
            models, before, sums, last, rows_since, center, spread, drift, float(target)
        )
    df = np.empty_like(log_prob[:, 1:])
    df[:] = models.df[:, 0]
    parts = (torch.from_numpy(part).unsqueeze(-1) for part in (means[:, 1:], variances[:, 1:], log_prob[:, 1:], df))
    return Row(torch.from_numpy(after), torch.from_numpy(sums), torch.from_numpy(errors), *parts)


@compiled
def predict_models(
    places: Places,
    shifts: Places,
    factor: Numbers,
    scale: Numbers,
    products: Numbers,
    last_error: Numbers,
    age: float,
    mean: Numbers,
    variance: Numbers,
) -> tuple[Numbers, Numbers, Numbers]:
    """Predict one target by the experts and by all models, from arrays.

    Shapes: ``scale`` (V, M), ``products`` (2, M), ``last_error`` (M,), ``mean`` (M,), ``variance`` (M,). Returns:
    predicted errors (M,), and means and variances (M, 1 + K), the experts' own in front.
    """
    coefficient = np.clip(products[0] / products[1], LOWEST, HIGHEST)
    square = np.maximum(np.square(coefficient), NOISE * NOISE)
    drift = (coefficient * np.maximum((1 + NOISE) - NOISE / square, 0.0)) ** (age + 1) * last_error
    means = np.empty((len(mean), 1 + len(places)))
    variances = np.empty_like(means)
    means[:, 0], variances[:, 0] = mean, variance
    means[:, 1:] = (mean + np.expand_dims(shifts, 1) * drift).T
    variances[:, 1:] = (variance * scale[places] * factor).T
    return drift, means, variances


@compiled
def learn_models(
    models: RowModels,
    scale: Numbers,
    products: Numbers,
    last_error: Numbers,
    age: float,
    mean: Numbers,
    variance: Numbers,
    drift: Numbers,
    y: float,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Learn one target, from arrays.

    Returns: log densities (M, 1 + K), the scales (V, M) and sums (2, M) after it, and the experts' errors (M,).
    """
    errors = y - mean
    squares = np.empty((2, len(mean)))
    squares[0] = np.square(errors) / variance
    squares[1] = np.square(errors - drift) / variance
    squares = np.minimum(squares, _MOST)
    followed = np.minimum(np.maximum(squares[models.drifts], SMALLEST), LARGEST)
    after = scale * (
        (1 - models.rate) + models.rate * (models.scale_df + 1) / (1 + scale * (models.scale_df / followed))
    )
    sums = products.copy()
    if age == 0:
        weighted = last_error / variance
        sums[0] = sums[0] * MEMORY + errors * weighted
        sums[1] = sums[1] * MEMORY + last_error * weighted
    wide = scale[models.places] * models.width
    relative = squares[models.shifts] / wide
    heavy = -0.5 * (models.df + 1) * np.log1p(relative / models.df)
    kernel = models.constant + np.where(np.isinf(models.df + relative * 0.0), -0.5 * relative, heavy)
    log_prob = np.empty((len(mean), 1 + len(models.places)))
    log_prob[:, 0] = -0.5 * (squares[0] + np.log(variance)) - _HALF_LOG_TWO_PI
    log_prob[:, 1:] = (kernel - 0.5 * np.log(wide * variance)).T
    return log_prob, after, sums, errors


def _peak(df: float) -> float:
    if math.isinf(df):
        return -0.5 * math.log(2 * math.pi)
    return math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
