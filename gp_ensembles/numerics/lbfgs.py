"""The memory of limited-memory BFGS, for many independent problems at once."""

from typing import NamedTuple

import torch
from torch import Tensor


class CurvaturePairs(NamedTuple):
    """The last steps of R searches, oldest first, and what the gradient did.

    Attributes:
        steps: Changes of the points, shape (m, R, P).
        changes: Changes of the gradient of what is minimized, shape (m, R, P).
        curvature: One over their products, shape (m, R); zero for a pair that is not to be used.
    """

    steps: Tensor
    changes: Tensor
    curvature: Tensor


def no_pairs(like: Tensor) -> CurvaturePairs:
    """The memory before the first step of searches whose points have shape (R, P).

    Example:
        >>> import torch
        >>> no_pairs(torch.zeros(3, 2)).steps.shape
        torch.Size([0, 3, 2])
    """
    empty = like.new_zeros(0, *like.shape)
    return CurvaturePairs(empty, empty, like.new_zeros(0, len(like)))


def remember(pairs: CurvaturePairs, step: Tensor, change: Tensor, memory: int) -> CurvaturePairs:
    """The memory after one more step of every search; a pair without positive curvature is kept, but not used.

    Args:
        pairs: The memory before.
        step: Changes of the points, shape (R, P).
        change: Changes of the gradient of what is minimized, shape (R, P).
        memory: Most pairs kept.

    Example:
        >>> import torch
        >>> pairs = remember(no_pairs(torch.zeros(2, 1)), torch.ones(2, 1), torch.tensor([[2.0], [-1.0]]), 5)
        >>> pairs.curvature
        tensor([[0.5000, 0.0000]])
    """
    product = (step * change).sum(-1)
    useful = product > 1e-10 * change.square().sum(-1)
    curvature = torch.where(useful, 1.0 / torch.where(useful, product, 1.0), 0.0)
    new = CurvaturePairs(step.unsqueeze(0), change.unsqueeze(0), curvature.unsqueeze(0))
    return CurvaturePairs(*(torch.cat([old, one])[-memory:] for old, one in zip(pairs, new, strict=True)))


def inverse_hessian_product(vector: Tensor, pairs: CurvaturePairs) -> Tensor:
    """The memory's estimate of the inverse Hessian of what is minimized, times a vector, for every search.

    The two-loop recursion (Nocedal and Wright, 2006, algorithm 7.4), started from the newest usable pair's scale.

    Args:
        vector: Shape (R, P).
        pairs: The memory.

    Example:
        >>> import torch
        >>> pairs = remember(no_pairs(torch.zeros(1, 1)), torch.ones(1, 1), torch.full((1, 1), 4.0), 5)
        >>> inverse_hessian_product(torch.full((1, 1), 8.0), pairs)  # of 2 x^2
        tensor([[2.]])
    """
    result = vector
    shares = []
    rows = list(zip(pairs.steps.unbind(0), pairs.changes.unbind(0), pairs.curvature.unbind(0), strict=True))
    for step, change, curvature in reversed(rows):
        share = (curvature * (step * result).sum(-1)).unsqueeze(-1)
        result = result - share * change
        shares.append(share)
    scale = torch.ones_like(vector[:, :1])
    for _, change, curvature in rows:
        newest = 1.0 / (curvature * change.square().sum(-1))
        scale = torch.where((curvature > 0.0).unsqueeze(-1), newest.unsqueeze(-1), scale)
    result = result * scale
    for (step, change, curvature), share in zip(rows, reversed(shares), strict=True):
        back = (curvature * (change * result).sum(-1)).unsqueeze(-1)
        result = result + step * (share - back)
    return result
