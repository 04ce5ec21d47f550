r"""Matern covariances of rows in length scales, computed in blocks that stay in the cache.

.. math:: k(s) = (1 + d)\, e^{-d} \quad (\nu = 3/2), \qquad k(s) = (1 + d + d^2 / 3)\, e^{-d} \quad (\nu = 5/2), \qquad
          d = \sqrt{2 \nu s}

of the squared distance s (Rasmussen and Williams 2006, equation 4.17). A covariance of a thousand rows is made by six
passes over eight megabytes, and its derivative by as many again: block by block these cost a third. The derivative is
that of the rows, by recomputing a block,

.. math:: \partial_{a_i} = 2 \Bigl( a_i \sum_j W_{ij} - \sum_j W_{ij} b_j \Bigr), \qquad W = G \circ k'(s)

with the gradient G, and no matrix is kept for it.
"""

from typing import Any

import torch
from torch import Tensor

# Squared distances in length scales below which a Matern kernel is its parabola: the next term, a cube of the distance,
# is lost in round-off there, and the derivatives of a square root are not finite at zero.
PARABOLA = 1e-10
_AT_ONCE = 60_000  # numbers of a block, half a megabyte


class _Matern(torch.autograd.Function):
    """Covariances of rows a (..., K, D) and b (..., N, D), in length scales, from the same origin."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, nu: float) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.nu = nu
        return _covariance(first, second, nu)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        first, second = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            wanted = [rows for rows, needs in zip((first, second), ctx.needs_input_grad[:2], strict=True) if needs]
            found = iter(torch.autograd.grad(_plain(first, second, ctx.nu), wanted, gradient, create_graph=True))
            of_first, of_second = (next(found) if needs else None for needs in ctx.needs_input_grad[:2])
            return of_first, of_second, None
        parts, of_second = [], torch.zeros_like(second)
        for rows, grads in zip(*(part.split(_size(second), dim=-2) for part in (first, gradient)), strict=True):
            squared = _squared(rows, second)
            distance = squared.mul_(2.0 * ctx.nu).sqrt_()
            slope = distance.neg().exp_()
            if ctx.nu == 2.5:
                slope.mul_(distance.add_(1.0)).mul_(-5.0 / 6.0)
            else:
                slope.mul_(-1.5)
            weights = slope.mul_(grads)
            parts.append(2.0 * (weights.sum(-1, keepdim=True) * rows - weights @ second))
            of_second += 2.0 * (weights.sum(-2).unsqueeze(-1) * second - weights.mT @ rows)
        return torch.cat(parts, dim=-2), of_second, None


def matern_covariance(first: Tensor, second: Tensor, nu: float) -> Tensor:
    r"""Covariances (\*batch, K, N) of rows (\*batch, K, D) and (\*batch, N, D) in length scales, from one origin."""
    values: Tensor = _Matern.apply(first, second, nu)  # type: ignore[no-untyped-call]
    return values


def _covariance(first: Tensor, second: Tensor, nu: float) -> Tensor:
    out = first.new_empty(*first.shape[:-1], second.shape[-2])
    start = 0
    for rows in first.split(_size(second), dim=-2):
        block = out.narrow(-2, start, rows.shape[-2])
        start += rows.shape[-2]
        distance = _squared(rows, second).mul_(2.0 * nu).sqrt_()
        decay = distance.neg().exp_()
        if nu == 2.5:
            torch.mul(decay, distance.square().div_(3.0).add_(distance).add_(1.0), out=block)
        else:
            torch.mul(decay, distance.add_(1.0), out=block)
    return out


def _squared(first: Tensor, second: Tensor) -> Tensor:
    """Squared distances; round-off below zero, where rows coincide, is none."""
    squared = first @ (-2.0 * second.mT)
    squared += second.square().sum(-1).unsqueeze(-2)
    squared += first.square().sum(-1).unsqueeze(-1)
    return squared.clamp_min_(0.0)


def _size(second: Tensor) -> int:
    """Rows of a block."""
    return max(1, _AT_ONCE // max(1, second[..., 0].numel()))


def _plain(first: Tensor, second: Tensor, nu: float) -> Tensor:
    """The same by plain algebra, twice differentiable where rows coincide, too."""
    norms = first.square().sum(-1).unsqueeze(-1) + second.square().sum(-1).unsqueeze(-2)
    squared = norms - 2.0 * first @ second.mT  # a clamp would take the derivatives away
    apart = squared > PARABOLA
    distance = (2.0 * nu * torch.where(apart, squared, PARABOLA)).sqrt()
    polynomial = 1.0 + distance if nu == 1.5 else 1.0 + distance + distance.square() / 3.0
    curvature = nu / (2.0 * (nu - 1.0))
    return torch.where(apart, polynomial * (-distance).exp(), 1.0 - curvature * squared)
