"""GPyTorch kernels as plain functions of tensors, their hyperparameters read once."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.settings import trace_mode
from torch import Tensor, nn
from torch.func import functional_call

from gp_ensembles.numerics.exact_gp import Covariance, Stationary, log_density, log_marginal
from gp_ensembles.numerics.gpytorch_types import Kernel, Mean

# Squared distances in length scales below which a Matern kernel is its parabola: the next term, a cube of the distance,
# is lost in round-off there, and the derivatives of a square root are not finite at zero.
PARABOLA = 1e-10
_AT_ONCE = 60_000  # numbers of a block, half a megabyte


def bind_covariance(kernel: Kernel, *, is_constant: bool = False) -> Covariance:
    """Read a kernel's hyperparameters once; faster where nothing is differentiated."""
    bind = partial(bind_covariance, is_constant=is_constant)
    kind = type(kernel)  # a subclass may compute another kernel
    bound: Covariance
    if kind is RBFKernel:
        bound = _stationary(kernel, lambda squared: (-0.5 * squared).exp(), math.inf)
    elif kind is MaternKernel:
        bound = _matern(kernel, is_constant)
    elif kind is RQKernel:
        alpha = kernel.alpha.unsqueeze(-1)
        bound = _stationary(kernel, lambda squared: (1.0 + squared / (2.0 * alpha)).pow(-alpha))
    elif kind is PeriodicKernel:
        bound = _periodic(kernel)
    elif kind is LinearKernel:
        bound = _linear(kernel.variance.clone())
    elif kind is ScaleKernel:
        if kernel.base_kernel.active_dims is not None:  # the scale's own are these, and choose once
            return _scaled(bind(kernel.base_kernel), kernel.outputscale.clone())
        bound = _scaled(bind(kernel.base_kernel), kernel.outputscale.clone())
    elif kind is AdditiveKernel:
        bound = _combined([bind(part) for part in kernel.kernels], torch.add)
    elif kind is ProductKernel:
        bound = _combined([bind(part) for part in kernel.kernels], torch.mul)
    else:
        return _as_it_is(kernel)
    return bound if kernel.active_dims is None else _selected(bound, kernel.active_dims)


def bind_mean(mean: Mean) -> Callable[[Tensor], Tensor]:
    r"""Read a prior mean's parameters once: a function of rows (\*batch, N, D), differentiable in them."""
    state = {name: value.clone() for name, value in mean.named_parameters()}

    def values(X: Tensor) -> Tensor:
        result: Tensor = functional_call(cast(nn.Module, mean), state, (X,))
        return result

    return values


def _stationary(kernel: Kernel, profile: Callable[[Tensor], Tensor], nu: float | None = None) -> Covariance:
    """A function of the squared distance in length scales, by a matrix product, or by differences where nu is 1/2."""
    inverse = kernel.lengthscale.reciprocal()  # (*batch, 1, D) or (*batch, 1, 1)

    def between(first: Tensor, second: Tensor) -> Tensor:
        left, right = _scaled_rows(first, second, inverse)
        if nu == 0.5:  # linear in the distance, which a matrix product knows to half of the digits only
            squared = (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1)
        else:
            # Where rows coincide round-off may leave it below zero. A clamp there would take the derivatives away.
            norms = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
            squared = norms - 2.0 * left @ right.mT
        return profile(squared)

    return Covariance(between, _one(inverse), None if nu is None else Stationary(inverse, nu, inverse.new_ones(())))


