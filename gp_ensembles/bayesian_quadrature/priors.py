"""Ready-made priors from data."""

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior, Scalar, fixed, inferred
from gp_ensembles.bayesian_quadrature.marginals import LogNormal, Marginal, Normal
from gp_ensembles.bayesian_quadrature.nyquist import (
    grid_nyquist,
    input_range,
    mean_spacing_nyquist,
    nyquist_means,
    nyquist_scales,
    smallest_gap_nyquist,
    unit_scales,
)

_NOISE_SHARE, _NOISE_LOG_SD = 1e-2, 1.5
_OUTPUT_LOG_SD = 0.5


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
    r"""A broader prior than the paper's, with the output scale and the noise inferred.

    For one input, scales are log-normal around a fraction 1/e of the paper's median with three times its deviation,
    so that seasons that keep their phase over the whole series are possible, and the Nyquist frequency is that of the
    grid, gaps or not. For several inputs, means are normal (waves may run along any diagonal) with a quarter of a cycle
    over each input's range, and scales log-normal with median 1/e of a cycle and deviation one: inputs may be
    irrelevant, and frequencies as high as the Nyquist frequency of a continuous input are noise. The output scale is
    log-normal around the targets' variance, the noise around a hundredth of it.

    Measured against :func:`paper_prior` in ``benchmarks/README.md``.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        max_components: Largest number of components.

    Raises:
        ValueError: If an input or the targets are constant.

    Example:
        >>> import torch
        >>> X = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> default_prior(X, X.sum(-1)).noise.is_inferred
        True
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
    return Hyperprior(means, scales, max_components, outputscale=output_prior(variance), noise=noise_prior(variance))


def noise_prior(variance: float) -> Scalar:
    """Noise around a hundredth of the targets' variance, give or take a factor of twenty.

    Example:
        >>> noise_prior(1.0).scale
        1.5
    """
    return inferred(_NOISE_SHARE * variance, _NOISE_LOG_SD)


def output_prior(variance: float) -> Scalar:
    """Output scale around the targets' variance, give or take a factor of three.

    Example:
        >>> output_prior(1.0).scale
        0.5
    """
    return inferred(variance, _OUTPUT_LOG_SD)


def _variance(y: Tensor) -> float:
    variance = float(y.var(unbiased=False))
    if not variance > 0:
        raise ValueError("the targets are constant; there is nothing to learn from them")
    return variance
