"""The Gram matrix, and sines and cosines, with derivatives cheaper than those of automatic differentiation."""

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


class _Waves(torch.autograd.Function):
    """Sines of 2 R angles, the last R a quarter of a turn ahead: each half is the derivative of the other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(angles: Tensor) -> Tensor:
        return angles.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _turned(ctx.saved_tensors[0], gradient)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _turned(ctx.saved_tensors[0], tangent)


def _turned(waves: Tensor, factor: Tensor) -> Tensor:
    """Derivatives of waves times a factor."""
    half = waves.shape[-1] // 2
    return torch.cat([waves[..., half:] * factor[..., :half], -waves[..., :half] * factor[..., half:]], dim=-1)


def waves(angles: Tensor) -> Tensor:
    r"""Sines of angles (\*batch, N, 2 R), the last R of them a quarter of a turn ahead; angles may be overwritten."""
    if not (torch.is_grad_enabled() and angles.requires_grad):
        return angles.sin_()
    apply: Callable[[Tensor], Tensor] = _Waves.apply
    return apply(angles)
