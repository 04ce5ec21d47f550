r"""The exact Gaussian process as plain algebra: kernels as functions, evidence and its gradient, conditioning.

With the lower factor :math:`L L^\top = K + D` of the covariance of N targets, D their noise, all that is known of a
process is L and :math:`z = L^{-1} (y - m)`. With :math:`V = L^{-1} k(X, x)`,

.. math:: \log N(y;\, m,\, K + D) = -\tfrac12 z^\top z - \log |L| - \tfrac N2 \log 2\pi, \qquad
          \partial_K = \tfrac12 (a a^\top - (K + D)^{-1}), \quad a = L^{-\top} z

and the function at q points x has mean :math:`m + V^\top z` and covariance :math:`k(x, x) - V^\top V`; the rows
:math:`(V^\top, \mathrm{chol}(k(x, x) + D - V^\top V))` continue L where their targets are learned (Rasmussen and
Williams, 2006, sections 2.2 and 5.4.1). Windows, BoTorch models, models of knots and dense likelihoods of kernels are
this algebra.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.reductions import readable_all

TARGETS = "the covariance of the targets"
SOLVED_AT_ONCE = 512  # rows of a factor that are copied for a triangular solve; the columns before them are multiplied
COMPUTED_AT_ONCE = 60_000  # covariances, half a megabyte: a kernel makes several passes over them


class Stationary(NamedTuple):
    """A Matern or RBF covariance, which depends on the distance of two rows in length scales."""

    inverse: Tensor  # Reciprocals of the length scales, shape (*batch, 1, D) or (*batch, 1, 1)
    nu: float  # Smoothness 0.5, 1.5 or 2.5 of a Matern kernel, infinity for the RBF kernel
    scale: Tensor  # Its variance, shape (*batch) or one number


class Covariance(NamedTuple):
    """A kernel as plain functions of rows, its hyperparameters read, differentiable in them."""

    # Covariances of rows (..., *batch, K, D) and (..., *batch, N, D), shape (..., *batch, K, N)
    between: Callable[[Tensor, Tensor], Tensor]
    diagonal: Callable[[Tensor], Tensor]  # Variances of rows (..., *batch, N, D), shape (..., *batch, N)
    # Its numbers; ``None`` for other kernels
    stationary: Stationary | None = None

    def of_targets(self, X: Tensor, noise: Tensor) -> Tensor:
        r"""Covariance of targets at X (\*batch, N, D) with noise variances (\*batch, N), shape (\*batch, N, N)."""
        matrix = self.between(X, X)
        # Distances of a row from itself are round-off, and their derivatives, too.
        variances = (self.diagonal(X) + noise).expand(matrix.shape[:-1])
        return torch.diagonal_scatter(matrix, variances, dim1=-2, dim2=-1)

    def lower_half(self, X: Tensor, noise: Tensor) -> Tensor:
        """As :meth:`of_targets`, but zero where a factorization reads nothing; by blocks that fit in the cache."""
        parts, num_rows, size = [], X.shape[-2], _rows_at_once(X)
        for start in range(0, num_rows, size):
            rows = X[..., start : start + size, :]
            end = start + rows.shape[-2]
            parts.append(pad(self.between(rows, X[..., :end, :]), (0, num_rows - end)))
        variances = self.diagonal(X) + noise
        return torch.diagonal_scatter(torch.cat(parts, dim=-2), variances, dim1=-2, dim2=-1)

    def in_blocks(self, rows: Tensor, others: Tensor) -> Tensor:
        """As :attr:`between`, by blocks of rows that fit in the cache."""
        size = _rows_at_once(others)
        if rows.shape[-2] <= size:
            return self.between(rows, others)
        return torch.cat([self.between(part, others) for part in rows.split(size, dim=-2)], dim=-2)


def _rows_at_once(others: Tensor) -> int:
    return max(1, COMPUTED_AT_ONCE // max(1, others[..., 0].numel()))


class Conditioned(NamedTuple):
    """A process conditioned on N targets."""

    factor: Tensor  # L, shape (*batch, N, N)
    white: Tensor  # z, shape (*batch, N)
    # L^{-1}, a product with which is faster than a solve and differentiated at less cost; ``None`` where
    # there are too few predictions to pay for it
    inverse: Tensor | None = None

    @property
    def log_density(self) -> Tensor:
        r"""Log density of the targets in nats, shape (\*batch)."""
        return log_density(self.factor, self.white)

    def whiten(self, cross: Tensor) -> Tensor:
        r"""V of the covariances (\*batch, N, q) of the targets and q points, of the same shape."""
        if self.inverse is not None:
            return (cross.mT @ self.inverse.mT).mT
        whitened: Tensor = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return whitened

    def mean(self, whitened: Tensor) -> Tensor:
        r"""What the targets add to prior means, shape (\*batch, q), from V (\*batch, N, q)."""
        return (self.white.unsqueeze(-2) @ whitened).squeeze(-2)


def condition(factor: Tensor, errors: Tensor, *, invert: bool = False) -> Conditioned:
    r"""Learn targets less their prior mean, (\*batch, N), from the factor (\*batch, N, N) of their covariance."""
    if not invert:
        white = torch.linalg.solve_triangular(factor, errors.unsqueeze(-1), upper=False).squeeze(-1)
        return Conditioned(factor, white)
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    return Conditioned(factor, (inverse @ errors.unsqueeze(-1)).squeeze(-1), inverse)


def log_density(factor: Tensor, white: Tensor) -> Tensor:
    r"""Log density of N targets in nats, shape (\*batch), from L (\*batch, N, N) and z (\*batch, N)."""
    half_log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * white.square().sum(-1) - half_log_determinant - 0.5 * white.shape[-1] * math.log(2.0 * math.pi)


def _log_scale(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * factor.shape[-1] * math.log(2.0 * math.pi)


def whiten_rows(factor: Tensor, right: Tensor) -> Tensor:
    r"""Rows (\*batch, B, n) times :math:`L^{-\top}` of the first n rows of a factor (\*batch, C, C)."""
    solved = right[..., :0]
    for start in range(0, right.shape[-1], SOLVED_AT_ONCE):
        stop = min(start + SOLVED_AT_ONCE, right.shape[-1])
        rest = right[..., start:stop]
        if start > 0:
            rest = rest - solved @ factor[..., start:stop, :start].mT
        lower = factor[..., start:stop, start:stop]
        part = torch.linalg.solve_triangular(lower.mT, rest, upper=True, left=False)
        solved = torch.cat([solved, part], dim=-1)
    return solved


def target_weights(factor: Tensor, white: Tensor) -> Tensor:
    r"""Weights a of n targets in a mean, (\*batch, n), from the first n rows of a factor (\*batch, C, C) and z."""
    n, solved = white.shape[-1], white.clone()
    for start in reversed(range(0, n, SOLVED_AT_ONCE)):
        stop = min(start + SOLVED_AT_ONCE, n)
        rest = solved[..., start:stop].unsqueeze(-1)
        if stop < n:
            rest = rest - factor[..., stop:n, start:stop].mT @ solved[..., stop:].unsqueeze(-1)
        lower = factor[..., start:stop, start:stop]
        solved[..., start:stop] = torch.linalg.solve_triangular(lower.mT, rest, upper=True).squeeze(-1)
    return solved


def log_marginal(
    covariance: Tensor, y: Tensor, noise: Tensor | None = None, *, what: str | None = None, by_weights: bool = False
) -> Tensor:
    r"""Log density of y under normal distributions of mean zero, with its gradient in the covariance by hand.

    Shapes: ``covariance`` (\*batch, N, N), ``y`` (N,) or (\*batch, N), ``noise`` to be added to the diagonal, of the
    shape of y; returns (\*batch), NaN where a covariance is not positive definite, unless ``what`` names it.
    ``by_weights`` takes :math:`y^\top a` for :math:`z^\top z`, of one matrix: long fits amplify round-off.
    """
    value: Tensor = _LogMarginal.apply(covariance, y, noise, what, by_weights)  # type: ignore[no-untyped-call]
    return value


def log_marginal_slope(covariance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities (B,) of one y (N,) and gradients in the covariances (B, N, N), not finite where there are none."""
    factor, info = torch.linalg.cholesky_ex(covariance)
    good = info == 0
    identity = torch.eye(y.shape[-1], dtype=factor.dtype, device=factor.device)
    precision = torch.cholesky_inverse(torch.where(good[:, None, None], factor, identity))
    a = precision @ y
    value = torch.where(good, -0.5 * (a @ y) - _log_scale(factor), torch.nan)
    return value, torch.baddbmm(precision, a.unsqueeze(-1), a.unsqueeze(-2), beta=-0.5, alpha=0.5)


