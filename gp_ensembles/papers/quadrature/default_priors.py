"""Ready-made priors from the data: frequencies between one over the range of the inputs and the Nyquist frequency."""

import torch
from torch import Tensor

from gp_ensembles.papers.quadrature.prior import (
    HalfNormal,
    Hyperprior,
    LogNormal,
    Marginal,
    Normal,
    fixed,
    inferred,
)

_SHARE = 5.0  # Nyquist frequency in standard deviations of the prior of the means
_UNIT_LOG_SD = 0.35
_NOISE_SHARE, _NOISE_LOG_SD = 1e-2, 1.5
_OUTPUT_LOG_SD = 0.5
_ON_GRID = 1e-3  # gaps that differ from whole multiples of the smallest by less than this share are on a grid


def mean_spacing_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency of each input from its mean spacing, (N - 1) / (2 range), shape (D,).

    Raises:
        ValueError: If an input is constant.
    """
    return 0.5 * (X.shape[0] - 1) / input_range(X)


def grid_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency of the grid that each input lies on, gaps or not, shape (D,); from the mean spacing off grids.

    Raises:
        ValueError: If an input is constant.
    """
    mean = mean_spacing_nyquist(X)
    return torch.stack([_grid_or(X[:, d], mean[d]) for d in range(X.shape[1])])


def smallest_gap_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency of each input from its smallest gap, at least one Nth of its range, shape (D,).

    Raises:
        ValueError: If an input is constant.
    """
    extent = input_range(X)
    gaps = torch.stack([X[:, d].unique().diff().min() for d in range(X.shape[1])])
    return 0.5 / torch.maximum(gaps, extent / X.shape[0])


def nyquist_scales(X: Tensor, nyquist: Tensor) -> LogNormal:
    """Prior of the scales in which one over the range and the Nyquist frequency are five deviations from the median."""
    lower, upper = -input_range(X).log(), nyquist.log()
    return LogNormal(0.5 * (lower + upper), (upper - lower).abs().clamp_min(1e-3) / (2.0 * _SHARE))


def unit_scales(X: Tensor, log_sd: float = _UNIT_LOG_SD) -> LogNormal:
    """Prior of the scales whose median is one cycle over the range of each input."""
    location = -input_range(X).log()
    return LogNormal(location, torch.full_like(location, log_sd))


def nyquist_means(nyquist: Tensor) -> HalfNormal:
    """Prior of the mean frequencies: half-normal, its scale a fifth of the Nyquist frequency."""
    return HalfNormal(nyquist / _SHARE)


def input_range(X: Tensor) -> Tensor:
    """Range of each input, shape (D,)."""
    extent = X.amax(0) - X.amin(0)
    constant = (extent <= 0).nonzero()
    if constant.numel():
        raise ValueError(f"input {int(constant[0])} is constant and has no frequencies; leave it out")
    return extent


def _grid_or(x: Tensor, mean: Tensor) -> Tensor:
    gaps = x.unique().diff()
    step = gaps.min()
    multiples = gaps / step
    on_grid = bool(((multiples - multiples.round()).abs() < _ON_GRID * multiples).all())
    fine_enough = bool(0.5 / step < 10.0 * mean)  # a step far below the mean spacing is a coincidence, not a grid
    return 0.5 / step if on_grid and fine_enough else mean


def paper_prior(X: Tensor, y: Tensor, max_components: int = 5, noise: float = 1e-3) -> Hyperprior:
    r"""The prior of Hamid et al. (2022): section 3.1.1 for one input; for more, scales as in the authors' code.

    Means are half-normal with a fifth of the Nyquist frequency. Scales are log-normal: for one input, one over the
    range and the Nyquist frequency are five deviations from the median; for several, the median is one cycle over each
    input's range and the deviation 0.35. The output scale is fixed at the targets' variance, the noise at a share of it
    (their code fixes 0.001; the paper does not say).

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        max_components: Largest number of components.
        noise: Noise variance as a share of the targets' variance.

    Raises:
        ValueError: If an input or the targets are constant.

    Example:
        >>> import torch
        >>> X = torch.arange(50.0, dtype=torch.float64).unsqueeze(-1) / 49.0
        >>> paper_prior(X, X.squeeze(-1).sin()).means.scale
        tensor([4.9000], dtype=torch.float64)
    """
    variance = _variance(y)
    if X.shape[1] == 1:
        nyquist = mean_spacing_nyquist(X)
        scales = nyquist_scales(X, nyquist)
    else:
        nyquist, scales = smallest_gap_nyquist(X), unit_scales(X)
    return Hyperprior(
        nyquist_means(nyquist), scales, max_components, outputscale=fixed(variance), noise=fixed(noise * variance)
    )


def default_prior(X: Tensor, y: Tensor, max_components: int = 5) -> Hyperprior:
    """A broader prior than the paper's, with the output scale and the noise inferred.

    Shapes: ``X`` (N, D), ``y`` (N,).

    Raises:
        ValueError: If an input or the targets are constant.
    """
    variance = _variance(y)
    means: Marginal
    if X.shape[1] == 1:
        nyquist = grid_nyquist(X)
        narrow = nyquist_scales(X, nyquist)
        means, scales = nyquist_means(nyquist), LogNormal(narrow.location - 1.0, 3.0 * narrow.scale)
    else:
        extent = input_range(X)
        width = torch.minimum(nyquist_means(smallest_gap_nyquist(X)).scale, 0.25 / extent)
        means = Normal(torch.zeros_like(width), width)
        scales = LogNormal(-extent.log() - 1.0, torch.ones_like(extent))
    return Hyperprior(
        means,
        scales,
        max_components,
        outputscale=inferred(variance, _OUTPUT_LOG_SD),
        noise=inferred(_NOISE_SHARE * variance, _NOISE_LOG_SD),
    )


def _variance(y: Tensor) -> float:
    variance = float(y.var(unbiased=False))
    if not variance > 0:
        raise ValueError("the targets are constant, so no prior can be scaled by their variance")
    return variance
