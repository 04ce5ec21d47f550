"""The Gram matrix, with derivatives cheaper than those of automatic differentiation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
    r"""Φᵀ Φ, differentiable to any order. Shapes: ``Phi`` (\*batch, N, F); returns (\*batch, F, F)."""
    apply: Callable[[Tensor], Tensor] = _Gram.apply
    return apply(Phi)
