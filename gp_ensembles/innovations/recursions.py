r"""Recursions on the errors of experts: a first-order autoregression, and the size of errors.

Formulas of one target or of several at once: leading axes are free, on tensors and on arrays.

The autoregression is estimated by least squares with exponential forgetting:

.. math:: h_t = \rho_t \max\Bigl(0, 1 - \frac{1}{n}\, \frac{1 - \rho_t^2}{\rho_t^2}\Bigr)\,
              e_{t-1}, \qquad
          \rho_t = \frac{\sum_{s < t} \gamma^{t - 1 - s}\, e_s e_{s-1} / v_s}
                        {\gamma^{t-1} + \sum_{s < t} \gamma^{t - 1 - s}\, e_{s-1}^2 / v_s}
          \quad \text{clipped to } [-0.2, 1]

with the variances :math:`v_s` that the expert gave its predictions, which make the sums free of units. A coefficient is
shrunk by the variance :math:`(1 - \rho^2) / n` that it has of :math:`n = (1 + \gamma) / (1 - \gamma)` remembered pairs,
and to nothing where it is smaller than that (the positive part of the empirical Bayes estimate, Efron and Morris 1973):
where errors do not predict the next one, a coefficient that is only noise costs half a percent of the squared error.
The recursion of the sums is linear, so :func:`sums_of_block` is one product with a triangular matrix. Pairs of
neighbors that were both observed count, and only they make older ones fade; through a gap of n rows the prediction goes
on as the n + 1st power of the coefficient.

The size is followed by the score of a Student-t density: a squared error counts less the larger it is.

.. math:: g_{t+1} = g_t \left( 1 - \lambda + \lambda \frac{(\nu + 1)\, z_t}{\nu g_t + z_t} \right)

with :math:`z_t = (e_t - h_t)^2 / s_t^2` (Harvey 2013, "Dynamic Models for Volatility and Heavy Tails"; the update of a
scale by expectation maximization, a share :math:`\lambda` of the way). One error, however gross, raises :math:`g` at
most by the factor :math:`1 + \lambda \nu`. As :math:`\nu \to \infty` it is the exponentially weighted mean of
:math:`z`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.backends import backend_of

MEMORY = 0.99  # a pair that is n pairs old counts this to the power of n
_LOG_MEMORY = math.log(MEMORY)
NOISE = (1 - MEMORY) / (1 + MEMORY)  # variance of a coefficient of errors that are not correlated
LOWEST, HIGHEST = -0.2, 1.0
# Squared errors in the experts' variances: a scale of nothing could not grow again, and a gross error not be squared.
SMALLEST, LARGEST = 1e-6, 1e30
_NORMAL = -0.5 * math.log(2 * math.pi)

backend = backend_of(__name__)
xp, jit, part, where = backend.xp, backend.jit, backend.part, backend.where
clip, pick, up = backend.clip, backend.pick, backend.up


class Models(NamedTuple):
    """K models and the V recursions of scales that they share, as columns of numbers."""

    keep: Any  # one less the share of the newest error in each recursion, shape (V, 1)
    gain: Any  # that share times one more than the degrees of freedom, shape (V, 1)
    scale_df: Any  # degrees of freedom of the density whose score it follows, shape (V, 1)
    drifts: Any  # whether it follows the residuals of the autoregression instead of the errors, shape (V, 1)
    places: Any  # the recursion of each model, shape (K,)
    shifts: Any  # whether each model is autoregressive, 0 or 1, shape (K, 1)
    width: Any  # factor of a model's squared scale, shape (K, 1)
    factor: Any  # variance of a model over its squared scale, widened, shape (K, 1)
    is_normal: Any  # whether it is normal, shape (K, 1)
    df: Any  # degrees of freedom, 1 where it is normal, shape (K, 1)
    constant: Any  # logarithm of the density of the standard distribution at zero, shape (K, 1)
    most: float  # the largest squared error


@part
def predict_error(product: Any, square: Any, last: Any, age: Any) -> Any:
    """Predicted errors (..., M) from sums of products of neighbors and of squares, last errors, and rows since then."""
    coefficient = clip(product / square, LOWEST, HIGHEST)
    squared = clip(coefficient * coefficient, NOISE * NOISE, HIGHEST)  # at first far below where the factor is zero
    return (coefficient * clip((1 + NOISE) - NOISE / squared, 0.0, 2.0)) ** (age + 1) * last


@part
def next_sums(product: Any, square: Any, last: Any, age: Any, error: Any, variance: Any) -> tuple[Any, Any]:
    """Both sums after an error (..., M), which makes a pair with one right before it."""
    weighted, is_pair = last / variance, age == 0
    return (
        where(is_pair, MEMORY * product + error * weighted, product),
        where(is_pair, MEMORY * square + last * weighted, square),
    )


@part
def next_scale(keep: Any, gain: Any, scale: Any, ratio: Any) -> Any:
    """Scales (..., V, M) after an error: z / (nu g + z) = 1 / (1 + g nu / z) takes few operations."""
    return scale * (keep + gain / (1 + scale * ratio))


@part
def shifted(shift: Any, mean: Any, drift: Any) -> Any:
    """Means of models that follow the autoregression, where ``shift`` is 1, and of others."""
    return where(shift > 0, mean + drift, mean)  # no NaN where nothing is shifted


@part
def ratio_of(df: Any, follows: Any, plain: Any, drifted: Any) -> Any:
    """Degrees of freedom over the squared errors that a recursion follows."""
    return df / clip(where(follows, drifted, plain), SMALLEST, LARGEST)


@part
def log_density(kind: Any, wide: Any, plain: Any, drifted: Any, log_variance: Any) -> Any:
    """Log densities of a target under models of squared scale ``wide`` in the experts' variances."""
    shift, is_normal, df, constant = kind
    relative = where(shift > 0, drifted, plain) / wide
    heavy = -0.5 * (df + 1) * xp.log1p(relative / df)
    return constant + where(is_normal, -0.5 * relative, heavy) - 0.5 * (xp.log(wide) + log_variance)


