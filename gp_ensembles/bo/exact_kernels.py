r"""Batched Gaussian processes with Matern and RBF kernels: evidence and its gradient, fitting, exact conditioning.

Process m has the covariance

.. math:: k_m(x, x') = s_m\, \kappa_m(r) + 1 + \sum_c 1[x_c = x'_c] + \sigma_m^2 \delta, \qquad
          r^2 = \sum_d (x_d - x'_d)^2 / \ell_{md}^2 + \sum_c 1[x_c \ne x'_c] / \ell_{mc}^2

between rows, with numeric columns d and categorical columns c. The 1 is a constant of unit prior variance; every
category of a column has one, too. Any two categories are equally far apart: half the squared distance of their one-hot
vectors, so that :math:`k_m` is positive definite. With
:math:`\kappa(r) = (1 + c_1 r + c_2 r^2) \exp(-a r - b r^2)` the kernels differ in four numbers. Predictions and
conditioning take a batch of data sets, *b, before the M processes of each; fitting takes one data set.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.numerics import exact_gp
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.exact_gp import TARGETS, Conditioned
from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.numerics.short_length_scales import short_length_scales

MIN_LENGTHSCALE, MIN_OUTPUTSCALE, MIN_NOISE = 2.5e-2, 1e-4, 1e-4
_SHORTEST = 1.2  # smallest lengthscale of a starting point: at the bound itself the gradient vanishes
_ROOT3, _ROOT5 = math.sqrt(3.0), math.sqrt(5.0)
# a, b, c1, c2 of the kernel; g0, g1 of its derivative in the squared distance, -(g0 + g1 r) exp(-a r - b r^2).
_SHAPES = {
    1.5: (_ROOT3, 0.0, _ROOT3, 0.0, 1.5, 0.0),
    2.5: (_ROOT5, 0.0, _ROOT5, 5 / 3, 5 / 6, 5 * _ROOT5 / 6),
    math.inf: (0.0, 0.5, 0.0, 0.0, 0.5, 0.0),
}
_LOG_NOISE_MEAN, _LOG_NOISE_SCALE = -4.0, 1.0
_MOST_AT_ONCE = 2**24  # differences of pairs of points in all columns


class Hyperparameters(NamedTuple):
    """Hyperparameters of M processes, in double precision."""

    lengthscale: Tensor  # (*b, M, D)
    outputscale: Tensor  # prior variance of the function without its constant, (*b, M)
    noise: Tensor  # variance, (*b, M)


class Kernels(NamedTuple):
    """The parts of M kernels that are not fitted."""

    shapes: Tensor  # six numbers per kernel, (*b, M, 6), in double precision
    categorical: Tensor | None  # mask of categorical columns (D,); None if there are none


def make_kernels(smoothnesses: Sequence[float], X: Tensor, cat_dims: Sequence[int] = ()) -> Kernels:
    """Kernels of smoothness 1.5, 2.5 or infinity, on the device of inputs (n, D), some of them categorical."""
    given = smoothnesses if isinstance(smoothnesses, Sequence) else ()
    if not given or any(not isinstance(nu, Hashable) or nu not in _SHAPES for nu in given):
        raise ValueError(f"kernels must be a tuple of values from {(*_SHAPES,)}, got {smoothnesses!r}")
    shapes = X.new_empty(0).double().new_tensor([_SHAPES[nu] for nu in smoothnesses])
    categorical = torch.zeros(X.shape[-1], dtype=torch.bool, device=X.device)
    categorical[list(cat_dims)] = True
    return Kernels(shapes, categorical if len(cat_dims) else None)


def initial_hyperparameters(kernels: Kernels, num_inputs: int) -> Hyperparameters:
    """The modes of the priors and an output scale of one."""
    one = kernels.shapes.new_ones(kernels.shapes.shape[0])
    mean, scale = _lengthscale_prior(num_inputs)
    lengthscale = (math.exp(mean - scale**2) * one).unsqueeze(-1).expand(-1, num_inputs).contiguous()
    return Hyperparameters(lengthscale, one, math.exp(_LOG_NOISE_MEAN - _LOG_NOISE_SCALE**2) * one)


def fit(kernels: Kernels, rows: Observations, starts: Sequence[Hyperparameters]) -> Hyperparameters:
    """Maximize log evidence plus log priors of every process from each starting point, and keep the best result.

    Raises a NumericalError if the covariance of a process cannot be factorized at any starting point.
    """
    num_inputs = rows.X.shape[-1]
    loss = negative_log_posterior(kernels, rows)
    points = torch.cat([vectors(start, rows.noise is None) for start in starts])
    every = torch.arange(kernels.shapes.shape[0], device=kernels.shapes.device)
    owner = every.repeat(len(starts))
    usable = loss(points, owner)[0].isfinite()
    hopeless = ~usable.reshape(len(starts), -1).any(0)
    if bool(hopeless.any()):
        worst = int(hopeless.int().argmax())
        raise NumericalError(f"the covariance of process {worst} cannot be factorized at any starting point")
    points, owner = points[usable], owner[usable]
    found = minimize(lambda some, numbers: loss(some, owner[numbers]), points, max_iterations=100, loss_tolerance=1e-6)
    own = torch.where(owner == every.unsqueeze(-1), found.value, torch.inf)
    best = found.point[own.argmin(-1)].exp()
    noise = best[:, -1] + MIN_NOISE if rows.noise is None else starts[0].noise
    return Hyperparameters(best[:, :num_inputs] + MIN_LENGTHSCALE, best[:, num_inputs] + MIN_OUTPUTSCALE, noise)


def starts_of_fit(kernels: Kernels, rows: Observations, modes: Hyperparameters) -> list[Hyperparameters]:
    """The prior modes, with as much noise as signal if it is inferred, and with short length scales if these pay."""
    half = 0.5 * modes.outputscale  # from little noise a search may end with a bump for every row
    starts = [modes, modes._replace(outputscale=half, noise=half)] if rows.noise is None else [modes]
    numbers = slice(None) if kernels.categorical is None else ~kernels.categorical
    found = short_length_scales(rows.X[:, numbers], rows.Y.squeeze(-1))
    if found is not None:
        starts.append(modes._replace(lengthscale=modes.lengthscale.clone()))
        starts[-1].lengthscale[:, numbers] = found.clamp_min(_SHORTEST * MIN_LENGTHSCALE)
    return starts


def condition(kernels: Kernels, rows: Observations, hyperparameters: Hyperparameters) -> Conditioned:
    r"""Condition every process on all rows, batch shape (\*b, M); a NumericalError names one that has no factor."""
    covariance = covariance_between(kernels, hyperparameters, rows.X, rows.X)
    noise = hyperparameters.noise.unsqueeze(-1) if rows.noise is None else rows.noise.mT
    covariance = covariance + torch.diag_embed(noise.expand(covariance.shape[:-1]))
    return exact_gp.condition(cholesky(covariance, TARGETS), rows.Y.mT, invert=True)


def predict(
    kernels: Kernels, hyperparameters: Hyperparameters, rows: Observations, learned: Conditioned, X: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Joint predictions at q points X (\*t, q, D): means (\*t, M, q), covariances (\*t, M, q, q); \*t ends in \*b."""
    assert learned.inverse is not None
    cross = covariance_between(kernels, hyperparameters, X, rows.X)  # (*t, M, q, n)
    num, n = learned.inverse.shape[:-2].numel(), rows.X.shape[-2]
    flat = torch.einsum("tpqn,pkn->tpqk", cross.reshape(-1, num, *cross.shape[-2:]), learned.inverse.view(num, n, n))
    white = flat.reshape(cross.shape)
    mean = (white @ learned.white.unsqueeze(-1)).squeeze(-1)
    if X.shape[-2] == 1:
        num_constants = 1.0 if kernels.categorical is None else 1.0 + kernels.categorical.sum()
        prior = hyperparameters.outputscale[..., None, None] + num_constants
        return mean, prior - white.square().sum(-1, keepdim=True)
    return mean, covariance_between(kernels, hyperparameters, X, X) - white @ white.mT


