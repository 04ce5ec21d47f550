"""The divergence of a sparse approximation from the exact model, a score of the knot-selection papers."""

import torch
from torch import Tensor


def aukl(
    mean: Tensor,
    variance: Tensor,
    other_mean: Tensor,
    other_variance: Tensor,
    *,
    noise: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Average univariate Kullback-Leibler divergence (Garton, Niemi and Carriquiry, 2020), in nats a point.

    Shapes: ``mean`` (..., N), ``variance`` (..., N), ``other_mean`` (..., N), ``other_variance`` (..., N); returns
    (...).

    Raises:
        ValueError: If a variance is not positive.
    """
    if noise is not None:
        variance, other_variance = variance + noise[0], other_variance + noise[1]
    return _normal_divergence(mean, variance, other_mean, other_variance).mean(-1)


def _normal_divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence of normal distributions, point by point, in nats.

    .. math:: \mathrm{KL}(N(m, v) \,\|\, N(m', v')) = \frac12 \left( \frac{v + (m - m')^2}{v'} - 1 - \log \frac{v}{v'}
              \right)
    """
    if not bool((variance > 0).all()) or not bool((other_variance > 0).all()):
        raise ValueError("a divergence needs positive variances; add the nugget or the noise to those that are zero")
    excess = (variance - other_variance) / other_variance
    # Predictions that all but agree have divergences far below the rounding of a ratio near one, others do not.
    logs = torch.where(excess.abs() < 0.5, excess.log1p(), variance.log() - other_variance.log())
    spread = (excess - logs).clamp_min(0.0)
    return 0.5 * (spread + (mean - other_mean).square() / other_variance)