def moments(models: Models, scale: Any, mean: Any, variance: Any, drift: Any) -> tuple[Any, Any]:
    """Means and variances (..., K, M) of all models, from those of M experts and scales (..., V, M)."""
    return shifted(models.shifts, up(mean), up(drift)), up(variance) * pick(scale, models.places) * models.factor


@part
def squared_errors(models: Models, errors: Any, variance: Any, drift: Any) -> tuple[Any, Any]:
    """Squared errors and residuals (..., M) in the experts' variances; a gross target's square may overflow."""
    residuals = errors - drift
    return clip(errors * errors / variance, 0.0, models.most), clip(residuals * residuals / variance, 0.0, models.most)


def log_densities(models: Models, scale: Any, variance: Any, plain: Any, drifted: Any) -> Any:
    """Log densities (..., K, M) of a target, from squared errors (..., M)."""
    kind = models.shifts, models.is_normal, models.df, models.constant
    wide = pick(scale, models.places) * models.width
    return log_density(kind, wide, up(plain), up(drifted), up(xp.log(variance)))


def ratios(models: Models, plain: Any, drifted: Any) -> Any:
    """Those of all recursions, (..., V, M)."""
    return ratio_of(models.scale_df, models.drifts, up(plain), up(drifted))


@jit
def predict_row(models: Models, state: Any, mean: Any, variance: Any) -> tuple[Any, Any, Any]:
    """Predicted errors (M,), and means and variances (M, 1 + K) of the experts and of their models, in loops."""
    scale, product, square, last, age = state
    num_experts, num_models = len(mean), len(models.places)
    shape = num_experts, 1 + num_models
    drift, means, variances = xp.empty(num_experts), xp.empty(shape), xp.empty(shape)
    for m in range(num_experts):
        drift[m] = predict_error(product[m], square[m], last[m], age[0])
        means[m, 0], variances[m, 0] = mean[m], variance[m]
        for k in range(num_models):
            means[m, 1 + k] = shifted(models.shifts[k, 0], mean[m], drift[m])
            variances[m, 1 + k] = variance[m] * scale[models.places[k], m] * models.factor[k, 0]
    return drift, means, variances


