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
    """For each number of components, kernels at the largest peaks of a periodogram of data X (N, 1), y (N,).

    Returns rows of the cube, shape (4 N_max, C), or (0, C) for several inputs and for constant data.
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
    """Columns of the broken sticks that give weights (n,) under a Dirichlet prior of concentration one, (n - 1,)."""
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
    r"""L-BFGS from a kernel (C,) towards larger :math:`\log L + \log N(v; 0, I)`, every evaluation kept."""
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