def covariance_between(kernels: Kernels, hyperparameters: Hyperparameters, X: Tensor, Z: Tensor) -> Tensor:
    r"""Covariance of the functions at X (\*t, q, D) and Z (\*t, n, D), shape (\*t, M, q, n)."""
    scales = hyperparameters.lengthscale[..., None, None, :]
    first, second = X[..., None, :, None, :] / scales, Z[..., None, None, :, :] / scales
    shape = torch.broadcast_shapes(first.shape, second.shape)
    is_large, square = shape.numel() > _MOST_AT_ONCE, first.new_zeros(())
    for some in [(..., column) for column in range(shape[-1])] if is_large else [(...,)]:
        offset = first[some] - second[some]
        if kernels.categorical is not None:
            offset = torch.where(kernels.categorical[some], (offset != 0) / scales[some], offset)
        square = square.addcmul(offset, offset) if is_large else offset.square().sum(-1)
    distance = (square + torch.finfo(square.dtype).eps).sqrt()
    a, b, c1, c2, _, _ = kernels.shapes[..., None, None].unbind(-3)
    value = (1.0 + c1 * distance + c2 * square) * (-a * distance - b * square).exp()
    return hyperparameters.outputscale[..., None, None] * value + _constants(kernels, X, Z)


def negative_log_posterior(kernels: Kernels, rows: Observations) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Negated sum of log evidence and log priors, per row, at :func:`vectors` (R, P) of given processes (R,).

    Returns a function that gives values (R,) and gradients (R, P): infinity and zero where the computation fails.
    """
    y = rows.Y.squeeze(-1)
    n, num_inputs = rows.X.shape
    constants = _constants(kernels, rows.X, rows.X)
    offset = rows.X.mT.unsqueeze(-1) - rows.X.mT.unsqueeze(-2)
    if kernels.categorical is not None:
        offset = torch.where(kernels.categorical[:, None, None], (offset != 0).to(offset), offset)
    squares = offset.square().flatten(1)  # (D, n n)
    mean, scale = _lengthscale_prior(num_inputs)
    priors = [(mean, scale, MIN_LENGTHSCALE)] * num_inputs + [(0.0, 1.0, MIN_OUTPUTSCALE)]
    priors += [(_LOG_NOISE_MEAN, _LOG_NOISE_SCALE, MIN_NOISE)] if rows.noise is None else []
    location, width, bound = rows.X.new_tensor(priors).unbind(-1)  # (P,) each

    def loss(points: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        growth = points.exp()
        values = growth + bound
        inverse = values[:, :num_inputs].square().reciprocal()
        a, b, c1, c2, g0, g1 = kernels.shapes[owner][..., None, None].unbind(1)
        square = (inverse @ squares).unflatten(-1, (n, n))
        distance = square.sqrt()
        decrease = (-a * distance - b * square).exp()
        kernel = (1.0 + c1 * distance + c2 * square) * decrease
        covariance = values[:, num_inputs, None, None] * kernel + constants
        covariance.diagonal(dim1=-2, dim2=-1).add_(values[:, -1:] if rows.noise is None else rows.noise.squeeze(-1))
        evidence, sensitivity = exact_gp.log_marginal_slope(covariance, y)
        error = (values.log() - location) / width
        prior = (-0.5 * error.square() - (values * width).log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        gradient = torch.empty_like(points)
        if rows.noise is None:
            gradient[:, -1] = sensitivity.diagonal(dim1=-2, dim2=-1).sum(-1)
        gradient[:, num_inputs] = (sensitivity * kernel).sum((-2, -1))
        slope = sensitivity * ((g0 + g1 * distance) * decrease)
        weight = slope.flatten(1) @ squares.mT
        gradient[:, :num_inputs] = 2.0 * values[:, num_inputs, None] * weight * inverse / values[:, :num_inputs]
        gradient = (gradient - (error / width + 1.0) / values) * growth
        value = -(evidence + prior) / n
        usable = value.isfinite() & gradient.isfinite().all(-1)
        return torch.where(usable, value, torch.inf), torch.where(usable.unsqueeze(-1), -gradient / n, 0.0)

    return loss


def _constants(kernels: Kernels, X: Tensor, Z: Tensor) -> Tensor | float:
    r"""The fixed part of the covariance of X (\*t, q, D) and Z (\*t, n, D): one, or (\*t, 1, q, n)."""
    if kernels.categorical is None:
        return 1.0
    same = X.unsqueeze(-2) == Z.unsqueeze(-3)
    return 1.0 + (same & kernels.categorical).sum(-1).to(X).unsqueeze(-3)


def _lengthscale_prior(num_inputs: int) -> tuple[float, float]:
    return math.sqrt(2) + 0.5 * math.log(num_inputs), math.sqrt(3)


def vectors(hyperparameters: Hyperparameters, with_noise: bool) -> Tensor:
    """Coordinates for fitting: logs of hyperparameters minus their lower bounds, shape (M, P)."""
    lengthscale, outputscale, noise = hyperparameters
    parts = [lengthscale - MIN_LENGTHSCALE, (outputscale - MIN_OUTPUTSCALE).unsqueeze(-1)]
    parts += [(noise - MIN_NOISE).unsqueeze(-1)] if with_noise else []
    return torch.cat(parts, dim=-1).log()
