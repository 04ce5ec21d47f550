"""Innovation models on one target of M experts in numpy, where a call of torch costs more than its numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.innovations.autoregression import HIGHEST, LOWEST, MEMORY, NOISE
from gp_ensembles.innovations.model import InnovationModel
from gp_ensembles.innovations.volatility import LARGEST, SMALLEST

Numbers = NDArray[np.float64]
_MOST = float(np.finfo(np.float64).max ** 0.5)  # of a squared error


class RowModels(NamedTuple):
    """K models and the V recursions of scales that they share, as columns of numbers.

    Attributes:
        rate: Share of the newest error of each recursion, shape (V, 1).
        scale_df: Degrees of freedom of the density whose score it follows, shape (V, 1).
        drifts: Whether it follows what the autoregression leaves of errors, 0 or 1, shape (V,).
        places: The recursion of each model, shape (K,).
        shifts: Whether each model is autoregressive, 0 or 1, shape (K,).
        width: What a model's squared scale is multiplied with, shape (K, 1).
        factor: Variance of a model over its squared scale before that, shape (K, 1).
        df: Degrees of freedom, shape (K, 1).
        is_normal: Whether these are infinite, shape (K, 1); ``None`` where none are.
        constant: Logarithm of the density of the standard distribution at zero, shape (K, 1).
    """

    rate: Numbers
    scale_df: Numbers
    drifts: NDArray[np.int64]
    places: NDArray[np.int64]
    shifts: NDArray[np.int64]
    width: Numbers
    factor: Numbers
    df: Numbers
    is_normal: NDArray[np.bool_] | None
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
        infinite = [math.isinf(model.degrees_of_freedom) for model in models]
        return cls(
            np.array([[rate] for rate, _, _ in followed]),
            np.array([[df] for _, df, _ in followed]),
            np.array([int(drift) for _, _, drift in followed]),
            np.array(places),
            np.array([int(model.autoregressive) for model in models]),
            np.array([[model.width] for model in models]),
            np.array([[model.width * factor] for model, factor in zip(models, factors, strict=True)]),
            np.array([[model.degrees_of_freedom] for model in models]),
            np.array(infinite)[:, None] if any(infinite) else None,
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

    Args:
        models: The models.
        scale: Sizes of errors before the target, shape (V, M).
        products: Sums of the autoregression, shape (2, M).
        last_error: The last errors that were observed, shape (M,).
        age: Rows since then, a scalar.
        mean: The experts' means, shape (M, 1).
        variance: Their variances, shape (M, 1).
        y: The target, shape (1,).

    Returns:
        What came of it; ``None`` where derivatives are wanted, numbers are in single precision or not on the
        processor, or cannot be read, as inside ``vmap``.
    """
    if mean.dtype != torch.float64 or mean.device.type != "cpu" or torch.is_grad_enabled():
        return None
    try:
        before, sums, last = scale.numpy(), products.numpy(), last_error.numpy()
        center, spread, target, rows_since = mean.numpy()[:, 0], variance.numpy()[:, 0], y.numpy()[0], float(age)
    except RuntimeError:  # inside vmap
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        errors = target - center
        drift = _coefficient(sums) ** (rows_since + 1) * last
        squares = np.minimum(np.square((errors, errors - drift)) / spread, _MOST)
        followed = np.clip(squares[models.drifts], SMALLEST, LARGEST)
        kept, gained = 1 - models.rate, models.rate * (models.scale_df + 1)
        after = before * (kept + gained / (1 + before * (models.scale_df / followed)))
        if rows_since == 0:
            weighted = last / spread
            sums = sums * MEMORY + np.array((errors * weighted, last * weighted))
        else:
            sums = sums.copy()
        own = before[models.places]
        wide = own * models.width
        relative = squares[models.shifts] / wide
        kernel = models.constant - 0.5 * (models.df + 1) * np.log1p(relative / models.df)
        if models.is_normal is not None:
            kernel = np.where(models.is_normal, models.constant - 0.5 * relative, kernel)
        log_prob = kernel - 0.5 * np.log(wide * spread)
    means = center + models.shifts[:, None] * drift
    df = np.empty_like(means)
    df[:] = models.df
    parts = (np.ascontiguousarray(part.T)[..., None] for part in (means, spread * own * models.factor, log_prob, df))
    return Row(torch.from_numpy(after), torch.from_numpy(sums), torch.from_numpy(errors), *map(torch.from_numpy, parts))


def _coefficient(sums: Numbers) -> Numbers:
    coefficient = np.clip(sums[0] / sums[1], LOWEST, HIGHEST)
    square = np.maximum(np.square(coefficient), NOISE * NOISE)
    result: Numbers = coefficient * np.maximum((1 + NOISE) - NOISE / square, 0.0)
    return result


def _peak(df: float) -> float:
    if math.isinf(df):
        return -0.5 * math.log(2 * math.pi)
    return math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
