"""Forecasts from any source as experts' predictions: moments, quantiles, or draws of each row."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gp_ensembles.papers.fusion.experts import ExpertPredictions

ArrayLike = Tensor | npt.NDArray[np.floating] | Sequence[object]
# Draws of a row below which their variance is too rough.
_FEWEST_DRAWS = 5


def moment_forecast(mean: ArrayLike, stddev: ArrayLike) -> ExpertPredictions:
    """One expert's predictions from its means and standard deviations of the targets.

    Args:
        mean: Means, shape (N,).
        stddev: Standard deviations of the targets, noise included, shape (N,) or one number.

    Returns:
        Normal predictions, shapes (1, N), without separate noise.

    Raises:
        ValueError: If shapes differ, a number is not finite, or a standard deviation is not positive.

    Example:
        >>> moment_forecast([1.0, 2.0], [0.5, 0.1]).target_variance
        tensor([[0.2500, 0.0100]], dtype=torch.float64)
    """
    center = _floats(mean, "means")
    if center.ndim != 1 or not len(center):
        raise ValueError(f"means must have shape (N,) with at least one row, got {tuple(center.shape)}")
    spread = _floats(stddev, "standard deviations").to(center)
    if spread.shape not in ((), center.shape):
        raise ValueError(f"{len(center)} means need as many standard deviations, got shape {tuple(spread.shape)}")
    _every_row(center.isfinite(), center, "means must be finite")
    spread = spread.expand_as(center)
    _every_row(spread.isfinite() & (spread > 0), spread, "standard deviations must be positive and finite")
    return ExpertPredictions.of_target(center, spread.square()).check()


def quantile_forecast(values: ArrayLike, levels: ArrayLike) -> ExpertPredictions:
    r"""One expert's predictions from its quantiles, as normal densities.

    The quantile function is interpolated linearly in the normal score :math:`z = \Phi^{-1}(p)`, and its first and last
    pieces continue beyond the levels, so that the tails are those of normal distributions. Its distribution has the
    given quantiles exactly; what is fused is the normal density with its mean and variance. Quantiles of a normal
    distribution give that distribution back. Where forecasts are skewed, transform the targets and all forecasts alike
    (quantiles of the logarithm are logarithms of quantiles) and transform the quantiles of the fusion back.

    Args:
        values: Quantiles, shape (N, Q), in rows that do not decrease.
        levels: Their probabilities, shape (Q,), at least two, within (0, 1), increasing.

    Returns:
        Normal predictions, shapes (1, N), without separate noise.

    Raises:
        ValueError: If shapes differ, a number is not finite, levels are not within (0, 1) or do not increase, quantiles
            of a row cross, or all of a row are equal.

    Example:
        >>> quantile_forecast([[-1.2816, 0.0, 1.2816], [0.0, 1.0, 2.0]], [0.1, 0.5, 0.9]).mean
        tensor([[0., 1.]], dtype=torch.float64)
    """
    q, p = _floats(values, "quantiles"), _floats(levels, "levels")
    if p.ndim != 1 or len(p) < 2 or not bool(((p > 0) & (p < 1)).all() & (p.diff() > 0).all()):
        raise ValueError(f"levels must be at least two probabilities within (0, 1), increasing, got {p.tolist()}")
    if q.ndim != 2 or q.shape[1] != len(p) or not len(q):
        raise ValueError(f"quantiles at {len(p)} levels must have shape (N, {len(p)}), got {tuple(q.shape)}")
    _every_row(q.isfinite().all(1), q[:, 0], "quantiles must be finite")
    crossed = q.diff(dim=1) < 0
    if bool(crossed.any()):
        row, first = crossed.nonzero()[0].tolist()
        raise ValueError(
            f"quantiles must not decrease with their level: row {row} has {float(q[row, first]):g} at "
            f"{float(p[first]):g} and {float(q[row, first + 1]):g} at {float(p[first + 1]):g}; sort them if you mean it"
        )
    _every_row(q[:, -1] > q[:, 0], q[:, 0], "quantiles of a row must differ")
    return ExpertPredictions.of_target(*interpolated_moments(q, p.to(q))).check()


def interpolated_moments(values: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances, shapes (N,), of distributions whose quantiles are interpolated in the normal score.

    Shapes: ``values`` (N, Q), ``levels`` (Q,).
    """
    z = torch.special.ndtri(levels)
    inner = values.diff(dim=1) / z.diff()
    slope = torch.cat([inner[:, :1], inner, inner[:, -1:]], 1)
    corner = torch.cat([values[:, :1], values], 1), torch.cat([z[:1], z])
    # About the middle quantile, so that squares do not cancel.
    middle = values[:, [values.shape[1] // 2]]
    start = corner[0] - middle - slope * corner[1]
    ends = torch.cat([levels.new_zeros(1), levels, levels.new_ones(1)])
    height = torch.nn.functional.pad((-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5, (1, 1))
    share, first = ends.diff(), -height.diff()
    second = share - (torch.nn.functional.pad(z, (1, 1)) * height).diff()
    mean = (start * share + slope * first).sum(1)
    square = (start.square() * share + 2 * start * slope * first + slope.square() * second).sum(1)
    return mean + middle.squeeze(1), square - mean.square()


def sample_forecast(draws: ArrayLike) -> ExpertPredictions:
    """One expert's predictions from draws, as normal densities with the draws' means and unbiased variances.

    A fusion multiplies powers of densities, and draws in a tail say too little about a density estimated from them: a
    normal one is used, for which few draws suffice. See :func:`quantile_forecast` about skewed ones.

    Args:
        draws: Draws of the targets, shape (S, N), at least five of each row.

    Returns:
        Normal predictions, shapes (1, N), without separate noise.

    Raises:
        ValueError: If there are fewer than five draws, a draw is not finite, or all of a row are equal.

    Example:
        >>> draws = torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> bool((sample_forecast(3.0 * draws).target_variance / 9.0 - 1.0).abs().max() < 0.05)
        True
    """
    S = _floats(draws, "draws")
    if S.ndim != 2 or not S.shape[1]:
        raise ValueError(f"draws must have shape (S, N), got {tuple(S.shape)}")
    if len(S) < _FEWEST_DRAWS:
        raise ValueError(
            f"{len(S)} draws of {S.shape[1]} rows are too few for variances: give at least {_FEWEST_DRAWS}, as (S, N)"
        )
    _every_row(S.isfinite().all(0), S[0], "draws must be finite")
    variance = S.var(0)
    _every_row(variance > 0, variance, "draws of a row must differ")
    return ExpertPredictions.of_target(S.mean(0), variance).check()


def _floats(values: ArrayLike, name: str) -> Tensor:
    """A floating tensor of an array, a tensor or lists, without a copy where possible."""
    if isinstance(values, Tensor):
        return values.detach() if values.is_floating_point() else values.double()
    try:
        array = np.asarray(values)
        return torch.as_tensor(array if array.dtype in (np.float32, np.float64) else array.astype(np.float64))
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in rows of equal length") from None


def _every_row(fine: Tensor, values: Tensor, what: str) -> None:
    if not bool(fine.all()):
        row = int((~fine).int().argmax())
        raise ValueError(f"{what}: row {row} has {float(values[row]):g}; fix it or leave it out")