@jit
def learn_row(models: Models, state: Any, mean: Any, variance: Any, drift: Any, y: float) -> tuple[Any, ...]:
    """Log densities (M, 1 + K) of a target, scales and both sums after it, and the errors (M,), in loops."""
    scale, product, square, last, age = state
    num_experts, num_models = len(mean), len(models.places)
    densities, after = xp.empty((num_experts, 1 + num_models)), xp.empty_like(scale)
    products, squares, errors = xp.empty(num_experts), xp.empty(num_experts), y - mean
    for m in range(num_experts):
        plain, drifted = squared_errors(models, errors[m], variance[m], drift[m])
        products[m], squares[m] = next_sums(product[m], square[m], last[m], age[0], errors[m], variance[m])
        log_variance = xp.log(variance[m])
        densities[m, 0] = _NORMAL - 0.5 * (errors[m] * errors[m] / variance[m] + log_variance)
        for v in range(len(scale)):
            ratio = ratio_of(models.scale_df[v, 0], models.drifts[v, 0], plain, drifted)
            after[v, m] = next_scale(models.keep[v, 0], models.gain[v, 0], scale[v, m], ratio)
        for k in range(num_models):
            kind = models.shifts[k, 0], models.is_normal[k, 0], models.df[k, 0], models.constant[k, 0]
            wide = scale[models.places[k], m] * models.width[k, 0]
            densities[m, 1 + k] = log_density(kind, wide, plain, drifted, log_variance)
    return densities, after, products, squares, errors


def neighbors(last: Any, age: Any, errors: Any, newest: Any) -> tuple[Any, Any, Any]:
    """The neighbors of the errors (B, M) of a block; ``newest`` as in :func:`newest_of`, ``None`` without gaps.

    Returns: the last error that was observed before each row and before the row after the block, (B + 1, M); rows
    since then, (B + 1, 1); and whether a row and the one before it were both observed, (B, 1).
    """
    known = xp.concatenate([last[None], errors])
    if newest is None:
        ages = xp.concatenate([age.reshape(1), xp.zeros_like(errors[:, 0])])[:, None]
        return known, ages, ages[:-1] == 0
    rows = xp.cumsum(xp.ones_like(newest), 0) - 1
    ages = where(newest == 0, rows + age, rows - newest + 0 * age)[:, None]
    return known[newest], ages, (ages[:-1] == 0) & (newest == rows)[1:, None]


def newest_of(missing: Tensor) -> Tensor:
    """The last row up to each that is not missing (B,), one for the first, (B + 1,): zero where it is of the past."""
    rows = torch.arange(1 + len(missing), device=missing.device)
    return torch.where(torch.cat([missing.new_zeros(1), missing]), 0, rows).cummax(0).values


def sums_of_block(start: Any, pairs: tuple[Any, Any, Any], errors: Any, variance: Any) -> Any:
    """Both sums before each row of a block and after the last, (2, B + 1, M): :func:`next_sums`, all at once.

    Shapes: ``start`` (2, M), ``errors`` and ``variance`` (B, M); ``pairs`` are those of :func:`neighbors`.
    """
    before, ages, is_pair = pairs
    previous = before[:-1]
    if len(errors) == 1:
        after = next_sums(start[0], start[1], previous[0], ages[0], errors[0], variance[0])
        return xp.stack([start, where(is_pair[0], xp.stack(after), start)], 1)
    weighted = where(is_pair, previous / variance, 0.0)
    counts = is_pair[:, 0] + 0.0 * ages[1:, 0]
    num_before = xp.concatenate([0.0 * counts[:1], xp.cumsum(counts, 0)])
    decay = xp.tril(xp.exp(_LOG_MEMORY * (num_before[:, None] - num_before[1:])), -1)
    faded = start[:, None] * xp.exp(_LOG_MEMORY * num_before)[:, None]
    return decay @ xp.stack([errors * weighted, previous * weighted]) + faded
