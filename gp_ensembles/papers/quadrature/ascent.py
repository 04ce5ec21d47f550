"""Gradient ascents of the posterior density over kernels, and starts for them at peaks of the periodogram."""

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.papers.quadrature.likelihoods import LogMarginalLikelihoods
from gp_ensembles.papers.quadrature.prior import EDGE, Hyperprior
from gp_ensembles.papers.quadrature.problem import Evaluations

_OVERSAMPLING = 5  # frequencies per cycle over the range
_MAX_FREQUENCIES = 5_000
_TREND_SHARE = 0.5  # weight of a component at (almost) zero frequency, for a trend


def periodogram_starts(X: Tensor, y: Tensor, prior: Hyperprior) -> Tensor:
    r"""For each number of components, kernels at the largest peaks of a periodogram; none for several inputs.

    Peaks are found one at a time: the largest of the periodogram of the residuals when a straight line and the
    sinusoids of all peaks before have been fitted by least squares. For every n there are four kernels: with
    and without a component for a trend, and with scales at the prior's median or a quarter of a cycle over the range.
    (Wilson and Adams (2013) start from the empirical spectrum too.)

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        prior: The prior; of its means and scales only the quantiles are used.

    Returns:
        Rows of the cube, shape (4 N_max, C), or (0, C) for several inputs and for constant data.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.quadrature.default_priors import default_prior
        >>> X = torch.arange(60.0, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(2 * torch.pi * 0.1 * X.squeeze(-1))
        >>> prior = default_prior(X, y, max_components=1)
        >>> [round(float(m), 2) for m in prior.mixtures(periodogram_starts(X, y, prior)).means[:, 0, 0]]
        [0.0, 0.1, 0.0, 0.1]
    """
    flat = bool((X.amax(0) <= X.amin(0)).any()) or bool(y.amax() <= y.amin())
    if X.shape[1] != 1 or flat:
        return X.new_zeros(0, prior.num_columns)
    x = X.squeeze(-1) - X.mean()
    nyquist = float(prior.means.icdf(X.new_full((1,), 1.0 - EDGE)))  # the largest frequency under the prior
    peaks, power = _peaks(x, y, prior.max_components, nyquist)
    median = prior.scales.icdf(X.new_full((1,), 0.5))
    narrow = (0.25 / (x.max() - x.min())).reshape(1)
    rows = []
    for scale in (median, narrow):
        for count in range(1, prior.max_components + 1):
            trend = (
                torch.cat([peaks.new_zeros(1), peaks[: count - 1]]),
                _shares(torch.cat([power.new_full((1,), _TREND_SHARE), power[: count - 1]])),
            )
            for means, weights in (trend, (peaks[:count], _shares(power[:count]))):
                rows.append(_row(prior, weights, means, scale.expand(count)))
    return torch.stack(rows)


def _shares(power: Tensor) -> Tensor:
    return power / power.sum()


def _peaks(x: Tensor, y: Tensor, count: int, nyquist: float) -> tuple[Tensor, Tensor]:
    """Frequencies and their shares of the variance, largest first."""
    extent = float(x.max() - x.min())
    size = min(max(int(nyquist * extent * _OVERSAMPLING), 1), _MAX_FREQUENCIES)
    grid = torch.arange(1, size + 1, device=x.device, dtype=x.dtype) * (nyquist / size)
    columns = [torch.ones_like(x), x / extent]
    residual = _residual(columns, y)
    total = y.square().sum()
    frequencies, shares = [], []
    angles = 2.0 * math.pi * grid.unsqueeze(-1) * x
    cosines, sines = angles.cos(), angles.sin()
    for _ in range(count):
        power = (cosines @ residual).square() + (sines @ residual).square()
        frequencies.append(grid[power.argmax()])
        angle = 2.0 * math.pi * frequencies[-1] * x
        columns += [angle.cos(), angle.sin()]
        rest = _residual(columns, y)
        shares.append(((residual.square().sum() - rest.square().sum()) / total).clamp_min(1e-3))
        residual = rest
    return torch.stack(frequencies), torch.stack(shares)


