"""GPyTorch kernels as plain functions of tensors, their hyperparameters read once."""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.settings import trace_mode
from torch import Tensor, nn
from torch.func import functional_call

from gp_ensembles.features.distances import with_differences
from gp_ensembles.features.matern import PARABOLA, matern_covariance
from gp_ensembles.numerics.exact_gp import Covariance, Stationary
from gp_ensembles.numerics.gpytorch_types import Kernel, Mean


def bind_covariance(kernel: Kernel, *, backward_only: bool = False) -> Covariance:
    """Read a kernel's hyperparameters once."""
    bind = partial(bind_covariance, backward_only=backward_only)
    kind = type(kernel)  # a subclass may compute another kernel
    bound: Covariance
    if kind is RBFKernel:
        bound = _stationary(kernel, lambda squared: (-0.5 * squared).exp())
    elif kind is MaternKernel:
        bound = _matern(kernel, backward_only)
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


def _stationary(kernel: Kernel, profile: Callable[[Tensor], Tensor], exact: bool = False) -> Covariance:
    """A function of the squared distance in length scales, by a matrix product or, if exact, by differences."""
    inverse = kernel.lengthscale.reciprocal()  # (*batch, 1, D) or (*batch, 1, 1)

    def between(first: Tensor, second: Tensor) -> Tensor:
        left, right = _scaled_rows(first, second, inverse)
        if exact:
            squared = (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1)
        else:
            # Where rows coincide round-off may leave it below zero. A clamp there would take the derivatives away.
            norms = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
            squared = norms - 2.0 * left @ right.mT
        return profile(squared)

    return Covariance(between, _one(inverse), Stationary(inverse, profile))


def _scaled_rows(first: Tensor, second: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in length scales, from an origin between them: any gives the same distances."""
    origin = first.detach().mean(-2, keepdim=True)
    return (first - origin) * inverse, (second - origin) * inverse


def _one(like: Tensor) -> Callable[[Tensor], Tensor]:
    """Variances of one, with the batch of a hyperparameter (*batch, 1, D)."""
    return lambda X: torch.ones_like(X[..., 0] * like[..., 0])


def _matern(kernel: MaternKernel, backward_only: bool) -> Covariance:
    nu = float(kernel.nu)
    rate = math.sqrt(2.0 * nu)
    if nu == 0.5:  # linear in the distance, which a matrix product knows to half of the digits only

        def exponential(squared: Tensor) -> Tensor:
            apart = squared > 0.0
            return torch.where(apart, (-torch.where(apart, squared, 1.0).sqrt()).exp(), 1.0)

        return _stationary(kernel, exponential, exact=True)
    curvature = nu / (2.0 * (nu - 1.0))  # 3/2 for nu = 3/2, 5/6 for nu = 5/2

    def profile(squared: Tensor) -> Tensor:
        apart = squared > PARABOLA
        distance = rate * torch.where(apart, squared, 1.0).sqrt()
        polynomial = 1.0 + distance if nu == 1.5 else 1.0 + distance + distance.square() / 3.0
        return torch.where(apart, polynomial * (-distance).exp(), 1.0 - curvature * squared)

    bound = _stationary(kernel, profile)
    if not backward_only:
        return bound
    inverse = kernel.lengthscale.reciprocal()

    def between(first: Tensor, second: Tensor) -> Tensor:
        left, right = _scaled_rows(first, second, inverse)
        shape = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (rows.expand(*shape, *rows.shape[-2:]) for rows in (left, right))
        return matern_covariance(left, right, nu)

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
    return Covariance(
        lambda first, second: (first * variance) @ second.mT,
        lambda X: (X.square() * variance).sum(-1),
    )


def _scaled(bound: Covariance, outputscale: Tensor) -> Covariance:
    stationary = bound.stationary
    if stationary is not None:
        profile = stationary.profile
        stationary = stationary._replace(profile=lambda squared: outputscale[..., None, None] * profile(squared))
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
