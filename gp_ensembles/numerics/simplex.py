"""Strictly convex quadratics over the probability simplex, solved exactly by an active-set method."""

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky

JUMPS = 10  # guesses at the support before it is changed by one expert at a time
ROUNDINGS = 64  # a gradient within so many roundings of its terms counts as zero


@torch.no_grad()
def simplex_quadratic(matrix: Tensor, linear: Tensor, start: Tensor | None = None) -> Tensor:
    r"""Minimizer of :math:`\tfrac12 w^\top A w - c^\top w` over the simplex.

    Shapes: ``matrix`` (M, M), ``linear`` (M,), ``start`` (M,); returns (M,).
    """
    _check_matrix(matrix, linear)
    num_experts = linear.shape[0]
    weights = torch.full_like(linear, 1 / num_experts) if start is None else start.clone()
    found = _jump(matrix, linear, weights > 0)
    if found is not None:
        return found
    support = (weights > 0).nonzero().squeeze(1)
    added = -1
    for _ in range(20 * num_experts + 20):
        step = _step_on(matrix, linear - matrix @ weights, support)
        inside = weights[support]
        moved = inside + step
        if bool((moved > 0).all()):
            weights[support] = moved / moved.sum()
            entering = _entering(matrix, linear, weights, support)
            if entering < 0:
                return weights
            added = entering
            support = torch.cat([support, support.new_tensor([entering])])
            continue
        reach = torch.where(moved > 0, torch.inf, inside / (inside - moved).clamp(min=torch.finfo(inside.dtype).tiny))
        nearest = int(reach.argmin())
        if int(support[nearest]) == added and float(reach[nearest]) == 0.0:
            return weights  # what the gradient promised was rounding: the support before was the right one
        inside = inside + reach[nearest] * step
        inside[nearest] = 0.0
        weights[support] = inside.clamp(min=0)
        support = support[weights[support] > 0]
        added = -1
    raise NumericalError(
        f"the quadratic over the simplex of {num_experts} experts did not converge; its matrix is too badly conditioned"
    )


def _jump(matrix: Tensor, linear: Tensor, inside: Tensor) -> Tensor | None:
    """The minimizer by primal-dual steps from a guess at its support, ``None`` if they do not settle soon."""
    linear = linear - linear.amax()  # a constant changes nothing on the simplex but the digits that are left
    right = torch.stack([linear, torch.ones_like(linear)], dim=1)
    rounding = ROUNDINGS * torch.finfo(linear.dtype).eps * float(linear.abs().amax())
    for _ in range(JUMPS):
        support = inside.nonzero().squeeze(1)
        factor = cholesky(matrix[support[:, None], support], "the matrix on the support")
        solved = torch.cholesky_solve(right[support], factor)
        free, normal = solved.sum(0).tolist()
        level = (free - 1) / normal  # multiplier of the sum
        weights = torch.zeros_like(linear)
        weights[support] = torch.add(solved[:, 0], solved[:, 1], alpha=-level)
        slope = torch.addmv(linear, matrix, weights, beta=-1)
        after = torch.where(inside, weights > 0, slope < -level - rounding)
        if torch.equal(after, inside):
            return weights / weights.sum()
        inside = after
    return None


def _step_on(matrix: Tensor, residual: Tensor, support: Tensor) -> Tensor:
    """Step from a point to the minimum on the plane of a support, shape (support,)."""
    factor = cholesky(matrix[support[:, None], support], "the matrix on the support")
    right = residual[support]
    free, normal = torch.cholesky_solve(torch.stack([right, torch.ones_like(right)], dim=1), factor).unbind(1)
    return free - free.sum() / normal.sum() * normal


def _entering(matrix: Tensor, linear: Tensor, weights: Tensor, support: Tensor) -> int:
    """The expert outside the support along which the quadratic falls fastest, -1 if along none."""
    if support.shape[0] == weights.shape[0]:
        return -1
    product = matrix @ weights
    gradient = product - linear
    slope = gradient - gradient @ weights
    rounding = torch.finfo(linear.dtype).eps * (product.abs().amax() + linear.abs().amax())
    slope[support] = 0.0
    entering = int(slope.argmin())
    return entering if float(slope[entering]) < -ROUNDINGS * float(rounding) else -1


def _check_matrix(matrix: Tensor, vector: Tensor) -> None:
    num_experts = vector.shape[0] if vector.ndim == 1 else 0
    if num_experts == 0 or matrix.shape != (num_experts, num_experts):
        raise ValueError(
            f"a vector of shape (M,) and a matrix of shape (M, M) are needed, got {tuple(vector.shape)} and "
            f"{tuple(matrix.shape)}"
        )