def _residual(columns: list[Tensor], y: Tensor) -> Tensor:
    design = torch.stack(columns, -1)
    # singular for few rows, where this is the least-norm solution
    value: Tensor = y - design @ torch.linalg.pinv(design) @ y
    return value


def _row(prior: Hyperprior, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Inverse of the prior's map: sticks from weights, probabilities from means and scales by bisection."""
    count = weights.numel()
    levels = [stick_levels(weights), _probability(prior.means.icdf, means), _probability(prior.scales.icdf, scales)]
    levels.append(weights.new_full((prior.num_scalars,), 0.5))
    return prior.embed(torch.cat(levels).clamp(EDGE, 1.0 - EDGE), count)


def stick_levels(weights: Tensor) -> Tensor:
    """Columns of the broken sticks that give weights (n,) under a Dirichlet prior of concentration one, (n - 1,).

    Example:
        >>> import torch
        >>> stick_levels(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
        tensor([0.7500, 0.5000], dtype=torch.float64)
    """
    left = torch.cat([weights.new_ones(1), 1.0 - weights.cumsum(0)[:-1]])
    rest = torch.arange(len(weights) - 1, -1, -1, device=weights.device, dtype=weights.dtype)
    return (1.0 - (1.0 - (weights / left).clamp(EDGE, 1.0 - EDGE)) ** rest)[:-1]


def _probability(icdf: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Probabilities of values by bisection of the quantile function, which every prior has."""
    lower, upper = torch.full_like(values, EDGE), torch.full_like(values, 1.0 - EDGE)
    for _ in range(50):
        middle = 0.5 * (lower + upper)
        below = icdf(middle.unsqueeze(-1)).squeeze(-1) < values
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return 0.5 * (lower + upper)


class _Stop(Exception):  # noqa: N818 (not an error)
    """The evaluations of an ascent are used up, or a likelihood failed."""


def gradient_ascent(
    likelihoods: LogMarginalLikelihoods, prior: Hyperprior, start: Tensor, max_evaluations: int
) -> Evaluations:
    r"""L-BFGS from a kernel towards larger :math:`\log L + \log N(v; 0, I)`, every evaluation kept.

    The coordinates are v = the normal quantiles of the cube's coordinates that n components use, in which the prior is
    a standard normal distribution; n does not change. A likelihood that cannot be computed ends the ascent.

    Args:
        likelihoods: Log-likelihoods of the data.
        prior: The prior.
        start: A row of the prior's cube, shape (C,).
        max_evaluations: Likelihoods (with gradients) to spend.

    Returns:
        All evaluations in order, the start's included.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihoods
        >>> from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, one), max_components=1)
        >>> X = torch.linspace(0, 4, 20, dtype=torch.float64).unsqueeze(-1)
        >>> likelihoods = DenseLikelihoods(X, torch.sin(6.0 * X.squeeze(-1)))
        >>> start = prior.draw(1, 1, generator=torch.Generator().manual_seed(0))[0]
        >>> path = gradient_ascent(likelihoods, prior, start, 15)
        >>> bool(path.log_likelihood[-1] > path.log_likelihood[0])
        True
    """
    components = int(prior.num_components(start))
    columns = prior.active_columns(components)
    cubes: list[Tensor] = []
    values: list[Tensor] = []

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) >= max_evaluations:
            raise _Stop
        v = torch.as_tensor(point).to(start).requires_grad_()
        cube = prior.embed(torch.special.ndtr(v).clamp(EDGE, 1.0 - EDGE), components).unsqueeze(0)
        value = likelihoods(*prior.hyperparameters(cube)).squeeze(0)
        cubes.append(cube.detach().squeeze(0))
        values.append(value.detach())
        if not bool(value.isfinite()):
            raise _Stop
        target = 0.5 * v.square().sum() - value
        (gradient,) = torch.autograd.grad(target, v)
        return float(target.detach()), gradient.cpu().double().numpy()

    first = torch.special.ndtri(start[columns]).cpu().double().numpy()
    limit = float(torch.special.ndtri(start.new_tensor(1.0 - EDGE)))
    with suppress(_Stop):
        minimize(objective, first, jac=True, method="L-BFGS-B", bounds=[(-limit, limit)] * len(first))
    return Evaluations(torch.stack(cubes), torch.stack(values))