def _scaled_rows(first: Tensor, second: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in length scales, from an origin between them: any gives the same distances."""
    origin = first.detach().mean(-2, keepdim=True)
    return (first - origin) * inverse, (second - origin) * inverse


def _one(like: Tensor) -> Callable[[Tensor], Tensor]:
    """Variances of one, with the batch of a hyperparameter (*batch, 1, D)."""
    return lambda X: torch.ones_like(X[..., 0] * like[..., 0])


def _matern(kernel: MaternKernel, is_constant: bool) -> Covariance:
    nu = float(kernel.nu)
    rate = math.sqrt(2.0 * nu)
    if nu == 0.5:

        def exponential(squared: Tensor) -> Tensor:
            apart = squared > 0.0
            return torch.where(apart, (-torch.where(apart, squared, 1.0).sqrt()).exp(), 1.0)

        return _stationary(kernel, exponential, nu)
    curvature = nu / (2.0 * (nu - 1.0))  # 3/2 for nu = 3/2, 5/6 for nu = 5/2

    def profile(squared: Tensor) -> Tensor:
        apart = squared > PARABOLA
        distance = rate * torch.where(apart, squared, 1.0).sqrt()
        polynomial = 1.0 + distance if nu == 1.5 else 1.0 + distance + distance.square() / 3.0
        return torch.where(apart, polynomial * (-distance).exp(), 1.0 - curvature * squared)

    bound = _stationary(kernel, profile, nu)
    if not is_constant:
        return bound
    inverse, plain = kernel.lengthscale.reciprocal(), bound.between

    def between(first: Tensor, second: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
            return plain(first, second)
        return matern_covariance(*_scaled_rows(first, second, inverse), nu)

    return bound._replace(between=between)


def _periodic(kernel: PeriodicKernel) -> Covariance:
    frequency = math.pi / kernel.period_length.unsqueeze(-2)  # (*batch, 1, 1, D)
    sharpness = -2.0 / kernel.lengthscale.unsqueeze(-2)

    def between(first: Tensor, second: Tensor) -> Tensor:
        phase = (first.unsqueeze(-2) - second.unsqueeze(-3)) * frequency
        matrix: Tensor = (phase.sin().square() * sharpness).sum(-1).exp()
        return matrix

    return Covariance(between, _one(frequency.squeeze(-2)))


def _linear(variance: Tensor) -> Covariance:
    return Covariance(lambda first, second: (first * variance) @ second.mT, lambda X: (X.square() * variance).sum(-1))


def _scaled(bound: Covariance, outputscale: Tensor) -> Covariance:
    stationary = bound.stationary
    if stationary is not None:
        stationary = stationary._replace(scale=outputscale * stationary.scale)
    return Covariance(
        lambda first, second: outputscale[..., None, None] * bound.between(first, second),
        lambda X: outputscale[..., None] * bound.diagonal(X),
        stationary,
    )


def _combined(parts: list[Covariance], combine: Callable[[Tensor, Tensor], Tensor]) -> Covariance:
    def between(first: Tensor, second: Tensor) -> Tensor:
        result = parts[0].between(first, second)
        for part in parts[1:]:
            result = combine(result, part.between(first, second))
        return result

    def diagonal(X: Tensor) -> Tensor:
        result = parts[0].diagonal(X)
        for part in parts[1:]:
            result = combine(result, part.diagonal(X))
        return result

    return Covariance(between, diagonal)


def _selected(bound: Covariance, columns: Tensor) -> Covariance:
    return Covariance(
        lambda first, second: bound.between(first.index_select(-1, columns), second.index_select(-1, columns)),
        lambda X: bound.diagonal(X.index_select(-1, columns)),
    )


class _Dense(nn.Module):
    """A kernel whose call evaluates at once, for ``functional_call``."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, first: Tensor, second: Tensor | None) -> Tensor:
        # Tracing keeps GPyTorch from its hand-written derivatives, which cannot be differentiated again.
        with trace_mode():
            if second is None:
                values: Tensor = self.kernel(first, diag=True)
                return values
            matrix: Tensor = self.kernel(first, second).to_dense()
            return matrix


def _as_it_is(kernel: Kernel) -> Covariance:
    dense = _Dense(with_differences(kernel))
    state = {name: value.clone() for name, value in dense.named_parameters()}

    def between(first: Tensor, second: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        first, second = (rows.expand(*shape, *rows.shape[-2:]) for rows in (first, second))
        matrix: Tensor = functional_call(dense, state, (first, second))
        return matrix

    def diagonal(X: Tensor) -> Tensor:
        values: Tensor = functional_call(dense, state, (X, None))
        return values

    return Covariance(between, diagonal)


def matern_covariance(first: Tensor, second: Tensor, nu: float) -> Tensor:
    r"""Matern covariances of rows a (..., K, D) and b (..., N, D), in length scales, from the same origin.

    .. math:: k(s) = (1 + d)\, e^{-d} \quad (\nu = 3/2), \qquad
              k(s) = (1 + d + d^2 / 3)\, e^{-d} \quad (\nu = 5/2), \qquad d = \sqrt{2 \nu s}

    of the squared distance s (Rasmussen and Williams 2006, equation 4.17), by blocks that stay in the cache; without
    derivatives. Returns (..., K, N).
    """
    shape = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    first, second = (rows.expand(*shape, *rows.shape[-2:]) for rows in (first, second))
    out, start = first.new_empty(*shape, first.shape[-2], second.shape[-2]), 0
    for rows in first.split(max(1, _AT_ONCE // max(1, second[..., 0].numel())), dim=-2):
        block = out.narrow(-2, start, rows.shape[-2])
        start += rows.shape[-2]
        _profile(_squared(rows, second), nu, block)
    return out


def _profile(squared: Tensor, nu: float, out: Tensor, slope: Tensor | None = None) -> None:
    """Covariances of squared distances, which are overwritten, into ``out`` and their derivatives into ``slope``."""
    if math.isinf(nu):
        torch.exp(squared.mul_(-0.5), out=out)
        if slope is not None:
            torch.mul(out, -0.5, out=slope)
        return
    distance = squared.mul_(2.0 * nu).sqrt_()
    decay = distance.neg().exp_()
    if nu == 2.5:
        torch.mul(decay, distance.square().div_(3.0).add_(distance).add_(1.0), out=out)
        if slope is not None:
            torch.mul(decay, distance.add_(1.0).mul_(-5.0 / 6.0), out=slope)
        return
    if slope is not None:
        torch.mul(decay, -1.5, out=slope)
    torch.mul(decay, distance.add_(1.0), out=out)


def _squared(first: Tensor, second: Tensor) -> Tensor:
    """Squared distances; round-off below zero, where rows coincide, is none."""
    squared = first @ (-2.0 * second.mT)
    squared += second.square().sum(-1).unsqueeze(-2)
    squared += first.square().sum(-1).unsqueeze(-1)
    return squared.clamp_min_(0.0)


class _LogEvidence(torch.autograd.Function):
    r"""Log density of targets y (N,) of an exact process, its derivatives by hand.

    With the gradient :math:`G = \tfrac12 (a a^\top - (s K + D)^{-1})` of the covariance and
    :math:`W = G \circ k'(s_{ij})` of the squared distances,

    .. math:: \partial_{a_i} = 4 s \Bigl( a_i \sum_j W_{ij} - \sum_j W_{ij} a_j \Bigr)

    Only the lower half is computed, in blocks that stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, noise: Tensor, y: Tensor, nu: float) -> Tensor:
        num_rows, size = len(y), max(1, _AT_ONCE // len(y))
        matrix, slopes = rows.new_empty(2, num_rows, num_rows)
        blocks = [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]
        for start, stop in blocks:
            part, slope = matrix[start:stop, :stop], slopes[start:stop, :stop]
            _profile(_squared(rows[start:stop], rows[:stop]), nu, part, slope)
        matrix.mul_(scale).diagonal().copy_(scale + noise)
        factor, info = torch.linalg.cholesky_ex(matrix)
        white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
        value = log_density(factor, white.squeeze(-1))
        ctx.nu, ctx.good = nu, bool((info == 0) & value.isfinite())
        if not ctx.good:
            ctx.save_for_backward(rows, scale, noise, y, *map(torch.zeros_like, (rows, scale, noise, y)))
            return torch.full_like(value, torch.nan)
        if not any(ctx.needs_input_grad):
            return value
        a = torch.linalg.solve_triangular(factor.mT, white, upper=True)
        inverse, of_rows = torch.cholesky_inverse(factor), torch.zeros_like(rows)
        of_noise = 0.5 * (a.squeeze(-1).square() - inverse.diagonal())
        of_scale = (0.5 * ((y @ a).sum() - num_rows) - (of_noise * noise).sum()) / scale
        for start, stop in blocks:
            part = inverse[start:stop, :stop].addr_(a[start:stop, 0], a[:stop, 0], beta=-1.0)
            weights = part.mul_(slopes[start:stop, :stop])
            weights[:, start:].tril_(-1)
            here, above = rows[start:stop], rows[:stop]
            of_rows[start:stop] += weights.sum(1, keepdim=True) * here - weights @ above
            of_rows[:stop] += weights.sum(0).unsqueeze(-1) * above - weights.mT @ here
        ctx.save_for_backward(rows, scale, noise, y, 2.0 * scale * of_rows, of_scale, of_noise, -a.squeeze(-1))
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, of_rows, of_scale, of_noise, of_y = ctx.saved_tensors
        slopes: Sequence[Tensor] = (of_rows, of_scale, of_noise, of_y)
        if torch.is_grad_enabled() and ctx.good:  # to be differentiated again
            rows, scale, noise, y = (part.requires_grad_() for part in inputs)
            kernel = RBFKernel() if math.isinf(ctx.nu) else MaternKernel(nu=ctx.nu)
            kernel.lengthscale = 1.0
            plain = bind_covariance(kernel.to(rows).requires_grad_(False))
            matrix = scale * plain.between(rows, rows)
            value = log_marginal(torch.diagonal_scatter(matrix, scale + noise), y)
            slopes = torch.autograd.grad(value, inputs, create_graph=True)
        return (*(gradient * part for part in slopes), None)


def exact_log_evidence(kernel: Kernel, rows: Tensor, noise: Tensor, y: Tensor) -> Tensor:
    r"""Log density of targets y (\*batch, N) at rows (\*batch, N, D) with noise variances (\*batch, N), (\*batch).

    NaN where a covariance is not positive definite.
    """
    inner = kernel.base_kernel if type(kernel) is ScaleKernel else kernel
    nu = math.inf if type(inner) is RBFKernel else inner.nu if type(inner) is MaternKernel else 0.5
    if inner is kernel or nu == 0.5 or kernel.active_dims is not None or inner.active_dims is not None:
        return log_marginal(bind_covariance(kernel).of_targets(rows, noise).double(), y)
    scaled, _ = _scaled_rows(rows, rows, inner.lengthscale.reciprocal())
    shape = scaled.shape[:-2]
    parts = (scaled.double(), kernel.outputscale.double().expand(shape), noise.double(), y.expand(noise.shape))
    flat = (part.reshape(-1, *part.shape[len(shape) :]) for part in parts)
    values: list[Tensor] = [_LogEvidence.apply(*some, nu) for some in zip(*flat, strict=True)]  # type: ignore[no-untyped-call]
    return torch.stack(values).reshape(shape)


def with_differences(kernel: Kernel) -> Kernel:
    """A copy of a kernel, on the same parameters, whose distances keep their derivatives where two rows coincide.

    GPyTorch takes squared distances from a matrix product. Of rows that coincide, or nearly, round-off leaves a little
    more or a little less than zero, depending on the processor; what is less is set to zero by a clamp, which has no
    derivative. Values do not suffer, but second derivatives of a covariance in its rows vanish, exactly at knots and
    observed rows, which is where acquisition functions often have their optima. Here the rows are subtracted.
    """
    shared = {id(tensor): tensor for tensor in (*kernel.parameters(), *kernel.buffers())}
    other = copy.deepcopy(kernel, shared)
    for part in other.modules():
        if isinstance(part, Kernel):
            part.covar_dist = partial(_covar_dist, part)
    return other


def _covar_dist(
    kernel: Kernel,
    x1: Tensor,
    x2: Tensor,
    diag: bool = False,
    last_dim_is_batch: bool = False,
    square_dist: bool = False,
    **params: object,
) -> Tensor:
    """What ``Kernel.covar_dist`` computes, by differences."""
    if diag:
        kind: Any = type(kernel)
        same: Tensor = kind.covar_dist(
            kernel, x1, x2, diag=True, last_dim_is_batch=last_dim_is_batch, square_dist=square_dist, **params
        )
        return same
    if last_dim_is_batch:
        x1, x2 = (x.transpose(-1, -2).unsqueeze(-1) for x in (x1, x2))
    squared = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(-1)
    if square_dist:
        return squared
    if _is_smooth(kernel):
        return (squared + torch.finfo(squared.dtype).eps).sqrt()
    apart = squared > 0.0
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)


def _is_smooth(kernel: Kernel) -> bool:
    """Whether a kernel of the distance is known to be a smooth function of its square."""
    if isinstance(kernel, MaternKernel):
        return float(kernel.nu) > 1.0
    if isinstance(kernel, PiecewisePolynomialKernel):
        return int(kernel.q) > 0
    return isinstance(kernel, PeriodicKernel | CosineKernel)