def _evaluate(matrix: Tensor, y: Tensor, what: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L and z of covariances, whether they are good, and the log densities."""
    factor, info = torch.linalg.cholesky_ex(matrix) if what is None else (cholesky(matrix, what), None)
    white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False).squeeze(-1)
    value = log_density(factor, white)
    good = value.isfinite() if info is None else (info == 0) & value.isfinite()
    return factor, white, good, torch.where(good, value, torch.nan)


def _slope(factor: Tensor, white: Tensor, scale: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in covariances (*batch, N, N), times scales (*batch), zero where they are not good; and weights a."""
    broken = factor.diagonal(dim1=-2, dim2=-1) == 0  # LAPACK refuses the whole batch for one of them
    if not readable_all(~broken):
        factor = factor.clone()
        factor.diagonal(dim1=-2, dim2=-1).add_(broken)
    a = torch.linalg.solve_triangular(factor.mT, white.unsqueeze(-1), upper=True)
    half = 0.5 * scale[..., None, None]
    # In place: each further pass over a new matrix costs as much as a fifth of the factorization.
    by_matrix = torch.cholesky_inverse(factor).mul_(-half)
    by_matrix += (half * a) @ a.mT
    if not readable_all(good):
        by_matrix = torch.where(good[..., None, None], by_matrix, 0.0)
    return by_matrix, a.squeeze(-1)


class _LogMarginal(torch.autograd.Function):
    """Gaussian log density whose gradient needs one inverse."""

    @staticmethod
    def forward(
        ctx: Any, covariance: Tensor, y: Tensor, noise: Tensor | None, what: str | None, by_weights: bool
    ) -> Tensor:
        matrix = covariance
        if noise is not None:
            matrix = covariance.clone()
            matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
        factor, white, good, value = _evaluate(matrix, y, what)
        if by_weights:
            quadratic = y @ torch.cholesky_solve(y.unsqueeze(-1), factor).squeeze(-1)
            value = torch.where(good, -0.5 * quadratic - _log_scale(factor), torch.nan)
        ctx.by_weights = by_weights
        ctx.save_for_backward(covariance, y, noise, factor, white, good)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        covariance, y, noise, factor, white, good = ctx.saved_tensors
        good = good & gradient.isfinite()
        scale = torch.where(good, gradient, 0.0)
        if torch.is_grad_enabled():  # to be differentiated again
            matrix = covariance
            if noise is not None:
                matrix = matrix + torch.diag_embed(noise.expand(matrix.shape[:-1]))
            identity = torch.eye(y.shape[-1], dtype=matrix.dtype, device=matrix.device)
            inverse: Tensor = torch.linalg.inv(torch.where(good[..., None, None], matrix, identity))
            a = (inverse @ y.unsqueeze(-1)).squeeze(-1)
            slope = 0.5 * (a.unsqueeze(-1) @ a.unsqueeze(-2) - inverse)
            by_matrix = scale[..., None, None] * torch.where(good[..., None, None], slope, 0.0)
        elif ctx.by_weights:
            a = torch.cholesky_solve(y.unsqueeze(-1), factor).squeeze(-1)
            by_matrix = torch.cholesky_inverse(factor).neg_().addr_(a, a).mul_(0.5 * gradient)
        else:
            by_matrix, a = _slope(factor, white, scale, good)
        of_y, of_noise = None, None
        if ctx.needs_input_grad[1]:
            of_y = -(scale.unsqueeze(-1) * torch.where(good.unsqueeze(-1), a, 0.0)).sum_to_size(y.shape)
        if noise is not None and ctx.needs_input_grad[2]:
            of_noise = by_matrix.diagonal(dim1=-2, dim2=-1).clone().sum_to_size(noise.shape)
        return by_matrix, of_y, of_noise, None, None
