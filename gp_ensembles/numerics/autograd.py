"""The Gram matrix and the Gaussian log density, with derivatives cheaper than those of automatic differentiation."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.numerics.reductions import readable_all


class _Gram(torch.autograd.Function):
    """Φᵀ Φ; its derivative along the symmetric part of a gradient G is Φ (G + Gᵀ)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(Phi: Tensor) -> Tensor:
        return Phi.mT @ Phi

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        (Phi,) = inputs
        ctx.save_for_backward(Phi)
        ctx.save_for_forward(Phi)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (Phi,) = ctx.saved_tensors
        result: Tensor = Phi @ (gradient + gradient.mT)
        return result

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (Phi,) = ctx.saved_tensors
        half: Tensor = Phi.mT @ tangent
        return half + half.mT


def gram(Phi: Tensor) -> Tensor:
    r"""Φᵀ Φ, differentiable to any order.

    Shapes: ``Phi`` (\*batch, N, F); returns (\*batch, F, F).
    """
    apply: Callable[[Tensor], Tensor] = _Gram.apply
    return apply(Phi)


class _LogMarginal(torch.autograd.Function):
    r"""Gaussian log density whose gradient needs one inverse: d/dK = (a a^T - K^{-1}) / 2 with a = K^{-1} y."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, y: Tensor) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(matrix)
        white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False).squeeze(-1)
        ctx.save_for_backward(matrix, y, factor, white, info)
        log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = -0.5 * white.square().sum(-1) - log_determinant - 0.5 * y.shape[-1] * math.log(2.0 * math.pi)
        return torch.where((info == 0) & value.isfinite(), value, torch.nan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        matrix, y, factor, white, info = ctx.saved_tensors
        good = (info == 0) & gradient.isfinite()
        if torch.is_grad_enabled():  # to be differentiated again
            identity = torch.eye(y.shape[-1], dtype=matrix.dtype, device=matrix.device)
            inverse: Tensor = torch.linalg.inv(torch.where(good[..., None, None], matrix, identity))
            solution = inverse @ y.unsqueeze(-1)
            slope = torch.where(good[..., None, None], 0.5 * (solution @ solution.mT - inverse), 0.0)
            scale = torch.where(good, gradient, 0.0)
            by_matrix = scale[..., None, None] * slope
        else:
            solution = torch.linalg.solve_triangular(factor.mT, white.unsqueeze(-1), upper=True)
            broken = factor.diagonal(dim1=-2, dim2=-1) == 0  # LAPACK refuses the whole batch for one of them
            if not readable_all(~broken):
                factor = factor.clone()
                factor.diagonal(dim1=-2, dim2=-1).add_(broken)
            inverse = torch.cholesky_inverse(factor)
            scale = torch.where(good, gradient, 0.0)
            # In place: each further pass over a new matrix costs as much as a fifth of the factorization.
            by_matrix = inverse.mul_(-0.5 * scale[..., None, None])
            by_matrix += (0.5 * scale[..., None, None] * solution) @ solution.mT
            if not readable_all(good):
                by_matrix = torch.where(good[..., None, None], by_matrix, 0.0)
        of_y = None
        if ctx.needs_input_grad[1]:
            of_y = -(scale.unsqueeze(-1) * torch.where(good.unsqueeze(-1), solution.squeeze(-1), 0.0))
            of_y = of_y.sum_to_size(y.shape)
        return by_matrix, of_y


def log_marginal(covariance: Tensor, y: Tensor) -> Tensor:
    r"""Log density of y under normal distributions of mean zero; NaN where a covariance is not positive definite.

    .. math:: \log N(y; 0, K), \quad \partial_K = \tfrac12 (a a^\top - K^{-1}), \quad a = K^{-1} y

    Shapes: ``covariance`` (\*batch, N, N), ``y`` (N,) or (\*batch, N); returns (\*batch).
    """
    value: Tensor = _LogMarginal.apply(covariance, y)  # type: ignore[no-untyped-call]
    return value
