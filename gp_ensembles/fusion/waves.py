"""Sums of cosines and sines whose frequencies are parameters, with a gradient that needs no basis-sized products."""

from typing import Any

import torch
from torch import Tensor


def waves(rates: Tensor, X: Tensor) -> Tensor:
    r"""Cosines and sines of all angles, interleaved, shape (..., 2 M, N).

    Args:
        rates: Angular frequencies, shape (..., M, D).
        X: Inputs, shape (N, D).

    Example:
        >>> import torch
        >>> waves(torch.ones(1, 1), torch.zeros(3, 1))
        tensor([[1., 1., 1.],
                [0., 0., 0.]])
    """
    angles = rates @ X.mT
    return torch.stack([angles.cos(), angles.sin()], -2).flatten(-3, -2)


def sum_of_waves(coefficients: Tensor, rates: Tensor, X: Tensor) -> Tensor:
    r"""Sums of waves, shape (..., R, N), the same as ``coefficients @ waves(rates, X)``.

    .. math:: f(x) = \sum_m z_{2m-1} \cos(\omega_m^\top x) + z_{2m} \sin(\omega_m^\top x)

    Nearly twice as fast with its gradient, for what a frequency changes is a sum of waves again,
    :math:`\partial f / \partial \omega_m = x\, (z_{2m} \cos - z_{2m-1} \sin)`: the gradient is made of matrix products
    with the waves, without trigonometry and without another array of their size. It has derivatives of any order;
    the inputs are constants.

    Args:
        coefficients: Coefficients z, interleaved, shape (..., R, 2 M).
        rates: Angular frequencies, shape (..., M, D), of the same leading axes.
        X: Inputs, shape (N, D), constants.

    Example:
        >>> import torch
        >>> sum_of_waves(torch.ones(1, 2), torch.zeros(1, 1), torch.zeros(3, 1))
        tensor([[1., 1., 1.]])
    """
    result: tuple[Tensor, Tensor, Tensor] = _SumOfWaves.apply(  # type: ignore[no-untyped-call]
        coefficients[..., 0::2].contiguous(), coefficients[..., 1::2].contiguous(), rates, X.detach()
    )
    return result[0]


class _SumOfWaves(torch.autograd.Function):
    """The sum and, as constants for the backward pass, its cosines and sines; Z = A cos + B sin."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, B: Tensor, rates: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angles = rates @ X.mT
        sines, cosines = angles.sin(), angles.cos_()  # memory is what costs here
        return A @ cosines + B @ sines, cosines, sines

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        # Or zeros of the size of the basis would be made as the gradients of the constants.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.save_for_forward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        A, B, rates, X, cosines, sines = ctx.saved_tensors
        gradient = gradients[0]
        if gradient is None:  # autograd's word for zero
            return None, None, None, None
        if torch.is_grad_enabled():
            # Somebody wants second derivatives: then the waves are functions of the rates, not constants.
            angles = rates @ X.mT
            cosines, sines = angles.cos(), angles.sin()
        # The gradient, and its products with each column of the inputs, against all waves at once.
        factors = torch.cat([torch.ones_like(X[:, :1]), X], -1).mT.unsqueeze(-2)  # (1 + D, 1, N)
        stacked = (gradient.unsqueeze(-3) * factors).flatten(-3, -2)
        rows = (factors.shape[0], gradient.shape[-2])
        with_cosines = (stacked @ cosines.mT).unflatten(-2, rows)  # (..., 1 + D, R, M)
        with_sines = (stacked @ sines.mT).unflatten(-2, rows)
        turned = B.unsqueeze(-3) * with_cosines[..., 1:, :, :] - A.unsqueeze(-3) * with_sines[..., 1:, :, :]
        return with_cosines[..., 0, :, :], with_sines[..., 0, :, :], turned.sum(-2).mT, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None, None]:
        A, B, rates, X, _, _ = ctx.saved_tensors
        by_cosine, by_sine, by_rate, _ = tangents
        angles = rates @ X.mT
        cosines, sines = angles.cos(), angles.sin()
        change = torch.zeros_like(A @ cosines)
        if by_cosine is not None:
            change = change + by_cosine @ cosines
        if by_sine is not None:
            change = change + by_sine @ sines
        if by_rate is not None:
            turn = by_rate @ X.mT
            change = change + B @ (cosines * turn) - A @ (sines * turn)
        return change, None, None
